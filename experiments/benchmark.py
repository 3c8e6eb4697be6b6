"""Time any workloads, run in any ways, side by side; write figures, tables and pictures.

Workloads are in `workloads/registry.py`, ways in `suite/ways.py`, the rules in `suite/contest.py`.
Without folders of data, samples are generated or come from the built-in corpus.
"""

import argparse
import gc
import json
import math
import os
import platform
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby, product
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import gluonnlp
import mxnet as mx
import numpy as np
import scipy
from tqdm import tqdm

import cores
import gluon_dynbatch as gdb
from command import (
    ABOVE_ZERO,
    POSITIVE,
    SEED,
    SIZE,
    Parser,
    UsageError,
    add_options,
    between,
    listed,
    run_program,
)
from suite import bars, pictures, tables, threads, ways
from suite.contest import contest
from suite.remote import JAX_PYTHON, PYTHON
from suite.runner import BATCHED
from suite.tables import KINDS, Measured
from workloads.registry import FOLDERS, WORKLOADS

#: The ways that run by default, and the ways whose memory is compared.
DEFAULT, ALONE = ("imperative", "hybridized", "hand", "gdb", "gdb-np"), ("hand", "gdb")
#: A part that no bar needs is left out if its share of the time is below this fraction of the plan.
LATE = 0.9
#: Names of the files of all workloads and ways, and of the speed over threads.
ALL, THREADS = "benchmark", "threads"
#: Largest minibatch for counts of launches and for processes that run one way.
MIDDLING = 256
OPTIONS = (
    ("--workloads", listed(str, tuple(WORKLOADS)), None, "X,X,...", f"{','.join(WORKLOADS)} "
     f"(default: all; with --threads: {','.join(threads.SIZES)})"),
    ("--ways", ways.read_ways, None, "X,X,...", f"{','.join(DEFAULT)} (default; with --threads: "
     f"{','.join(threads.WAYS)}); gdb:GRANULARITY:POLICY[:LIMIT]; settings, curve, peers; any with "
     f"{ways.BUCKETS}"),
    ("--kinds", listed(str, KINDS), list(KINDS), "X,X,...", "inference,training (default)"),
    ("--batch-sizes", listed(POSITIVE), None, "X,X,...", "samples (default: those of each "
     "workload)"),
    *((f"--{option}", Path, None, "DIR", text) for option, (_, text) in FOLDERS.items()),
    ("--rounds", POSITIVE, 5, "N", "rounds; each way has one turn in each"),
    ("--seconds", between(float, 0, 1e6), 2.0, "N", "approximate length of a turn, which has at "
     "least one minibatch; in short turns, successive minibatches of training hardly overlap"),
    ("--minutes", ABOVE_ZERO, None, "N", "approximate time for all "
     "measurements: each part gets a share of the time that is left, and first shortens turns, "
     "then drops rounds after the first; the output names parts without time"),
    ("--loop-samples", POSITIVE, 16, "N", "largest minibatch of the loops over samples, whose time "
     "per sample does not depend on it"),
    ("--points", between(int, 2, 1000), 9, "N", "budgets of a curve between none and no limit"),
    ("--seed", SEED, 1, "N", "seed of all random numbers"),
    ("--limit", between(int, 1, 1_000_000), None, "N", "use only the first N samples of every "
     "workload"),
    ("--embedding-size", SIZE, None, "N", "size of the inputs (default: each model's own)"),
    ("--hidden", SIZE, None, "N", "size of the states (default: each model's own)"),
    ("--alone-minibatches", POSITIVE, None, "N", "also measure memory and the first minibatch in "
     "processes that run only gdb or hand, for at most N minibatches"),
    ("--counts", None, False, None, "count the launches of a minibatch at granularities operator "
     "and block, by all policies"),
    ("--threads", listed(between(int, 1, 1024)), None, "N,N,...", "instead of all this, time each "
     "way with each of these numbers of threads and with none set, in processes of their own"),
    ("--busy", None, False, None, "with --threads: another process keeps one core busy meanwhile"),
    ("--output", Path, Path("runs/benchmark"), "DIR", "folder for JSON, tables and pictures"),
    ("--read", None, False, None, "measure nothing; print and draw the figures in --output"),
    ("--peers-python", Path, PYTHON, "FILE", "interpreter of the other systems; make peers makes "
     "it"),
    ("--jax-python", Path, JAX_PYTHON, "FILE", "interpreter of JAX; make peers makes it"),
)  # fmt: skip


def environment():
    """Describe the machine and the versions that figures are measured with."""
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MXNET_ENGINE_TYPE")
    return {
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (mx, np, scipy, gluonnlp, gdb)},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _search("/proc/cpuinfo", r"model name\s*: (.+)") or platform.processor(),
        "cores": cores.usable(),
        **{name: os.environ.get(name) for name in names},
    }


def _search(path, pattern):
    """Return the first match of a pattern in a system file; None without a match or a file."""
    text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    return next(iter(re.findall(pattern, text)), None)


class Part(NamedTuple):
    """One measurement of a workload."""

    workload: str
    measure: str  # a key of `MEASURES`
    kind: str
    size: int  # of the minibatches
    way: str = ""


def measure(args):
    """Measure part by part, each in its share of the time; write the figures of each workload."""
    ends = time.monotonic() + 60 * (args.minutes or math.inf)
    for name in args.workloads:  # fail before anything is measured
        ways.make(name, argparse.Namespace(**{**vars(args), "limit": 1}), **args.sizes)
    parts = [part for name in args.workloads for part in _parts(args, name)]
    needed = {part for part in parts if any(bar.needs(part) for bar in bars.BARS)}
    # Processes that no bar needs come last, because they are slow to start.
    parts.sort(key=lambda part: part.measure == "process" and part not in needed)
    measured, left = {}, sum(SHARES[part.measure] for part in parts)
    planned = (ends - time.monotonic()) / left
    args.output.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(parts), unit="part", disable=None) as bar:
        for name, group in groupby(parts, attrgetter("workload")):
            with ExitStack() as stack:
                new = name not in measured
                if new:
                    roster = ways.Roster(name, args, stack)
                    measured[name] = roster.measured()
                for part in group:
                    bar.set_postfix_str(" ".join(map(str, part)))
                    now = time.monotonic()
                    share = (ends - now) / left
                    if share > 0 and (part in needed or share >= LATE * planned):
                        part_ends = now + share * SHARES[part.measure]
                        MEASURES[part.measure](measured[name], roster, args, part, part_ends)
                    else:
                        label = " ".join(map(str, filter(None, part[1:])))
                        measured[name].left_out[label] = "time was short"
                    left -= SHARES[part.measure]
                    bar.update()
            if new:
                print(*tables.texts(measured[name]), sep="\n", flush=True)
            _write(measured, args)


def _parts(args, name):
    """List all measurements of a workload."""
    sizes = args.batch_sizes or WORKLOADS[name].sizes
    for size, kind in product(sizes, args.kinds):
        yield Part(name, "speed", kind, size)
    middling = max((size for size in sizes if size <= MIDDLING), default=sizes[0])
    for kind in args.kinds if args.counts else ():
        yield Part(name, "launches", kind, middling)
    for kind, way in product(args.kinds if args.alone_minibatches else (), ALONE):
        if way in args.ways and (way != "hand" or name in BATCHED):
            yield Part(name, "process", kind, middling, way)


def measure_threads(args):
    """Measure the speed over threads; write the figures of each workload."""
    ends, measured = time.monotonic() + 60 * (args.minutes or math.inf), {}
    args.output.mkdir(parents=True, exist_ok=True)
    for name, each in threads.measure(args, ends):
        measured[name] = each
        _write(measured, args, THREADS)


def _write(measured, args, file=ALL):
    """Write all measurements so far."""
    workloads = {name: asdict(each) for name, each in measured.items()}
    content = {"environment": environment(), "settings": vars(args), "workloads": workloads}
    text = json.dumps(content, indent=1, default=str)  # paths by their names
    (args.output / file).with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def _speed(measured, roster, args, part, ends):
    """Time all ways at one batch size."""
    contenders = roster.gather(args.ways, part.size)
    if not contenders:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in roster.left_out.items())
        raise UsageError(f"no way is left of {part.workload}: {reasons}")
    fresh, share = roster.workload.minibatches(part.size, args.seed), ends - time.monotonic()
    measured.rows += contest(contenders, fresh, part.kind, part.size, args.rounds, args.seconds,
                             args.seed, share)  # fmt: skip


def _launches(measured, roster, args, part, ends):
    """Count the launches of a minibatch in several ways of this library."""
    measured.counts += roster.count(ways.COUNTED, part.kind, part.size)


def _process(measured, roster, args, part, ends):
    """Run a way in its own process, if it takes part."""
    if part.way in measured.rows.by("way"):
        mx.nd.waitall()  # a fork during a backward pass hangs
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            measured.alone.append(pool.submit(alone, args, part, ends).result())


#: The kinds of measurements, and their shares of the time.
MEASURES = {"speed": _speed, "launches": _launches, "process": _process}
SHARES = {"speed": 3, "launches": 1, "process": 1}


def alone(args, part, ends):
    """Run new minibatches of a workload in one way, in a process that runs nothing else.

    Returns ``first_seconds`` (time of the first minibatch, with tracing, compiling and planning),
    ``start_mb`` (memory of the process before it), ``peak_mb`` (peak memory), and ``size``. Memory
    is None on systems without ``/proc``. The garbage collector ignores the data, as in contests.
    """
    with ExitStack() as stack:
        contender = ways.Roster(part.workload, args, stack).make(part.way)
        size = min(part.size, len(contender.workload.samples))
        fresh = contender.workload.minibatches(size, args.seed)
        gc.collect()  # so that the first minibatch does not pay for the garbage of loading
        gc.freeze()
        start = _memory("VmRSS")
        took = []
        while not took or len(took) < args.alone_minibatches and time.monotonic() < ends:
            took.append(contender.time(part.kind, [next(fresh)], size).ms)
    figures = {"way": part.way, "kind": part.kind, "size": size, "first_seconds": 1e-3 * took[0]}
    return {**figures, "start_mb": start, "peak_mb": _memory("VmHWM")}


def _memory(field):
    """Read a memory figure of this process in MB; getrusage would include the parent's memory."""
    kilobytes = _search("/proc/self/status", rf"{field}:\s+(\d+)")
    return kilobytes and int(kilobytes) / 1024


def _read(path):
    """Read the measurements of all workloads."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["workloads"]
        return {name: Measured.from_json(each) for name, each in content.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not written by this program ({error!r})") from None


def show_threads(output):
    """Print and write tables of the speed over threads, and draw it."""
    measured = _read(output / f"{THREADS}.json")
    lines = []
    for each in measured.values():
        lines += [f"## {each.title}", ""]
        lines += [threads.table(each).markdown()] if each.rows else []
        lines += [f"{name}: left out; {reason}" for name, reason in each.left_out.items()]
        lines += [f"{way}: {version}" for way, version in each.versions.items()]
    (output / f"{THREADS}.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print(*lines, sep="\n")
    paths = pictures.draw_threads(measured, output)
    print("pictures:", ", ".join(path.name for path in paths) or "none")


def show(output):
    """Print tables of all workloads, write all tables, draw all pictures."""
    measured = _read(output / f"{ALL}.json")
    summaries = tables.memory(measured), tables.settings(measured), bars.bars(measured)
    last = [table.markdown() for table in summaries if table]
    for name, each in measured.items():
        for reason, group in groupby(each.left_out, each.left_out.get):
            last.append(f"{name}: {', '.join(group)}: left out; {reason}")
    texts = [text for each in measured.values() for text in tables.texts(each)]
    (output / f"{ALL}.md").write_text("\n".join([*texts, *last]), encoding="utf-8")
    print(*last, sep="\n")
    print("pictures:", ", ".join(path.name for path in pictures.draw(measured, output)) or "none")


def parse(argv):
    """Parse the command line; ``sizes`` of the result are the sizes given for all models."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_options(parser, *OPTIONS)
    args = parser.parse_args(argv)
    sizes = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    args.sizes = {name: size for name, size in sizes.items() if size is not None}
    if args.busy and not args.threads:
        parser.error("--busy is only for --threads")
    args.workloads = args.workloads or list(threads.SIZES if args.threads else WORKLOADS)
    args.ways = args.ways or list(threads.WAYS if args.threads else DEFAULT)
    return args


def main(argv=None):
    """Run the program."""
    args = parse(sys.argv[1:] if argv is None else argv)

    def run():
        if not args.read:
            (measure_threads if args.threads else measure)(args)
        (show_threads if args.threads else show)(args.output)

    return run_program(run)


if __name__ == "__main__":
    sys.exit(main())
