"""Relatedness of sentence pairs by child-sum Tree-LSTM; the model is in `relatedness.model`."""

from __future__ import annotations

import argparse
import math
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from scipy.stats import pearsonr, spearmanr

from relatedness.corpora import BUILT_IN, Pair, load_corpus
from relatedness.model import RelatednessModel
from relatedness.trees import CLASSES, Tree

from .base import Sample, Workload
from .text import count_words, encode


class Relatedness:
    """How related two sentences are: Tai et al. 2015, section 4.2.

    A task as `relatedness.options.TASKS` has them.
    """

    unit = "pairs"
    best_by = "pearson"
    defaults: Dict[str, Any] = {}

    def read(self, args: argparse.Namespace, splits: Sequence[str]) -> Dict[str, List[Pair]]:  # noqa: D102
        return load_corpus(args.data or BUILT_IN, splits, args.limit, args.on_bad_sample == "skip")

    def model(self, vocab_size: int, settings: Dict[str, Any], sparse: bool) -> RelatednessModel:  # noqa: D102
        sizes = (settings[name] for name in ("embedding_size", "hidden", "similarity_hidden"))
        return RelatednessModel(vocab_size, *sizes)

    def workload(  # noqa: D102
        self,
        model: gluon.Block,
        trainer: gluon.Trainer,
        samples: Sequence[Sample] = (),
        title: str = "child-sum Tree-LSTM",
    ) -> Workload:
        loss = gluon.loss.KLDivLoss(from_logits=True)
        for block in (model, loss):
            block.hybridize()
        return Workload("sick", title, "pairs", "pairs", samples, model, trainer, loss, loss)

    def answers(self, outputs: np.ndarray, items: Sequence[Pair] = ()) -> np.ndarray:
        """Turn log-probabilities of the scores, shape (N, CLASSES), into scores, shape (N,)."""
        return np.exp(outputs) @ np.arange(1, CLASSES + 1)

    def measure(self, answers: np.ndarray, items: Sequence[Pair]) -> Dict[str, Optional[float]]:
        """Pearson's r, Spearman's rho, mean squared error."""
        true = np.array([pair.score for pair in items])
        defined = len(true) > 1 and np.ptp(answers) > 0 and np.ptp(true) > 0
        squares = float(np.mean((answers - true) ** 2))
        return {
            "pearson": float(pearsonr(answers, true)[0]) if defined else None,
            "spearman": float(spearmanr(answers, true)[0]) if defined else None,
            "mse": None if math.isnan(squares) else squares,
        }


RELATEDNESS = Relatedness()


def training_pairs(
    data: Optional[Path], limit: Optional[int] = None, split: str = "train"
) -> Tuple[List[Pair], str]:
    """Read the pairs of a split, SICK's or those of the built-in corpus; say where from."""
    pairs = load_corpus(data or BUILT_IN, (split,), limit)[split]
    return pairs, "built-in corpus" if data is None else "SICK"


def sentences(
    data: Optional[Path] = None, limit: Optional[int] = None, split: str = "train"
) -> List[Tuple[Tuple[str, ...], Tree]]:
    """Read the words and trees of the sentences of these pairs."""
    pairs, _ = training_pairs(data, limit, split)
    sides = ([(p.tokens_a, p.tree_a), (p.tokens_b, p.tree_b)] for p in pairs)
    return list(islice(chain.from_iterable(sides), limit))


def relatedness(
    data: Optional[Path] = None,
    limit: Optional[int] = None,
    embedding_size: int = 300,
    hidden_size: int = 150,
) -> Workload:
    """Put the relatedness model on the training pairs of a corpus."""
    pairs, source = training_pairs(data, limit)
    vocab = count_words(pair.words for pair in pairs)
    model = RelatednessModel(len(vocab), embedding_size, hidden_size)
    model.initialize(mx.init.Xavier())
    # Word vectors are not trained, as when they come from a file: a dense gradient of the whole
    # table would cost every way of running the model the same large amount.
    model.embedding.weight.grad_req = "null"
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05, "wd": 1e-4})
    title = f"child-sum Tree-LSTM, {source}"
    return RELATEDNESS.workload(model, trainer, encode(pairs, vocab), title)
