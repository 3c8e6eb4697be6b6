"""All workloads by name, with the data that each can run on."""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Callable, Dict

import mxnet as mx
import numpy as np

from . import characters, modules, pairs, reads, sentiment, seq2seq, sequences, treegru
from .base import Workload, WorkloadError


def _sick(args: Namespace, **sizes: int) -> Workload:
    if args.data is None:
        raise WorkloadError("workload sick needs --data DIR, a folder with sentence pairs")
    return pairs.sick(args.data, args.limit, **sizes)


def _wandering(args: Namespace, **sizes: int) -> Workload:
    made = sequences.tagging(args.wikiner, args.limit, **sizes)
    return made._replace(name="wandering", title=f"{made.title}, half to twice", wanders=True)


MAKERS: Dict[str, Callable[..., Workload]] = {
    "embedded": lambda args, **sizes: pairs.embedded(args.limit, **sizes),
    "sick": _sick,
    "sequences": lambda args, **sizes: sequences.tagging(args.wikiner, args.limit, **sizes),
    "wandering": _wandering,
    "sst": lambda args, **sizes: sentiment.sentiment(args.sst, args.limit, **sizes),
    "characters": lambda args, **sizes: characters.spelling(args.wikiner, args.limit, **sizes),
    "treegru": lambda args, **sizes: treegru.phrases(args.sst, args.limit, **sizes),
    "modules": lambda args, **sizes: modules.answering(args.clevr, args.limit, args.seed, **sizes),
    "seq2seq": lambda args, **sizes: seq2seq.reversing(args.limit, args.seed, **sizes),
    "reads": lambda args, **sizes: reads.pondering(args.limit, args.seed, **sizes),
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
    return MAKERS[name](args, **sizes)
