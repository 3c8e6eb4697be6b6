"""All workloads by name; a new one is a file and a line here."""

import inspect
import random
from typing import Callable, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from . import drawn, lattice, modules, pairs, parser, seq2seq, sequences, trees

#: Options that name folders of data: what is in them, and in which files.
FOLDERS = {
    "data": ("SICK", "folder with SICK, as training reads it"),
    "wikiner": ("WikiNER", "folder with WikiNER's train.txt"),
    "sst": ("SST", "folder with the sentiment treebank's train.txt"),
    "clevr": ("CLEVR", "folder with CLEVR's CLEVR_train_1_*.json"),
}
_DYNET = "Neubig et al. 2017 (DyNet): 3.6 to 9.2 times as fast on CPU for the four of its paper."
_ED_BATCH = "Chen et al. 2023 (ED-Batch): 1.15 to 2.45 times as fast as the state of the art."
_OWN_BASE = ("The ratio here is over MXNet's own loop, the paper's over its framework's: ratios do "
             "not compare, rates of a peer in the same run do.")  # fmt: skip
_NO_PEER = "No other system runs it here: only the ratio over the loop, and launches, are measured."
_CELLS = ("The paper counts time in cells alone: the bar of cells, without recording and "
          "analysis, is what to compare, and rates are less.")  # fmt: skip


class Entry(NamedTuple):
    """A workload, by name."""

    #: Takes by name what it can use of `FOLDERS`, ``name``, ``limit`` and ``seed``, and sizes.
    make: Callable
    source: str  # the paper that it is from, and what that claims
    reading: str = _NO_PEER  # what our figures say of that claim, and what they do not
    sizes: Sequence[int] = (64,)  # samples of minibatches, if no others are asked for
    stand_in: str = "built-in corpus"  # what it runs on without a folder


WORKLOADS = {
    "sick": Entry(
        pairs.relatedness,
        "Zha et al. 2019: 6.25 times as fast as imperative in inference, 5.96 in training.",
        "The claim holds, and joining and splitting was what it left: 50 to 80 times here. By "
        "hand, PyTorch has four fifths of the speed in inference, and half of it in training.",
        (1, 8, 64, 256, 1024),
    ),
    "sst": Entry(
        trees.phrase_workload,
        f"Looks et al. 2017 (Fold), building of graphs counted; {_DYNET}",
        "Twice as fast as DyNet in training, and 1.3 times as fast as PyTorch by hand, level by "
        "level.",
        (1, 8, 64, 256, 1024),
    ),
    "tagger": Entry(
        sequences.tagging, _DYNET,
        "In training 1.6 times as fast as padding with MXNet's fused layer and as DyNet with its "
        "LSTM node, and 2.2 times as fast as DyNet with basic operations.",
    ),
    "characters": Entry(sequences.spelling, _DYNET),
    "parser": Entry(parser.parsing, _DYNET, f"{_OWN_BASE} {_NO_PEER}"),
    "modules": Entry(modules.answering, "Suarez, Zhu 2017: 10 times less time in cells.", _CELLS,
                     stand_in="random programs"),
    "treefc": Entry(
        trees.phrase_workload,
        f"Looks et al. 2017 (Fold); {_ED_BATCH}",
        f"Almost nothing is computed in a node, so this measures overhead. {_NO_PEER}",
    ),
    **dict.fromkeys(("treegru", "mvrnn"), Entry(trees.phrase_workload, _ED_BATCH)),
    **dict.fromkeys([f"experts{count}" for count in (16, 64, 256, 1024)],
                    Entry(drawn.mixture, "Suarez, Zhu 2017: 1,000 times less time in cells.",
                          _CELLS, (1024,), "random inputs")),
    **dict.fromkeys(lattice.KINDS, Entry(lattice.lattice_workload, _ED_BATCH)),
    "seq2seq": Entry(seq2seq.translation, _ED_BATCH,
                     f"Greedy in inference, so values are read at every step. {_NO_PEER}",
                     stand_in="random sequences"),
    "reads": Entry(drawn.pondering, "Each value is read before the next step: nothing to batch.",
                   "The bar is to be no slower than the loop.", (32,), "random inputs"),
}  # fmt: skip


def make(name, args, **sizes):
    """Make a workload of `WORKLOADS`; equal arguments give equal parameters and samples.

    `args` has `seed`, `limit` (first samples only, or None), and the folders of `FOLDERS`, or None.
    Sizes are `embedding_size` (of the inputs) and `hidden_size`, by default the model's own.
    """
    random.seed(args.seed)
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    entry = WORKLOADS[name]
    taken = inspect.signature(entry.make).parameters
    known = {**vars(args), "name": name}
    given = {o: known[o] for o in (*FOLDERS, "name", "limit", "seed") if o in taken}
    found = [FOLDERS[o][0] for o in given if o in FOLDERS and given[o] is not None]
    made = entry.make(**given, **sizes)
    return made._replace(title=f"{made.title}, {(*found, entry.stand_in)[0]}")
