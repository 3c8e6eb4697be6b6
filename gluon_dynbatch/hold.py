"""How long a ``with`` statement holds a scope, and whether it may never go on."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .scope import Batch

#: Why values are missing if an interrupt came as a scope began or ended.
INTERRUPTED = "the scope was interrupted"

#: Flags of code whose frames can wait while others run.
WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Hold:
    """The part of one ``with`` statement in the scope that it opened or joined."""

    __slots__ = ("scope", "statement", "computes")

    def __init__(self) -> None:
        self.scope: Optional[Batch] = None
        #: Weak reference that is dead as soon as the statement is left, in whatever way; to the
        #: `Batch` if there is no statement.
        self.statement: Any = None
        #: Whether what is pending is computed at the end of this statement.
        self.computes = False

    @property
    def is_dead(self) -> bool:
        """Whether the statement was left without a call of ``__exit__`` that came to its end."""
        return self.statement is None or self.statement() is None

    def leave(self, batch: Batch, kind: Any, error: Any, trace: Any) -> None:
        """Leave the scope at the end of the statement."""
        scope = self.scope
        if scope is None:
            # Not that of a statement: it was looked up to be called.
            batch._leave_by_hand(kind, error, trace)
            return
        # GeneratorExit is how a generator ends that nobody asks for more: no failure.
        failed = kind is not None and kind is not GeneratorExit
        try:
            if next(iter(scope._holds), None) is self:
                scope._finish(failed)
            elif self.computes and not failed:
                scope.flush()
        finally:
            ending = f"with {kind.__name__}: {error}" if failed else "before it was computed"
            scope._release(self, f"the scope ended {ending}")

    def let_go(self, statement: Any) -> None:
        """Leave the scope, as the statement is gone."""
        del statement
        if self.scope is not None:
            self.scope._release(self, INTERRUPTED)


class Exit:
    """Makes an ``__exit__`` for each ``with`` statement, which alone holds it.

    That is how a statement is known to be left: an interrupt may come when ``__enter__`` has not
    quite returned, or ``__exit__`` has not quite begun, and then Python calls ``__exit__`` never.
    A ``partial`` has no frame, in which a traceback would keep it alive.
    """

    def __get__(self, batch: Optional[Batch], kind: Any = None) -> Any:
        if batch is None:
            return kind._leave_by_hand
        hold = Hold()
        leave = functools.partial(hold.leave, batch)
        hold.statement = weakref.ref(leave, hold.let_go)
        batch._entering = hold
        return leave


def may_be_left(frame: Any) -> bool:
    """Whether a frame is that of a generator or coroutine that may wait for ever once it yields.

    Not if it was begun by an ``__enter__``, as of ``contextlib.contextmanager``: then a ``with``
    statement sees to it that it comes to its end.
    """
    if not frame.f_code.co_flags & WAITS:
        return False
    while frame is not None and frame.f_code.co_flags & WAITS:
        if frame.f_code.co_name == "__aenter__":
            return False
        frame = frame.f_back
    return frame is None or frame.f_code.co_name != "__enter__"


def is_running(frame: Any) -> bool:
    """Whether a frame is on the stack of this thread."""
    running: Any = sys._getframe(1)
    while running is not None and running is not frame:
        running = running.f_back
    return running is not None
