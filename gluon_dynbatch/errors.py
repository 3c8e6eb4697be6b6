"""The errors of the package, and the form of their messages.

Each class is a `DynBatchError`, so one ``except`` catches all of them.  Each is also the built-in
exception that Gluon or Python would raise in its place, so existing handlers work.  What to do is
part of a message; `docs/errors.md` has causes, ways out and an example of each.
"""

from __future__ import annotations

from typing import NamedTuple


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
        """Write the place the way editors and terminals recognise it."""
        return f"{self.filename}:{self.line} in {self.function}"


class DynBatchError(Exception):
    """Base class of all errors of this package.

    Their text is a sentence, and one indented line for each of the others that is known.

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
        known = [f"  {label}: {text}" for label, text in details if text is not None]
        super().__init__("\n".join([what, *known]))


class BudgetError(DynBatchError, ValueError):
    """The analysis budget is negative, NaN, a boolean or not a number."""


class OptionError(DynBatchError, ValueError):
    """An option has a value that does not exist."""

    @classmethod
    def unknown(cls, option: str, value: object, valid: tuple[str, ...]) -> OptionError:
        """Make the error for a `value` of `option` that is not one of the `valid` names."""
        names = ", ".join(repr(name) for name in valid)
        return cls(f"unknown {option} {value!r}", advice=f"choose one of {names}")


class ArgumentError(DynBatchError, TypeError):
    """A call got an argument that cannot be recorded, or `map` a function that it cannot call."""


class ShapeError(DynBatchError, ValueError):
    """The operators of a call refuse these shapes, within a scope and without."""


class DTypeError(DynBatchError, TypeError):
    """The operators of a call refuse these data types."""


class ContextError(DynBatchError, ValueError):
    """The arrays and parameters of a call are on different devices."""


class SampleError(DynBatchError, RuntimeError):
    """`map` raised an exception of this sample; the ``__cause__`` of the exception."""


class ScopeError(DynBatchError, RuntimeError):
    """A scope or a pending value is used where another scope or thread has it."""


class StaleArrayError(DynBatchError, RuntimeError):
    """A lazy array is used whose scope or flush failed before it was computed."""


class NotMergedError(DynBatchError, RuntimeError):
    """With ``strict=True``, a call has no batching rule, or cannot be recorded."""


class CellError(DynBatchError, RuntimeError):
    """The ``hybrid_forward`` of a cell reads a value, or branches on one."""


class UninitializedError(DynBatchError, RuntimeError):
    """A block was called before ``initialize()``."""


class GradientError(DynBatchError, RuntimeError):
    """No gradient: not recorded for autograd, or its graph was freed or has none."""


class LaunchError(DynBatchError, RuntimeError):
    """An operator of a launch refused a value, or memory did not suffice."""


class MismatchError(DynBatchError, AssertionError):
    """With ``debug=True``, a result is wrong, or what a pending call reads changed unseen."""


class QueueFullError(DynBatchError, RuntimeError):
    """More requests wait for a `RequestBatcher` than may."""


class ClosedError(DynBatchError, RuntimeError):
    """A request was submitted to a `RequestBatcher` that is closed or another process's."""


class RequestError(DynBatchError, RuntimeError):
    """A request raised what would end the thread or task that waits for it; the ``__cause__``."""


class MissingError(DynBatchError, ImportError):
    """A picture needs a package or a program that is not installed."""
