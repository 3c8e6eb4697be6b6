"""What requests yield, return and raise in a round, on its way to their clients."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Protocol, Tuple

import mxnet as mx

from .. import errors
from ..native import recording
from .clients import Outbox, Request


class Office(Protocol):
    """Where requests come from, and go when they have ended: a `worker.Queue`."""

    def look(self) -> bool:
        """Take what has come, and return whether requests wait."""

    def begin(self, room: int) -> List[Request]:
        """Return requests that begin now, at most as many as there is room for."""

    def ran(self, requests: int, flushes: int, plan_hits: int, values: int) -> None:
        """Note how many more requests take part in a round, and how much there has been so far."""

    def answer(self, answers: List[Tuple[Request, Any]]) -> None:
        """Take requests that have ended, each with its result or exception."""


class Answers:
    """The results, exceptions and values of a round.

    `send` sends what is due to clients; `fail` is called for a request whose result cannot be had.
    """

    def __init__(
        self,
        office: Office,
        outbox: Outbox,
        send: Callable[[], None],
        fail: Callable[[Request, BaseException], None],
    ):
        self._office, self._outbox = office, outbox
        self._send, self._fail = send, fail
        #: Requests that returned with their results, and those that failed.
        self.returned: List[Tuple[Request, Any]] = []
        self.failed: List[Tuple[Request, BaseException]] = []
        #: Requests whose results have arrays, with the nesting around these, and all leaves.
        self._pending: List[Tuple[Request, Any, List[Any]]] = []

    def send_known(self) -> None:
        """Answer requests that returned no arrays, or failed; wake streams that have got values."""
        returned, self.returned = self.returned, []
        answers: List[Tuple[Request, Any]] = []
        for request, result in returned:
            try:
                # All objects but lists, tuples and dictionaries are leaves.
                leaves, spec = recording.flatten(result, object)
            except Exception as nested:
                self._fail(request, nested)
                continue
            if any(isinstance(leaf, mx.nd.NDArray) for leaf in leaves):
                self._pending.append((request, spec, leaves))
            else:
                answers.append((request, result))
            del result, leaves
        returned.clear()
        self._answer(answers)

    def send_computed(self, error: Optional[BaseException]) -> None:
        """Answer all others; their arrays have been handed to the engine, or a flush failed."""
        if self.returned or self._outbox.has_firsts:
            self.send_known()
        answers: List[Tuple[Request, Any]] = []
        while self._pending:
            request, spec, leaves = self._pending.pop(0)
            try:
                answers.append((request, recording.unflatten(spec, _to_numpy(leaves))))
            except Exception as failure:
                is_stale = isinstance(failure, errors.StaleArrayError)
                self._fail(request, error if is_stale and error is not None else failure)
        if answers or self.failed:
            self._answer(answers)

    def _answer(self, answers: List[Tuple[Request, Any]]) -> None:
        answers += self.failed
        self.failed.clear()
        if answers:
            self._office.answer(answers)
            answers.clear()
        self._outbox.has_firsts = False
        self._send()


def without_mxnet_arrays(value: Any) -> Any:
    """Return a value with NumPy arrays, which own their memory, in place of MXNet arrays."""
    leaves, spec = recording.flatten(value, object)
    return recording.unflatten(spec, _to_numpy(leaves))


def _to_numpy(leaves: List[Any]) -> List[Any]:
    """Replace MXNet arrays by NumPy arrays that own their memory."""
    return [x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in leaves]
