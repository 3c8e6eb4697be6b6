"""Relatedness of sentence pairs by child-sum Tree-LSTM; the model is in `relatedness.model`."""

from __future__ import annotations

import argparse
import math
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from scipy.stats import pearsonr, spearmanr

from relatedness.corpora import BUILT_IN, DataError, load_corpus
from relatedness.data import Task
from relatedness.model import RelatednessModel
from relatedness.trees import CLASSES, Corpus, Pair, Tree

from .base import Workload


class Sample(NamedTuple):
    """A pair as the model takes it.

    Attributes
    ----------
    tokens_a, tokens_b : mx.nd.NDArray
        Word indices. Shape (T,), int32.
    tree_a, tree_b : Tree
    target : mx.nd.NDArray
        Distribution over the scores. Shape (1, CLASSES), float32.
    """

    tokens_a: mx.nd.NDArray
    tree_a: Tree
    tokens_b: mx.nd.NDArray
    tree_b: Tree
    target: mx.nd.NDArray


class Relatedness(Task):
    """How related two sentences are: Tai et al. 2015, section 4.2."""

    unit = "pairs"
    best_by = "pearson"

    def read(self, args: argparse.Namespace, splits: Sequence[str]) -> Dict[str, List[Pair]]:  # noqa: D102
        directory = args.data or BUILT_IN
        return usable(load_corpus(directory, args.on_bad_sample, splits, args.limit), directory)

    def words(self, item: Pair) -> Sequence[str]:  # noqa: D102
        return (*item.tokens_a, *item.tokens_b)

    def target(self, item: Pair) -> np.ndarray:
        """Spread a score over the two whole scores around it, so that it is their expectation.

        Tai et al. 2015, equation 15. Shape (1, CLASSES), float32; NaN for a pair without score,
        which can be judged but not learned from.
        """
        if math.isnan(item.score):
            return np.full((1, CLASSES), np.nan, np.float32)
        target = np.zeros((1, CLASSES), np.float32)
        below = min(int(math.floor(item.score)), CLASSES - 1)
        target[0, below - 1] = below + 1 - item.score
        target[0, below] = item.score - below
        return target

    def sample(self, item: Pair, tokens: mx.nd.NDArray, target: mx.nd.NDArray) -> Sample:  # noqa: D102
        middle = len(item.tokens_a)
        return Sample(tokens[:middle], item.tree_a, tokens[middle:], item.tree_b, target)

    def model(  # noqa: D102
        self, vocab_size: int, settings: Dict[str, Any], sparse: bool = False
    ) -> RelatednessModel:
        sizes = (settings[name] for name in ("embedding_size", "hidden", "similarity_hidden"))
        return RelatednessModel(vocab_size, *sizes)

    def workload(  # noqa: D102
        self,
        model: gluon.Block,
        trainer: gluon.Trainer,
        samples: Sequence[Sample] = (),
        title: str = "child-sum Tree-LSTM",
    ) -> Workload:
        kl_divergence = gluon.loss.KLDivLoss(from_logits=True)
        for block in (model, kl_divergence):
            block.hybridize()

        def score(sample):
            return model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)

        def loss(sample):
            return kl_divergence(score(sample), sample.target)

        return Workload("sick", title, "pairs", samples, score, loss, trainer, model, kl_divergence)

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


def usable(corpus: Corpus, path: Path) -> Dict[str, List[Pair]]:
    """Take the pairs of every split, and say what was skipped."""
    for reason in corpus.skipped:
        print(f"skipped: {reason}", file=sys.stderr)
    if corpus.skipped:
        print(f"skipped {len(corpus.skipped)} pairs", file=sys.stderr)
    for split, pairs in corpus.splits.items():
        if not pairs:
            raise DataError(path / split, 0, "no usable pairs")
    return corpus.splits


def training_pairs(
    data: Optional[Path], limit: Optional[int] = None, split: str = "train"
) -> Tuple[List[Pair], str]:
    """Read the pairs of a split, SICK's or those of the built-in corpus; say where from."""
    pairs = load_corpus(data or BUILT_IN, splits=(split,), limit=limit).splits[split]
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
    vocab = RELATEDNESS.vocab(pairs)
    model = RelatednessModel(len(vocab), embedding_size, hidden_size)
    model.initialize(mx.init.Xavier())
    # Word vectors are not trained, as when they come from a file: a dense gradient of the whole
    # table would cost every way of running the model the same large amount.
    model.embedding.weight.grad_req = "null"
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05, "wd": 1e-4})
    samples = RELATEDNESS.encode(pairs, vocab, mx.cpu())
    return RELATEDNESS.workload(model, trainer, samples, f"child-sum Tree-LSTM, {source}")
