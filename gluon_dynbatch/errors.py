"""The errors of the package, and the form of their messages.

Each class is a `DynBatchError`, so one ``except`` catches all of them.  Each is also the exception
that MXNet, Gluon or Python would raise in its place, so existing handlers work.  Most messages say
what to do.  `docs/errors.md` has the causes, the remedies and an example of each.
"""

from __future__ import annotations

import functools
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, NamedTuple

if TYPE_CHECKING:  # mypy cannot read MXNet
    _MXNetsOwn = RuntimeError
else:
    from mxnet.base import MXNetError as _MXNetsOwn


class Where(NamedTuple):
    """A line of the user's program.

    Attributes
    ----------
    filename : str
        Path of the file, as Python knows it.
    line : int
        Line number, from 1.
    function : str
        Name of the function that the line belongs to.
    """

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        """Write the line as ``file:line``, which editors and terminals recognize."""
        return f"{self.filename}:{self.line} in {self.function}"


#: Packages whose frames notebooks leave out of tracebacks.
LIBRARIES = ("gluon_dynbatch", "mxnet")


def hide_frames(error: BaseException) -> None:
    """Let IPython leave out the frames of libraries from the tracebacks of an error.

    These are the frames that the error has passed, and those of the callers of this function, which
    it will pass.  Without IPython, this does nothing.
    """
    if "IPython" not in sys.modules:
        return
    shown: BaseException | None = error
    while shown is not None:
        for frame, _ in traceback.walk_tb(shown.__traceback__):
            _hide(frame)
        shown = shown.__cause__ or shown.__context__
    caller: Any = sys._getframe(1)
    while caller is not None and _hide(caller):
        caller = caller.f_back


def _hide(frame: Any) -> bool:
    """Mark a frame of a library for IPython; return whether it is one."""
    is_of_library = str(frame.f_globals.get("__name__")).split(".")[0] in LIBRARIES
    if is_of_library:
        frame.f_locals["__tracebackhide__"] = True
    return is_of_library


def _to_user(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of libraries at its end, if others are left."""
    frames = [*traceback.walk_tb(trace)]
    users = [number for number, (frame, _) in enumerate(frames) if not _hide(frame)]
    if not users:
        return trace
    copies: TracebackType | None = None
    for frame, line in reversed(frames[: users[-1] + 1]):
        copies = TracebackType(copies, frame, frame.f_lasti, line)
    return copies


class DynBatchError(Exception):
    """Base class of all errors of this package.

    The message is one sentence, followed by an indented line for each detail that is known.

    Parameters
    ----------
    what : str
        One sentence about what is wrong, with the shapes or values that show it.
    where : Where, optional
        The user's line that recorded the call.
    block : str, optional
        Name of the Gluon block or operator.
    advice : str, optional
        What the user can do about it.
    """

    def __init__(
        self,
        what: str,
        where: Where | None = None,
        block: str | None = None,
        advice: str | None = None,
    ):
        details = (("at", where), ("block", block), ("what to do", advice))
        lines = [f"  {label}: {text}" for label, text in details if text is not None]
        # Other base classes may take other arguments, and show them in their own way.
        Exception.__init__(self, "\n".join([what, *lines]))

    def __str__(self) -> str:
        """Return the message."""
        return Exception.__str__(self)

    def _render_traceback_(self) -> List[str]:
        """Return the traceback without the frames of libraries, for IPython, which calls this."""
        hide_frames(self)
        shell = sys.modules["IPython"].get_ipython()
        text = shell.InteractiveTB.structured_traceback
        return list(text(type(self), self, _to_user(self.__traceback__), tb_offset=1))

    @classmethod
    def like(cls, base: Any) -> Any:
        """Return this class if it has this base class; else, a subclass that has it."""
        this: Any = cls
        return this if issubclass(this, base) else _with_base(this, base)


@functools.lru_cache(maxsize=None)
def _with_base(cls: Any, base: Any) -> Any:
    def __reduce__(error: Any) -> Any:  # pickle does not find this class by its name
        return _restore, (cls, base, *error.args)

    names = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__reduce__": __reduce__}
    return type(cls.__name__, (cls, base), names)


def _restore(cls: Any, base: Any, message: str) -> Any:
    return _with_base(cls, base)(message)


class BudgetError(DynBatchError, ValueError):
    """The analysis budget is negative, NaN, a boolean or not a number."""


class OptionError(DynBatchError, ValueError):
    """An option has an unknown or invalid value."""

    @classmethod
    def unknown(cls, option: str, value: object, valid: tuple[str, ...]) -> OptionError:
        """Make the error for a value that is not one of the valid names."""
        names = ", ".join(repr(name) for name in valid)
        return cls(f"unknown {option} {value!r}", advice=f"choose one of {names}")


class ArgumentError(DynBatchError, _MXNetsOwn, TypeError, ValueError):
    """A call got an argument that cannot be recorded, or `map` got an unsuitable function."""


class NestingError(DynBatchError, RecursionError):
    """Arguments or results of a call are nested too deep, or contain themselves."""


class ShapeError(DynBatchError, _MXNetsOwn, ValueError):
    """The operators of a call refuse these shapes, within a scope and without."""


class DTypeError(DynBatchError, _MXNetsOwn, TypeError):
    """The operators of a call refuse these dtypes."""


class ContextError(DynBatchError, _MXNetsOwn, ValueError):
    """The arrays and parameters of a call are in different contexts."""


class SampleError(DynBatchError, RuntimeError):
    """Names the sample that raised an exception in `map`; the ``__cause__`` of the exception."""


class ScopeError(DynBatchError, RuntimeError):
    """Options of nested scopes differ, or two threads use one scope or its pending values."""


class StaleArrayError(DynBatchError, RuntimeError):
    """A lazy array was never computed, because its scope or flush failed."""


class NotMergedError(DynBatchError, RuntimeError):
    """With ``strict=True``: calls do not merge, or not all with each other, or are not recorded."""


class CellError(DynBatchError, _MXNetsOwn):
    """The ``hybrid_forward`` of a cell reads a value or a shape, or returns no array."""


class UninitializedError(DynBatchError, RuntimeError):
    """A block was called before ``initialize()``."""


class GradientError(DynBatchError, _MXNetsOwn):
    """An array has no graph for a backward pass, or a second-order gradient is requested."""


class LaunchError(DynBatchError, _MXNetsOwn):
    """An operator rejected a value while a launch ran, or memory ran out."""


class MismatchError(DynBatchError, AssertionError):
    """With ``debug=True``: a result is wrong, or an input of a pending call changed unnoticed.

    `map` raises it if a sample has another result than in the plain loop.
    """


class QueueFullError(DynBatchError, RuntimeError):
    """The queue of a `RequestBatcher` is full."""


class ClosedError(DynBatchError, RuntimeError):
    """A request was submitted to a `RequestBatcher` that is closed or of another process."""


class RequestError(DynBatchError, RuntimeError):
    """A request cannot be answered.

    It raised an exception such as `SystemExit`, which is the ``__cause__``; or it waits for another
    request of its own batcher, whose worker would wait for itself.
    """


class RequestTimeoutError(DynBatchError, TimeoutError):
    """A request was not answered within its ``timeout_s``."""


class MissingError(DynBatchError, ImportError):
    """A picture needs a package or a program that is not installed."""
