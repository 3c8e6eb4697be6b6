"""What recording a call of a cell costs, without the user's own Python around it."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import gluon_dynbatch as gdb
from relatedness.assembly import assemble
from relatedness.benchmark import draw
from relatedness.model import TreeEncoder
from relatedness.trees import Tree

from .contenders import Pairs


class _Walk:
    """Stands in for an encoder whose cell does nothing: what is left is the walk over a tree."""

    def __init__(self) -> None:
        self._states = (None, None)

    def cell(self, x: Any, child_h: List[Any], child_c: List[Any]) -> Tuple[Any, Any]:
        return self._states


def measure(args: argparse.Namespace, pairs: Pairs) -> Dict[str, float]:
    """Record the trees of some new minibatches, and walk over them without recording.

    The difference, in processor time of this thread, is that of recording: a call of a cell with
    the view of its row, and for each tree the call of the encoder around them.

    Returns
    -------
    dict
        ``us_per_call``, ``own_us_per_call`` (the walk alone) and ``calls`` (of cells in a
        minibatch), medians over minibatches.
    """
    parts = assemble(args, pairs)
    parts.model.hybridize()
    samples = parts.samples("train")
    fresh = draw(samples, min(args.fresh_size, len(samples)), args.seed)
    walk = _Walk()
    rows = []
    for _ in range(args.recordings + 1):
        batch = next(fresh)
        with gdb.batching(granularity="block", policy="depth"):
            trees = [
                (parts.model.embedding(tokens), tree)
                for s in batch
                for tokens, tree in ((s.tokens_a, s.tree_a), (s.tokens_b, s.tree_b))
            ]
            recording = _seconds(parts.model.encoder, trees)
        own = _seconds(
            lambda words, tree: TreeEncoder.forward(walk, words, tree),
            [([None] * len(tree.heads), tree) for _, tree in trees],
        )
        calls = sum(len(tree.heads) for _, tree in trees)
        rows.append((1e6 * (recording - own) / calls, 1e6 * own / calls, calls))
    us, own_us, calls = (statistics.median(column) for column in zip(*rows[1:]))  # not the first
    return {"us_per_call": us, "own_us_per_call": own_us, "calls": calls}


def _seconds(encode: Callable[[Any, Tree], Any], trees: List[Tuple[Any, Tree]]) -> float:
    started = time.thread_time()
    roots = [encode(words, tree) for words, tree in trees]
    seconds = time.thread_time() - started
    del roots
    return seconds
