"""Requests of many threads and asyncio tasks, run together in minibatches by one worker thread."""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import itertools
import math
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Tuple

import mxnet as mx
from mxnet.util import is_np_array, is_np_shape

from . import errors
from .block import batching
from .options import check_choice, check_count
from .outcomes import run_or_split
from .samples import applier
from .scope import Batch

#: The fields of `BatcherStats` that requests are counted in.
COUNTS = ("completed", "failed", "cancelled", "rejected", "run_s", "latency_s")


class BatcherStats(NamedTuple):
    """Counts and times of a `RequestBatcher` since it was created.

    Attributes
    ----------
    queued, running : int
        Requests in the queue, and requests that are running.
    completed, failed, cancelled : int
        Requests that ended with a result, with an exception, or before they ran.
    rejected : int
        Requests that were refused because the queue was full.
    run_s : float
        Total run time of all minibatches, in seconds.
    latency_s : float
        Total time from submission to result of all requests, in seconds.
    latencies_s : tuple of float
        Latencies of the last 1,024 requests, in seconds.
    batch_sizes : dict of int to int
        Number of minibatches for each number of requests.
    """

    queued: int
    running: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    run_s: float
    latency_s: float
    latencies_s: Tuple[float, ...]
    batch_sizes: Dict[int, int]

    def latency_percentile(self, percent: float) -> float:
        """Return a percentile of the last latencies, in seconds; NaN if there are none.

        Parameters
        ----------
        percent : float
            From 0 to 100.
        """
        ranked = sorted(self.latencies_s)
        return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1] if ranked else math.nan


class _Queue:
    """The waiting requests, and the thread that runs them, which does not keep the batcher alive.

    The lock of `changed` is reentrant: the batcher may be deallocated while a method holds it.
    """

    def __init__(self, apply: Callable[[Any], Any], scope: Batch, size: int, wait_s: float):
        self._apply, self._scope, self._size, self._wait_s = apply, scope, size, wait_s
        self.changed = threading.Condition()
        #: Samples and times of submission by future, of threads or of asyncio, oldest first.
        self.waiting: Dict[Any, Tuple[Any, float]] = {}
        self.closed = False
        self.running = 0
        #: Number of waiting requests with which a minibatch starts at once.
        self.enough = size
        self.counts: Any = collections.Counter(dict.fromkeys(COUNTS, 0))
        self.sizes: Dict[int, int] = collections.Counter()
        self.latencies: Deque[float] = collections.deque(maxlen=1024)
        # A copy: a context object that is entered remembers the previous context of its thread.
        context = mx.Context(mx.context.current_context())
        #: Ends when the queue is closed; not alive in a fork of its process.
        semantics = is_np_shape(), is_np_array()
        self.worker = threading.Thread(
            target=self._work, args=(context, *semantics), name="RequestBatcher", daemon=True
        )
        self.worker.start()

    def drop(self, future: Any) -> None:
        """Remove a request that is done but still waits: it was cancelled."""
        with self.changed:
            if self.waiting.pop(future, None) is not None:
                self.counts["cancelled"] += 1
                self.changed.notify_all()

    def close(self, wait: bool = False) -> None:
        """Accept no more requests, and let the worker end after those that wait."""
        if self.worker.is_alive():
            with self.changed:
                self.closed = True
                self.changed.notify_all()
            if wait and self.worker is not threading.current_thread():
                self.worker.join()

    def _work(self, context: mx.Context, numpy_shape: bool, numpy_array: bool) -> None:
        try:
            with context, mx.util.np_shape(numpy_shape), mx.util.np_array(numpy_array):
                while self._run(self._take_minibatch()):
                    pass
        except BaseException as error:
            self.close()
            _answer(list(self.waiting), [error] * len(self.waiting))
            raise

    def _take_minibatch(self) -> List[Tuple[Any, Any, float]]:
        """Wait for requests, and take a minibatch of them: futures, samples, submission times."""
        with self.changed:
            free_since = time.monotonic()
            self.changed.wait_for(lambda: self.waiting or self.closed)
            if self.waiting:
                _, submitted = next(iter(self.waiting.values()))
                timeout = max(submitted, free_since) + self._wait_s - time.monotonic()
                self.changed.wait_for(
                    lambda: len(self.waiting) >= self.enough or self.closed, max(timeout, 0)
                )
            requests = []
            for future in list(itertools.islice(self.waiting, self._size)):
                if _try_start(future):
                    requests.append((future, *self.waiting.pop(future)))
                else:
                    self.drop(future)
            self.running = len(requests)
            self.changed.notify_all()
            return requests

    def _run(self, requests: List[Tuple[Any, Any, float]]) -> bool:
        """Run a minibatch, which may be empty; return whether there may be another."""
        if requests:
            started = time.monotonic()
            futures, samples, submitted = map(list, zip(*requests))
            requests.clear()
            outcomes = run_or_split(self._apply, samples, self._scope)
            ended = time.monotonic()
            latencies = [ended - time_submitted for time_submitted in submitted]
            failed = sum(isinstance(outcome, BaseException) for outcome in outcomes)
            with self.changed:
                self.running = 0
                # Clients that are answered may submit again, so as many may wait soon.
                self.enough = min(self._size, len(outcomes) + len(self.waiting))
                self.counts.update(completed=len(outcomes) - failed, failed=failed)
                self.counts.update(run_s=ended - started, latency_s=sum(latencies))
                self.latencies.extend(latencies)
                self.sizes[len(outcomes)] += 1
            _answer(futures, outcomes)
        return bool(self.waiting) or not self.closed


def _try_start(future: Any) -> bool:
    """Mark a request as running; return False if it was cancelled just now."""
    if asyncio.isfuture(future):
        return not future.cancelled()
    return bool(future.set_running_or_notify_cancel())


def _answer(futures: List[Any], outcomes: List[Any]) -> None:
    """Settle futures with results or exceptions, all futures of an event loop in one call."""
    by_loop: Dict[Any, List[Tuple[Any, Any]]] = {}
    while futures:  # emptied, as the traceback of an outcome may hold the caller's frame
        future, outcome = futures.pop(0), outcomes.pop(0)
        loop = future.get_loop() if asyncio.isfuture(future) else None
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, answers in by_loop.items():
        if loop is None:
            _settle(answers)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: List[Tuple[Any, Any]]) -> None:
    """Settle futures of threads, or of the event loop of this thread."""
    for future, outcome in answers:
        if future.done():  # its task was cancelled
            continue
        if isinstance(outcome, Exception) and not isinstance(outcome, StopIteration):
            future.set_exception(outcome)
        elif isinstance(outcome, BaseException):
            message = f"the function raised {type(outcome).__name__}: {outcome}"
            error = errors.RequestError(message, advice="raise an ordinary Exception instead")
            error.__cause__ = outcome
            future.set_exception(error)
        else:
            future.set_result(outcome)


_QUEUES: Any = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all workers before MXNet shuts down."""
    for queue in list(_QUEUES):
        queue.close(wait=True)


class RequestBatcher:
    """Runs the requests of many threads and asyncio tasks together, in batching scopes.

    One worker thread takes waiting requests, the oldest first, and runs them as a minibatch.  It
    uses the context in which the batcher was created, and does not record for autograd.  If a
    request fails, the others of its minibatch still get results, but may run a second time.
    Arguments that are NumPy arrays arrive in the function as MXNet arrays.

    Parameters
    ----------
    fn : callable
        A block or a function of one sample, as for :func:`map`.
    max_batch_size : int, optional
        Largest number of requests in a minibatch.
    batch_wait_timeout_s : float, optional
        Longest time in seconds that a request waits for others while the worker is free.  It does
        not wait for more requests than the last minibatch had, plus those that waited at its end.
    max_queue : int, optional
        Largest number of waiting requests.
    on_full : {"raise", "wait"}, optional
        What ``submit`` does if the queue is full: raise `QueueFullError`, or wait for room.
    **scope_options
        Options of :func:`batching`.

    Raises
    ------
    ArgumentError, BudgetError, OptionError
        `fn` or an option cannot be used.

    Examples
    --------
    >>> net = gdb.convert(mx.gluon.nn.Dense(2, in_units=3))
    >>> net.initialize("ones")
    >>> net.hybridize()
    >>> with gdb.RequestBatcher(net, max_batch_size=64, batch_wait_timeout_s=0.002) as batcher:
    ...     futures = [batcher.submit(mx.nd.ones((1, 3)) * i) for i in range(3)]
    ...     [future.result().tolist() for future in futures]
    [[[0.0, 0.0]], [[3.0, 3.0]], [[6.0, 6.0]]]
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        max_batch_size: int = 64,
        batch_wait_timeout_s: float = 0.005,
        max_queue: int = 1024,
        on_full: str = "raise",
        **scope_options: Any,
    ) -> None:
        check_count("max_batch_size", max_batch_size, or_none=False)
        check_count("max_queue", max_queue, or_none=False)
        wait_s = batch_wait_timeout_s
        if not (isinstance(wait_s, (int, float)) and 0 <= wait_s <= threading.TIMEOUT_MAX):
            raise errors.OptionError(
                f"batch_wait_timeout_s must be a number of seconds, 0 or more, not {wait_s!r}"
            )
        check_choice("on_full", on_full, ("raise", "wait"))
        self._max_queue, self._raises = max_queue, on_full == "raise"
        scope = batching(**scope_options)
        self._queue = _Queue(applier(fn), scope, max_batch_size, wait_s)
        _QUEUES.add(self._queue)
        weakref.finalize(self, self._queue.close).atexit = False

    def submit(self, sample: Any) -> Future[Any]:
        """Put a sample into the queue; with ``on_full="wait"``, wait until there is room for it.

        Parameters
        ----------
        sample : object
            The argument of the function.  A tuple may be several arguments, as for :func:`map`.

        Returns
        -------
        concurrent.futures.Future
            The result of the function, with NumPy arrays instead of MXNet arrays.  A request that
            is cancelled before it starts does not run.

        Raises
        ------
        ClosedError
            The batcher is closed, or belongs to another process.
        QueueFullError
            The queue is full.
        """
        request: Future[Any] = Future()
        self._put(request, sample)
        queue = self._queue
        try:
            with queue.changed:
                queue.changed.wait_for(
                    lambda: len(queue.waiting) <= self._max_queue or request not in queue.waiting
                )
        except BaseException:
            request.cancel()
            raise
        return request

    async def __call__(self, sample: Any) -> Any:
        """Return the result for a sample: ``await batcher(sample)`` in an asyncio task."""
        request = asyncio.get_running_loop().create_future()
        self._put(request, sample)
        return await request

    def _put(self, request: Any, sample: Any) -> None:
        queue = self._queue
        if not (queue.closed or queue.worker.is_alive()):
            message = "the batcher belongs to another process"
            raise errors.ClosedError(message, advice="make a batcher in each process")
        with queue.changed:
            if queue.closed:
                raise errors.ClosedError("the batcher is closed", advice="make a new one")
            if self._raises and len(queue.waiting) >= self._max_queue:
                queue.counts["rejected"] += 1
                message = f"the queue is full: {self._max_queue} requests wait"
                advice = 'try again later, or make the batcher with on_full="wait"'
                raise errors.QueueFullError(message, advice=advice)
            # The worker waits for the first request, or for enough.
            if len(queue.waiting) in (0, queue.enough - 1):
                queue.changed.notify_all()
            queue.waiting[request] = sample, time.monotonic()
            request.add_done_callback(queue.drop)

    def stats(self) -> BatcherStats:
        """Return the length of the queue, and counts and times of all requests so far."""
        queue = self._queue
        with queue.changed:
            latencies, sizes = tuple(queue.latencies), dict(queue.sizes)
            return BatcherStats(
                queued=len(queue.waiting),
                running=queue.running,
                latencies_s=latencies,
                batch_sizes=sizes,
                **queue.counts,
            )

    def close(self) -> None:
        """Accept no more requests, run those that wait, and end the worker."""
        self._queue.close(wait=True)

    def __enter__(self) -> RequestBatcher:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
