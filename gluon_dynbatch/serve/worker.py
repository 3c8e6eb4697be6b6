"""The queue of a batcher, and the worker thread that runs its requests."""

from __future__ import annotations

import collections
import itertools
import math
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet.util import is_np_array, is_np_shape

from .. import errors
from ..handle import Batch
from ..native import recording
from ..record.state import STATE
from ..record.where import user_line
from .clients import Mailbox, Outbox, Request
from .doors import Doors
from .rounds import Rounds
from .stats import BatcherStats
from .wires import Limits, finish

#: The fields of `BatcherStats` that requests are counted in.
COUNTS = ("completed", "failed", "cancelled", "timed_out", "rejected", "run_s", "latency_s")
#: Seconds without requests after which the worker undoes what it has changed for them.
REST_S = 1.0


class _Forks:
    """The number of forks that have led to this process: to ask for its id takes a system call."""

    number = 0

    @classmethod
    def count(cls) -> None:
        """Count another one."""
        cls.number += 1


os.register_at_fork(after_in_child=_Forks.count)


class Queue:
    """The requests, and the thread that runs them, which does not keep the batcher alive.

    The lock of `changed` is reentrant: the batcher, or a stream, may be deallocated while a method
    holds it.  Clients that wait for room wait for `changed`; the worker waits at its `doors`.
    """

    def __init__(
        self,
        program: Any,
        apply: Callable[[Any], Any],
        batch: Batch,
        size: int,
        wait_s: float,
        continuous: bool,
        interval_s: float,
    ):
        self._size, self._wait_s, self._continuous = size, wait_s, continuous
        self.changed = threading.Condition()
        #: Where requests of other processes come in.
        self.doors = Doors(self, self.changed)
        #: Requests that wait, and those that are under way, by client, oldest first.
        self.waiting: Dict[Any, Request] = {}
        self._active: Dict[Any, Request] = {}
        #: Requests whose clients went away, until the worker has noticed.
        self._dropped: List[Request] = []
        #: No request has a deadline before this time.
        self._next_deadline = math.inf
        self.closed = False
        #: Why requests that have not ended end now.
        self._abort: Optional[str] = None
        #: Whether streams end now.
        self._ends_streams = False
        #: Number of waiting requests with which a minibatch starts at once.
        self.enough = size
        self._counts: Any = collections.Counter(dict.fromkeys(COUNTS, 0))
        self._sizes: Dict[int, int] = collections.Counter()
        self._latencies: Deque[float] = collections.deque(maxlen=1024)
        self._outbox = Outbox(self.drop, interval_s)
        self._blocked = 0
        #: Whether requests may begin in this round.
        self._joins = True
        #: When the last round ended.
        self._free_since = 0.0
        self._figures = {"flushes": 0, "plan_hits": 0, "values": 0}
        # A copy: a context object that is entered remembers the previous context of its thread.
        context = mx.Context(mx.context.current_context())
        settings = recording.user_place(), context, is_np_shape(), is_np_array()
        program = program, apply, batch
        self._forks = _Forks.number
        #: Ends when the queue is closed; not alive in a fork of its process.
        self.worker = threading.Thread(
            target=self._work, args=(*settings, *program), name="RequestBatcher", daemon=True
        )
        self.worker.start()

    def is_lost(self) -> bool:
        """Return whether this process has no worker, as the child of a fork."""
        return self._forks != _Forks.number

    def refuse_worker(self) -> None:
        """Raise in the thread of the worker, where requests run: it would wait for itself."""
        if threading.get_ident() == self.worker.ident:
            raise errors.RequestError(
                "a request waits for another one of its own batcher",
                user_line(),
                advice="call the function or the model instead, or use another batcher",
            )

    def notify(self) -> None:
        """Tell the worker that a client of a stream has made room for a value."""
        with self.changed:
            self._tell()

    def _tell(self) -> None:
        """Tell all that wait, the worker too, that something has changed."""
        self.changed.notify_all()
        self.doors.ring()

    def pressure(self) -> int:
        """Return the number of requests that count for the limit of the queue."""
        return len(self.waiting) + self._blocked

    def put(
        self, client: Any, sample: Any, now: float, deadline: float, most: Optional[int]
    ) -> None:
        """Let a request wait; raise if the queue is closed, or has as many as it may have."""
        with self.changed:
            self._refuse_closed()
            if most is not None and self.pressure() >= most:
                self._counts["rejected"] += 1
                message = f"the queue is full: {most} requests wait"
                advice = 'try again later, or make the batcher with on_full="wait"'
                raise errors.QueueFullError(message, advice=advice)
            # The worker waits for the first request, or for enough, or for a deadline.
            if len(self.waiting) in (0, self.enough - 1) or deadline < self._next_deadline:
                self._tell()
            self.waiting[client] = Request(client, sample, now, deadline)
            self._next_deadline = min(self._next_deadline, deadline)

    def listen(self, path: Path, limits: Limits) -> None:
        """Let other processes put requests."""
        with self.changed:
            self._refuse_closed()
            self.doors.listen(path, limits)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise errors.ClosedError("the batcher is closed", advice="make a new one")

    def drop(self, client: Any) -> None:
        """Leave a request out from now on, unless it has ended: its client went away."""
        with self.changed:
            request = self._forget(client)
            if request is not None:
                self._dropped.append(request)
                self._counts["cancelled"] += 1
                self._tell()

    def close(
        self, wait: bool = False, timeout_s: Optional[float] = None, streams: bool = True
    ) -> None:
        """Accept no more requests, and let the worker end after those that are there.

        After `timeout_s`, end all; without `streams`, those of streams now.
        """
        if self.is_lost():
            return
        with self.changed:
            self.closed = True
            self._ends_streams |= not streams
            self._tell()
        if not wait or self.worker is threading.current_thread():
            return
        self.worker.join(timeout_s)
        if self.worker.is_alive():
            with self.changed:
                self._abort = "the batcher was closed before the request ended"
                self._tell()
            self.worker.join()

    def stats(self) -> BatcherStats:
        """Return counts and times of all requests so far."""
        with self.changed:
            return BatcherStats(
                queued=len(self.waiting),
                running=len(self._active),
                blocked=self._blocked,
                latencies_s=tuple(self._latencies),
                batch_sizes=dict(self._sizes),
                **self._figures,
                **self._counts,
            )

    def _forget(self, client: Any) -> Optional[Request]:
        """Remove a request that has not ended; return it, or None."""
        request = self.waiting.pop(client, None) or self._active.pop(client, None)
        if request is not None:
            request.gone = True
        return request

    def _work(
        self,
        origin: recording.Place,
        context: mx.Context,
        numpy_shape: bool,
        numpy_array: bool,
        program: Any,
        apply: Callable[[Any], Any],
        batch: Batch,
    ) -> None:
        STATE.origin = origin
        try:
            with context, mx.util.np_shape(numpy_shape), mx.util.np_array(numpy_array):
                rounds = Rounds(batch, program, apply, self._size, self._outbox, self)
                try:
                    while self._await_work(rounds):
                        started = time.monotonic()
                        rounds.advance()
                        self._free_since = time.monotonic()
                        # Nobody else changes it.
                        self._counts["run_s"] += self._free_since - started
                finally:
                    rounds.rest()
        except BaseException as error:
            self.close()
            with self.changed:
                self._active.update(self.waiting)
                self.waiting.clear()
            self.answer([(request, error) for request in self._active.values()])
            self._outbox.send()
            raise
        finally:
            with self.changed:
                wires = self.doors.close()
            finish(wires)  # which may take a while; others may ask for statistics

    def _await_work(self, rounds: Rounds) -> bool:
        """Wait until there is something to do; return False if there will be nothing any more."""
        while True:
            idle = rounds.idle
            if idle:  # no later value comes soon
                rounds.send(everything=True)
            with self.changed:
                rounds.bounded = not self.closed
                if idle:
                    self._blocked = rounds.blocked
                    self._wait(rounds)
                gone = self._take_gone()
                under_way = rounds.under_way
                has_work = self.waiting or under_way
                if not gone and (has_work or self.closed):
                    # Requests may begin in the next round.
                    self._joins = self._continuous or not under_way
                    self._blocked = rounds.blocked
                    return bool(has_work)
            rounds.leave_out({request for request, _ in gone})
            for request, outcome in gone:
                self._outbox.answer(request, outcome)
            rounds.send()

    def _wait(self, rounds: Rounds) -> None:
        """Wait for requests, for a client that makes room, or for a request that ends otherwise."""
        if not rounds.under_way:
            rests = self._free_since + REST_S
            self._wait_for(lambda: self.waiting or self.closed, rests)
            if time.monotonic() >= rests:
                rounds.rest()
            self._wait_for(lambda: self.waiting or self.closed)
            if self.waiting:
                oldest = next(iter(self.waiting.values()))
                until = max(oldest.submitted, self._free_since) + self._wait_s
                self._wait_for(lambda: len(self.waiting) >= self.enough or self.closed, until)
        elif rounds.idle:
            joins = self._continuous
            self._wait_for(
                lambda: (joins and self.waiting and rounds.room) or self.closed or not rounds.idle
            )

    def look(self) -> bool:
        """Take what other processes have sent, and return whether requests may begin now."""
        self.doors.look()
        return bool(self.waiting and self._joins)

    def begin(self, room: int) -> List[Request]:
        """Return the requests that begin in this round, at most as many as there is room for."""
        with self.changed:
            begin = list(itertools.islice(self.waiting.values(), room if self._joins else 0))
            for request in begin:
                self._active[request.client] = self.waiting.pop(request.client)
            self._tell()
            return begin

    def _wait_for(self, predicate: Callable[[], Any], until: float = math.inf) -> None:
        """Wait at most until a time; shorter if a client goes away, or a deadline comes."""
        while not (predicate() or self._dropped or self._abort):
            seconds = min(until, self._next_deadline) - time.monotonic()
            if seconds <= 0:
                break
            self.doors.wait(min(seconds, threading.TIMEOUT_MAX))

    def _take_gone(self) -> List[Tuple[Request, Any]]:
        """Return the requests that end now, each with what its client gets."""
        gone: List[Tuple[Request, Any]] = [(request, None) for request in self._dropped]
        self._dropped = []
        now = time.monotonic()
        if not (now >= self._next_deadline or self._abort or self._ends_streams):
            return gone
        self._next_deadline = math.inf
        for request in [*self.waiting.values(), *self._active.values()]:
            if self._abort is not None:
                outcome: Any = errors.ClosedError(self._abort)
            elif request.deadline <= now:
                outcome = _timeout_error(request)
            elif self._ends_streams and isinstance(request.client, Mailbox):
                outcome = None
            else:
                self._next_deadline = min(self._next_deadline, request.deadline)
                continue
            self._forget(request.client)
            kind = "timed_out" if request.deadline <= now else "cancelled"
            self._counts[kind] += 1
            gone.append((request, outcome))
        return gone

    def ran(self, requests: int, flushes: int, plan_hits: int, values: int) -> None:
        """Count a round in which requests took part, before they are answered."""
        with self.changed:
            if requests:
                self._sizes[requests] += 1
            figures = self._figures
            figures.update(flushes=flushes, plan_hits=plan_hits, values=values)

    def answer(self, answers: List[Tuple[Request, Any]]) -> None:
        """Count requests that have ended, and put their results or exceptions into the outbox."""
        now = time.monotonic()
        with self.changed:
            for request, outcome in answers:
                if self._active.pop(request.client, None) is None:
                    continue  # its client went away
                latency = now - request.submitted
                failed = isinstance(outcome, BaseException)
                self._counts["failed" if failed else "completed"] += 1
                self._counts["latency_s"] += latency
                self._latencies.append(latency)
                self._outbox.answer(request, outcome)
            # Clients that are answered may submit again, so as many may wait soon.
            self.enough = min(self._size, max(len(answers), 1) + len(self.waiting))


def _timeout_error(request: Request) -> errors.RequestTimeoutError:
    seconds = request.deadline - request.submitted
    return errors.RequestTimeoutError(
        f"the request has not ended within {seconds:g} seconds",
        advice="give it more time, or let fewer requests wait with max_queue",
    )
