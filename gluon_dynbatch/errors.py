"""The errors of the package, and the form of their messages.

Each class is a `DynBatchError`, so one ``except`` catches all of them.  Each is also the exception
that MXNet, Gluon or Python would raise in its place, so existing handlers work.  Most messages say
what to do.  `docs/errors.md` has the causes, the remedies and an example of each.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

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
        """Write the line as ``file:line``, which editors and terminals recognise."""
        return f"{self.filename}:{self.line} in {self.function}"


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
    """The operators of a call refuse these data types."""


class ContextError(DynBatchError, _MXNetsOwn, ValueError):
    """The arrays and parameters of a call are on different devices."""


class SampleError(DynBatchError, RuntimeError):
    """Names the sample that raised an exception in `map`; the ``__cause__`` of the exception."""


class ScopeError(DynBatchError, RuntimeError):
    """Options of nested scopes differ, or two threads use one scope or its pending values."""


class StaleArrayError(DynBatchError, RuntimeError):
    """A lazy array was never computed, because its scope or flush failed."""


class NotMergedError(DynBatchError, RuntimeError):
    """With ``strict=True``: a call has no batching rule, or it cannot be recorded."""


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
    """A request raised an exception such as `SystemExit`, which is the ``__cause__``."""


class RequestTimeoutError(DynBatchError, TimeoutError):
    """A request was not answered within its ``timeout_s``."""


class MissingError(DynBatchError, ImportError):
    """A picture needs a package or a program that is not installed."""
