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

from relatedness.corpora import BUILT_IN, load_corpus
from relatedness.data import Sample, build_vocab, encode
from relatedness.model import RelatednessModel
from relatedness.trees import Pair, Tree

from .base import Workload


def training_pairs(data: Optional[Path], limit: Optional[int] = None) -> Tuple[List[Pair], str]:
    """Read training pairs, SICK's or those of the built-in corpus; say where they are from."""
    pairs = load_corpus(data or BUILT_IN, splits=("train",)).splits["train"][:limit]
    return pairs, "built-in corpus" if data is None else "SICK"


def sentences(
    data: Optional[Path] = None, limit: Optional[int] = None
) -> List[Tuple[Tuple[str, ...], Tree]]:
    """Read the words and trees of the sentences of these pairs."""
    pairs, _ = training_pairs(data)
    sides = ([(p.tokens_a, p.tree_a), (p.tokens_b, p.tree_b)] for p in pairs)
    return list(islice(chain.from_iterable(sides), limit))


def relate(
    model: RelatednessModel,
    trainer: gluon.Trainer,
    samples: Sequence[Sample] = (),
    title: str = "child-sum Tree-LSTM",
) -> Workload:
    """Make the workload of a model that is initialized."""
    kl_divergence = gluon.loss.KLDivLoss(from_logits=True)
    for block in (model, kl_divergence):
        block.hybridize()

    def score(sample):
        return model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)

    def loss(sample):
        return kl_divergence(score(sample), sample.target)

    return Workload("sick", title, "pairs", samples, score, loss, trainer, model, kl_divergence)


def relatedness(
    data: Optional[Path] = None,
    limit: Optional[int] = None,
    embedding_size: int = 300,
    hidden_size: int = 150,
) -> Workload:
    """Put the relatedness model on the training pairs of a corpus."""
    pairs, source = training_pairs(data, limit)
    vocab = build_vocab(pairs)
    model = RelatednessModel(len(vocab), embedding_size, hidden_size)
    model.initialize(mx.init.Xavier())
    model.embedding.weight.grad_req = "null"
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05, "wd": 1e-4})
    samples = encode(pairs, vocab, mx.cpu())
    return relate(model, trainer, samples, f"child-sum Tree-LSTM, {source}")
