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

import gluon_dynbatch as gdb
from command import POSITIVE, Parser, UsageError, add_options, at_least, listed, run_program
from suite import bars, pictures, tables, ways
from suite.contest import contest
from suite.remote import PYTHON
from suite.tables import KINDS, Measured
from workloads.registry import FOLDERS, WORKLOADS

#: Ways that are run if no others are asked for, and those whose memory is compared.
DEFAULT, ALONE = ("imperative", "hybridized", "hand", "gdb"), ("hand", "gdb")
#: What no bar needs is left out if less than this multiple of the planned time is left for a part.
LATE = 0.9
#: Samples at most of the minibatches whose launches are counted, and that processes run.
MIDDLING = 256
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
    ("--minutes", at_least(float, 0, exclusive=True), None, "N", "about how long measuring takes: "
     "each part has a share of the time that is left, shortens turns, and then leaves out rounds "
     "but the first; what no time is left for is named as left out"),
    ("--loop-samples", POSITIVE, 16, "N", "minibatches of the loops over samples are cut to so "
     "many, as their time per sample does not depend on it"),
    ("--points", at_least(int, 2), 9, "N", "budgets of a curve between none and no limit"),
    ("--seed", at_least(int, 0), 1, "N", "of everything that is drawn"),
    ("--limit", POSITIVE, None, "N", "first N samples of every workload"),
    ("--embedding-size", POSITIVE, None, "N", "of the inputs (default: each model's own)"),
    ("--hidden", POSITIVE, None, "N", "of the states (default: each model's own)"),
    ("--alone-minibatches", POSITIVE, None, "N", "tell memory and first minibatch of processes "
     "that run gdb or hand and nothing else, for N minibatches at most"),
    ("--counts", None, False, None, "count the launches of a minibatch at granularities operator "
     "and block, by all policies"),
    ("--output", Path, Path("runs/benchmark"), "DIR", "where JSON, tables and pictures go"),
    ("--read", None, False, None, "measure nothing; show and draw what is in --output"),
    ("--peers-python", Path, PYTHON, "FILE", "runs the other systems, as make peers builds it"),
)  # fmt: skip


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


class Part(NamedTuple):
    """Something that is measured of a workload."""

    workload: str
    what: str  # a key of `MEASURES`
    kind: str
    size: int  # of the minibatches
    way: str = ""


def measure(args):
    """Measure part by part, each in its share of the time; write the figures as they come."""
    ends = time.monotonic() + 60 * (args.minutes or math.inf)
    for name in args.workloads:  # what cannot be made is an error before anything is measured
        ways.make(name, argparse.Namespace(**{**vars(args), "limit": 1}), **args.sizes)
    parts = [part for name in args.workloads for part in _parts(args, name)]
    needed = {part for part in parts if any(bar.needs(part) for bar in bars.BARS)}
    # Processes that no bar needs come last, as they take a while to start.
    parts.sort(key=lambda part: part.what == "process" and part not in needed)
    found, left = {}, sum(SHARES[part.what] for part in parts)
    planned = (ends - time.monotonic()) / left
    args.output.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(parts), unit="part", disable=None) as bar:
        for name, own in groupby(parts, attrgetter("workload")):
            with ExitStack() as stack:
                new = name not in found
                if new:
                    cast = ways.Cast(name, args, stack)
                    made, entry = cast.workload, WORKLOADS[name]
                    named = entry.source, entry.reading, made.lines, cast.left_out, cast.versions
                    found[name] = Measured(made.title, made.counted, *named)
                for part in own:
                    bar.set_postfix_str(" ".join(map(str, part)))
                    now = time.monotonic()
                    share = (ends - now) / left
                    if share > 0 and (part in needed or share >= LATE * planned):
                        part_ends = now + share * SHARES[part.what]
                        MEASURES[part.what](found[name], cast, args, part, part_ends)
                    else:
                        left_out = " ".join(map(str, filter(None, part[1:])))
                        found[name].left_out[left_out] = "time was short"
                    left -= SHARES[part.what]
                    bar.update()
            if new:
                print(*tables.texts(found[name]), sep="\n", flush=True)
            _write(found, args)


def _parts(args, name):
    """List all that is to be measured of a workload."""
    sizes = args.batch_sizes or WORKLOADS[name].sizes
    for size, kind in product(sizes, args.kinds):
        yield Part(name, "speed", kind, size)
    middling = max((size for size in sizes if size <= MIDDLING), default=sizes[0])
    asked = {"launches": args.counts, "process": args.alone_minibatches}
    for what, kind in product(filter(asked.get, asked), args.kinds):
        for way in ALONE if what == "process" else [""]:
            if way in ("", *args.ways) and (way != "hand" or name in ways.BY_HAND):
                yield Part(name, what, kind, middling, way)


def _write(found, args):
    """Write all that is known by now."""
    workloads = {name: asdict(each) for name, each in found.items()}
    content = {"environment": environment(), "settings": vars(args), "workloads": workloads}
    text = json.dumps(content, indent=1, default=str)  # paths by their names
    (args.output / "benchmark.json").write_text(text + "\n", encoding="utf-8")


def _speed(found, cast, args, part, ends):
    """Time all ways at one batch size."""
    contenders = cast.gather(args.ways, part.size)
    if not contenders:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in cast.left_out.items())
        raise UsageError(f"no way is left of {part.workload}: {reasons}")
    fresh, share = cast.workload.minibatches(part.size, args.seed), ends - time.monotonic()
    found.rows += contest(contenders, fresh, part.kind, part.size, args.rounds, args.seconds,
                          args.seed, share)  # fmt: skip


def _launches(found, cast, args, part, ends):
    """Count the launches of a minibatch in several of our own ways."""
    found.counts += cast.count(ways.COUNTED, part.kind, part.size)


def _process(found, cast, args, part, ends):
    """Run a way in a process of its own, if it takes part."""
    if part.way in found.rows.by("way"):
        mx.nd.waitall()  # a fork that meets a pending backward pass never returns
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found.alone.append(pool.submit(alone, args, part, ends).result())


#: What is measured, and how large its share of the time is.
MEASURES = {"speed": _speed, "launches": _launches, "process": _process}
SHARES = {"speed": 3, "launches": 1, "process": 1}


def alone(args, part, ends):
    """Run new minibatches of a workload in one way, for a process in which nothing else runs.

    Returns ``first_seconds`` (the first minibatch, with tracing, compiling and planning),
    ``start_mb`` (memory of the process before it), ``peak_mb`` (the most until the last), and
    ``size``. Memory is None where the system does not tell. Data are frozen, as in contests.
    """
    with ExitStack() as stack:
        contender = ways.Cast(part.workload, args, stack).make(part.way)
        size = min(part.size, len(contender.workload.samples))
        fresh = contender.workload.minibatches(size, args.seed)
        gc.collect()  # else the first minibatch would pay for what loading has left to collect
        gc.freeze()
        start = _memory("VmRSS")
        took = []
        while not took or len(took) < args.alone_minibatches and time.monotonic() < ends:
            took.append(contender.time(part.kind, [next(fresh)], size).ms)
    figures = {"way": part.way, "kind": part.kind, "size": size, "first_seconds": 1e-3 * took[0]}
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
    wanted = tables.memory(found), tables.settings(found), bars.bars(found)
    last = [table.markdown() for table in wanted if table]
    for name, each in found.items():
        for reason, group in groupby(each.left_out, each.left_out.get):
            last.append(f"{name}: {', '.join(group)}: left out; {reason}")
    texts = [text for each in found.values() for text in tables.texts(each)]
    (output / "benchmark.md").write_text("\n".join([*texts, *last]), encoding="utf-8")
    print(*last, sep="\n")
    drawn = [path.name for path in pictures.draw(found, output)]
    print("pictures:", ", ".join(drawn) or "none")


def parse(argv):
    """Read the command line; ``sizes`` of the result has those that are given for all models."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_options(parser, *OPTIONS)
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
