"""All workloads by name; a new one is a file and a line here."""

from __future__ import annotations

import inspect
import random
from argparse import Namespace
from functools import partial
from typing import Callable, Dict, List, NamedTuple

import mxnet as mx
import numpy as np

from . import drawn, lattice, modules, pairs, parser, seq2seq, sequences, trees
from .base import Workload

#: Options that name folders of data: what is in them, and in which files.
FOLDERS = {
    "data": ("SICK", "folder with SICK, as training reads it"),
    "wikiner": ("WikiNER", "folder with WikiNER's train.txt"),
    "sst": ("SST", "folder with the sentiment treebank's train.txt"),
    "clevr": ("CLEVR", "folder with CLEVR's CLEVR_train_1_*.json"),
}


class Entry(NamedTuple):
    """A workload, by name.

    Attributes
    ----------
    make : callable
        Takes by name what it can use of `FOLDERS`, ``limit`` and ``seed``, and sizes.
    source : str
        The paper that it is from, and what that claims.
    reading : str
        What the figures of ours say of that claim, and what they do not.
    sizes : list of int
        Samples of minibatches, if no others are asked for.
    stand_in : str
        What it runs on without a folder.
    """

    make: Callable[..., Workload]
    source: str
    reading: str
    sizes: List[int]
    stand_in: str = "built-in corpus"


_DYNET = "Neubig et al. 2017 (DyNet): 3.6 to 9.2 times as fast on CPU for the four of its paper."
_ED_BATCH = "Chen et al. 2023 (ED-Batch): 1.15 to 2.45 times as fast as the state of the art."
_OWN_BASE = ("The ratio here is over MXNet's own loop, the paper's over its framework's: ratios do "
             "not compare, rates of a peer in the same run do.")  # fmt: skip
_NO_PEER = "No other system runs it here: only the ratio over the loop, and launches, are measured."
_CELLS = ("The paper counts time in cells alone: the bar of cells, without recording and "
          "analysis, is what to compare, and rates are less.")  # fmt: skip
WORKLOADS: Dict[str, Entry] = {
    "sick": Entry(
        pairs.relatedness,
        "Zha et al. 2019: 6.25 times as fast as imperative in inference, 5.96 in training.",
        "The claim holds, and joining and splitting was what it left: 50 to 90 times here. By "
        "hand, PyTorch is faster in inference unless structures are traced once.",
        [1, 8, 64, 256, 1024],
    ),
    "sst": Entry(
        partial(trees.phrase_workload, "sst"),
        f"Looks et al. 2017 (Fold), building of graphs counted; {_DYNET}",
        "Three quarters faster than DyNet in training, and a little faster than PyTorch by hand, "
        "level by level.",
        [1, 8, 64, 256, 1024],
    ),
    "tagger": Entry(
        sequences.tagging, _DYNET,
        "As fast as padding with MXNet's fused layer, and as DyNet with its LSTM node; a third "
        "faster than DyNet's basic operations.",
        [64],
    ),
    "characters": Entry(sequences.spelling, _DYNET, _NO_PEER, [64]),
    "parser": Entry(parser.parsing, _DYNET, f"{_OWN_BASE} {_NO_PEER}", [64]),
    "modules": Entry(
        modules.answering, "Suarez, Zhu 2017: 10 times less time in cells.", _CELLS, [64],
        "random programs",
    ),
    "treegru": Entry(partial(trees.phrase_workload, "treegru"), _ED_BATCH, _NO_PEER, [64]),
    "treefc": Entry(
        partial(trees.phrase_workload, "treefc"),
        f"Looks et al. 2017 (Fold); {_ED_BATCH}",
        f"Almost nothing is computed in a node, so this measures overhead. {_NO_PEER}",
        [64],
    ),
    "mvrnn": Entry(partial(trees.phrase_workload, "mvrnn"), _ED_BATCH, _NO_PEER, [64]),
    **{
        f"experts{count}": Entry(
            partial(drawn.mixture, count),
            "Suarez, Zhu 2017: 1,000 times less time in cells.", _CELLS, [1024], "random inputs",
        )
        for count in (16, 64, 256, 1024)
    },
    **{
        name: Entry(partial(lattice.lattice_workload, name), _ED_BATCH, _NO_PEER, [64])
        for name in lattice.KINDS
    },
    "seq2seq": Entry(seq2seq.translation, _ED_BATCH,
                     f"Greedy in inference, so values are read at every step. {_NO_PEER}", [64],
                     "random sequences"),
    "reads": Entry(
        drawn.pondering,
        "Each value is read before the next step: nothing to batch.",
        "The bar is to be no slower than the loop.",
        [32],
        "random inputs",
    ),
}  # fmt: skip


def make(name: str, args: Namespace, **sizes: int) -> Workload:
    """Make a workload; equal arguments give equal parameters and samples.

    Parameters
    ----------
    name : str
        A key of `WORKLOADS`.
    args : Namespace
        Has `seed`, `limit` (first samples only, or None), and the folders of `FOLDERS`, or None.
    **sizes : int
        `embedding_size` (of the inputs) and `hidden_size`, by default the model's own.
    """
    random.seed(args.seed)
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    entry = WORKLOADS[name]
    taken = inspect.signature(entry.make).parameters
    given = {o: getattr(args, o) for o in (*FOLDERS, "limit", "seed") if o in taken}
    found = [FOLDERS[o][0] for o in given if o in FOLDERS and given[o] is not None]
    made = entry.make(**given, **sizes)
    return made._replace(title=f"{made.title}, {(*found, entry.stand_in)[0]}")
