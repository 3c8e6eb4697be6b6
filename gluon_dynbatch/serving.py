"""Requests of many threads and asyncio tasks, run together in minibatches by one worker thread."""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import itertools
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, List, Tuple

import mxnet as mx

from . import errors
from .block import batching
from .native import recording
from .options import check_choice, check_count
from .report import BatcherStats
from .samples import applier, with_arrays
from .scope import Batch

#: What a flush may raise in a sample that only read a value: it may be the failure of another.
OF_A_FLUSH = (errors.LaunchError, errors.NotMergedError, errors.StaleArrayError, mx.MXNetError)


class _Line:
    """Requests that wait, and the thread that runs them, which does not keep the batcher alive.

    The lock of `changed` can be taken again: a batcher may be dropped while it is held.
    """

    def __init__(self, apply: Callable[[Any], Any], scope: Batch, size: int, wait_s: float):
        self._apply, self._scope, self._size, self._wait_s = apply, scope, size, wait_s
        self.changed = threading.Condition()
        #: Samples by their future results, of threads or of asyncio, and when they were submitted,
        #: in that order.
        self.waiting: Dict[Any, Tuple[Any, float]] = {}
        self.closed = False
        self.running = 0
        #: With how many a minibatch begins at once.
        self.enough = size
        self.counts: Any = collections.Counter(dict.fromkeys(BatcherStats._fields[2:-2], 0))
        self.sizes: Dict[int, int] = collections.Counter()
        self.latencies: Deque[float] = collections.deque(maxlen=1024)
        # A copy of the context: one in use belongs to a thread.
        context = mx.Context(mx.context.current_context())
        #: It has ended if this is closed, or in a fork of its process.
        self.worker = threading.Thread(
            target=self._work, args=(context,), name="RequestBatcher", daemon=True
        )
        self.worker.start()

    def drop(self, future: Any) -> None:
        """Take a request that was cancelled out of the line; what has run is in it no more."""
        with self.changed:
            if self.waiting.pop(future, None) is not None:
                self.counts["cancelled"] += 1
                self.changed.notify_all()

    def close(self, wait: bool = False) -> None:
        if self.worker.is_alive():
            with self.changed:
                self.closed = True
                self.changed.notify_all()
            if wait and self.worker is not threading.current_thread():
                self.worker.join()

    def _work(self, context: mx.Context) -> None:
        try:
            with context:
                while self._run(self._take()):
                    pass
        except BaseException as error:
            self.close()
            _answer(list(self.waiting), [error] * len(self.waiting))
            raise

    def _take(self) -> List[Tuple[Any, Any, float]]:
        """Wait for a minibatch."""
        with self.changed:
            free = time.monotonic()
            self.changed.wait_for(lambda: self.waiting or self.closed)
            for _, submitted in itertools.islice(self.waiting.values(), 1):
                left = max(submitted, free) + self._wait_s - time.monotonic()
                self.changed.wait_for(
                    lambda: len(self.waiting) >= self.enough or self.closed, max(left, 0)
                )
            requests = []
            for future in list(itertools.islice(self.waiting, self._size)):
                if _begins(future):
                    requests.append((future, *self.waiting.pop(future)))
                else:
                    self.drop(future)
            self.running = len(requests)
            self.changed.notify_all()
            return requests

    def _run(self, requests: List[Tuple[Any, Any, float]]) -> bool:
        """Run a minibatch; return whether there may be another."""
        if requests:
            started = time.monotonic()
            futures, samples, submitted = map(list, zip(*requests))
            requests.clear()
            outcomes = _run(self._apply, samples, self._scope)
            ended = time.monotonic()
            latencies = [ended - since for since in submitted]
            failed = sum(isinstance(outcome, BaseException) for outcome in outcomes)
            with self.changed:
                self.running = 0
                # Those who get their answers may ask again, so there may soon be as many as now.
                self.enough = min(self._size, len(outcomes) + len(self.waiting))
                self.counts.update(completed=len(outcomes) - failed, failed=failed)
                self.counts.update(run_s=ended - started, latency_s=sum(latencies))
                self.latencies.extend(latencies)
                self.sizes[len(outcomes)] += 1
            _answer(futures, outcomes)
        return bool(self.waiting) or not self.closed


def _begins(future: Any) -> bool:
    """Whether a request was not cancelled at this very moment."""
    if asyncio.isfuture(future):
        return not future.cancelled()
    return bool(future.set_running_or_notify_cancel())


def _answer(futures: List[Any], outcomes: List[Any]) -> None:
    """Give results and exceptions to those who wait, to all tasks of an event loop at once."""
    answers: Dict[Any, List[Tuple[Any, Any]]] = {}
    while futures:  # the traceback of an exception refers to the frame that has the lists
        future, outcome = futures.pop(0), outcomes.pop(0)
        loop = future.get_loop() if asyncio.isfuture(future) else None
        answers.setdefault(loop, []).append((future, outcome))
    for loop, pairs in answers.items():
        if loop is None:
            _settle(pairs)
        else:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, pairs)


def _settle(answers: List[Tuple[Any, Any]]) -> None:
    """Settle futures of this thread's event loop, or of threads."""
    for future, outcome in answers:
        if future.done():  # its task was cancelled
            continue
        if isinstance(outcome, Exception) and not isinstance(outcome, StopIteration):
            future.set_exception(outcome)
        elif isinstance(outcome, BaseException):
            what = f"the function raised {type(outcome).__name__}: {outcome}"
            error = errors.RequestError(what, advice="raise an ordinary Exception instead")
            error.__cause__ = outcome
            future.set_exception(error)
        else:
            future.set_result(outcome)


def _run(apply: Callable[[Any], Any], samples: List[Any], scope: Batch) -> List[Any]:
    """Return for each sample its result, with arrays of NumPy, or its exception.

    If computing them together fails, halves are tried, and in the end the one at fault by itself.
    """
    half = len(samples) // 2
    try:
        return _mapped(apply, samples, scope)
    except BaseException as error:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()  # or whoever waits next gets the error of an operator
        if not half:
            return [error]
        parts = samples[:half], samples[half:]
    finally:
        samples.clear()  # the traceback of an exception refers to this frame
    return [outcome for part in parts for outcome in _run(apply, part, scope)]


def _mapped(apply: Callable[[Any], Any], samples: List[Any], scope: Batch) -> List[Any]:
    given = with_arrays(samples)
    with scope:
        outcomes = scope.map(apply, given, on_error="return")
        failed = [outcome for outcome in outcomes if isinstance(outcome, OF_A_FLUSH)]
        if failed and len(samples) > 1:
            raise failed[0]
        # Read where they are computed, and let go of before the scope ends, results never become
        # arrays of their own.
        for number, outcome in enumerate(outcomes):
            outcomes[number] = _on_host(outcome)
            del outcome
        return outcomes


def _on_host(outcome: Any) -> Any:
    """Bring arrays out of MXNet, which also waits for them; each is left in memory of its own."""
    # Everything that is no list, tuple or dictionary is a leaf.
    leaves, spec = recording.flatten(outcome, object)
    return recording.unflatten(
        spec, [x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in leaves]
    )


#: For the end of the process: workers compute, and MXNet is about to go.
_LINES: Any = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for line in list(_LINES):
        line.close(wait=True)


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
        Longest time in seconds that a request waits for others while the worker is free.  It waits
        for no more requests than there were when the last minibatch ended, answered and waiting.
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
        self._line = _Line(applier(fn), scope, max_batch_size, wait_s)
        _LINES.add(self._line)
        weakref.finalize(self, self._line.close).atexit = False

    def submit(self, sample: Any) -> Future:
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
        request: Future = Future()
        self._put(request, sample)
        line = self._line
        try:
            with line.changed:
                line.changed.wait_for(
                    lambda: len(line.waiting) <= self._max_queue or request not in line.waiting
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
        line = self._line
        if not (line.closed or line.worker.is_alive()):
            what = "the batcher belongs to another process"
            advice = "make a batcher in each process"
            raise errors.ClosedError(what, advice=advice)
        with line.changed:
            if line.closed:
                what, advice = "the batcher is closed", "make a new one"
                raise errors.ClosedError(what, advice=advice)
            if self._raises and len(line.waiting) >= self._max_queue:
                line.counts["rejected"] += 1
                what = f"the queue is full: {self._max_queue} requests wait"
                advice = 'try again later, or make the batcher with on_full="wait"'
                raise errors.QueueFullError(what, advice=advice)
            if len(line.waiting) in (0, line.enough - 1):
                line.changed.notify_all()
            line.waiting[request] = sample, time.monotonic()
            request.add_done_callback(line.drop)

    def stats(self) -> BatcherStats:
        """Return the length of the queue, and counts and times of all requests so far."""
        line = self._line
        with line.changed:
            latencies, sizes = tuple(line.latencies), dict(line.sizes)
            return BatcherStats(
                len(line.waiting), line.running, *line.counts.values(), latencies, sizes
            )

    def close(self) -> None:
        """Take no more requests, run those that wait, and end the worker."""
        self._line.close(wait=True)

    def __enter__(self) -> RequestBatcher:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
