"""All workloads by name; a new one is a file and a line here."""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Callable, Dict, Tuple

import mxnet as mx
import numpy as np

from . import characters, modules, pairs, reads, sentiment, seq2seq, sequences, treegru
from .base import Workload

#: What makes each, and the options that it takes by name.
MAKERS: Dict[str, Tuple[Callable[..., Workload], Tuple[str, ...]]] = {
    "embedded": (pairs.embedded, ("limit",)),
    "sick": (pairs.sick, ("data", "limit")),
    "sequences": (sequences.tagging, ("wikiner", "limit")),
    "wandering": (sequences.wandering, ("wikiner", "limit")),
    "sst": (sentiment.sentiment, ("sst", "limit")),
    "characters": (characters.spelling, ("wikiner", "limit")),
    "treegru": (treegru.phrases, ("sst", "limit")),
    "modules": (modules.answering, ("clevr", "limit", "seed")),
    "seq2seq": (seq2seq.reversing, ("limit", "seed")),
    "reads": (reads.pondering, ("limit", "seed")),
}


def make(name: str, args: Namespace, **sizes: int) -> Workload:
    """Make a workload; equal arguments give equal parameters and samples.

    Parameters
    ----------
    name : str
        A key of `MAKERS`.
    args : Namespace
        Has `seed`, `limit` (first samples only, or None), and where data is, or None: `data`
        (SICK), `wikiner`, `sst`, `clevr`.
    **sizes : int
        `embedding_size` (of the inputs) and `hidden_size`, by default the model's own.
    """
    random.seed(args.seed)
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    maker, options = MAKERS[name]
    return maker(**{option: getattr(args, option) for option in options}, **sizes)
