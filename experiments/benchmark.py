"""Time any workloads, run in any ways, side by side; write figures, tables and pictures.

Workloads are in `workloads/registry.py`, ways in `suite/ways.py`, the rules in `suite/contest.py`.
Without folders of data, samples are generated or those of the built-in corpus.
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
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import gluonnlp
import mxnet as mx
import numpy as np
import scipy
from tqdm import tqdm

import gluon_dynbatch as gdb
from command import POSITIVE, Parser, UsageError, add_options, at_least, listed, run_program
from suite import bars, contest, pictures, tables, ways
from suite.remote import PYTHON
from suite.tables import KINDS, Measured, Rows
from workloads.registry import FOLDERS, WORKLOADS

#: Ways that are run if no others are asked for, and those whose memory is compared, for
#: minibatches of so many samples at most.
DEFAULT = ("imperative", "hybridized", "hand", "gdb")
ALONE, MOST_ALONE = ("hand", "gdb"), 256
#: Minibatches of an epoch, where epochs are timed.
EPOCH = 8
#: Share of the time that is left for the contests, the rest being for all else that is measured.
SHARE = 0.6
OPTIONS = (
    ("--workloads", listed(str, tuple(WORKLOADS)), list(WORKLOADS), "X,X,...",
     f"{','.join(WORKLOADS)} (default: all)"),
    ("--ways", ways.read_ways, list(DEFAULT), "X,X,...", f"{','.join(DEFAULT)} (default); "
     "gdb:GRANULARITY:POLICY[:LIMIT]; settings, curve, peers"),
    ("--kinds", listed(str, KINDS), list(KINDS), "X,X,...", "inference,training (default)"),
    ("--batch-sizes", listed(POSITIVE), None, "X,X,...", "samples (default: those of each "
     "workload)"),
    *((f"--{option}", Path, None, "DIR", text) for option, (_, text) in FOLDERS.items()),
    ("--rounds", POSITIVE, 5, "N", "of all ways"),
    ("--seconds", at_least(float, 0), 2.0, "N", "about how long a turn is, at least one minibatch; "
     "in short ones, little of training overlaps from minibatch to minibatch"),
    ("--minutes", at_least(float, 0, exclusive=True), None, "N", "about how long all takes: turns "
     "are as much shorter as they must be"),
    ("--loop-samples", POSITIVE, 16, "N", "minibatches of the loops over samples are cut to so "
     "many, as their time per sample does not depend on it"),
    ("--points", at_least(int, 2), 9, "N", "budgets of a curve between none and no limit"),
    ("--seed", at_least(int, 0), 1, "N", "of everything that is drawn"),
    ("--limit", POSITIVE, None, "N", "first N samples of every workload"),
    ("--embedding-size", POSITIVE, None, "N", "of the inputs (default: each model's own)"),
    ("--hidden", POSITIVE, None, "N", "of the states (default: each model's own)"),
    ("--alone-minibatches", POSITIVE, None, "N", "tell memory and first minibatch of processes "
     "that run gdb or hand and nothing else, for N minibatches"),
    ("--epochs", POSITIVE, None, "N", "time N epochs over the same samples, mixed anew, too, from "
     "the first one on; not of the loops"),
    ("--counts", None, False, None, "count the launches of a minibatch at granularities operator "
     "and block, by all policies"),
    ("--quick", None, False, None, "some minutes: one batch size, short rounds"),
    ("--output", Path, Path("runs/benchmark"), "DIR", "where JSON, tables and pictures go"),
    ("--read", None, False, None, "measure nothing; show and draw what is in --output"),
    ("--peers-python", Path, PYTHON, "FILE", "runs the other systems, as make peers builds it"),
)  # fmt: skip
#: Defaults with --quick, too short and too noisy to tell anybody.
QUICK = {"rounds": 2, "seconds": 0.1, "loop_samples": 4, "points": 4}


def environment():
    """Describe what figures are measured on."""
    threads = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MXNET_ENGINE_TYPE")
    return {
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (mx, np, scipy, gluonnlp, gdb)},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _told("/proc/cpuinfo", r"model name\s*: (.+)") or platform.processor(),
        "cores": os.cpu_count(),
        **{name: os.environ.get(name) for name in threads},
    }


def _told(path, pattern):
    """Find what a file of the system tells; None where there is no such file."""
    text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    return next(iter(re.findall(pattern, text)), None)


def measure(args):
    """Measure workload by workload; write the figures as they come."""
    content = {"environment": environment(), "settings": vars(args), "workloads": {}}
    ends = time.monotonic() + 60 * (args.minutes or math.inf)
    for name in args.workloads:  # what cannot be made is an error before anything is measured
        ways.make(name, argparse.Namespace(**{**vars(args), "limit": 1}), **args.sizes)
    left = sum(len(_batch_sizes(args, name)) for name in args.workloads) * len(args.kinds)
    with tqdm(total=left, unit="contest", disable=None) as bar:
        for name in args.workloads:
            with ExitStack() as stack:
                cast = ways.Cast(name, args, stack)
                made, entry = cast.workload, WORKLOADS[name]
                named = entry.source, entry.reading, made.lines, cast.left_out, cast.versions
                found = Measured(made.title, made.counted, *named)
                for size, kind in product(_batch_sizes(args, name), args.kinds):
                    bar.set_postfix_str(f"{name}, {kind}, {size}")
                    share = SHARE * (ends - time.monotonic()) / left
                    found.rows.extend(_contest(cast, args, kind, size, share))
                    bar.update()
                    left -= 1
                _measure_more(cast, args, found)
            content["workloads"][name] = asdict(found)
            print(*tables.texts(found), sep="\n", flush=True)
            args.output.mkdir(parents=True, exist_ok=True)
            text = json.dumps(content, indent=1, default=str)  # paths by their names
            (args.output / "benchmark.json").write_text(text + "\n", encoding="utf-8")


def _contest(cast, args, kind, size, share):
    """Time all ways at one batch size, in `share` seconds if turns need not be longer."""
    contenders = cast.gather(args.ways, size)
    if not contenders:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in cast.left_out.items())
        raise UsageError(f"no way is left of {cast.workload.name}: {reasons}")
    fresh = cast.workload.minibatches(size, args.seed)
    # Each contender warms up for about as long as it has a turn.
    seconds = max(0.0, min(args.seconds, share / len(contenders) / (args.rounds + 1)))
    warm = min(seconds, contest.WARM_SECONDS)
    return contest.contest(contenders, fresh, kind, size, args.rounds, seconds, args.seed, warm)


def _measure_more(cast, args, found):
    """Count launches, time epochs, and run ways alone, as far as that is asked for."""
    name, size = cast.workload.name, _middling(args, cast.workload.name)
    for kind in args.kinds if args.counts else ():
        found.counts.extend(cast.count(ways.COUNTED, kind, size))
    if args.epochs:
        found.epochs.extend(_epochs(cast, args, size))
    if args.alone_minibatches:
        mx.nd.waitall()  # a fork that meets a pending backward pass never returns
        for kind, way in product(args.kinds, [way for way in ALONE if way in cast.made]):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found.alone.append(pool.submit(alone, args, name, way, kind).result())


def _epochs(cast, args, size):
    """Time epochs in ways that have seen none of their samples, `gdb-once` among them."""
    samples = cast.workload.samples
    names = [one.label for one in cast.gather([*args.ways, ways.ONCE], size)]
    count = max(1, min(EPOCH, len(samples) // size - 1))
    fresh = cast.workload._replace(samples=samples[: count * size]).minibatches(size, args.seed)
    rows = Rows()
    for kind in args.kinds:
        new = [cast.make(name) for name in names if name not in ways.LOOPS]
        for one in new:  # compile with others
            one.time(kind, [list(samples[-size:])], size)
        rows += contest.contest(new, fresh, kind, size, args.epochs, seed=args.seed, epoch=count)
    return rows


def _middling(args, name):
    """Give the greatest batch size up to `MOST_ALONE`."""
    sizes = _batch_sizes(args, name)
    return max((size for size in sizes if size <= MOST_ALONE), default=sizes[0])


def _batch_sizes(args, name):
    own = WORKLOADS[name].sizes
    return args.batch_sizes or ([own[len(own) // 2]] if args.quick else own)


def alone(args, name, way, kind):
    """Run new minibatches of a workload in one way, for a process in which nothing else runs.

    Returns ``first_seconds`` (the first minibatch, with tracing, compiling and planning),
    ``start_mb`` (memory of the process before it), ``peak_mb`` (the most until the last), and
    ``size``. Memory is None where the system does not tell. Data are frozen, as in contests.
    """
    with ExitStack() as stack:
        contender = ways.Cast(name, args, stack).make(way)
        size = min(_middling(args, name), len(contender.workload.samples))
        fresh = contender.workload.minibatches(size, args.seed)
        gc.collect()  # else the first minibatch would pay for what loading has left to collect
        gc.freeze()
        start = _memory("VmRSS")
        took = [contender.time(kind, [next(fresh)], size).ms for _ in range(args.alone_minibatches)]
    figures = {"way": way, "kind": kind, "size": size, "first_seconds": 1e-3 * took[0]}
    return {**figures, "start_mb": start, "peak_mb": _memory("VmHWM")}


def _memory(field):
    """Read a figure of this process in MB; getrusage would tell of the parent's memory as well."""
    found = _told("/proc/self/status", rf"{field}:\s+(\d+)")
    return found and int(found) / 1024


def show(output):
    """Print tables of all workloads, write all tables, draw all pictures."""
    path = output / "benchmark.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["workloads"]
        found = {name: Measured.from_json(each) for name, each in content.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not written by this program ({error!r})") from None
    last = [table.markdown() for table in (tables.settings(found), bars.bars(found)) if table]
    texts = [text for each in found.values() for text in tables.texts(each)]
    (output / "benchmark.md").write_text("\n".join([*texts, *last]), encoding="utf-8")
    print(*last, sep="\n")
    drawn = [path.name for path in pictures.draw(found, output)]
    print("pictures:", ", ".join(drawn) or "none")


def parse(argv):
    """Read the command line; ``sizes`` of the result has those that are given for all models."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_options(parser, *OPTIONS, **(QUICK if "--quick" in argv else {}))
    args = parser.parse_args(argv)
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    args.sizes = {name: size for name, size in given.items() if size is not None}
    return args


def main(argv=None):
    """Run the program."""
    args = parse(sys.argv[1:] if argv is None else argv)

    def run():
        if not args.read:
            measure(args)
        show(args.output)

    return run_program(run)


if __name__ == "__main__":
    sys.exit(main())
