"""Relatedness of sentence pairs by child-sum Tree-LSTM; see the package `relatedness`.

Word vectors are not trained, as when they come from a file: a dense gradient of the whole table
would cost every way of running the model the same large amount.
"""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from relatedness.data import Sample, build_vocab, encode, load_corpus
from relatedness.model import RelatednessModel
from relatedness.trees import Pair, Tree

from .base import Workload, WorkloadError


def embedded_pairs() -> List[Pair]:
    """Read the training pairs of the built-in corpus."""
    return load_corpus(splits=("train",)).splits["train"]


def embedded_sentences(limit: Optional[int] = None) -> List[Tuple[Tuple[str, ...], Tree]]:
    """Read the words and trees of the sentences of these pairs."""
    sides = ([(p.tokens_a, p.tree_a), (p.tokens_b, p.tree_b)] for p in embedded_pairs())
    return list(islice(chain.from_iterable(sides), limit))


def relate(
    model: RelatednessModel,
    trainer: gluon.Trainer,
    samples: Sequence[Sample] = (),
    name: str = "pairs",
    title: str = "Tree-LSTM",
) -> Workload:
    """Make the workload of a model that is initialized."""
    kl_divergence = gluon.loss.KLDivLoss(from_logits=True)
    for block in (model, kl_divergence):
        block.hybridize()

    def score(sample):
        return model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)

    def loss(sample):
        return kl_divergence(score(sample), sample.target)

    return Workload(name, title, "pairs", samples, score, loss, trainer, model, kl_divergence)


def relatedness(
    pairs: List[Pair], name: str, title: str, embedding_size: int = 300, hidden_size: int = 150
) -> Workload:
    """Put the relatedness model on some pairs."""
    vocab = build_vocab(pairs)
    model = RelatednessModel(len(vocab), embedding_size, hidden_size)
    model.initialize(mx.init.Xavier())
    model.embedding.weight.grad_req = "null"
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05, "wd": 1e-4})
    return relate(model, trainer, encode(pairs, vocab, mx.cpu()), name, title)


def embedded(limit: Optional[int] = None, **sizes: int) -> Workload:
    """Relatedness on the built-in corpus."""
    title = "Tree-LSTM, built-in corpus"
    return relatedness(embedded_pairs()[:limit], "embedded", title, **sizes)


def sick(data: Optional[Path], limit: Optional[int] = None, **sizes: int) -> Workload:
    """Relatedness on the training pairs of SICK, in any format that `load_corpus` knows."""
    if data is None:
        raise WorkloadError("workload sick needs --data DIR, a folder with sentence pairs")
    pairs = load_corpus(data, splits=("train",)).splits["train"]
    return relatedness(pairs[:limit], "sick", "Tree-LSTM, SICK", **sizes)
