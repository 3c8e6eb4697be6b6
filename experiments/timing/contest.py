"""Contests: several ways to run a workload, timed side by side.

The rules are the same in all programs:

- Rounds are interleaved and their order is drawn anew each time, so that all see the same machine.
  All run the same minibatches, new ones in each round, so that plans are made anew as in an epoch;
  a contender that `repeats` runs a few minibatches again and again, whose plans are cached.
- Each turn starts from the same parameters. It begins with a minibatch that is not timed: whoever
  ran before has filled the processor's caches, and in an epoch nobody runs in between.
- Inference ends, for each minibatch, when the results are in NumPy. A step of training is forward,
  backward, and the optimizer; each loss is read when the next minibatch has been issued, as a
  training program does, and a turn ends when everything has been computed.
- Data and models are frozen, so that no contender pays for collections of garbage that look
  through them.
- Before the first round, each contender runs untimed, and one that chooses its settings by
  measuring does so until it has settled.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from baselines.products import TRAINING, BareProducts
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.scope import RUNTIME
from workloads.runner import Runner

from .results import Column, Spread, Table, grouped

KINDS = ("inference", "training")
#: Minibatches that a contender repeats at most so that their plans stay in the cache.
REPEATED = 4
#: Minibatches of one turn at most.
MOST_MINIBATCHES = 64
#: What is called settled has timed nothing for itself for so many minibatches; more if they are
#: small, as minibatches of different numbers of calls count as different workloads.
QUIET, QUIET_SAMPLES = 6, 96
#: What "auto" calls running without recording.
AT_ONCE = "calls at once"
Work = List[List[Any]]


class Row(NamedTuple):
    """One contender's turn in one round.

    Attributes
    ----------
    label : str
    round : int
    minibatches, samples : int
    rate : float
        Samples per second; words per second where samples are sentences.
    ms : float
        Milliseconds of a minibatch of the contest's size.
    recording, analysis, dispatch : float or None
        Parts of these, of the calling thread; None without the library, as all that follow.
    nodes, launches : float or None
        Of a minibatch: what the analyzer grouped, and launches.
    cached : int or None
        Flushes whose plan came from the cache.
    setting : str
        What most flushes ran with: "granularity by policy (budget)", or `AT_ONCE`.
    trying : bool
        Whether "auto" still timed its candidates.
    """

    label: str
    round: int
    minibatches: int
    samples: int
    rate: float
    ms: float
    recording: Optional[float] = None
    analysis: Optional[float] = None
    dispatch: Optional[float] = None
    nodes: Optional[float] = None
    launches: Optional[float] = None
    cached: Optional[int] = None
    setting: str = ""
    trying: bool = False

    @property
    def running(self) -> float:
        """The rest of the time: waiting for the engine, in training also backward and update."""
        known = (self.recording, self.analysis, self.dispatch)
        return self.ms - sum(part for part in known if part is not None)


class Settling(NamedTuple):
    """How a contender ran before the first round.

    Attributes
    ----------
    scopes : int
        Minibatches that it ran.
    settled : bool
        Whether it timed nothing for itself in the last ones.
    tried : int
        Minibatches that "auto" timed, and the milliseconds that one of these took on average.
    tried_ms : float
    """

    scopes: int
    settled: bool
    tried: int
    tried_ms: float


class Outcome(NamedTuple):
    """What came of one contest; `settling` is by label."""

    workload: str
    kind: str
    batch_size: int
    rows: List[Row]
    settling: Dict[str, Settling]

    @property
    def by_label(self) -> Dict[str, List[Row]]:
        """The rows of each contender."""
        return grouped(self.rows, lambda row: row.label)

    def spread(self, label: str, field: str = "rate") -> Optional[Spread]:
        """Summarise a figure of a contender; None if it did not take part, or has none."""
        values = [getattr(row, field) for row in self.rows if row.label == label]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known else None

    def median(self, label: str, field: str = "rate") -> Optional[float]:
        """Give the median of a figure of a contender, or None."""
        spread = self.spread(label, field)
        return None if spread is None else spread.median

    def ratio(self, label: str, other: str) -> Spread:
        """Summarise the time of one contender as a multiple of another's, round by round."""
        theirs = {row.round: row.ms for row in self.by_label[other]}
        ours = (row for row in self.by_label[label] if row.round in theirs)
        return Spread.of(row.ms / theirs[row.round] for row in ours)

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        rows = [row._asdict() for row in self.rows]
        settling = {label: each._asdict() for label, each in self.settling.items()}
        return {**self._asdict(), "rows": rows, "settling": settling}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Outcome:
        """Read what `as_json` gave."""
        rows = [Row(**row) for row in content["rows"]]
        settling = {label: Settling(**each) for label, each in content["settling"].items()}
        return cls(**{**content, "rows": rows, "settling": settling})


class Contender:
    """A way of running minibatches, in a contest.

    Parameters
    ----------
    runner : Runner
    label : str
        For tables and JSON; the runner's mode by default.
    most : int, optional
        Samples of a minibatch at most, for what takes the same time per sample whatever the size of
        the minibatch. It also runs a single minibatch in a turn, if no seconds are asked for.
    repeats : bool
        Whether to run few minibatches, once untimed, so that their plans are in the cache.
    mixes : bool
        Whether to shuffle the samples of a turn, as they were drawn by length for another.
    """

    def __init__(
        self,
        runner: Runner,
        label: str = "",
        most: Optional[int] = None,
        repeats: bool = False,
        mixes: bool = False,
    ) -> None:
        self.runner = runner
        self.label = label or runner.mode
        self.most = most
        self.repeats = repeats
        self.mixes = mixes
        trained = [p for p in runner.trainer._params if p.grad_req != "null"]
        self._start = [(p, p.data(runner.contexts[0]).copy()) for p in trained]

    @property
    def adapts(self) -> bool:
        """Whether it chooses settings by measuring, and so has to settle."""
        options = self.runner.options
        chosen = (options.get(name, "auto") for name in ("granularity", "policy"))
        return self.runner.mode == "dynamic" and "auto" in chosen

    def minibatches(self, count: int, least: float, seconds: Optional[float]) -> int:
        """Say how many minibatches a turn has, of which one takes at least `least` seconds."""
        if seconds is None:
            return 1 if self.most else count
        return max(1, min(MOST_MINIBATCHES, round(seconds / least)))

    def portion(self, work: Work, count: int) -> Work:
        """Take from a round's minibatches what this contender runs."""
        if self.mixes:
            pool = [sample for batch in work for sample in batch]
            random.Random(len(pool)).shuffle(pool)
            ends = np.cumsum([len(batch) for batch in work]).tolist()
            work = [pool[start:end] for start, end in zip([0, *ends], ends)]
        chosen = [batch[: self.most] for batch in work[:count]]
        if self.repeats:
            chosen = [chosen[i % min(REPEATED, count)] for i in range(len(chosen))]
        return chosen

    def time(self, kind: str, work: Work, size: int, warm: Sequence[Any] = ()) -> Row:
        """Run `warm` untimed, then `work` from the first parameters."""
        RUNTIME.plans.clear()
        self.run(kind, work[:REPEATED] if self.repeats else warm)
        for parameter, value in self._start:
            parameter.set_data(value)
        mx.nd.waitall()
        started = time.perf_counter()
        reports = self.run(kind, work)
        return self.row(work, size, time.perf_counter() - started, reports)

    def run(self, kind: str, work: Work) -> List[Any]:
        """Run some minibatches to the end; return their reports, if the mode makes any."""
        reports, previous = [], None
        for batch in work:
            if kind == "inference":
                self.runner.predict(batch).asnumpy()
            else:
                step = self.runner.step(batch)
                if previous is not None:
                    previous.losses.asnumpy()
                previous = step
            if self.runner.report is not None:
                reports.append(self.runner.report)
        if previous is not None:
            previous.losses.asnumpy()
        mx.nd.waitall()
        return reports

    def row(self, work: Work, size: int, seconds: float, reports: Sequence[Any] = ()) -> Row:
        """Put together what is known of a turn; the round is not."""
        samples = [sample for batch in work for sample in batch]
        # A sentence counts as its words, anything else as one.
        amount = sum(len(getattr(sample, "words", (None,))) for sample in samples)
        row = Row(self.label, 0, len(work), len(samples), amount / seconds,
                  1e3 * seconds * size / len(samples))  # fmt: skip
        if not reports:
            return row
        flushes = [flush for report in reports for flush in report.flushes]

        def each(field: str, more: float = 0) -> float:
            return (sum(getattr(flush, field) for flush in flushes) + more) * size / len(samples)

        settings = [f"{f.granularity} by {f.policy} ({f.budget})" for f in flushes] or [AT_ONCE]
        return row._replace(
            recording=each("recording_ms"),
            analysis=each("analysis_ms"),
            dispatch=each("dispatch_ms"),
            nodes=each("units"),
            launches=each("launches", sum(report.at_once for report in reports)),
            cached=sum(flush.cached for flush in flushes),
            setting=max(dict.fromkeys(settings), key=settings.count),
            trying=any(report.trying for report in reports),
        )


class Products(Contender):
    """The matrix products of a model of sentence pairs alone.

    Making the operands is not counted; for training the time counts three times.
    """

    def time(self, kind: str, work: Work, size: int, warm: Sequence[Any] = ()) -> Row:  # noqa: D102
        products = [BareProducts(self.runner.workload.model, batch) for batch in work]
        for _ in range(2):  # the first time does not count
            mx.nd.waitall()
            started = time.perf_counter()
            for product in products:
                product.run()
            mx.nd.waitall()
            seconds = time.perf_counter() - started
        return self.row(work, size, seconds * (TRAINING if kind == "training" else 1))


def contest(
    contenders: Sequence[Contender],
    fresh: Iterator[List[Any]],
    kind: str,
    size: int,
    rounds: int,
    warmup: float = 0.0,
    seconds: Optional[float] = None,
    count: int = 1,
    seed: int = 1,
    step: Callable[[str], None] = lambda what: None,
) -> Outcome:
    """Time contenders side by side.

    Parameters
    ----------
    contenders : sequence of Contender
    fresh : iterator
        Gives new minibatches.
    kind : {"inference", "training"}
    size, rounds : int
    warmup : float
        Seconds that each may take to settle; it runs at least once.
    seconds : float, optional
        About how long a turn is, at least one minibatch; without it, it has `count` minibatches.
    count, seed : int
        `seed` is what the order of turns is drawn from.
    step : callable
        Called for each round and once before, with a word on it.
    """
    STATE.sites.clear()  # a new process would know nothing of the contests before
    _freeze()
    name = contenders[0].runner.workload.name
    what = f"{name}, {kind}, {size}"
    counts, settling = {}, {}
    for one in contenders:
        settling[one.label], least = _settle(one, kind, size, fresh, warmup)
        counts[one.label] = one.minibatches(count, least, seconds)
    step(what)
    rows: List[Row] = []
    for number in range(rounds):
        order = random.Random(f"{seed}, {number}").sample(contenders, len(contenders))
        turns = _run_round(order, counts, kind, size, fresh)
        rows += [row._replace(round=number) for row in turns]
        step(what)
    gc.unfreeze()
    rank = [one.label for one in contenders]
    rows.sort(key=lambda row: (rank.index(row.label), row.round))
    return Outcome(name, kind, size, rows, settling)


def _freeze() -> None:
    """Let what has been loaded stay; else each full collection of garbage looks through it."""
    gc.collect()
    gc.freeze()


def _run_round(
    turns: Sequence[Contender],
    counts: Dict[str, int],
    kind: str,
    size: int,
    fresh: Iterator[List[Any]],
) -> Iterator[Row]:
    """Have all run the same new minibatches, one contender after the other."""
    work = [next(fresh) for _ in range(max(counts.values()))]
    warm = [next(fresh)]
    for one in turns:
        yield one.time(kind, one.portion(work, counts[one.label]), size, one.portion(warm, 1))


def _settle(one: Contender, kind: str, size: int, fresh: Iterator[List[Any]], limit: float) -> Any:
    """Run untimed until `one` has settled; also return the least seconds of a minibatch."""
    end = time.perf_counter() + limit
    enough = max(QUIET, QUIET_SAMPLES // size) if one.adapts else 2
    took: List[float] = []
    tried: List[float] = []
    quiet = 0
    while quiet < enough and (not took or time.perf_counter() < end):
        batch = one.portion([next(fresh)], 1)
        row = one.time(kind, batch, size)
        took.append(1e-3 * row.ms * len(batch[0]) / size)
        quiet = 0 if row.trying else quiet + 1
        if row.trying:
            tried.append(row.ms)
    settled = quiet >= min(enough, len(took))
    return Settling(len(took), settled, len(tried), float(np.mean(tried or 0))), min(took)


def speed_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Lay out rates of several kinds side by side, with quartiles and ratios to the first way."""
    columns = [Column("mode")]
    for outcome in outcomes:
        columns += [
            Column(f"{outcome.kind}/s", ",.0f"),
            Column("quartiles"),
            Column("ratio", ".1f"),
        ]
    rows = []
    first = outcomes[0].rows[0].label
    for label in outcomes[0].by_label:
        cells: List[Any] = [label]
        for outcome in outcomes:
            spread, base = outcome.spread(label), outcome.median(first)
            cells += [spread.median, spread.quartiles(",.0f"), spread.median / base]
        rows.append(tuple(cells))
    return Table(title, tuple(columns), rows)
