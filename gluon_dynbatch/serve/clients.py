"""The clients of a batcher: futures of threads and of asyncio tasks, and streams of values."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any, AsyncIterator, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from .. import errors
from ..native import posting

#: Longest time in seconds that the worker waits for an event loop to pass on a first value: Python
#: runs one thread at a time, and the loop would otherwise wait until the worker waits for values.
LOOK_S = 0.001
#: The end of a stream without an error.
END = object()


class Request:
    """A sample, its client, and whether it has ended."""

    __slots__ = ("client", "deadline", "ended", "gone", "sample", "submitted")

    def __init__(self, client: Any, sample: Any, submitted: float, deadline: float):
        #: A future of threads or of asyncio, or a `Mailbox`.
        self.client = client
        self.sample = sample
        self.submitted, self.deadline = submitted, deadline
        #: Whether its client went away, or has got an error: it takes part in no more flushes.
        self.gone = False
        #: Whether the worker has done all that it does for it.
        self.ended = False


class Far:
    """Another process, in the place of the event loop of its clients."""

    def is_closed(self) -> bool:
        """Return whether it has gone."""
        raise NotImplementedError

    def hand_over(self, answers: List[Tuple[Any, Any]], mailboxes: List[Mailbox]) -> None:
        """Send outcomes to their clients, and tell those of streams of values."""
        raise NotImplementedError


class Mailbox(posting.Letters):
    """The values of a stream that the worker has put here and the client has not yet taken.

    One thread puts and any may take: both ends of a deque are safe without a lock.
    """

    def __init__(self, size: int, loop: Any):
        #: An event loop, or a process that is `Far`; None for threads.
        self._size, self.loop = size, loop
        self.values = deque()
        self.urgent, self.full = size // 2 + 1, size
        #: Whether its request waits, or is about to wait, for the client.
        self.blocked = False
        #: Whether its client has been told of its first value.
        self.told = False
        #: The error that ends the stream, `END` if there is none; None before the end.
        self.end: Any = None
        #: Threads that wait for a value; of tasks, there are none.
        self._changed = threading.Condition() if loop is None else None
        #: Tasks that wait for a value.
        self._waiters: List[asyncio.Future[None]] = []

    def is_ready(self) -> bool:
        """Return whether a value, or the end, is here."""
        return bool(self.values) or self.end is not None

    def has_room(self) -> bool:
        """Return whether another value may be put here, also in vain, as its loop is closed.

        Once the request waits, the client has to make room for half of all values: a request that
        took part in a flush for each value that is taken would do so with few others.
        """
        is_closed = self.loop is not None and self.loop.is_closed()
        most = self._size // 2 if self.blocked else self._size - 1
        return len(self.values) <= most or is_closed

    def finish(self, error: Optional[BaseException]) -> None:
        """End the stream after its values, unless it has ended."""
        if self.end is None:
            self.end = END if error is None else error

    def wait(self) -> None:
        """Wait in a thread for a value or the end."""
        assert self._changed is not None
        with self._changed:
            self._changed.wait_for(self.is_ready)

    def news(self) -> asyncio.Future[None]:
        """Return a future that has a result once a value or the end is here, for a task."""
        assert self.loop is not None
        waiter: asyncio.Future[None] = self.loop.create_future()
        if self._waiters:  # of other tasks, or of one that was cancelled
            self._waiters = [each for each in self._waiters if not each.done()]
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Wake those that wait; tasks only in the thread of their loop."""
        if self._changed is not None:
            with self._changed:
                self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Outbox(posting.Post):
    """Values of streams, and answers to be sent, those to all clients of an event loop in one call.

    `drop` is called for each client that has gone with its loop.  The client of a stream is told of
    values at most once in `interval_s` seconds, except of the first, of the end, and once when half
    of the buffer is full: to wake it costs more than to compute a value.
    """

    def __init__(self, drop: Callable[[Any], None], interval_s: float = 0.0) -> None:
        self._drop, self._interval_s = drop, interval_s
        self._answers: List[Tuple[Request, Any]] = []
        #: Streams whose clients have been told, and when they may be told again, in this order.
        self._resting: Deque[Tuple[float, Mailbox]] = deque()

    def answer(self, request: Request, outcome: Any) -> None:
        """Send a result, or an exception, to a client."""
        request.ended = True
        request.sample = None
        if isinstance(request.client, Mailbox):
            failed = isinstance(outcome, BaseException)
            request.client.finish(for_client(outcome) if failed else None)
            request.client.has_news = True
            self.due.append(request.client)
        else:
            self._answers.append((request, outcome))

    def send(self, everything: bool = False) -> None:
        """Send what is due, or everything."""
        self.find_due(everything)
        by_loop: Dict[Any, Tuple[List[Any], List[Mailbox]]] = {}
        while self._answers:  # emptied, as the traceback of an outcome may hold the caller's frame
            request, outcome = self._answers.pop(0)
            client = request.client
            loop = client.get_loop() if hasattr(client, "get_loop") else None
            by_loop.setdefault(loop, ([], []))[0].append((client, outcome))
            del request, outcome, client
        for mailbox in self._take_due():
            by_loop.setdefault(mailbox.loop, ([], []))[1].append(mailbox)
        for loop, letters in by_loop.items():
            if loop is None:
                _hand_over(*letters)
                continue
            if isinstance(loop, Far):
                loop.hand_over(*letters)
                continue
            # A lock that the loop releases: an event takes ten times as long.
            looked = None if all(each.told for each in letters[1]) else threading.Lock()
            if looked is not None:
                looked.acquire()
            try:
                loop.call_soon_threadsafe(_hand_over, *letters, looked)
            except RuntimeError:  # the loop is closed
                for mailbox in letters[1]:
                    self._drop(mailbox)
                continue
            if looked is not None:
                looked.acquire(timeout=LOOK_S)

    def find_due(self, everything: bool = False) -> bool:
        """Return whether there is anything to send; with `everything`, all that is here is due."""
        resting = self._resting
        if everything:
            self.due += [each for due, each in resting if each.has_news and each.due == due]
            # Nothing is kept of streams that have ended, however long no request comes.
            resting = deque([(due, each) for due, each in resting if each.end is None])
            self._resting = resting
        now = time.monotonic() if resting else 0.0
        while resting and resting[0][0] <= now:
            due, mailbox = resting.popleft()
            if mailbox.due == due:
                mailbox.rests = False
                if mailbox.has_news:
                    self.due.append(mailbox)
        return bool(self.due or self._answers)

    def _take_due(self) -> List[Mailbox]:
        """Remove and return the streams whose clients are told of values now."""
        due: List[Mailbox] = []
        again = time.monotonic() + self._interval_s if self._interval_s else 0.0
        for mailbox in self.due:
            if mailbox.has_news:  # it may be here twice
                mailbox.has_news = False
                due.append(mailbox)
                if self._interval_s and mailbox.end is None:
                    mailbox.rests, mailbox.due = True, again
                    self._resting.append((again, mailbox))
        self.due.clear()
        return due


def _hand_over(
    answers: List[Tuple[Any, Any]],
    mailboxes: List[Mailbox],
    looked: Optional[threading.Lock] = None,
) -> None:
    """Settle futures of threads, or of the event loop of this thread, and wake its streams.

    Streams with a first value come first; `looked` is released once their tasks have run.
    """
    others = [mailbox for mailbox in mailboxes if mailbox.told]
    for mailbox in mailboxes:
        if not mailbox.told:
            mailbox.told = True
            mailbox.wake()
    if looked is not None:
        asyncio.get_running_loop().call_soon(looked.release)
    for mailbox in others:
        mailbox.wake()
    for future, outcome in answers:
        if asyncio.isfuture(future):
            if future.done():  # its task was cancelled
                continue
        elif not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(for_client(outcome))
        else:
            future.set_result(outcome)


def for_client(error: BaseException) -> Exception:
    """Return the exception that a client gets: one that would end its thread or task is wrapped."""
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    message = f"the function raised {type(error).__name__}: {error}"
    wrapped = errors.RequestError(message, advice="raise an ordinary Exception instead")
    wrapped.__cause__ = error
    return wrapped


class RequestFuture(Future):  # type: ignore[type-arg]
    """The result of a request, for which the worker of its batcher never waits."""

    def __init__(self, refuse_worker: Callable[[], None]):
        super().__init__()
        self._refuse_worker = refuse_worker

    def result(self, timeout: Optional[float] = None) -> Any:
        """Return the result of the request, or raise its exception."""
        if not self.done():
            self._refuse_worker()
        return super().result(timeout)

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Return the exception of the request, or None."""
        if not self.done():
            self._refuse_worker()
        return super().exception(timeout)


class RequestStream:
    """The values that a generator function yields for a request.

    ``RequestBatcher.stream`` makes it.  A task reads it with ``async for``, a thread without a
    running event loop with ``for``.  If it is closed or dropped, its request ends.

    Examples
    --------
    >>> def countdown(x):
    ...     while x.asscalar() > 0:
    ...         x = x - 1
    ...         yield x
    >>> with gdb.RequestBatcher(countdown) as batcher:
    ...     [y.tolist() for y in batcher.stream(mx.nd.array([3]))]
    [[2.0], [1.0], [0.0]]
    """

    def __init__(
        self,
        batcher: Any,
        mailbox: Mailbox,
        drop: Callable[[Mailbox], None],
        made_room: Callable[[], None],
        is_lost: Callable[[], bool],
        refuse_worker: Callable[[], None],
    ):
        #: Held, as a batcher that nothing refers to closes.
        self._batcher = batcher
        self._mailbox, self._made_room, self._is_lost = mailbox, made_room, is_lost
        self._refuse_worker = refuse_worker
        self._drop = weakref.finalize(self, drop, mailbox)
        self._drop.atexit = False

    def __iter__(self) -> Iterator[Any]:
        self._check(None)
        return self

    def __next__(self) -> Any:
        self._check(None)
        while True:
            if not self._mailbox.is_ready():
                self._refuse_waiting()
                self._mailbox.wait()
            try:
                return self._take()
            except IndexError:  # another thread has taken the value
                continue

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._check(asyncio.get_running_loop())
        while True:
            if not self._mailbox.is_ready():
                self._refuse_waiting()
                await self._mailbox.news()
            try:
                return self._take()
            except IndexError:  # another task has taken the value
                continue
            except StopIteration:
                raise StopAsyncIteration from None

    def close(self) -> None:
        """End the request, unless it has ended; the stream has no more values."""
        mailbox = self._mailbox
        mailbox.finish(None)
        mailbox.values.clear()
        self._drop()
        if mailbox.loop is None:
            mailbox.wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                mailbox.loop.call_soon_threadsafe(mailbox.wake)

    async def aclose(self) -> None:
        """Close the stream in a task."""
        self.close()

    def available(self) -> List[Any]:
        """Return the values that are here and not taken yet, perhaps none, without waiting.

        A client that is slower than the model can take several at a time, which costs it hardly
        more than one.
        """
        values = self._mailbox.take_all()
        self._tell_room()
        return values

    def _take(self) -> Any:
        """Return the next value, or raise the error at the end; `IndexError` if neither is here."""
        mailbox = self._mailbox
        end = mailbox.end  # read first, as values come before the end
        try:
            value = mailbox.values.popleft()
        except IndexError:
            if end is None:
                raise
            mailbox.end = END
            if end is END:
                raise StopIteration from None
            raise end from end.__cause__
        self._tell_room()
        return value

    def _tell_room(self) -> None:
        """Tell the worker if the request waits for the client, and may go on."""
        if self._mailbox.blocked and self._mailbox.has_room():
            self._made_room()

    def _refuse_waiting(self) -> None:
        """Raise an error if no value can come, as in the child of a fork, or in the worker."""
        self._refuse_worker()
        if self._is_lost() and not self._mailbox.is_ready():
            message = "the stream belongs to another process"
            raise errors.ClosedError(message, advice="make a batcher in each process")

    def _check(self, loop: Any) -> None:
        if loop is not self._mailbox.loop:
            maker, use = ("thread", "for") if self._mailbox.loop is None else ("task", "async for")
            raise errors.ArgumentError(
                f"a stream that a {maker} has made is read by another kind of client",
                advice=f"read it with `{use}` where `batcher.stream` was called",
            )
