"""Who takes part in the benchmark, made from the options."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Tuple

from relatedness.assembly import assemble, make_trainer
from relatedness.benchmark import Contender, Entrant, Products
from relatedness.data import Sample
from relatedness.options import batching_options
from relatedness.running import Runner
from relatedness.trees import Pair

#: Slowest first; the first is what the others are compared with.
MODES = ("imperative", "hybridized", "fold", "manual", "dynamic")
#: Modes that take the same time per pair whatever the size of the minibatch.
PER_SAMPLE = ("imperative", "hybridized")
CACHED = "dynamic, plan cached"
PRODUCTS = "bare products"
LABELS = (*MODES, CACHED, PRODUCTS)

Pairs = Dict[str, List[Pair]]


def make_contender(
    args: argparse.Namespace, pairs: Pairs, mode: str, **more: Any
) -> Tuple[Contender, List[Sample]]:
    """Make a mode with a model of its own; equal seeds give all models equal parameters."""
    parts = assemble(args, pairs)
    runner = Runner(parts.model, mode, batching_options(args), args.ctx)
    contender = Contender.make(runner, make_trainer(args, parts.model), **more)
    return contender, parts.samples("train")


def make_contenders(args: argparse.Namespace, pairs: Pairs) -> Tuple[List[Entrant], List[Sample]]:
    """Make all of `LABELS`, and the samples they share."""
    entrants: List[Entrant] = []
    for mode in MODES:
        most = args.loop_pairs if mode in PER_SAMPLE else None
        contender, samples = make_contender(args, pairs, mode, most=most)
        entrants.append(contender)
    entrants.append(contender._replace(name=CACHED, repeats=True))
    entrants.append(Products(contender.runner.model, PRODUCTS))
    return entrants, samples
