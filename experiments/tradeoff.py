"""How much analysis pays off in dynamic batching: simulation, budget curve, "auto".

`simulate` counts nodes before and launches after, `curve` times minibatches against their analysis
budget, `auto` lets "auto" compete with every fixed setting, `all` does these; `draw` makes tables
and pictures again from the figures of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from tqdm import tqdm

from command import POSITIVE, at_least, listed, run_program
from relatedness.data import DataError
from study import auto, curve, pictures, simulate
from study.settings import GRANULARITIES
from timing.axes import save
from timing.contest import KINDS, Outcome
from timing.results import ResultsError, Table, environment, grouped, read_json, write_json
from workloads.base import Workload, WorkloadError
from workloads.registry import MAKERS, make

Step = Callable[[str], None]


def run_simulate(args: argparse.Namespace, workload: Workload, size: int, step: Step) -> List[Any]:
    """Count nodes before and launches after."""
    return simulate.simulate(workload, [size], args.minibatches, args.seed, step)


def run_curve(args: argparse.Namespace, workload: Workload, size: int, step: Step) -> List[Any]:
    """Time minibatches against their analysis budget."""
    rounds = args.rounds or (3 if args.quick else 5)
    return [
        curve.measure(workload, kind, size, args.granularities, args.points, rounds, args.seed,
                      step)
        for kind in args.kinds
    ]  # fmt: skip


def run_auto(args: argparse.Namespace, workload: Workload, size: int, step: Step) -> List[Any]:
    """Let "auto" compete with every fixed setting."""
    rounds = args.rounds or (3 if args.quick else 7)
    return [
        auto.measure(workload, kind, size, min(2, rounds), rounds, args.seed, step)
        for kind in args.kinds
    ]


def show_simulate(output: Path, rows: Sequence[Any], titles: Dict[str, str]) -> List[Table]:
    """Draw one picture per workload."""
    tables = []
    for name, own in grouped(rows, lambda row: row.workload).items():
        save(pictures.simulation(own, titles[name]), output / f"simulate-{name}")
        tables.append(simulate.table(own, titles[name]))
    return tables


def show_curve(output: Path, outcomes: Sequence[Any], titles: Dict[str, str]) -> List[Table]:
    """Draw curve and shares per workload and batch size."""
    tables = []
    for name, own in grouped(outcomes, lambda outcome: outcome.workload).items():
        for size, group in grouped(own, lambda outcome: outcome.batch_size).items():
            save(pictures.curves(group, titles[name]), output / f"curve-{name}-{size}")
            save(pictures.shares(group, titles[name]), output / f"shares-{name}-{size}")
        tables.append(curve.table(own, titles[name]))
    return tables


def show_auto(output: Path, cases: Sequence[Any], titles: Dict[str, str]) -> List[Table]:
    """Draw all cases in one picture."""
    found = [auto.Verdict(case) for case in cases]
    save(pictures.verdicts(found, titles), output / "auto")
    return [auto.table(found, titles)]


class Study(NamedTuple):
    """One of the experiments.

    Attributes
    ----------
    run, show : callable
        Measure one workload at one batch size; draw, and lay out tables.
    from_json : callable
        Read a result.
    workloads : tuple of str
        Which are run if none are asked for; "sick" where there is data.
    sizes, quick_sizes : list of int
    """

    run: Callable[..., List[Any]]
    show: Callable[..., List[Table]]
    from_json: Callable[[Any], Any]
    workloads: Sequence[str]
    sizes: List[int]
    quick_sizes: List[int]


STUDIES = {
    "simulate": Study(
        run_simulate, show_simulate, lambda row: simulate.Simulated(**row), ("embedded", "sick"),
        [16, 32, 64, 128, 256, 512, 1024], [16, 64, 256],
    ),
    "curve": Study(
        run_curve, show_curve, Outcome.from_json, ("embedded", "sick"),
        [32, 64, 128, 256], [16, 32],
    ),
    "auto": Study(
        run_auto, show_auto, auto.Case.from_json, [name for name in MAKERS if name != "sst"],
        [1, 8, 64], [1, 16],
    ),
}  # fmt: skip
#: Batch sizes of workloads in `auto` for which the usual ones are too few or make no sense.
OWN_SIZES = {"embedded": [1, 8, 64, 256], "sick": [1, 8, 64, 256], "wandering": [32],
             "reads": [1, 8, 32]}  # fmt: skip


def run_studies(args: argparse.Namespace) -> None:
    """Run what the verb names: one study, or all."""
    for verb in STUDIES if args.verb == "all" else [args.verb]:
        run_study(args, verb)


def run_study(args: argparse.Namespace, verb: str) -> None:
    """Measure, write figures as they come, and show them."""
    study = STUDIES[verb]
    default = [name for name in study.workloads if name != "sick" or args.data is not None]
    names = args.workloads or default
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    sizes = {name: value for name, value in given.items() if value is not None}
    workloads = [make(name, args, **sizes) for name in names]
    cases = [(w, size) for w in workloads for size in _batch_sizes(args, verb, w.name)]
    for workload, size in cases:  # too few samples are an error before anything is measured
        workload.minibatches(size, 0)
    settings = {name: value for name, value in vars(args).items() if name != "run"}
    content = {"environment": environment(), "settings": settings,
               "titles": {w.name: w.title for w in workloads}, "results": []}  # fmt: skip
    with tqdm(desc=verb, unit="round") as bar:

        def step(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        for workload, size in cases:
            for result in study.run(args, workload, size, step):
                as_json = getattr(result, "as_json", None) or result._asdict
                content["results"].append(as_json())
            write_json(args.output / f"{verb}.json", content)
    present(args.output, verb)


def _batch_sizes(args: argparse.Namespace, verb: str, workload: str) -> List[int]:
    if args.batch_sizes or args.quick:
        return args.batch_sizes or STUDIES[verb].quick_sizes
    return OWN_SIZES.get(workload, STUDIES[verb].sizes) if verb == "auto" else STUDIES[verb].sizes


def run_draw(args: argparse.Namespace) -> None:
    """Make tables and pictures from the figures of an earlier run."""
    found = [verb for verb in STUDIES if (args.output / f"{verb}.json").is_file()]
    if not found:
        raise ResultsError(f"{args.output}: no results here; run simulate, curve or auto first")
    for verb in found:
        present(args.output, verb)


def present(output: Path, verb: str) -> None:
    """Write the tables and pictures of one study's results, and print the tables."""
    study = STUDIES[verb]

    def understand(content: Dict[str, Any]) -> Any:
        return list(map(study.from_json, content["results"])), content["titles"]

    results, titles = read_json(output / f"{verb}.json", understand)
    text = "\n".join(table.markdown() for table in study.show(output, results, titles))
    (output / f"{verb}.md").write_text(text, encoding="utf-8")
    print(text)


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    text = "where JSON, tables and pictures go (default %(default)s)"
    add("--output", type=Path, default=Path("runs/tradeoff"), metavar="DIR", help=text)
    for option, text in (
        ("--data", "folder with SICK, as training reads it"),
        ("--wikiner", "folder with WikiNER's train.txt"),
        ("--sst", "folder with the sentiment treebank's train.txt"),
        ("--clevr", "folder with CLEVR's CLEVR_train_1_*.json"),
    ):
        add(option, type=Path, metavar="DIR", help=text)
    named = (
        f"of {', '.join(MAKERS)} (default: all but sst for auto, embedded and sick for others; "
        "sick if there is --data)"
    )
    for option, kind, default, text in (
        ("--workloads", listed(str, tuple(MAKERS)), None, named),
        ("--batch-sizes", listed(POSITIVE), None, "samples of a minibatch"),
        ("--kinds", listed(str, KINDS), list(KINDS), "inference, training (default both)"),
        ("--granularities", listed(str, GRANULARITIES), ["operator", "block"],
         "curves to draw (default operator,block)"),
    ):  # fmt: skip
        add(option, type=kind, default=default, metavar="X,X,...", help=text)
    for option, kind, default, text in (
        ("--points", at_least(int, 2), 9, "budgets of a curve between none and no limit"),
        ("--rounds", POSITIVE, None, "timed minibatches per setting"),
        ("--minibatches", POSITIVE, 3, "for simulate"),
        ("--limit", POSITIVE, None, "first N samples of every workload"),
        ("--embedding-size", POSITIVE, None, "of the inputs"),
        ("--hidden", POSITIVE, None, "of the states"),
        ("--seed", at_least(int, 0), 1, "of everything that is drawn"),
    ):
        shown = "" if default is None else f" (default {default})"
        add(option, type=kind, default=default, metavar="N", help=text + shown)
    add("--quick", action="store_true", help="few sizes and rounds: some minutes")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.required = True
    summaries = {verb: study.run.__doc__ for verb, study in STUDIES.items()}
    for name, summary in (*summaries.items(), ("all", "Run every experiment."),
                          ("draw", run_draw.__doc__)):  # fmt: skip
        verb = verbs.add_parser(name, parents=[shared], help=summary, description=summary)
        verb.set_defaults(run=run_draw if name == "draw" else run_studies)
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
