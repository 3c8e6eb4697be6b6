"""Contests: several ways to run a workload, timed side by side.

- First, each contender must compute the same as the loop (`agree`).
- In each round, every contender has a turn, in a new random order, so that all see the same state
  of the machine. All run the same minibatches, which are new in each round, so that each needs a
  new plan, as in an epoch. A contender that `repeats` runs a few minibatches again and again, so
  that their plans are cached.
- Each turn starts from the same parameters, with an untimed minibatch, because the contender before
  has filled the processor's caches.
- A minibatch of inference ends when the results are in NumPy. A step of training is forward,
  backward and update; its loss is read after the next minibatch was passed to the engine, as in a
  training program. A turn ends when everything has been computed.
- The garbage collector ignores data and models (`gc.freeze`), so that no contender pays for scans.
- A contest that is short of time first shortens turns, then drops rounds after the first.
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

#: Number of minibatches that a contender repeats; their plans fit in the cache.
REPEATED = 4
#: Most minibatches of a turn.
MAX_MINIBATCHES = 64
#: Most minibatches, seconds and share of the time for a warm-up; its first `MIN_WARM` minibatches
#: ignore the seconds. First steps of training may be slow: large steps lead to tiny numbers.
WARM, WARM_SECONDS, WARM_SHARE, MIN_WARM = 40, 2, 0.25, 3
#: The setting of "auto" if it does not record.
AT_ONCE = "calls at once"
#: Samples of a minibatch that are compared with the loop, and the tolerance.
COMPARED, TOLERANCE = 8, 1e-3


class DiffersError(UsageError):
    """A way that does not compute the same as the loop, or does not run."""


@dataclass(eq=False)
class Contender:
    """A way of running the minibatches of a workload, in a contest.

    A subclass has two methods. ``check(work)`` returns the results of the first minibatch
    (``values``) and the ``losses`` of training on all. ``time(kind, work, size, warm)`` returns the
    row of a turn that runs `warm` untimed, and then `work` from the first parameters.
    """

    workload: Workload
    label: str  # for tables and JSON
    #: Largest minibatch, for ways whose time per sample does not depend on it.
    max_samples: Optional[int] = None
    #: Whether to repeat a few minibatches, first untimed, so that their plans are cached.
    repeats: bool = False
    #: Whether to regroup the samples of a round into minibatches of similar lengths.
    by_length: bool = False
    #: Whether it is faster from its second epoch on; then the warm-up is an epoch.
    learns: bool = False
    #: Number of steps of training with the losses of the loop; see `peers.child.Peer`.
    same_steps: int = STEPS

    def portion(self, work, count):
        """Select from a round's minibatches those that this contender runs."""
        if self.by_length:
            pool = iter(sorted((s for batch in work for s in batch), key=lambda s: s.length))
            work = [[next(pool) for _ in batch] for batch in work]
            # Of all lengths alike, and the same ones for all who run as many.
            work = [work[i * len(work) // count] for i in range(min(count, len(work)))]
        batches = [batch[: self.max_samples] for batch in work[:count]]
        if self.repeats:
            batches = [batches[i % min(REPEATED, count)] for i in range(len(batches))]
        return batches

    def begin(self):
        """Forget what earlier contests have taught, as a new process would."""

    def row(self, kind, work, size, seconds):
        """Make the row of a turn, without its round."""
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

    def begin(self):  # noqa: D102
        STATE.decisions.clear()

    def reset(self):
        """Restore the first parameters; the optimizer keeps its state."""
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
        started, before = time.perf_counter(), time.process_time()
        reports, graphs = self.run(kind, work)
        seconds, used = time.perf_counter() - started, time.process_time() - before
        row = self.row(kind, work, size, seconds)
        row.cpu = row.ms * used / seconds
        return self._add_reports(row, reports, graphs, size) if reports else row

    def run(self, kind, work):
        """Run minibatches to the end; return their reports and last graphs, if there are any."""
        reports, graphs, predicts = [], [], kind == "inference"

        def begin(batch):
            result = self.runner.predict(batch) if predicts else self.runner.step(batch)
            if self.runner.report is not None:
                plan = self.runner.plan
                reports.append(self.runner.report)
                graphs.append(plan.graph.dependencies if plan else None)
            return result

        results = map(begin, work)
        for result in results if predicts else one_behind(results):
            result.asnumpy()
        mx.nd.waitall()
        return reports, graphs

    def _add_reports(self, row, reports, graphs, size):
        """Add the figures of the library's reports to the row of a turn."""
        report = gdb.Report.together(reports)
        flushes = report.flushes

        def total(field):
            return sum(getattr(flush, field) for flush in flushes)

        per_sample = size / row.samples
        # Counts are averages of the minibatches, unless these were cut.
        factor = per_sample if self.max_samples else 1 / len(reports)
        settings = [f"{f.granularity} by {f.policy} ({f.budget})" for f in flushes] or [AT_ONCE]
        bounded = all(len(r.flushes) == 1 and g is not None for r, g in zip(reports, graphs))
        phases = ("recording", "analysis", "dispatch")
        return replace(
            row,
            **{phase: total(f"{phase}_ms") * per_sample for phase in phases},
            nodes=total("units") * factor,
            launches=(report.launches + report.at_once) * factor,
            bound=sum(map(lower_bound, graphs)) * factor if bounded else None,
            arena_mb=max((flush.arena_bytes for flush in flushes), default=0) / 2**20,
            cached=sum(flush.cached for flush in flushes),
            setting=max(dict.fromkeys(settings), key=settings.count),
        )


def agree(contenders, loop, size):
    """Compare contenders with the loop; return those that agree, and the reasons for the others.

    Uses results of a minibatch from the first parameters, and losses of `STEPS` training steps.
    """
    samples = loop.workload.samples
    size = max(1, min(size, COMPARED, len(samples) // STEPS))
    work = [list(samples[i * size : (i + 1) * size]) for i in range(STEPS)]
    expected = loop.check(work)
    agreeing, left_out = [], {}
    for contender in contenders:
        try:
            results = expected if contender is loop else contender.check(work)
            _compare(results, expected, contender.same_steps)
            agreeing.append(contender)
        except DiffersError as error:
            left_out[contender.label] = str(error)
    return agreeing, left_out


def _compare(results, expected, steps):
    for name, count in (("values", None), ("losses", steps)):
        if count == 0:
            continue
        ours, theirs = (np.asarray(each[name][:count]) for each in (expected, results))
        if ours.shape != theirs.shape:
            raise DiffersError(f"its {name} have shape {theirs.shape} instead of {ours.shape}")
        error = np.abs(theirs - ours).max() / np.abs(ours).max()
        if not error <= TOLERANCE:  # also raises for NaN
            raise DiffersError(f"its {name} differ from the loop's by {error:.1e} of the largest")


def contest(contenders, fresh, kind, size, rounds, seconds=0.0, seed=1, share=math.inf):
    """Time contenders side by side on minibatches from the iterator `fresh`.

    A turn takes about `seconds`, and has at least one minibatch; the order of turns is drawn from
    `seed`. The warm-up of a contender takes about as long, or less. The contest takes about `share`
    seconds, unless one round of one minibatch takes longer.
    """
    for each in contenders:
        each.begin()
    gc.collect()
    gc.freeze()
    began = round_began = time.perf_counter()
    limit, warm = WARM_SHARE * share / len(contenders), min(seconds, WARM_SECONDS)
    took = {each: _warm_up(each, kind, size, fresh, warm, limit) for each in contenders}
    # Each turn also has an untimed minibatch.
    left = (share - (time.perf_counter() - began)) / rounds - sum(took.values())
    seconds = max(0.0, min(seconds, left / len(contenders)))
    counts = {each: max(1, min(MAX_MINIBATCHES, round(seconds / took[each]))) for each in took}
    rows = Rows()
    for number in range(rounds):
        last, round_began = round_began, time.perf_counter()
        if number and (round_began - last) + (round_began - began) > share:
            break  # another round would not end in time
        first, *work = islice(fresh, 1 + max(counts.values()))
        for each in random.Random(f"{seed}, {number}").sample(contenders, len(contenders)):
            turn = each.time(kind, each.portion(work, counts[each]), size, each.portion([first], 1))
            rows.append(replace(turn, round=number))
    gc.unfreeze()
    rank = [each.label for each in contenders]
    rows.sort(key=lambda row: (rank.index(row.way), row.round))
    return rows


def _warm_up(contender, kind, size, fresh, seconds, max_seconds):
    """Run untimed, for an epoch if it learns; return the shortest time of a minibatch."""
    took, samples = [], contender.workload.samples
    batches = islice(fresh, WARM)
    if contender.learns:
        batches = (samples[i : i + size] for i in range(0, len(samples), size))
    began = time.perf_counter()
    for number, batch in enumerate(batches):
        limit = max_seconds if number < MIN_WARM else min(seconds, max_seconds)
        if number and not contender.learns and time.perf_counter() - began > limit:
            break
        batch = contender.portion([batch], 1)
        took.append(1e-3 * contender.time(kind, batch, size).ms * len(batch[0]) / size)
    return min(took)
