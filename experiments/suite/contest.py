"""Contests: several ways to run a workload, timed side by side.

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
- Before the first round, each contender runs a few minibatches untimed, `gdb-once` an epoch.
- A contest that has a share of the time makes turns shorter, then rounds fewer. One round it has.
- Before all that, each must compute what the loop computes (`agree`).
"""

import gc
import math
import random
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Optional

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from command import UsageError
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.schedule import lower_bound
from gluon_dynbatch.scope import RUNTIME
from peers.child import STEPS
from workloads.base import Workload

from .runner import one_behind
from .tables import Row, Rows

#: Minibatches that a contender repeats at most so that their plans stay in the cache.
REPEATED = 4
#: Minibatches of one turn at most.
MOST_MINIBATCHES = 64
#: Minibatches that a contender runs before the first round, if they take no more than so many
#: seconds or so much of its share, and at least if there is time for them: first steps of training
#: may be slow, as numbers get tiny when steps are large.
WARM, WARM_SECONDS, WARM_SHARE, LEAST_WARM = 40, 2, 0.25, 3
#: What "auto" calls running without recording.
AT_ONCE = "calls at once"
#: Samples of a minibatch whose values are compared with the loop's, and how far they may differ.
COMPARED, TOLERANCE = 8, 1e-3


class DiffersError(UsageError):
    """A way that computes something else than the loop, or does not run at all."""


@dataclass(eq=False)
class Contender:
    """A way of running the minibatches of a workload, in a contest.

    A subclass has ``check(work)``: results of the first minibatch (``values``) and ``losses`` of
    training on all; and ``time(kind, work, size, warm)``: the row of a turn that runs `warm`
    untimed, and then `work` from the first parameters.
    """

    workload: Workload
    label: str  # for tables and JSON
    #: Samples of a minibatch at most, for what takes the same time per sample whatever its size.
    most: Optional[int] = None
    #: Whether to run few minibatches, once untimed, so that their plans are in the cache.
    repeats: bool = False
    #: Whether to deal the samples of a turn out into minibatches of like length.
    by_length: bool = False
    #: Whether it is faster from its second epoch on, which is what is timed.
    learns: bool = False
    #: For how many steps of training the losses are those of the loop; see `peers.child.Peer`.
    same_steps: int = STEPS

    def portion(self, work, count):
        """Take from a round's minibatches what this contender runs."""
        chosen = [batch[: self.most] for batch in work[:count]]
        if self.by_length:
            pool = iter(sorted((s for batch in chosen for s in batch), key=lambda s: s.size))
            chosen = [[next(pool) for _ in batch] for batch in chosen]
        if self.repeats:
            chosen = [chosen[i % min(REPEATED, count)] for i in range(len(chosen))]
        return chosen

    def row(self, kind, work, size, seconds):
        """Put together what is known of a turn; the round is not."""
        sizes = [sample.size for batch in work for sample in batch]
        ms = 1e3 * seconds * size / len(sizes)
        return Row(kind, size, self.label, len(work), len(sizes), sum(sizes) / seconds, ms)


class Local(Contender):
    """A contender in this process; see `Contender`."""

    def __init__(self, runner, label, **options):
        super().__init__(runner.workload, label, **options)
        self.runner = runner
        trained = [p for p in runner.workload.trainer._params if p.grad_req != "null"]
        self._start = [(p, p.data().copy()) for p in trained]

    def reset(self):
        """Go back to the first parameters; the optimizer goes on as it is."""
        for parameter, value in self._start:
            parameter.set_data(value)
        mx.nd.waitall()

    def check(self, work):  # noqa: D102
        self.reset()
        for updater in self.runner.workload.trainer._updaters:
            updater.states.clear()
        values = self.runner.predict(work[0]).asnumpy()
        losses = [float(self.runner.step(batch).asnumpy().mean()) for batch in work]
        self.reset()
        return {"values": values, "losses": losses}

    def time(self, kind, work, size, warm=()):  # noqa: D102
        RUNTIME.plans.clear()
        self.run(kind, work[:REPEATED] if self.repeats else warm)
        self.reset()
        started = time.perf_counter()
        told = self.run(kind, work)
        row = self.row(kind, work, size, time.perf_counter() - started)
        return self._reported(row, *zip(*told), size) if told else row

    def run(self, kind, work):
        """Run some minibatches to the end; return their reports and last graphs, if there are."""
        told, predicts = [], kind == "inference"

        def begin(batch):
            result = self.runner.predict(batch) if predicts else self.runner.step(batch)
            if self.runner.report is not None:
                plan = self.runner.plan
                told.append((self.runner.report, plan and plan.graph.dependencies))
            return result

        begun = map(begin, work)
        for result in begun if predicts else one_behind(begun):
            result.asnumpy()
        mx.nd.waitall()
        return told

    def _reported(self, row, reports, graphs, size):
        """Add what the library tells of the minibatches of a turn."""
        report = gdb.Report.together(reports)
        flushes = report.flushes

        def each(field, share=size / row.samples):
            return sum(getattr(flush, field) for flush in flushes) * share

        # As many minibatches as there were, and as large as they were, unless they were cut.
        whole = size / row.samples if self.most else 1 / len(reports)
        settings = [f"{f.granularity} by {f.policy} ({f.budget})" for f in flushes] or [AT_ONCE]
        known = all(len(r.flushes) == 1 and g is not None for r, g in zip(reports, graphs))
        return replace(
            row,
            **{part: each(f"{part}_ms") for part in ("recording", "analysis", "dispatch")},
            nodes=each("units", whole),
            launches=(report.launches + report.at_once) * whole,
            bound=sum(map(lower_bound, graphs)) * whole if known else None,
            arena_mb=max((flush.arena_bytes for flush in flushes), default=0) / 2**20,
            cached=sum(flush.cached for flush in flushes),
            setting=max(dict.fromkeys(settings), key=settings.count),
        )


def agree(contenders, loop, size):
    """Compare each with the loop on the first samples; return who computes the same, and why not.

    Values of a minibatch from the first parameters, and losses of `STEPS` steps of training.
    """
    samples = loop.workload.samples
    size = max(1, min(size, COMPARED, len(samples) // STEPS))
    work = [list(samples[i * size : (i + 1) * size]) for i in range(STEPS)]
    expected = loop.check(work)
    same, left_out = [], {}
    for one in contenders:
        try:
            _compare(expected if one is loop else one.check(work), expected, one.same_steps)
            same.append(one)
        except DiffersError as error:
            left_out[one.label] = str(error)
    return same, left_out


def _compare(found, expected, steps):
    for what, count in (("values", None), ("losses", steps)):
        own, theirs = (np.asarray(each[what][:count]) for each in (expected, found))
        if own.shape != theirs.shape:
            raise DiffersError(f"its {what} have shape {theirs.shape} instead of {own.shape}")
        apart = np.abs(theirs - own).max() / np.abs(own).max()
        if not apart <= TOLERANCE:  # NaN is not
            raise DiffersError(f"its {what} differ from the loop's by {apart:.1e} of the largest")


def contest(contenders, fresh, kind, size, rounds, seconds=0.0, seed=1, share=math.inf):
    """Time contenders side by side on minibatches of `fresh`, which gives new ones.

    A turn takes about `seconds`, and has at least one minibatch; the order of turns is drawn from
    `seed`. Before the first round, each runs untimed for about as long, or a little shorter. All
    takes about `share` seconds, unless one round of one minibatch takes more.
    """
    STATE.decisions.clear()  # a new process would know nothing of the contests before
    gc.collect()
    gc.freeze()
    began = round_began = time.perf_counter()
    most, warm = WARM_SHARE * share / len(contenders), min(seconds, WARM_SECONDS)
    took = {one: _warm_up(one, kind, size, fresh, warm, most) for one in contenders}
    # Each turn has an untimed minibatch, too.
    left = (share - (time.perf_counter() - began)) / rounds - sum(took.values())
    seconds = max(0.0, min(seconds, left / len(contenders)))
    counts = {one: max(1, min(MOST_MINIBATCHES, round(seconds / took[one]))) for one in took}
    rows = Rows()
    for number in range(rounds):
        last, round_began = round_began, time.perf_counter()
        if number and (round_began - last) + (round_began - began) > share:
            break  # another round would not end in time
        # All run the same new minibatches.
        first, *work = islice(fresh, 1 + max(counts.values()))
        for one in random.Random(f"{seed}, {number}").sample(contenders, len(contenders)):
            turn = one.time(kind, one.portion(work, counts[one]), size, one.portion([first], 1))
            rows.append(replace(turn, round=number))
    gc.unfreeze()
    rank = [one.label for one in contenders]
    rows.sort(key=lambda row: (rank.index(row.way), row.round))
    return rows


def _warm_up(one, kind, size, fresh, seconds, most):
    """Run untimed, on all samples if it learns; return the least seconds of a minibatch."""
    took, samples = [], one.workload.samples
    epoch = [samples[i : i + size] for i in range(0, len(samples), size)] if one.learns else []
    began = time.perf_counter()
    for number, batch in enumerate(epoch or islice(fresh, WARM)):
        limit = most if number < LEAST_WARM else min(seconds, most)
        if number and not one.learns and time.perf_counter() - began > limit:
            break
        batch = one.portion([batch], 1)
        took.append(1e-3 * one.time(kind, batch, size).ms * len(batch[0]) / size)
    return min(took)
