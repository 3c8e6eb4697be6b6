"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from typing import Any, Iterator, Optional

import mxnet as mx

from ..errors import Where
from ..native import recording

_MXNET = os.path.dirname(mx.__file__)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GLUONNLP = os.path.join(os.path.dirname(_MXNET), "gluonnlp")
recording.libraries = tuple(os.path.join(root, "") for root in (_MXNET, _PACKAGE, _GLUONNLP))
# Below the first function of a thread, Python has frames of this module.
recording.libraries += (threading.__file__,)

#: Flags of code whose frames can be suspended.
SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def user_line() -> Where:
    """Return the line of the nearest caller outside the libraries."""
    return recording.user_place().where


def failing_line(error: BaseException) -> Optional[Where]:
    """Return the innermost line outside the libraries that an exception passed; None if none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not (code.co_filename == "<string>" or code.co_filename.startswith(recording.libraries)):
            found = Where(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return found


def _callers() -> Iterator[Any]:
    """Yield the frames of the callers of the calling function, the innermost first."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_call() -> str:
    """Return the name of the function of a library that the user's line calls; empty if unknown."""
    called = ""
    for frame in _callers():
        name = frame.f_code.co_filename
        # MXNet generates functions with this name; so is a program without a file called.
        generated = name == "<string>" and frame.f_back is not None
        if not (generated or name.startswith(recording.libraries)):
            break
        called = frame.f_code.co_name
    return called


def may_be_abandoned(frame: Any) -> bool:
    """Return whether a frame is of a generator or coroutine that may never resume after a yield.

    One that an ``__enter__`` started, as with ``contextlib.contextmanager``, is not: a ``with``
    statement ends it.
    """
    if not frame.f_code.co_flags & SUSPENDABLE:
        return False
    while frame is not None and frame.f_code.co_flags & SUSPENDABLE:
        if frame.f_code.co_name == "__aenter__":
            return False
        frame = frame.f_back
    return frame is None or frame.f_code.co_name != "__enter__"
