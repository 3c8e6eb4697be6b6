"""Where the worker of a batcher waits, and where requests of other processes come in."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ..options import with_path
from .wires import Intake, Limits, Wire


class Doors:
    """A bell for the threads of this process, and sockets for others.

    Owned by a `worker.Queue`, whose lock is held where a method says so.  Without sockets, the
    worker waits for the condition of the queue.
    """

    def __init__(self, office: Intake, changed: threading.Condition):
        self._office, self._changed = office, changed
        self._poll: Any = None
        #: Both ends of the bell; and the socket that others connect to, with its path.
        self._bell: Tuple[int, int] = (-1, -1)
        self._listeners: List[Tuple[socket.socket, Path]] = []
        self._limits: Limits = (1, None)
        #: The connections, by the number of their files.
        self._wires: Dict[int, Wire] = {}
        #: Whether the worker waits for the bell, or for a socket.
        self._waits = False

    def listen(self, path: Path, limits: Limits) -> None:
        """Let others connect to a path.  The lock is held."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            path.chmod(0o600)  # what comes is unpickled
            listener.listen()
            listener.setblocking(False)
        except BaseException as error:
            listener.close()
            if isinstance(error, OSError):
                raise with_path(error, str(path)) from None
            raise
        if self._poll is None:
            self._bell = os.pipe()
            poll = select.poll()
            poll.register(self._bell[0], select.POLLIN)
            self._changed.notify_all()
            self._poll = poll
        self._limits = limits
        self._listeners.append((listener, path))
        self._poll.register(listener, select.POLLIN)
        self.ring()

    def ring(self) -> None:
        """Wake the worker if it waits.  The lock is held."""
        if self._waits:
            self._waits = False
            os.write(self._bell[1], b".")

    def wait(self, seconds: float) -> None:
        """Wait for a while until something happens.  The lock is held, and released meanwhile."""
        if self._poll is None:
            self._changed.wait(seconds)
            return
        for wire in self._wires.values():
            events = select.POLLIN | (select.POLLOUT if wire.is_congested else 0)
            self._poll.modify(wire, events)
        self._waits = True
        self._changed.release()
        try:
            found = self._poll.poll(min(seconds * 1000, 2**31 - 1))
        finally:
            self._changed.acquire()
            self._waits = False
        self._enter(found)

    def look(self) -> None:
        """Take what has come, without waiting."""
        if self._poll is not None:
            self._enter(self._poll.poll(0))
            for wire in self._wires.values():
                if wire.is_congested:
                    wire.send_rest()

    def _enter(self, found: List[Tuple[int, int]]) -> None:
        """Take what has come at the files that were found."""
        for number, _ in found:
            wire = self._wires.get(number)
            if wire is not None:
                wire.send_rest()
                wire.read()
                if wire.is_closed():
                    del self._wires[number]
                    self._poll.unregister(number)
            elif number == self._bell[0]:
                os.read(number, 1024)
            else:
                self._accept(number)

    def _accept(self, number: int) -> None:
        """Accept a connection at a listener."""
        for listener, _ in self._listeners:
            if listener.fileno() == number:
                with contextlib.suppress(OSError):  # it has gone already
                    wire = Wire(listener.accept()[0], self._office, self._limits)
                    self._wires[wire.fileno()] = wire
                    self._poll.register(wire, select.POLLIN)

    def close(self) -> List[Wire]:
        """Close all but the connections, as the worker ends; return these.  The lock is held."""
        for listener, path in self._listeners:
            listener.close()
            with contextlib.suppress(OSError):
                path.unlink()
        if self._poll is not None:
            for end in self._bell:
                os.close(end)
        wires = list(self._wires.values())
        self._wires.clear()
        return wires
