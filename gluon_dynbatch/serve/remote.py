"""Clients of a batcher in another process of the machine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Callable, Dict, List, Optional

from .. import errors
from ..options import check_path, check_seconds, with_path
from . import frames
from .clients import Mailbox, RequestStream
from .stats import BatcherStats


class RemoteMailbox(Mailbox):
    """The values of a stream that have come from the batcher."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop, number: int):
        super().__init__(size, loop)
        self.number = number
        #: How many values the batcher knows that the client has taken.
        self.known = 0

    def taken(self) -> int:
        """Return how many values the client has taken, if it is time to tell; else 0.

        It is once half of all values have been taken, as then the request may go on.
        """
        count = self.delivered - len(self.values) - self.known
        if count < self.full - self.full // 2:
            return 0
        self.known += count
        return count


class RemoteStream(RequestStream):
    """A stream of a `RemoteBatcher`."""

    def _tell_room(self) -> None:
        self._batcher.tell_taken(self._mailbox)


class RemoteBatcher(asyncio.Protocol):
    """Sends requests to a `RequestBatcher` of another process, for the tasks of an event loop.

    The other process calls :meth:`RequestBatcher.listen`; :meth:`connect` makes this object.  The
    processes have a core each, and the lock of Python: a process that only receives requests, such
    as that of an HTTP server, does not keep the one with the model waiting.  Several processes may
    use one batcher.  Samples, results and exceptions are pickled.

    Attributes
    ----------
    closed : bool
        Whether the connection has ended: the batcher was closed, or its process has ended.

    Examples
    --------
    >>> async def main():
    ...     batcher = await gdb.RemoteBatcher.connect("/run/model.sock")
    ...     print(await batcher(np.ones((1, 3))))
    ...     async for value in batcher.stream(np.ones((1, 3))):
    ...         print(value)
    ...     batcher.close()
    """

    def __init__(self) -> None:
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._frames = frames.Frames()
        #: Futures and mailboxes by number, until they have got all.
        self._clients: Dict[int, Any] = {}
        #: The size of a stream's buffer, once it is known.
        self._buffer: asyncio.Future[int] = self._loop.create_future()
        self._last = 0

    @classmethod
    async def connect(cls, path: Any) -> RemoteBatcher:
        """Return a connection to the batcher that listens at a path.

        Parameters
        ----------
        path : str or os.PathLike
            As for :meth:`RequestBatcher.listen`.

        Raises
        ------
        ClosedError
            The batcher is closed.
        ArgumentError
            The path is of another type.
        OSError
            Nobody listens there.
        """
        loop = asyncio.get_running_loop()
        batcher: RemoteBatcher
        path = check_path(path)
        try:
            _, batcher = await loop.create_unix_connection(cls, path)
        except OSError as error:
            raise with_path(error, path) from None
        await batcher._buffer
        return batcher

    async def __call__(self, sample: Any, timeout_s: Optional[float] = None) -> Any:
        """Return the result for a sample, as :meth:`RequestBatcher.__call__` does."""
        request = self._loop.create_future()
        number = self._ask(lambda number: request, sample, timeout_s)
        try:
            return await request
        finally:
            self._drop(number)

    def stream(self, sample: Any, timeout_s: Optional[float] = None) -> RequestStream:
        """Return the values that a generator function yields, for ``async for``.

        As :meth:`RequestBatcher.stream`, but if the queue is full, the stream raises the error.
        """
        made: List[RemoteMailbox] = []

        def make(number: int) -> RemoteMailbox:
            made.append(RemoteMailbox(self._buffer.result(), self._loop, number))
            return made[0]

        number = self._ask(make, sample, timeout_s)

        def drop(mailbox: Mailbox) -> None:  # in any thread, as it may collect garbage
            if number in self._clients:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._drop, number)

        return RemoteStream(self, made[0], drop, _nothing, _never, _nothing)

    async def stats(self) -> BatcherStats:
        """Return what :meth:`RequestBatcher.stats` returns."""
        answer = self._loop.create_future()
        number = self._add(lambda number: answer)
        self._say(frames.frame(frames.STATS, number))
        try:
            return BatcherStats(*await answer)
        finally:
            self._clients.pop(number, None)

    def close(self) -> None:
        """End the connection; requests that are under way end, with `ClosedError` here."""
        self._end("the connection to the batcher was closed")
        self._transport.close()

    def tell_taken(self, mailbox: RemoteMailbox) -> None:
        """Tell the batcher if the client of a stream has taken half of its values."""
        if mailbox.number in self._clients:
            count = mailbox.taken()
            if count:
                self._say(frames.frame(frames.TAKEN, mailbox.number, count))

    def connection_made(self, transport: Any) -> None:
        """Note the transport; asyncio calls it."""
        self._transport = transport

    def connection_lost(self, error: Optional[BaseException]) -> None:
        """End all requests; asyncio calls it."""
        self._end("the process of the batcher has ended the connection")

    def data_received(self, data: bytes) -> None:
        """Hand over what has come; asyncio calls it."""
        woken: Dict[Mailbox, None] = {}
        for kind, number, content in self._frames.feed(data):
            if kind == frames.NEWS:
                for number, values, ends in frames.unpacked(content):
                    self._put(number, frames.YIELDED, values, woken)
                    if ends:
                        self._put(number, frames.FINISHED, None, woken)
            elif kind == frames.HELLO:
                self._buffer.set_result(frames.unpacked(content))
            elif number in self._clients:  # otherwise it has gone
                try:
                    value = frames.unpacked(content)
                except Exception as error:  # a class is not known here
                    kind, value = frames.FAILED, error
                self._put(number, kind, value, woken)
        for mailbox in woken:
            mailbox.wake()

    def _put(self, number: int, kind: int, value: Any, woken: Dict[Mailbox, None]) -> None:
        """Give a client what has come for it, and note the stream whose tasks are to be woken."""
        client = self._clients.get(number)
        if kind != frames.YIELDED:
            self._clients.pop(number, None)
        if not isinstance(client, RemoteMailbox):
            if client is not None:
                _settle(client, kind, value)
            return
        if kind == frames.YIELDED:
            client.values.extend(value)
            client.delivered += len(value)
        else:
            client.finish(value)
        woken[client] = None

    def _add(self, make: Callable[[int], Any]) -> int:
        """Add a client, made by its number; return the number."""
        if self.closed:
            message = "the connection to the batcher has ended"
            raise errors.ClosedError(message, advice="connect to one again")
        if asyncio.get_running_loop() is not self._loop:
            message = "a remote batcher is used by a task of another event loop"
            raise errors.ArgumentError(message, advice="connect in each loop")
        self._last += 1
        self._clients[self._last] = make(self._last)
        return self._last

    def _ask(self, make: Callable[[int], Any], sample: Any, timeout_s: Optional[float]) -> int:
        """Send a request for a client; return its number."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        now = time.monotonic()  # processes have this clock in common
        number = self._add(make)
        try:
            is_stream = isinstance(self._clients[number], Mailbox)
            content = sample, now, timeout_s, is_stream
            self._say(frames.frame(frames.ASKED, number, content))
        except BaseException:  # the sample cannot be pickled
            del self._clients[number]
            raise
        return number

    def _drop(self, number: int) -> None:
        """Tell the batcher that a client has gone, unless it has got all."""
        if self._clients.pop(number, None) is not None and not self.closed:
            self._say(frames.frame(frames.LEFT, number))

    def _say(self, data: bytes) -> None:
        """Send a frame; uvloop sends all frames of a step of the loop together."""
        self._transport.write(data)

    def _end(self, why: str) -> None:
        """Let the clients that are left get `ClosedError`."""
        self.closed = True
        clients, self._clients = self._clients, {}
        for client in [*clients.values(), self._buffer]:
            error = errors.ClosedError(why, advice="connect to a batcher again")
            if isinstance(client, RemoteMailbox):
                client.finish(error)
                client.wake()
            else:
                _settle(client, frames.FAILED, error)


def _settle(future: asyncio.Future[Any], kind: int, value: Any) -> None:
    """Give a future its result or error, unless its task was cancelled."""
    if not future.done():
        future.set_exception(value) if kind == frames.FAILED else future.set_result(value)


def _nothing() -> None:
    """Do nothing: no worker waits here."""


def _never() -> bool:
    """Return false: the stream belongs to this process."""
    return False
