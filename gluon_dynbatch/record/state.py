"""The state of each thread: its batching scope."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple, TypeVar

from mxnet.ndarray import NDArray

from ..errors import Where
from ..native import recording
from ..report.report import Report

Result = TypeVar("Result")


class Scope(Protocol):
    """What a recorder asks of its scope."""

    def unrecorded(self, work: Callable[[], Result]) -> Result:
        """Run `work` without recording its calls, and return its result."""

    def flush(self) -> None:
        """Compute the pending calls."""

    def await_flush(self, waiting: int = 0) -> bool:
        """Compute the pending calls, perhaps with those of other samples; return whether so."""

    def run_ahead(self) -> None:
        """Compute the pending calls if that pays while recording continues."""

    def connect(self) -> None:
        """Add the computed calls to MXNet's tape."""

    @staticmethod
    def hybridizing_helps(library: Any, cell: Any) -> bool:
        """Return whether it would help to hybridize an `idle.IdleCell`."""


class NamedCallee(Protocol):
    """What a recorder knows of a block or operator that is called."""

    #: It begins with "block" or "op".
    token: Tuple[Any, ...]

    @property
    def name(self) -> str:
        """Name for messages and reports."""


class Callees(Protocol):
    """What a recorder asks of the library of callees, a `trace.entry.Library`."""

    #: Callees of operators with their attributes, by token.
    operators: Dict[Any, Any]
    #: The number that an operator is called with, by user line and operator; NaN if it varies.
    numbers: Dict[Any, float]

    def operator(self, token: Any, info: Any) -> NamedCallee:
        """Return the callee of an operator."""

    def callee(self, block: Any) -> NamedCallee:
        """Return the callee of a block."""

    def stock_callee(self, block: Any, key: Optional[bytes] = None) -> NamedCallee:
        """Return a new callee of a block; with a key, that of all blocks with this key."""

    def entry(
        self,
        key: Any,
        callee: Any,
        mode: int,
        spec: Any,
        type_ids: Any,
        places: Tuple[int, ...],
        where: Where,
    ) -> Any:
        """Make the entry for a new kind of call, or return why its calls run at once."""


class ThreadTrace(Protocol):
    """What replaced functions ask of a trace of a block's ``forward``, a `tracing.Trace`."""

    #: By id of a view: the view, its array, whether it is recorded, how it is made, the argument.
    views: Dict[int, Tuple[NDArray, NDArray, bool, str, Any]]


class ThreadRecorder(Protocol):
    """What replaced functions ask of the recorder of their thread, a `recorder.Recorder`."""

    @property
    def report(self) -> Report:
        """The report of its scope."""

    @property
    def scope(self) -> Scope:
        """Its scope."""

    @property
    def tape(self) -> recording.FlatTape:
        """The pending calls, a `tape.Tape`."""

    @property
    def library(self) -> Callees:
        """The callees of the process."""

    @property
    def operators(self) -> Mapping[Any, NamedCallee]:
        """Callees of operators with their attributes, by token."""

    @property
    def tracing(self) -> Optional[ThreadTrace]:
        """The trace of the call of a block that is running, or None."""

    def run_pending(self) -> None:
        """Compute the pending calls, if there are any."""

    def refuse(self, reason: str, where: Optional[Where] = None) -> None:
        """Keep no piece of the calls that are traced, for this reason."""

    def count_ordinary(self, name: str) -> None:
        """Count an operator on ordinary arrays, which runs at once."""

    @property
    def constants(self) -> Dict[Any, recording.Constant]:
        """The results of creation functions, by function and arguments."""

    def constant(
        self, token: Any, create: Callable[[], Any], values_by_numpy: Callable[[], Any]
    ) -> Any:
        """Return the result of a creation function, which runs once per scope."""

    def reads(self, constant: recording.Constant) -> None:
        """Keep no piece that depends on the values of a constant, unless `forward` made it."""

    def lift_number(self, token: Tuple[Any, ...], arrays: List[Any]) -> Tuple[Any, List[Any]]:
        """Lift the number of a scalar operator to an operand if it varies."""

    def report_at_once(self, callee: NamedCallee, why: str) -> None:
        """Report a call that runs at once; raise with ``strict=True``."""


class ThreadScope(Scope, Protocol):
    """What replaced functions and observers ask of the scope of a thread, a `scope.OpenScope`."""

    @property
    def batch(self) -> Any:
        """The user's handle, a `Batch`."""

    @property
    def place(self) -> recording.Place:
        """The place in the user's program that opened the scope."""

    @property
    def report(self) -> Report:
        """What happened so far."""

    def limit_of(self, block: Any) -> int:
        """Return how many calls run at once in a scope whose first call is one of a block."""

    def record(self) -> ThreadRecorder:
        """Record the calls from here on, and return the recorder."""

    def use_defaults(self, defaults: Any) -> None:
        """Complete the options with those of a hybridized block."""

    def count_wait(self, seconds: float) -> None:
        """Count time spent waiting for a value."""


class ThreadState(threading.local):
    """The scope of a thread.

    Calls in an open scope are recorded.  Or they run at once and are counted, because recording may
    not pay.  Or they are the scope's own, while it traces or flushes: these are neither recorded
    nor counted.  The scope writes `scope`, `recorder` and `at_once`, in one call of C, which an
    interrupt cannot divide.
    """

    #: The open scope, or None.
    scope: Optional[ThreadScope] = None
    #: The recorder of the scope while it is recording, else None.
    recorder: Optional[ThreadRecorder] = None
    #: Counts the calls while they run at once, else None.
    at_once: Optional[recording.AtOnce] = None
    #: The line to which calls belong that no line of the user makes; None in the user's threads.
    origin: Optional[recording.Place] = None

    def __init__(self) -> None:
        #: Per place that opened scopes in this thread, the measurements of "auto" (`Account`).
        self.decisions: Dict[Any, Any] = {}
        #: Idle fibers, for the next map.
        self.idle_fibers: List[Any] = []
        #: Weak references to the arenas of the last scope that hold values.
        self.waiting: List[Any] = []

    @property
    def batch(self) -> Any:
        """The user's handle of the open scope, or None."""
        return None if self.scope is None else self.scope.batch


STATE = ThreadState()
