"""Requests of many threads and asyncio tasks, run together by one worker thread."""

from __future__ import annotations

import asyncio
import atexit
import math
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Callable, Optional

from .. import errors
from ..block import batching
from ..options import (
    check_choice,
    check_count,
    check_names,
    check_path,
    check_seconds,
    check_switch,
)
from ..samples.arguments import applier
from .clients import Mailbox, RequestFuture, RequestStream
from .stats import BatcherStats
from .worker import Queue

_QUEUES: Any = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all workers before MXNet shuts down; nobody reads streams any more."""
    for queue in list(_QUEUES):
        queue.close(wait=True, streams=False)


class RequestBatcher:
    """Runs the requests of many threads and asyncio tasks together, in batching scopes.

    One worker thread runs them, and does not record for autograd; it uses the context in which the
    batcher was created.  A request that reads values (as for :func:`map`) runs step by step:
    others join and leave whenever values are computed, and each is answered as soon as it ends.
    If a flush fails, the requests in it may run a second time, to find the one at fault.
    Arguments that are NumPy arrays arrive in the function as MXNet arrays.

    Parameters
    ----------
    fn : callable
        A block or a function of one sample, as for :func:`map`.  It may be a generator function,
        for :meth:`stream`.
    max_batch_size : int, optional
        Largest number of requests that run together.
    batch_wait_timeout_s : float, optional
        Longest time in seconds that a request waits for others while no request is under way.  The
        wait ends earlier if as many requests are there as last time, with those that waited then.
    max_queue : int, optional
        Largest number of requests that wait in the queue, or for the clients of their streams.
    on_full : {"raise", "wait"}, optional
        What ``submit`` and ``stream`` do if the queue is full: raise `QueueFullError`, or wait for
        room.
    continuous : bool, optional
        If false, no request joins others that are under way: each minibatch runs to its end.
    stream_buffer : int, optional
        Largest number of values that a stream holds for its client.  If there are so many, the
        request waits until half of them are taken.
    stream_interval_s : float, optional
        Shortest time in seconds between two deliveries to the client of a stream.  Values that come
        sooner are delivered together, at the latest when the buffer is half full.  The first value
        and the end are delivered immediately.
    **scope_options
        Options of :func:`batching`.

    Attributes
    ----------
    closed : bool
        Whether no more requests are accepted.

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
        continuous: bool = True,
        stream_buffer: int = 16,
        stream_interval_s: float = 0.0,
        **scope_options: Any,
    ) -> None:
        check_count("max_batch_size", max_batch_size, or_none=False)
        check_count("max_queue", max_queue, or_none=False)
        check_count("stream_buffer", stream_buffer, or_none=False)
        check_seconds("batch_wait_timeout_s", batch_wait_timeout_s)
        check_seconds("stream_interval_s", stream_interval_s)
        check_choice("on_full", on_full, ("raise", "wait"))
        check_switch("continuous", continuous)
        self._max_queue = max_queue
        #: Most requests that may wait when another one comes.
        self._most = max_queue if on_full == "raise" else None
        self._stream_buffer = stream_buffer
        batch = batching(**check_names(scope_options, "RequestBatcher"))
        apply = applier(fn, generators=True)
        times = {"wait_s": batch_wait_timeout_s, "interval_s": stream_interval_s}
        self._queue = Queue(fn, apply, batch, max_batch_size, continuous=continuous, **times)
        _QUEUES.add(self._queue)
        weakref.finalize(self, self._queue.close).atexit = False

    def submit(self, sample: Any, timeout_s: Optional[float] = None) -> Future[Any]:
        """Put a sample into the queue; with ``on_full="wait"``, wait until there is room for it.

        Parameters
        ----------
        sample : object
            The argument of the function.  A tuple may be several arguments, as for :func:`map`.
        timeout_s : float, optional
            Seconds after which the future gets a `RequestTimeoutError` instead of a result.

        Returns
        -------
        concurrent.futures.Future
            The result of the function, with NumPy arrays instead of MXNet arrays; of a generator
            function, the list of the values that it yields.  It can be cancelled at any time.  A
            request in the queue then does not run, and one under way takes part in no later flush.

        Raises
        ------
        ClosedError
            The batcher is closed, or belongs to another process.
        OptionError
            The time is not a number of seconds.
        QueueFullError
            The queue is full.
        RequestError
            A request of the batcher itself would have to wait until the queue has room.  The
            future raises it if a request waits for its result.
        """
        request = RequestFuture(self._queue.refuse_worker)
        self._put(request, sample, timeout_s)
        request.add_done_callback(self._queue.drop)
        try:
            self._await_room(request)
        except BaseException:
            request.cancel()
            raise
        return request

    async def __call__(self, sample: Any, timeout_s: Optional[float] = None) -> Any:
        """Return the result for a sample: ``await batcher(sample)`` in an asyncio task."""
        self._queue.refuse_worker()
        request = asyncio.get_running_loop().create_future()
        self._put(request, sample, timeout_s)
        try:
            return await request
        finally:
            if request.cancelled() or not request.done():  # its task was cancelled or closed
                self._queue.drop(request)

    def stream(self, sample: Any, timeout_s: Optional[float] = None) -> RequestStream:
        """Put a sample into the queue, for the values that a generator function yields.

        A task reads them with ``async for``, and a thread without a running event loop with
        ``for``, as they come.

        Parameters
        ----------
        sample, timeout_s : optional
            As for :meth:`submit`.  The time is that until the end of the stream.

        Returns
        -------
        RequestStream
            The values, with NumPy arrays instead of MXNet arrays.  If the function raises an
            exception, so does the stream, after the values that came before.  The stream of a
            function that returns has its result as its only value.

        Raises
        ------
        ClosedError, OptionError, QueueFullError
            As for :meth:`submit`, here and not at the first value.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        queue, mailbox = self._queue, Mailbox(self._stream_buffer, loop)
        self._put(mailbox, sample, timeout_s)
        is_lost = queue.is_lost
        stream = RequestStream(
            self, mailbox, queue.drop, queue.notify, is_lost, queue.refuse_worker
        )
        if loop is None:
            self._await_room(mailbox)
        return stream

    def _put(self, client: Any, sample: Any, timeout_s: Optional[float]) -> None:
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        now, queue = time.monotonic(), self._queue
        deadline = math.inf if timeout_s is None else now + timeout_s
        self._refuse_lost()
        queue.put(client, sample, now, deadline, self._most)

    def _refuse_lost(self) -> None:
        """Raise if the worker is in another process."""
        if not self._queue.closed and self._queue.is_lost():
            message = "the batcher belongs to another process"
            raise errors.ClosedError(message, advice="make a batcher in each process")

    def _await_room(self, client: Any) -> None:
        """Wait until a request is among the `max_queue` first in the queue."""
        queue = self._queue

        def has_room() -> bool:
            return queue.pressure() <= self._max_queue or client not in queue.waiting

        with queue.changed:
            if not has_room():
                queue.refuse_worker()
                queue.changed.wait_for(has_room)

    def listen(self, path: Any) -> None:
        """Let tasks of other processes use this batcher, by `RemoteBatcher.connect(path)`.

        Parameters
        ----------
        path : str or os.PathLike
            Where a socket is made.  Only processes of the same user can connect to it; what they
            send is unpickled, so they can run any code in this process.

        Raises
        ------
        ClosedError
            The batcher is closed, or belongs to another process.
        ArgumentError
            The path is of another type.
        OSError
            There is a file with this path, or no socket can be made there.
        """
        self._refuse_lost()
        self._queue.listen(Path(check_path(path)), (self._stream_buffer, self._most))

    @property
    def closed(self) -> bool:
        """Whether no more requests are accepted."""
        return self._queue.closed or self._queue.is_lost()

    def stats(self) -> BatcherStats:
        """Return the length of the queue, and counts and times of all requests so far."""
        return self._queue.stats()

    def close(self, timeout_s: Optional[float] = None) -> None:
        """Accept no more requests, run those that wait and are under way, and end the worker.

        Streams no longer wait for their clients, which find all values later.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds after which the requests that are left end; their clients get `ClosedError`.

        Raises
        ------
        OptionError
            The time is not a number of seconds.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        self._queue.close(wait=True, timeout_s=timeout_s)

    def __enter__(self) -> RequestBatcher:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
