"""Samples per second of several ways to run the model: one way of measuring, for all programs.

The rules are the same for all contenders:

- Rounds are interleaved (A B C, A B C, ...), so that all see the same machine. Each round starts
  from the same parameters and has new minibatches, the same for all, so that plans are made
  anew as in an epoch.
- Inference ends, for each minibatch, when the scores are in NumPy. A step of training is forward,
  backward, and the optimizer; each loss is read when the next minibatch has been issued, as the
  training program does, and a round ends when everything has been computed.
- Data and models are frozen, so that no contender pays for collections of garbage that look
  through them.
- Before the first round, each contender runs untimed, and one that chooses its settings by
  measuring does so until it has settled.
- A contender's turn in a round begins with a minibatch that is not timed: whoever ran before has
  filled the processor's caches, and in an epoch nobody runs in between.
"""

from __future__ import annotations

import gc
import math
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from baselines.products import TRAINING, BareProducts
from study.results import Column, Spread, Table, environment

from .data import Sample
from .model import RelatednessModel
from .running import Runner

__all__ = ["KINDS", "Contender", "Products", "Timing", "compare", "contest", "draw", "environment",
           "table"]  # fmt: skip

KINDS = ("inference", "training")
Work = Sequence[Sequence[Sample]]
#: Minibatches that a contender repeats at most so that their plans stay in the cache.
REPEATED = 4
#: Minibatches of one round at most.
MOST_MINIBATCHES = 64
#: Minibatches run untimed after the setting has been chosen, so that nothing is timed for it.
AFTER_SETTLING = 6


class Timing(NamedTuple):
    """What one contender did in one round."""

    samples: int
    seconds: float
    analysis: Optional[float] = None  # seconds; None if nothing is analysed
    launches: Optional[float] = None  # per minibatch; None if nothing is launched

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


class Entrant(Protocol):
    """What `compare` asks of a contender."""

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def settled(self) -> bool:
        """Whether its settings are chosen."""

    def portion(self, work: Work, count: int) -> Work:
        """Take from a round's minibatches what this contender runs."""

    def time(self, kind: str, work: Work) -> Timing:
        """Run some minibatches and take the time."""


class Contender(NamedTuple):
    """A mode in the benchmark.

    Attributes
    ----------
    runner : Runner
    trainer : gluon.Trainer
    start : dict
        The parameters every round starts from.
    name : str
        For tables; the runner's mode by default.
    most : int, optional
        Samples of a minibatch at most, for modes whose time per sample does not depend on the size
        of the minibatch, so that rounds do not take for ever.
    repeats : bool
        Whether to run few minibatches, once untimed, so that their plans are in the cache.
    """

    runner: Runner
    trainer: gluon.Trainer
    start: Dict[str, mx.nd.NDArray]
    name: str = ""
    most: Optional[int] = None
    repeats: bool = False

    @classmethod
    def make(cls, runner: Runner, trainer: gluon.Trainer, **more: Any) -> Contender:
        """Make a contender that starts from the parameters as they are."""
        parameters = runner.model.collect_params().items()
        start = {name: p.data(runner.contexts[0]).copy() for name, p in parameters}
        return cls(runner, trainer, start, **more)

    @property
    def label(self) -> str:
        """What tables and JSON call it."""
        return self.name or self.runner.mode

    @property
    def settled(self) -> bool:
        """Whether "auto" has chosen for the last minibatch; True without "auto"."""
        report = self.runner.report
        return report is None or not report.trying

    def portion(self, work: Work, count: int) -> Work:
        """Take from a round's minibatches what this contender runs."""
        chosen = [batch[: self.most] for batch in work[:count]]
        if self.repeats:
            distinct = chosen[:REPEATED]
            chosen = [distinct[i % len(distinct)] for i in range(len(chosen))]
        return chosen

    def time(self, kind: str, work: Work) -> Timing:
        """Run some minibatches from the first parameters and take the time."""
        if self.repeats:
            self.run(kind, work[:REPEATED])
        for name, parameter in self.runner.model.collect_params().items():
            parameter.set_data(self.start[name])
        mx.nd.waitall()
        started = time.perf_counter()
        reports = self.run(kind, work)
        seconds = time.perf_counter() - started
        samples = sum(map(len, work))
        if not reports:
            return Timing(samples, seconds)
        analysis = sum(flush.analysis_ms for report in reports for flush in report.flushes)
        launches = sum(report.launches + report.at_once for report in reports)
        return Timing(samples, seconds, 1e-3 * analysis, launches / len(reports))

    def run(self, kind: str, work: Work) -> List[Any]:
        """Run some minibatches to the end; return their reports, if the mode makes any."""
        reports, previous = [], None
        for batch in work:
            if kind == "inference":
                self.runner.predict(batch)
            else:
                step = self.runner.step(batch, self.trainer)
                if previous is not None:
                    previous.losses.asnumpy()
                previous = step
            if self.runner.report is not None:
                reports.append(self.runner.report)
        if previous is not None:
            previous.losses.asnumpy()
        mx.nd.waitall()
        return reports


class Products(NamedTuple):
    """The model's matrix products alone; for training their time counts three times."""

    model: RelatednessModel
    label: str = "bare products"
    settled: bool = True

    def portion(self, work: Work, count: int) -> Work:
        """Take from a round's minibatches what this contender runs."""
        return work[:count]

    def time(self, kind: str, work: Work) -> Timing:
        """Compute the products of some minibatches; making the operands is not counted."""
        products = [BareProducts(self.model, batch) for batch in work]
        for product in products:
            product.run()
        mx.nd.waitall()
        started = time.perf_counter()
        for product in products:
            product.run()
        mx.nd.waitall()
        seconds = time.perf_counter() - started
        return Timing(sum(map(len, work)), seconds * (TRAINING if kind == "training" else 1))


def compare(
    contenders: Sequence[Entrant],
    samples: Sequence[Sample],
    batch_size: int,
    rounds: int,
    warmup: float,
    seconds: Optional[float] = None,
    seed: int = 1,
) -> Dict[str, Any]:
    """Time inference and training.

    Parameters
    ----------
    contenders : sequence of Entrant
        The first is what the others are compared with.
    samples : sequence of Sample
    batch_size, rounds : int
    warmup : float
        Seconds that each contender may take, per kind, to settle. It runs at least once.
    seconds : float, optional
        About how long one contender is timed in a round, at least one minibatch; without it, a
        round has as many minibatches as `samples` fill.
    seed : int
        Minibatches are drawn with.

    Returns
    -------
    dict
        By kind and label: ``samples_per_second`` (a figure per round), ``median``, ``ratio`` (to
        the first contender's median), ``samples_per_round``, ``minibatches_per_round``,
        ``analysis_share`` (of the time), ``launches`` (per minibatch; None if not known) and
        ``settled``.
    """
    size = min(batch_size, len(samples))
    count = len(samples) // size
    return contest(contenders, draw(samples, size, seed), rounds, warmup, count, seconds)


def contest(
    contenders: Sequence[Entrant],
    fresh: Iterator[List[Any]],
    rounds: int,
    warmup: float,
    count: int,
    seconds: Optional[float] = None,
    kinds: Sequence[str] = KINDS,
) -> Dict[str, Any]:
    """Time contenders on minibatches that `fresh` draws; for the rest see `compare`.

    Parameters
    ----------
    count : int
        Minibatches of a round, if no `seconds` are given.
    kinds : sequence of {"inference", "training"}
    """
    # What has been loaded stays: without this, each full collection of garbage looks through it.
    gc.collect()
    gc.freeze()
    counts, settled = {}, {}
    for kind in kinds:
        for one in contenders:
            needed = _warm_up(one, kind, fresh, warmup)
            if seconds is not None:
                count = max(1, min(MOST_MINIBATCHES, round(seconds / needed)))
            counts[kind, one.label] = count
            settled[kind, one.label] = one.settled
    timings: Dict[Tuple[str, str], List[Timing]] = {key: [] for key in counts}
    for _ in range(rounds):
        for kind in kinds:
            most = max(counts[kind, one.label] for one in contenders)
            work = [next(fresh) for _ in range(most)]
            warm = [next(fresh)]
            for one in contenders:
                one.time(kind, one.portion(warm, 1))
                portion = one.portion(work, counts[kind, one.label])
                timings[kind, one.label].append(one.time(kind, portion))
    gc.unfreeze()
    return {**_summary(timings, contenders[0].label), "minibatches_per_round": _by_kind(counts),
            "settled": _by_kind(settled)}  # fmt: skip


def draw(samples: Sequence[Any], size: int, seed: int) -> Iterator[List[Any]]:
    """Draw minibatches without end, epoch after epoch; none is likely to come again."""
    rng = np.random.RandomState(seed)
    while True:
        order = rng.permutation(len(samples))
        for start in range(0, len(order) - size + 1, size):
            yield [samples[i] for i in order[start : start + size]]


def _warm_up(one: Entrant, kind: str, fresh: Iterator[List[Sample]], limit: float) -> float:
    """Run untimed until `one` has settled; return how many seconds a minibatch takes, or nearly."""
    end = time.perf_counter() + limit
    needed = math.inf
    quiet = 0
    while quiet < 2 or time.perf_counter() < end:
        needed = min(needed, one.time(kind, one.portion([next(fresh)], 1)).seconds)
        quiet = quiet + 1 if one.settled else 0
        if quiet == AFTER_SETTLING or time.perf_counter() >= end:
            break
    return needed


def _by_kind(values: Dict[Tuple[str, str], Any]) -> Dict[str, Dict[str, Any]]:
    found: Dict[str, Dict[str, Any]] = {}
    for (kind, label), value in values.items():
        found.setdefault(kind, {})[label] = value
    return found


def _summary(
    timings: Dict[Tuple[str, str], List[Timing]], first: str
) -> Dict[str, Dict[str, Dict[str, Any]]]:
    def collect(figure: Any) -> Dict[str, Dict[str, Any]]:
        return _by_kind({key: figure(rounds) for key, rounds in timings.items()})

    def share(rounds: List[Timing]) -> Optional[float]:
        known = [timing.analysis for timing in rounds if timing.analysis is not None]
        return sum(known) / sum(timing.seconds for timing in rounds) if known else None

    def launches(rounds: List[Timing]) -> Optional[float]:
        known = [timing.launches for timing in rounds if timing.launches is not None]
        return float(np.mean(known)) if known else None

    rates = collect(lambda rounds: [timing.rate for timing in rounds])
    median = {k: {m: float(np.median(v)) for m, v in own.items()} for k, own in rates.items()}
    return {
        "samples_per_second": rates,
        "median": median,
        "ratio": {k: {m: v / own[first] for m, v in own.items()} for k, own in median.items()},
        "samples_per_round": collect(lambda rounds: rounds[0].samples),
        "analysis_share": collect(share),
        "launches": collect(launches),
    }


def table(result: Dict[str, Any]) -> str:
    """Lay the medians out side by side, each with quartiles and its ratio to the first mode."""
    rows: List[Tuple[str, ...]] = []
    for label in next(iter(result["median"].values())):
        cells = []
        for kind in result["median"]:
            spread = Spread.of(result["samples_per_second"][kind][label])
            ratio = result["ratio"][kind][label]
            cells += [f"{spread.median:,.0f}", f"{spread.low:,.0f}-{spread.high:,.0f}",
                      f"{ratio:.1f}x"]  # fmt: skip
        rows.append((label, *cells))
    heads = ["mode"]
    for kind in result["median"]:
        heads += [f"{kind}/s", "quartiles", "ratio"]
    cells = Table("", tuple(Column(head) for head in heads), rows).cells()
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)
