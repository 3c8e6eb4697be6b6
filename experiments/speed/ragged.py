"""Ragged workloads in the benchmark: a tagger of sentences, and sentiment of phrases, in training.

All ways train on the same sentences, words per second are told, and rounds are interleaved as in
`relatedness/benchmark.py`, which times them. Here parameters go on from round to round.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from baselines.padded import PaddedBatching, bucketed
from relatedness.benchmark import Timing, Work, contest, draw
from relatedness.options import batching_options
from study.results import Column, Spread, Table
from workloads import sentiment, sequences
from workloads.base import Workload
from workloads.registry import make

from .contenders import PER_SAMPLE

NAMES = ("sequences", "sst")
PADDED = "padded, fused LSTM"
KIND = "training"


class Way:
    """One way to train on a workload; minibatches are lists of numbers of samples.

    Parameters
    ----------
    label : str
    words : sequence of int
        Number of words of each sample.
    step : callable
        Trains on a minibatch and gives the losses, on the way to being computed.
    most : int, optional
        Minibatches of a round at most.
    mixes : bool
        Whether to shuffle the sentences of a round, as they were drawn by length for another way.
    """

    def __init__(
        self,
        label: str,
        words: Sequence[int],
        step: Callable[[Sequence[int]], mx.nd.NDArray],
        most: float = float("inf"),
        mixes: bool = True,
    ) -> None:
        self.label = label
        self._words = words
        self._step = step
        self._most = most
        self._mixes = mixes

    @property
    def settled(self) -> bool:
        """Whether its settings are chosen."""
        return True

    def portion(self, work: Work, count: int) -> Work:
        """Take from a round's minibatches what this way runs; others that mix get the same."""
        if self._mixes:
            sizes = np.cumsum([len(batch) for batch in work])[:-1]
            pool = np.random.RandomState(len(work)).permutation(np.concatenate(work))
            work = [part.tolist() for part in np.split(pool, sizes)]
        return work[: int(min(count, self._most))]

    def time(self, kind: str, work: Work) -> Timing:
        """Train on some minibatches; losses are read when the next minibatch has been issued."""
        previous = None
        mx.nd.waitall()
        started = time.perf_counter()
        for batch in work:
            losses = self._step(batch)
            if previous is not None:
                previous.asnumpy()
            previous = losses
        mx.nd.waitall()
        seconds = time.perf_counter() - started
        return Timing(sum(self._words[i] for batch in work for i in batch), seconds)


class Samples(Way):
    """The workload's own model, sample by sample, in a scope or without one.

    Parameters
    ----------
    workload : Workload
        For this way alone.
    label : {"imperative", "hybridized", "dynamic"}
    options : dict
        Options of `gluon_dynbatch.batching`, if it is dynamic.
    """

    def __init__(self, workload: Workload, label: str, options: Dict[str, Any]) -> None:
        most = 1 if label in PER_SAMPLE else float("inf")
        words = [len(sample.words) for sample in workload.samples]
        super().__init__(label, words, self._train, most)
        self.workload = workload
        self._options = options
        #: Of the last minibatch; None unless it is dynamic.
        self.report: Optional[gdb.Report] = None
        for block in (workload.model, workload.loss_block):
            block.hybridize(label != "imperative")

    @property
    def settled(self) -> bool:
        """Whether "auto" has chosen for the last minibatch; True without "auto"."""
        return self.report is None or not self.report.trying

    def _train(self, batch: Sequence[int]) -> mx.nd.NDArray:
        samples = [self.workload.samples[i] for i in batch]
        dynamic = self.label == "dynamic"
        scope = gdb.batching(**self._options) if dynamic else contextlib.nullcontext()
        with autograd.record(), scope:
            losses = [self.workload.loss(sample) for sample in samples]
        autograd.backward(losses)
        if dynamic:
            self.report = scope.report
        joined = mx.nd.concat(*losses, dim=0)
        self.workload.trainer.step(len(samples))
        return joined


def padded(workload: Workload) -> Way:
    """Make the padded way of the tagger, from its parameters."""
    batching = PaddedBatching(workload.model, workload.samples)
    old = workload.trainer.optimizer
    optimizer = mx.optimizer.create("adagrad", learning_rate=old.learning_rate, wd=old.wd)
    trainer = gluon.Trainer(batching.model.collect_params(), optimizer)

    def step(batch: Sequence[int]) -> mx.nd.NDArray:
        losses = batching.differentiate(batch)
        trainer.step(len(batch))
        return losses

    return Way(PADDED, [len(sample.words) for sample in workload.samples], step, mixes=False)


class Contest(NamedTuple):
    """A workload with the ways to run it, and its minibatches without end."""

    workload: Workload
    ways: List[Way]
    fresh: Iterator[List[int]]


def make_contest(name: str, args: argparse.Namespace) -> Contest:
    """Make the ways to train on one of `NAMES`; all start from equal parameters."""
    options = batching_options(args)
    ways: List[Way] = [
        Samples(make(name, args, **args.sizes), label, options)
        for label in (*PER_SAMPLE, "dynamic")
    ]
    workload = make(name, args, **args.sizes)
    size = min(args.workload_size, len(workload.samples))
    if name == "sequences":
        ways.append(padded(workload))
        return Contest(workload, ways, bucketed(workload.samples, size, args.seed))
    return Contest(workload, ways, draw(range(len(workload.samples)), size, args.seed))


def check_data(args: argparse.Namespace) -> None:
    """Read the files that workloads need, so that a wrong one is an error before the rest runs.

    Raises
    ------
    DataError
    """
    if "sequences" in args.workloads and args.wikiner is not None:
        sequences.read_wikiner(args.wikiner, args.limit)
    if "sst" in args.workloads and args.sst is not None:
        sentiment.read_treebank(args.sst, args.limit)


def measure(name: str, args: argparse.Namespace) -> Dict[str, Any]:
    """Time the ways to train on one of `NAMES`.

    Returns
    -------
    dict
        As `relatedness.benchmark.compare`, with words for samples, and ``title``.
    """
    made = make_contest(name, args)
    result = contest(
        made.ways, made.fresh, args.rounds, args.warmup, args.workload_minibatches, kinds=(KIND,)
    )
    words = sum(len(sample.words) for sample in made.workload.samples)
    return {
        **result,
        "title": made.workload.title,
        "sentences": len(made.workload.samples),
        "words_per_sentence": words / len(made.workload.samples),
    }


def table(result: Dict[str, Any], size: int) -> Table:
    """Lay out one workload."""
    columns = (
        Column("way"), Column("words/s", ",.0f"), Column("quartiles"),
        Column("sentences/s", ",.0f"), Column("ratio", ".1f"),
    )  # fmt: skip
    rows = []
    for label, rates in result["samples_per_second"][KIND].items():
        spread = Spread.of(rates)
        rows.append(
            (label, spread.median, f"{spread.low:,.0f}-{spread.high:,.0f}",
             spread.median / result["words_per_sentence"], result["ratio"][KIND][label])
        )  # fmt: skip
    return Table(f"{result['title']}, {KIND}, minibatches of {size}", columns, rows)
