"""What recording a call of a cell costs, without the user's own Python around it."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import gluon_dynbatch as gdb
from relatedness.model import TreeEncoder

from .contenders import Pairs, make_runners


class _Walk:
    """Stands in for an encoder whose cell does nothing: what is left is the walk over a tree."""

    def cell(self, x: Any, child_h: List[Any], child_c: List[Any]) -> Tuple[None, None]:
        return None, None


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
    workload = make_runners(args, pairs, ["dynamic"])[0].workload
    size = min(args.fresh_size, len(workload.samples))
    fresh = workload.minibatches(size, args.seed)
    rows = []
    for _ in range(args.recordings + 1):
        with gdb.batching(granularity="block", policy="depth"):
            trees = [
                (workload.model.embedding(tokens), tree)
                for s in next(fresh)
                for tokens, tree in ((s.tokens_a, s.tree_a), (s.tokens_b, s.tree_b))
            ]
            recording = _seconds(workload.model.encoder, trees)
        nothing = [([None] * len(tree.heads), tree) for _, tree in trees]
        own = _seconds(lambda words, tree: TreeEncoder.forward(_Walk(), words, tree), nothing)
        calls = sum(len(tree.heads) for _, tree in trees)
        rows.append((1e6 * (recording - own) / calls, 1e6 * own / calls, calls))
    us, own_us, calls = (statistics.median(column) for column in zip(*rows[1:]))  # not the first
    return {"us_per_call": us, "own_us_per_call": own_us, "calls": calls}


def _seconds(encode: Callable[..., Any], trees: List[Tuple[Any, Any]]) -> float:
    started = time.thread_time()
    roots = [encode(words, tree) for words, tree in trees]
    seconds = time.thread_time() - started
    del roots
    return seconds
