"""Speed of the relatedness model run in every way, from the plain loop to bare matrix products.

What is run: pair by pair, imperative and hybridized; batched by depth with concatenation and split;
batched by hand; by gluon_dynbatch; and, as a bound, the model's matrix products alone. How it is
timed is told in `relatedness/benchmark.py`. Then two ragged workloads are trained, a tagger, also
padded with a fused LSTM, and a binary Tree-LSTM (`speed/ragged.py`). Memory and first minibatch are
measured in processes of their own, then the cost of recording, and all is held against the bars
(`speed/bars.py`). Without --data, --wikiner and --sst, samples are those of the built-in corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tqdm import tqdm

from command import run_program
from relatedness import benchmark
from relatedness.assembly import UsageError, read_pairs
from relatedness.data import DataError
from relatedness.options import batching_options
from speed import bars, options, pictures, ragged, recording
from speed.contenders import Pairs, make_contenders
from speed.fresh import FreshError, measure_in_process, report_own_figures, run_process
from study.axes import save
from study.results import Column, Table
from workloads.base import WorkloadError

Run = Dict[str, Any]


def measure(args: argparse.Namespace, argv: Sequence[str], content: Dict[str, Any]) -> None:
    """Measure with each number of threads; write the figures as they come."""
    for threads in args.threads:
        if threads == options.own_threads():
            measure_here(args, argv, content["runs"].setdefault(threads, {}), content)
        else:
            print(f"\nOMP_NUM_THREADS={threads}", flush=True)
            content["runs"][threads] = _measure_there(argv, threads)
        _write(args.json, content)


def _measure_there(argv: Sequence[str], threads: str) -> Run:
    """Measure in a process with another number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        ended = run_process(
            [__file__, *argv, "--threads", threads, "--collect", str(file)],
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        if ended.returncode:
            raise FreshError(f"the process with {threads} threads ended with {ended.returncode}")
        return json.loads(file.read_text(encoding="utf-8"))["runs"][threads]


def measure_here(
    args: argparse.Namespace, argv: Sequence[str], run: Run, content: Dict[str, Any]
) -> None:
    """Measure everything in this process, and what has to be fresh in others."""
    batching_options(args)  # a wrong one is an error before anything is measured
    ragged.check_data(args)
    pairs = read_pairs(args, ("train",))
    if max(args.batch_sizes) > len(pairs["train"]):
        raise UsageError(
            f"--batch-sizes: minibatches of {max(args.batch_sizes)} are asked for, "
            f"and there are {len(pairs['train'])} pairs"
        )
    run.update(environment=benchmark.environment(), fresh={}, batch_sizes={}, workloads={})
    run["recording"] = recording.measure(args, pairs)
    _measure_fresh(args, argv, run)
    contenders, samples = make_contenders(args, pairs)
    for size in args.batch_sizes:
        result = benchmark.compare(
            contenders, samples, size, args.rounds, args.warmup, args.seconds, args.seed
        )
        run["batch_sizes"][str(size)] = result
        _show(f"minibatches of {size}, pairs per second, {args.rounds} rounds", result)
        _write(args.json, content)
    del contenders, samples
    for name in args.workloads:
        result = ragged.measure(name, args)
        run["workloads"][name] = result
        size = args.workload_size
        _show(f"{result['title']}, minibatches of {size}, words per second", result)
        _write(args.json, content)
    run["bars"] = bars.to_json(bars.hold(run))


def _show(title: str, result: Dict[str, Any]) -> None:
    """Print what has just been measured."""
    print(f"\n{title}\n{benchmark.table(result)}", flush=True)
    for kind, modes in result["settled"].items():
        unsettled = [name for name, settled in modes.items() if not settled]
        if unsettled:
            print(f"{kind}: {', '.join(unsettled)} had not settled after --warmup", flush=True)


def _measure_fresh(args: argparse.Namespace, argv: Sequence[str], run: Run) -> None:
    runs = [(kind, mode) for kind in benchmark.KINDS for mode in args.fresh_modes]
    for kind, mode in tqdm(
        runs, desc="fresh processes", leave=False, disable=not sys.stderr.isatty()
    ):
        figures = measure_in_process(Path(__file__), argv, mode, kind)
        run["fresh"].setdefault(kind, {})[mode] = figures


def _write(path: Optional[Path], content: Dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, default=str)  # paths and contexts by their names
        path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> Dict[str, Any]:
    """Read what an earlier run wrote.

    Raises
    ------
    UsageError
        If the file holds something else, or the run did not come to its end.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = content["settings"]
        if settings and all(run["bars"] for run in content["runs"].values()):
            return content
        reason = "holds no figures"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise UsageError(f"{path}: not a file that --json wrote ({reason})")


def show(content: Dict[str, Any]) -> None:
    """Print what belongs to the whole run: medians by batch size, fresh processes, bars."""
    settings, runs = content["settings"], content["runs"]
    for threads, run in runs.items():
        print(f"## OMP_NUM_THREADS={threads}\n")
        for kind in benchmark.KINDS:
            print(_speed_table(run["batch_sizes"], kind).markdown())
        for result in run["workloads"].values():
            print(ragged.table(result, settings["workload_size"]).markdown())
        print(_fresh_table(run["fresh"], settings["fresh_size"]).markdown())
        cost = run["recording"]
        print(
            f"Recording: {cost['us_per_call']:.2f} us per cell call, beside "
            f"{cost['own_us_per_call']:.2f} us of the model's own Python.\n"
        )
    held = {threads: bars.from_json(run["bars"]) for threads, run in runs.items()}
    print(bars.table(held).markdown())
    if bars.THREADS in held:
        short, known = bars.missed(held[bars.THREADS])
        print(f"{known - short} of {known} bars met")


def _speed_table(by_size: Dict[str, Any], kind: str) -> Table:
    largest, last = list(by_size.items())[-1]
    columns = (
        Column(f"pairs/s, {kind}"), *(Column(size, ",.0f") for size in by_size),
        Column(f"analysis, of {largest}", ".0%"), Column(f"launches, of {largest}", ".0f"),
    )  # fmt: skip
    rows = [
        (name, *(result["median"][kind][name] for result in by_size.values()),
         last["analysis_share"][kind][name], last["launches"][kind][name])
        for name in last["median"][kind]
    ]  # fmt: skip
    return Table(f"Speed by batch size, {kind}", columns, rows)


def _fresh_table(fresh: Dict[str, Any], size: int) -> Table:
    columns = (
        Column("mode"), Column("kind"), Column("first minibatch, s", ".2f"),
        Column("peak RSS, MB", ",.0f"), Column("RSS before, MB", ",.0f"),
        Column("minibatches until then", "d"), Column("calls into MXNet per minibatch", ",d"),
    )  # fmt: skip
    rows = [
        (mode, kind, row["first_seconds"], row["peak_mb"], row["start_mb"], row["minibatches"],
         sum(row["calls"].values()))
        for kind, modes in fresh.items()
        for mode, row in modes.items()
    ]  # fmt: skip
    return Table(f"Fresh processes, minibatches of {size}", columns, rows)


def draw(content: Dict[str, Any], path: Path) -> List[Path]:
    """Draw speed against batch size, and the bars, as PNG and SVG."""
    settings, runs = content["settings"], content["runs"]
    threads, run = next(iter(runs.items()))
    machine = run["environment"]
    data = f"pairs of {Path(settings['data']).name}" if settings["data"] else "built-in corpus"
    where = f"{machine['processor']}, {machine['cores']} cores"
    subtitle = (
        f"{data}; median and quartiles of {settings['rounds']} interleaved rounds, plans made anew "
        f"unless cached; {where}, OMP_NUM_THREADS={threads}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {threads: bars.from_json(each["bars"]) for threads, each in runs.items()}
    beside = path.with_name(f"{path.stem}-bars")
    return [
        *save(pictures.speed(run["batch_sizes"], subtitle), path),
        *save(pictures.bars(held, f"{data}; {where}"), beside),
    ]


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Do what the options say."""
    if args.fresh is not None:
        pairs: Pairs = read_pairs(args, ("train",))
        return report_own_figures(args, pairs, *args.fresh)
    if args.read is not None:
        content = read(args.read)
    else:
        settings = {
            name: v for name, v in vars(args).items() if name not in ("fresh", "read", "collect")
        }
        content = {"settings": settings, "rules": benchmark.__doc__, "runs": {}}
        if args.collect is not None:
            args.json, args.picture = args.collect, None
        measure(args, argv, content)
        if args.collect is not None:
            return None
    print()
    show(content)
    if args.picture is not None:
        print("pictures:", *draw(content, args.picture))
    return None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = options.parse(argv, __doc__.splitlines()[0])
    return run_program(lambda: run(args, argv), UsageError, DataError, WorkloadError, FreshError)


if __name__ == "__main__":
    sys.exit(main())
