"""How much analysis pays off in dynamic batching: simulation, budget curve, cost model, "auto".

`simulate` counts nodes before and launches after, `curve` times minibatches against their analysis
budget and fits a cost model, `auto` lets "auto" compete with every fixed setting, `all` does these;
`draw` makes tables and pictures again from the figures of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from tqdm import tqdm

from command import run_program
from relatedness.data import DataError
from relatedness.options import at_least
from study import contest, cost, curve, launches, pictures, simulate
from study.axes import save
from study.results import ResultsError, Table, grouped, read_results, write_results
from study.running import GRANULARITIES, KINDS, POLICIES
from workloads.base import Workload, WorkloadError
from workloads.registry import MAKERS, make

#: Workloads of each verb, if none are asked for; "sick" where there is data.
WORKLOADS = {
    "simulate": ("embedded", "sick"),
    "curve": ("embedded", "sick"),
    "auto": tuple(name for name in MAKERS if name != "sst"),
}
#: Rows of each verb's results, by name.
ROWS: Dict[str, Dict[str, Any]] = {
    "simulate": {"simulated": simulate.Simulated},
    "curve": {"runs": curve.CurveRun, "launches": launches.LaunchRun},
    "auto": {"runs": contest.ContestRun, "settled": contest.Settled},
}
SIZES = {"simulate": [16, 32, 64, 128, 256, 512, 1024], "curve": [32, 64, 128, 256],
         "auto": [1, 8, 64]}  # fmt: skip
QUICK_SIZES = {"simulate": [16, 64, 256], "curve": [16, 32], "auto": [1, 16]}
#: Batch sizes of workloads in `auto` for which the usual ones are too few or make no sense.
OWN_SIZES = {"embedded": [1, 8, 64, 256], "sick": [1, 8, 64, 256], "wandering": [32],
             "reads": [1, 8, 32]}  # fmt: skip


def make_workloads(args: argparse.Namespace, verb: str) -> List[Workload]:
    """Make the workloads that were asked for, each from the same seed."""
    default = [name for name in WORKLOADS[verb] if name != "sick" or args.data is not None]
    return [make(name, args, **_sizes(args)) for name in args.workloads or default]


def _sizes(args: argparse.Namespace) -> Dict[str, int]:
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    return {name: value for name, value in given.items() if value is not None}


def check_sizes(workloads: Sequence[Workload], sizes: Sequence[int]) -> None:
    """Refuse batch sizes that some workload is too small for before anything is measured."""
    for workload in workloads:
        workload.minibatches(max(sizes), 0)


def run_simulate(args: argparse.Namespace) -> None:
    """Count nodes before and launches after."""
    workloads = make_workloads(args, "simulate")
    sizes = _batch_sizes(args, "simulate")
    check_sizes(workloads, sizes)
    settings = [(granularity, policy) for granularity in GRANULARITIES for policy in POLICIES]
    rows: List[simulate.Simulated] = []
    with _progress("simulate", len(workloads) * len(sizes) * len(settings)) as step:
        for workload in workloads:
            rows += simulate.simulate(workload, sizes, settings, args.minibatches, args.seed, step)
            _write(args, "simulate", workloads, {"simulated": rows})
    present(args.output, "simulate")


def run_curve(args: argparse.Namespace) -> None:
    """Time minibatches against their analysis budget; fit a cost model."""
    workloads = make_workloads(args, "curve")
    sizes = _batch_sizes(args, "curve")
    check_sizes(workloads, sizes)
    rounds = args.rounds or (3 if args.quick else 5)
    per_workload = len(sizes) * (len(args.kinds) * (rounds + 1) + len(args.granularities))
    runs: List[curve.CurveRun] = []
    single: List[launches.LaunchRun] = []
    with _progress("curve", len(workloads) * per_workload) as step:
        for workload in workloads:
            for kind in args.kinds:
                runs += curve.measure(workload, kind, sizes, args.granularities, args.points,
                                      rounds, args.seed, step)  # fmt: skip
            single += launches.measure(workload, sizes, args.granularities, args.seed, step)
            _write(args, "curve", workloads, {"runs": runs, "launches": single})
    present(args.output, "curve")


def run_auto(args: argparse.Namespace) -> None:
    """Let "auto" compete with every fixed setting."""
    workloads = make_workloads(args, "auto")
    sizes = {w.name: _batch_sizes(args, "auto", w.name) for w in workloads}
    for workload in workloads:
        check_sizes([workload], sizes[workload.name])
    rounds = args.rounds or (3 if args.quick else 7)
    heats = min(2, rounds)
    cases = [(w, kind, size) for w in workloads for kind in args.kinds for size in sizes[w.name]]
    runs: List[contest.ContestRun] = []
    settled: List[contest.Settled] = []
    with _progress("auto", len(cases) * (heats + rounds + 2)) as step:
        for workload, kind, size in cases:
            more, settling = contest.measure(workload, kind, size, heats, rounds, args.seed, step)
            runs += more
            settled.append(settling)
            _write(args, "auto", workloads, {"runs": runs, "settled": settled})
    present(args.output, "auto")


def run_all(args: argparse.Namespace) -> None:
    """Run every experiment."""
    for run in (run_simulate, run_curve, run_auto):
        run(args)


def run_draw(args: argparse.Namespace) -> None:
    """Make tables and pictures from the figures of an earlier run."""
    found = [verb for verb in ROWS if (args.output / f"{verb}.json").is_file()]
    if not found:
        raise ResultsError(f"{args.output}: no results here; run simulate, curve or auto first")
    for verb in found:
        present(args.output, verb)


def present(output: Path, verb: str) -> None:
    """Write the tables and pictures of one verb's results, and print the tables."""
    content = read_results(output / f"{verb}.json", ROWS[verb])
    tables = PRESENTERS[verb](output, content["results"], content["titles"])
    text = "\n".join(table.markdown() for table in tables)
    (output / f"{verb}.md").write_text(text, encoding="utf-8")
    print(text)


def present_simulate(output: Path, results: Any, titles: Dict[str, str]) -> List[Table]:
    """Draw one picture per workload."""
    tables = []
    for name, rows in grouped(results["simulated"], lambda row: row.workload).items():
        save(pictures.simulation(rows, titles[name]), output / f"simulate-{name}")
        tables.append(simulate.table(rows, titles[name]))
    return tables


def present_curve(output: Path, results: Any, titles: Dict[str, str]) -> List[Table]:
    """Draw curve and shares per workload and batch size, and the cost model per workload."""
    tables = []
    single = grouped(results["launches"], lambda row: row.workload)
    for name, runs in grouped(results["runs"], lambda row: row.workload).items():
        title = titles[name]
        for size, group in grouped(runs, lambda run: run.batch_size).items():
            save(pictures.curves(group, title), output / f"curve-{name}-{size}")
            save(pictures.shares(group, title), output / f"shares-{name}-{size}")
        tables.append(curve.table(runs, title))
        fitted, predictions = cost.judge(runs)
        tables.append(cost.coefficient_table(fitted, title))
        if predictions:  # there was more than one batch size
            save(pictures.predictions(predictions, title), output / f"cost-{name}")
            tables.append(cost.prediction_table(predictions, title))
            tables.append(cost.regret_table(cost.regrets(predictions), title))
        lines = launches.lines(single[name])
        if lines:
            save(pictures.launch_times(single[name], lines, title), output / f"launches-{name}")
            tables.append(launches.table(lines, title))
    return tables


def present_auto(output: Path, results: Any, titles: Dict[str, str]) -> List[Table]:
    """Draw all cases in one picture."""
    found = contest.verdicts(results["runs"], results["settled"])
    save(pictures.verdicts(found, titles), output / "auto")
    return [contest.table(found, titles), contest.heat_table(results["runs"], titles)]


PRESENTERS = {"simulate": present_simulate, "curve": present_curve, "auto": present_auto}


class _progress:  # noqa: N801
    """A progress bar whose step says what was done last."""

    def __init__(self, verb: str, total: int) -> None:
        self.bar = tqdm(total=total, desc=verb, unit="round")

    def __enter__(self) -> Callable[[str], None]:
        return self.step

    def step(self, what: str) -> None:
        self.bar.set_postfix_str(what, refresh=False)
        self.bar.update()

    def __exit__(self, *error: Any) -> None:
        self.bar.close()


def _batch_sizes(args: argparse.Namespace, verb: str, workload: str = "") -> List[int]:
    if args.batch_sizes or args.quick:
        return args.batch_sizes or QUICK_SIZES[verb]
    return OWN_SIZES.get(workload, SIZES[verb])


def _write(
    args: argparse.Namespace, verb: str, workloads: Sequence[Workload], results: Dict[str, Any]
) -> None:
    """Write what is there so far; `draw` makes the most of a run that was stopped."""
    settings = {name: value for name, value in vars(args).items() if name != "run"}
    titles = {workload.name: workload.title for workload in workloads}
    write_results(args.output / f"{verb}.json", settings, results, titles=titles)


def _listed(kind: Callable[[str], Any]) -> Callable[[str], List[Any]]:
    def parse(text: str) -> List[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    parse.__name__ = "comma-separated list"
    return parse


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    shared = argparse.ArgumentParser(add_help=False)
    positive = at_least(int, 1)
    add = shared.add_argument
    add(
        "--output",
        type=Path,
        default=Path("runs/tradeoff"),
        metavar="DIR",
        help="where JSON, tables and pictures go (default %(default)s)",
    )
    add("--data", type=Path, metavar="DIR", help="SICK, in a layout that training reads")
    add("--wikiner", type=Path, metavar="DIR", help="folder with WikiNER's train.txt")
    add("--sst", type=Path, metavar="DIR", help="folder with the sentiment treebank's train.txt")
    add("--clevr", type=Path, metavar="DIR", help="folder with CLEVR's CLEVR_train_1_*.json")
    add(
        "--workloads",
        type=_listed(_one_of(tuple(MAKERS))),
        metavar="NAMES",
        help=f"comma-separated: {', '.join(MAKERS)} (default: all but sst for auto, embedded and "
        "sick for others; sick if there is --data)",
    )
    add("--batch-sizes", type=_listed(positive), metavar="NUMBERS", help="comma-separated")
    add(
        "--kinds",
        type=_listed(_one_of(KINDS)),
        default=list(KINDS),
        metavar="KINDS",
        help="comma-separated: inference, training (default both)",
    )
    add(
        "--granularities",
        type=_listed(_one_of(GRANULARITIES)),
        default=["operator", "block"],
        metavar="NAMES",
        help="curves to draw, comma-separated (default operator,block)",
    )
    add(
        "--points",
        type=at_least(int, 2),
        default=9,
        metavar="N",
        help="budgets of a curve between none and no limit (default 9)",
    )
    add("--rounds", type=positive, metavar="N", help="timed minibatches per setting")
    add("--minibatches", type=positive, default=3, metavar="N", help="for simulate (default 3)")
    add("--limit", type=positive, metavar="N", help="first N samples of every workload")
    add("--embedding-size", type=positive, metavar="N", help="of the inputs")
    add("--hidden", type=positive, metavar="N", help="of the states")
    add("--seed", type=at_least(int, 0), default=1)
    add("--quick", action="store_true", help="few sizes and rounds: some minutes")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.required = True
    for name, run in (("simulate", run_simulate), ("curve", run_curve), ("auto", run_auto),
                      ("all", run_all), ("draw", run_draw)):  # fmt: skip
        summary = run.__doc__.splitlines()[0]
        verb = verbs.add_parser(name, parents=[shared], help=summary, description=summary)
        verb.set_defaults(run=run)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program."""
    args = make_parser().parse_args(argv)

    def run() -> None:
        args.output.mkdir(parents=True, exist_ok=True)
        args.run(args)

    return run_program(run, DataError, WorkloadError, ResultsError)


if __name__ == "__main__":
    sys.exit(main())
