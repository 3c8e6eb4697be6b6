"""Who takes part in the benchmark, made from the options."""

from __future__ import annotations

import argparse
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from baselines.padded import bucketed
from relatedness.assembly import assemble, make_runner
from relatedness.options import batching_options
from relatedness.trees import Pair
from timing.contest import Contender, Products
from workloads.registry import make
from workloads.runner import PADDED, Runner

#: Slowest first; the first is what the others are compared with.
MODES = ("imperative", "hybridized", "fold", "manual", "dynamic")
#: Modes that take the same time per sample whatever the size of the minibatch.
LOOPS = ("imperative", "hybridized")
CACHED = "dynamic, plan cached"
PRODUCTS = "bare products"
LABELS = (*MODES, CACHED, PRODUCTS)
#: Workloads that are trained, beside the pairs.
RAGGED = ("sequences", "sst")

Pairs = Dict[str, List[Pair]]


def make_runners(
    args: argparse.Namespace, pairs: Pairs, modes: Sequence[str], checkpoint: Any = None
) -> List[Runner]:
    """Run pairs in several modes, each with a model of its own that starts like the others."""
    runners = []
    for mode in modes:
        parts = assemble(args, pairs, checkpoint)
        split = "train" if mode == modes[-1] else ""  # all run the samples of the last
        runners.append(make_runner(args, parts, mode, split))
    return runners


def make_contenders(args: argparse.Namespace, pairs: Pairs) -> List[Contender]:
    """Make all of `LABELS`."""
    runners = make_runners(args, pairs, MODES)
    made = [Contender(r, most=args.loop_pairs if r.mode in LOOPS else None) for r in runners]
    dynamic = runners[-1]
    return [*made, Contender(dynamic, CACHED, repeats=True), Products(dynamic, PRODUCTS)]


def make_ragged(name: str, args: argparse.Namespace) -> Tuple[List[Contender], Iterator[List[Any]]]:
    """Make the ways to train on one of `RAGGED`, and their minibatches without end."""
    padded = name == "sequences"
    contenders = []
    for mode in (*LOOPS, "dynamic", *([PADDED] if padded else [])):
        runner = Runner(make(name, args, **args.sizes), mode, batching_options(args))
        most = args.loop_pairs if mode in LOOPS else None
        contenders.append(Contender(runner, most=most, mixes=padded and mode != PADDED))
    samples = contenders[-1].runner.workload.samples
    size = min(args.workload_size, len(samples))
    if padded:
        return contenders, bucketed(samples, size, args.seed)
    return contenders, contenders[-1].runner.workload.minibatches(size, args.seed)
