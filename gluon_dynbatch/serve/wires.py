"""The connection of a batcher to a `RemoteBatcher` of another process, at the batcher's end."""

from __future__ import annotations

import math
import select
import socket
import time
from itertools import islice
from typing import Any, Dict, List, Optional, Protocol, Tuple

from . import frames
from .clients import END, Far, Mailbox
from .stats import BatcherStats

#: Bytes that are read at once; and seconds that the end of a batcher waits for all slow readers.
CHUNK, PATIENCE_S = 2**18, 5.0
#: Types of values that every process can unpickle: those of all streams share a frame.
PLAIN = frozenset((str, int, float, bytes, bool, type(None)))
#: The size of a stream's buffer; and the most requests that may wait, or None.
Limits = Tuple[int, Optional[int]]


class Intake(Protocol):
    """Where requests go: a `worker.Queue`."""

    def put(
        self, client: Any, sample: Any, now: float, deadline: float, most: Optional[int]
    ) -> None:
        """Let a request wait."""

    def drop(self, client: Any) -> None:
        """Leave out the request of a client."""

    def stats(self) -> BatcherStats:
        """Return counts and times of all requests so far."""


class FarFuture:
    """The client of a single answer."""

    def __init__(self, wire: Wire, number: int):
        self._wire, self.number = wire, number

    def get_loop(self) -> Wire:
        """Return where the client is."""
        return self._wire


class FarMailbox(Mailbox):
    """The values of a stream that the client, in another process, has not yet taken."""

    def __init__(self, size: int, wire: Wire, number: int):
        super().__init__(size, wire)
        self.number = number
        #: How many of its values have been sent.
        self.sent = 0


class Wire(Far):
    """A connection.  Owned by the `doors.Doors` of a queue; only the worker uses it."""

    def __init__(self, connection: socket.socket, office: Intake, limits: Limits):
        connection.setblocking(False)
        self._socket, self._office = connection, office
        self._buffer, self._most = limits
        self._frames = frames.Frames()
        #: Where bytes are read to: memory that is new for each read costs more than the read.
        self._chunk = memoryview(bytearray(CHUNK))
        #: Clients by number, until they have been sent all.
        self._clients: Dict[int, Any] = {}
        #: What could not be sent yet.
        self._unsent = bytearray()
        self._is_open = True
        self._write(frames.frame(frames.HELLO, 0, self._buffer))

    def fileno(self) -> int:
        """Return the number of the socket."""
        return self._socket.fileno()

    def is_closed(self) -> bool:
        """Return whether the other end has gone."""
        return not self._is_open

    @property
    def is_congested(self) -> bool:
        """Whether something could not be sent yet."""
        return bool(self._unsent)

    def read(self) -> None:
        """Take what the other end has sent."""
        try:
            count = self._socket.recv_into(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.hang_up()
            return
        for kind, number, content in self._frames.feed(self._chunk[:count]):
            self._take(kind, number, content)

    def send_rest(self) -> None:
        """Send what could not be sent before."""
        self._write(b"")

    def hang_up(self) -> None:
        """Close the connection; the clients that are left have gone."""
        if not self._is_open:
            return
        self._is_open = False
        self._socket.close()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            self._office.drop(client)

    def hand_over(self, answers: List[Tuple[Any, Any]], mailboxes: List[Mailbox]) -> None:
        """Send answers, and the values and ends of streams."""
        parts: List[bytes] = []
        news: List[Tuple[int, List[Any], bool]] = []
        for mailbox in mailboxes:
            assert isinstance(mailbox, FarMailbox)
            self._add_news(parts, news, mailbox)
        if news:
            parts.append(frames.frame(frames.NEWS, 0, news))
        for client, outcome in answers:
            if self._clients.pop(client.number, None) is not None:
                parts.append(_answer(frames.RESULT, client.number, outcome))
        self._write(b"".join(parts))

    def _add_news(
        self, parts: List[bytes], news: List[Tuple[int, List[Any], bool]], mailbox: FarMailbox
    ) -> None:
        """Add what a stream has got since it was told last: to `news`, or as frames of its own.

        Values stay in the mailbox until the client has taken them, so that there are not too many.
        """
        mailbox.told = True
        number, values = mailbox.number, list(islice(mailbox.values, mailbox.sent, None))
        mailbox.sent += len(values)
        ends = mailbox.end is not None and self._clients.pop(number, None) is not None
        is_plain = PLAIN.issuperset(map(type, values))
        if is_plain and mailbox.end in (None, END):
            if values or ends:
                news.append((number, values, ends))
            return
        try:
            parts += [frames.frame(frames.YIELDED, number, values)] if values else ()
        except Exception as error:  # they cannot be pickled
            mailbox.end = error
            self._office.drop(mailbox)
            ends = ends or self._clients.pop(number, None) is not None
        if ends:
            outcome = None if mailbox.end is END else mailbox.end
            parts.append(_answer(frames.FINISHED, number, outcome))

    def _take(self, kind: int, number: int, content: bytes) -> None:
        """Act on a frame."""
        if kind == frames.ASKED:
            self._ask(number, content)
        elif kind == frames.STATS:
            self._write(frames.frame(frames.RESULT, number, tuple(self._office.stats())))
        elif number in self._clients:  # otherwise it has ended
            client = self._clients[number]
            if kind == frames.TAKEN:
                count = frames.unpacked(content)
                for _ in range(count):
                    client.values.popleft()
                client.sent -= count
            else:
                del self._clients[number]
                self._office.drop(client)

    def _ask(self, number: int, content: bytes) -> None:
        """Put a request into the queue, or send why not."""
        try:
            sample, submitted, timeout_s, is_stream = frames.unpacked(content)
            client: Any = FarFuture(self, number)
            if is_stream:
                client = FarMailbox(self._buffer, self, number)
            deadline = math.inf if timeout_s is None else submitted + timeout_s
            self._office.put(client, sample, submitted, deadline, self._most)
        except Exception as error:  # it is refused, or a class of its sample is not known here
            self._write(frames.frame_of_error(number, error))
        else:
            self._clients[number] = client

    def _write(self, data: bytes) -> None:
        """Send as much as there is room for."""
        unsent = self._unsent
        if unsent:
            unsent += data
        try:
            if unsent:
                del unsent[: self._socket.send(unsent)]
            elif data:
                unsent += memoryview(data)[self._socket.send(data) :]
        except BlockingIOError:
            unsent += b"" if unsent else data
        except OSError:  # the other end has gone, as the next look will find
            unsent.clear()


def finish(wires: List[Wire]) -> None:
    """Send all and close the connections, as no request is left; slow readers have a time limit."""
    until = time.monotonic() + PATIENCE_S
    while True:
        slow = [wire for wire in wires if wire.is_congested]
        seconds = until - time.monotonic()
        if not slow or seconds <= 0:
            break
        poll = select.poll()
        for wire in slow:
            poll.register(wire, select.POLLOUT)
        poll.poll(1000 * seconds)
        for wire in slow:
            wire.send_rest()
    for wire in wires:
        wire.hang_up()


def _answer(kind: int, number: int, outcome: Any) -> bytes:
    """Return a frame with an outcome, which may be an exception or impossible to pickle."""
    if isinstance(outcome, BaseException):
        return frames.frame_of_error(number, outcome)
    try:
        return frames.frame(kind, number, outcome)
    except Exception as error:
        return frames.frame_of_error(number, error)
