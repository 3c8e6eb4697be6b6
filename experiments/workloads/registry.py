"""All workloads by name; a new one needs a function and an entry here."""

import inspect
import random
from typing import Callable, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from . import (
    book,
    drawn,
    language,
    lattice,
    modules,
    molecules,
    pairs,
    parser,
    seq2seq,
    sequences,
    transformer,
    trees,
)
from .front import ND, NP, semantics

BOTH = (ND, NP)
#: Options for folders of data: the name of the data, and a help text.
FOLDERS = {
    "data": ("SICK", "folder with SICK, as training reads it"),
    "wikiner": ("WikiNER", "folder with WikiNER's train.txt"),
    "sst": ("SST", "folder with the sentiment treebank's train.txt"),
    "clevr": ("CLEVR", "folder with CLEVR's CLEVR_train_1_*.json"),
}
_DYNET = "Neubig et al. 2017 (DyNet): 3.6 to 9.2 times as fast on CPU for the four of its paper."
_ED_BATCH = "Chen et al. 2023 (ED-Batch): 1.15 to 2.45 times as fast as the state of the art."
_OWN_BASE = ("Ratios are relative to MXNet's loop here, to another framework's in the paper, so "
             "they are not comparable; rates of a peer in the same run are.")  # fmt: skip
_NO_PEER = "No other system runs it here: only the ratio to the loop and launches are measured."
_PADDED = "Padding, with masks, runs it here."
_CELLS = ("The paper counts the time in cells alone; the comparable figure is the bar of cells, "
          "without recording and analysis.")  # fmt: skip


class Entry(NamedTuple):
    """How to make a workload, and what to compare it with."""

    #: Takes sizes, and any of the names of `FOLDERS`, ``name``, ``limit`` and ``seed``.
    make: Callable
    source: str  # the paper, and its claim
    reading: str = _NO_PEER  # how the figures here compare with the claim
    sizes: Sequence[int] = (64,)  # default batch sizes
    default_data: str = "built-in corpus"  # the data that it uses without a folder
    #: Whose arrays the model can have; the first is the default.
    interfaces: Sequence[str] = (ND,)


WORKLOADS = {
    "sick": Entry(
        pairs.relatedness,
        "Zha et al. 2019: 6.25 times as fast as imperative in inference, 5.96 in training.",
        "The comparable figures are those relative to imperative.",
        (1, 8, 64, 256, 1024),
        interfaces=BOTH,
    ),
    "sst": Entry(
        trees.phrase_workload,
        f"Looks et al. 2017 (Fold), including the building of graphs; {_DYNET}",
        "DyNet, and PyTorch by hand, level by level, run it here.",
        (1, 8, 64, 256, 1024),
        interfaces=BOTH,
    ),
    "tagger": Entry(
        sequences.tagging, _DYNET,
        "DyNet runs it here, with basic operations and with its LSTM node, and so does padding "
        "with MXNet's fused layer.",
        interfaces=BOTH,
    ),
    "characters": Entry(sequences.spelling, _DYNET, interfaces=BOTH),
    "parser": Entry(parser.parsing, _DYNET, f"{_OWN_BASE} {_NO_PEER}"),
    "modules": Entry(modules.answering, "Suarez, Zhu 2017: 10 times less time in cells.", _CELLS,
                     default_data="random programs"),
    "treefc": Entry(
        trees.phrase_workload,
        f"Looks et al. 2017 (Fold); {_ED_BATCH}",
        f"A node computes almost nothing, so this measures overhead. {_NO_PEER}",
        interfaces=BOTH,
    ),
    **dict.fromkeys(("treegru", "mvrnn"), Entry(trees.phrase_workload, _ED_BATCH)),
    **dict.fromkeys([f"experts{count}" for count in (16, 64, 256, 1024)],
                    Entry(drawn.mixture, "Suarez, Zhu 2017: 1,000 times less time in cells.",
                          _CELLS, (1024,), "random inputs")),
    **dict.fromkeys(lattice.KINDS, Entry(lattice.lattice_workload, _ED_BATCH)),
    **dict.fromkeys(("seq2seq", "beam"), Entry(
        seq2seq.translation, _ED_BATCH,
        f"In inference, values are read at every step. {_NO_PEER}",
        default_data="random sequences", interfaces=BOTH)),
    **dict.fromkeys(language.CELLS, Entry(
        language.language, "Mikolov et al. 2010; no claim about speed.", _PADDED,
        interfaces=BOTH)),
    "transformer": Entry(transformer.attending, "Vaswani et al. 2017; no claim about speed.",
                         _PADDED, interfaces=BOTH),
    **dict.fromkeys(book.EXAMPLES, Entry(
        book.example, "MXNet's book; no claim about speed.", _PADDED,
        default_data="random words", interfaces=(NP,))),
    **dict.fromkeys(("molecules", "molecules-onehot"),
                    Entry(molecules.messages, "Gilmer et al. 2017; no claim about speed.",
                          "Compare gathers by index with products.", (64,),
                          "random graphs")),
    "reads": Entry(drawn.pondering, "Each value is read before the next step: nothing to batch.",
                   "It should not be slower than the loop.", (32,), "random inputs"),
}  # fmt: skip


def make(name, args, interface=None, **sizes):
    """Make a workload of `WORKLOADS`; equal arguments give equal parameters and samples.

    `args` has `seed`, `limit` (number of samples or None), and for each name in `FOLDERS` a folder
    or None. `interface` is one of the entry's. `sizes` are `embedding_size` (of the inputs) and
    `hidden_size`; models have defaults.
    """
    random.seed(args.seed)
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    entry = WORKLOADS[name]
    accepted = inspect.signature(entry.make).parameters
    values = {**vars(args), "name": name}
    passed = {o: values[o] for o in (*FOLDERS, "name", "limit", "seed") if o in accepted}
    data = [FOLDERS[o][0] for o in passed if o in FOLDERS and passed[o] is not None]
    interface = interface or entry.interfaces[0]
    with semantics(interface):
        workload = entry.make(**passed, **sizes)
    return workload._replace(
        title=f"{workload.title}, {(*data, entry.default_data)[0]}",
        samples=[sample.of(interface) for sample in workload.samples],
        interface=interface,
    )
