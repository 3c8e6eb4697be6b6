"""Speed of the relatedness model run in every way, from the plain loop to bare matrix products.

What is run: pair by pair, imperative and hybridized; batched by depth with concatenation and split;
batched by hand; by gluon_dynbatch; and, as a bound, the model's matrix products alone. How it is
timed is told in `timing/contest.py`. Then two ragged workloads are trained, a tagger, also padded
with a fused LSTM, and a binary Tree-LSTM. Memory and first minibatch are measured in processes of
their own, then the cost of recording, and all is held against the bars (`speed/bars.py`). With
--peers, nothing of this runs, but ours in turns with other systems (`peers/driver.py`). Without
--data, --wikiner and --sst, samples are those of the built-in corpus.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from command import UsageError, run_program
from peers import driver as peers
from relatedness.assembly import read_pairs
from relatedness.data import DataError
from relatedness.options import batching_options
from speed import bars, options, pictures, recording
from speed.bars import Run
from speed.contenders import make_contenders, make_ragged
from speed.fresh import FreshError, measure_in_process
from speed.fresh import measure as measure_fresh
from timing import contest
from timing.axes import save
from timing.results import Column, ResultsError, Table, environment, grouped, read_json, write_json
from workloads.base import WorkloadError
from workloads.registry import make

#: Whose memory and first minibatch are told.
FRESH_MODES = ("manual", "dynamic")


def measure(args: argparse.Namespace, argv: Sequence[str], content: Dict[str, Any]) -> None:
    """Measure with each number of threads; write the figures as they come."""

    def keep(threads: str, run: Dict[str, Any]) -> None:
        content["runs"][threads] = run
        if args.json is not None:
            write_json(args.json, content)

    for threads in args.threads:
        if threads == options.own_threads():
            measure_here(args, argv, partial(keep, threads))
        else:
            print(f"\nOMP_NUM_THREADS={threads}", flush=True)
            there = measure_in_process(
                __file__, [*argv, "--threads", threads], f"with {threads} threads",
                OMP_NUM_THREADS=threads,
            )  # fmt: skip
            keep(threads, there["runs"][threads])


def measure_here(
    args: argparse.Namespace, argv: Sequence[str], keep: Callable[[Dict[str, Any]], None]
) -> None:
    """Measure everything in this process, and what has to be fresh in others."""
    batching_options(args)  # a wrong one is an error before anything is measured
    for name in args.workloads:  # so is a file that is not there
        make(name, argparse.Namespace(**{**vars(args), "limit": 1}), **args.sizes)
    pairs = read_pairs(args, ("train",))
    if max(args.batch_sizes) > len(pairs["train"]):
        raise UsageError(
            f"--batch-sizes: minibatches of {max(args.batch_sizes)} are asked for, "
            f"and there are {len(pairs['train'])} pairs"
        )
    run = Run(environment(), [], [], {}, recording.measure(args, pairs))
    for kind in contest.KINDS:
        for mode in FRESH_MODES:
            alone = [*argv, "--fresh", mode, kind]
            figures = measure_in_process(__file__, alone, f"for {mode}, {kind}", quiet=True)
            run.fresh.setdefault(kind, {})[mode] = figures
    contenders = make_contenders(args, pairs)
    workload = contenders[-1].runner.workload
    for size in args.batch_sizes:
        fresh = workload.minibatches(size, args.seed)
        outcomes = [
            contest.contest(contenders, fresh, kind, size, args.rounds, args.warmup, args.seconds)
            for kind in contest.KINDS
        ]
        run.pairs.extend(outcomes)
        _show(f"minibatches of {size}, pairs per second, {args.rounds} rounds", outcomes)
        keep(run.as_json())
    del contenders, workload, fresh
    for name in args.workloads:
        ways, fresh = make_ragged(name, args)
        size = args.workload_size
        outcome = contest.contest(
            ways, fresh, "training", size, args.rounds, args.warmup, count=args.workload_minibatches
        )
        run.workloads.append(outcome)
        _show(f"{name}, minibatches of {size}, words per second", [outcome])
        keep(run.as_json())


def measure_peers(args: argparse.Namespace, argv: Sequence[str], content: Dict[str, Any]) -> None:
    """Measure ours and the peers; write the figures as they come."""
    batching_options(args)
    groups = content["peers"] = {"environment": environment(), "workloads": {}}

    def keep(workload: str, group: peers.Group) -> None:
        groups["workloads"][workload] = group
        if args.json is not None:
            write_json(args.json, content)

    peers.measure(args, argv, keep)


def show_peers(content: Dict[str, Any]) -> None:
    """Print what `measure_peers` has measured."""
    for group in content["workloads"].values():
        print(*peers.lines(group), sep="\n")


def _show(title: str, outcomes: Sequence[contest.Outcome]) -> None:
    """Print what has just been measured."""
    print(f"\n{contest.speed_table(title, outcomes).markdown()}", flush=True)
    for outcome in outcomes:
        unsettled = [label for label, each in outcome.settling.items() if not each.settled]
        if unsettled:
            print(f"{outcome.kind}: {', '.join(unsettled)} had not settled after --warmup")


def read(path: Path) -> Dict[str, Any]:
    """Read what an earlier run wrote.

    Raises
    ------
    ResultsError
        If the file holds something else, or the run did not come to its end.
    """

    def understand(content: Dict[str, Any]) -> Dict[str, Any]:
        if "peers" in content:
            for group in content["peers"]["workloads"].values():
                list(peers.lines(group))
            return content
        for run in map(Run.from_json, content["runs"].values()):
            pictures.STYLES[run.pairs[0].rows[0].label]
        return {"settings": content["settings"], "runs": content["runs"]}

    return read_json(path, understand)


def show(settings: Dict[str, Any], runs: Dict[str, Run]) -> None:
    """Print what belongs to the whole run: medians by batch size, fresh processes, bars."""
    for threads, run in runs.items():
        print(f"## OMP_NUM_THREADS={threads}\n")
        for kind, outcomes in grouped(run.pairs, lambda outcome: outcome.kind).items():
            print(_by_size(kind, outcomes).markdown())
        for outcome in run.workloads:
            title = f"{outcome.workload}, words, minibatches of {outcome.batch_size}"
            print(contest.speed_table(title, [outcome]).markdown())
        print(_fresh_table(run.fresh, settings["fresh_size"]).markdown())
        print(
            f"Recording: {run.recording['us_per_call']:.2f} us per cell call, beside "
            f"{run.recording['own_us_per_call']:.2f} us of the model's own Python.\n"
        )
    held = {threads: bars.hold(run) for threads, run in runs.items()}
    print(bars.table(held).markdown())
    if bars.THREADS in held:
        known = [bar.met for bar in held[bars.THREADS] if bar.met is not None]
        print(f"{known.count(True)} of {len(known)} bars met")


def _by_size(kind: str, outcomes: Sequence[contest.Outcome]) -> Table:
    last = outcomes[-1]
    columns = (
        Column(f"pairs/s, {kind}"), *(Column(str(o.batch_size), ",.0f") for o in outcomes),
        Column(f"analysis of {last.batch_size}, ms", ".1f"),
        Column(f"launches of {last.batch_size}", ".0f"),
    )  # fmt: skip
    rows = [
        (name, *(outcome.median(name) for outcome in outcomes), last.median(name, "analysis"),
         last.median(name, "launches"))
        for name in last.by_label
    ]  # fmt: skip
    return Table(f"Speed by batch size, {kind}", columns, rows)


def _fresh_table(fresh: Dict[str, Any], size: int) -> Table:
    columns = (
        Column("mode"), Column("kind"), Column("first minibatch, s", ".2f"),
        Column("peak RSS, MB", ",.0f"), Column("RSS before, MB", ",.0f"),
        Column("minibatches until then", "d"),
    )  # fmt: skip
    rows = [
        (mode, kind, row["first_seconds"], row["peak_mb"], row["start_mb"], row["minibatches"])
        for kind, modes in fresh.items()
        for mode, row in modes.items()
    ]  # fmt: skip
    return Table(f"Fresh processes, minibatches of {size}", columns, rows)


def draw(settings: Dict[str, Any], runs: Dict[str, Run], path: Path) -> List[Path]:
    """Draw speed against batch size, and the bars, as PNG and SVG."""
    threads, run = next(iter(runs.items()))
    machine = run.environment
    data = f"pairs of {Path(settings['data']).name}" if settings["data"] else "built-in corpus"
    where = f"{machine['processor']}, {machine['cores']} cores"
    subtitle = (
        f"{data}; median and quartiles of {settings['rounds']} interleaved rounds, plans made anew "
        f"unless cached; {where}, OMP_NUM_THREADS={threads}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {threads: bars.hold(each) for threads, each in runs.items()}
    beside = path.with_name(f"{path.stem}-bars")
    return [
        *save(pictures.speed(run.pairs, subtitle), path),
        *save(pictures.bars(held, f"{data}; {where}"), beside),
    ]


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Do what the options say."""
    if args.fresh is not None:
        figures = measure_fresh(args, read_pairs(args, ("train",)), *args.fresh)
        return write_json(args.collect, figures)
    if args.picture is not None and args.peers is not None:
        raise UsageError("--picture: there is none of --peers")
    if args.read is not None:
        content = read(args.read)
        if "peers" in content:
            return show_peers(content["peers"])
    else:
        private = ("fresh", "read", "collect")
        settings = {name: value for name, value in vars(args).items() if name not in private}
        content = {"settings": settings, "rules": contest.__doc__, "runs": {}}
        if args.peers is not None:
            return measure_peers(args, argv, content)
        args.json = args.collect or args.json
        measure(args, argv, content)
        if args.collect is not None:
            return None
    runs = {threads: Run.from_json(each) for threads, each in content["runs"].items()}
    print()
    show(content["settings"], runs)
    if args.picture is not None:
        print("pictures:", *draw(content["settings"], runs, args.picture))
    return None


def main(argv: Any = None) -> int:
    """Run the program."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = options.parse(argv, __doc__.splitlines()[0])
    return run_program(lambda: run(args, argv), DataError, WorkloadError, FreshError, ResultsError,
                       peers.PeerError)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
