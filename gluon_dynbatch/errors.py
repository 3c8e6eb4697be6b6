"""The errors of the package, and the form of their messages.

Each class is a `DynBatchError`, so one ``except`` catches all of them.  Each is also the built-in
exception that Gluon or Python would raise in its place, so existing handlers work.
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
    """The analysis budget is not a budget.

    Cause: it is negative, NaN, a boolean or not a number.
    Way out: give milliseconds (``2.5``), ``"auto"``, ``None`` for no limit, or a `Budget`.
    """


class OptionError(DynBatchError, ValueError):
    """An option has a value that does not exist.

    Cause: an unknown granularity or policy, or a limit below 1.
    Way out: take one of the values that the message lists.
    """

    @classmethod
    def unknown(cls, option: str, value: object, valid: tuple[str, ...]) -> OptionError:
        """Make the error for a `value` of `option` that is not one of the `valid` names."""
        names = ", ".join(repr(name) for name in valid)
        return cls(f"unknown {option} {value!r}", advice=f"choose one of {names}")


class ArgumentError(DynBatchError, TypeError):
    """A recorded call got an argument that cannot be recorded.

    Cause: an argument that is not an array, a number, a string, None, or a list, tuple or
    dictionary of these.
    Way out: pass the arrays inside that object instead of the object.
    """


class ShapeError(DynBatchError, ValueError):
    """The shapes of a call do not fit each other.

    Cause: the block itself refuses them; the same call outside a scope fails too.
    Way out: correct the shapes at the line that the message names.
    """


class DTypeError(DynBatchError, TypeError):
    """The data types of a call do not fit each other.

    Cause: an operator got arrays of different types, or a type that it does not support.
    Way out: cast at the line that the message names, or ``cast`` the block.
    """


class ContextError(DynBatchError, ValueError):
    """The arrays of a call are on different devices.

    Cause: inputs on one context meet inputs or parameters on another.
    Way out: move them with ``as_in_context``, or initialize the parameters on that context too.
    """


class SampleError(DynBatchError, RuntimeError):
    """The number of the sample for which `map` raised an exception, as its ``__cause__``.

    Cause: the function raised the exception for this sample.
    Way out: correct it, or give ``on_error="return"`` to get exceptions among the results.
    """


class ScopeError(DynBatchError, RuntimeError):
    """A batching scope is used in the wrong way.

    Cause: a scope inside another asks for other options; another thread uses a pending value or the
    scope itself; or an array that is still to be read got another handle.
    Way out: give options to the outer scope, and call ``flush()`` before values leave the thread.
    """


class StaleArrayError(DynBatchError, RuntimeError):
    """A lazy array was read that was never computed.

    Cause: an exception ended the scope, or the flush, that the array was recorded in.
    Way out: handle that exception first, then compute the array again in a new scope.
    """


class NotMergedError(DynBatchError, RuntimeError):
    """With ``strict=True``, something could not be merged.

    Cause: an operator has no batching rule for these attributes, or a block cannot be traced.
    Way out: leave out ``strict=True`` to run it sample by sample, or add a rule for the operator.
    """


class CellError(DynBatchError, RuntimeError):
    """A cell cannot be traced into a symbol.

    Cause: its ``hybrid_forward`` reads a value, or branches on one.
    Way out: move that control flow to the ``forward`` of a dynamic block that calls static cells.
    """


class UninitializedError(DynBatchError, RuntimeError):
    """A parameter has no value yet.

    Cause: the block was called before ``initialize()``.
    Way out: call ``initialize()`` on the outermost block before the scope.
    """


class GradientError(DynBatchError, RuntimeError):
    """The gradient of a recorded call cannot be computed.

    Cause: no call was recorded for autograd, its graph was already freed, or an operator in it has
    no gradient.
    Way out: enter ``autograd.record()`` before the scope, and run backward once per recording.
    """


class LaunchError(DynBatchError, RuntimeError):
    """A merged launch failed while it ran.

    Cause: an operator refused a value, or memory did not suffice.  MXNet's own message is part of
    this one; the line is that of the first call in the launch.
    Way out: ``analysis_budget=0`` finds the call.  Smaller minibatches or ``max_rows`` need less
    memory.
    """


class MismatchError(DynBatchError, AssertionError):
    """With ``debug=True``, a merged result differs, or an array that a pending call reads changed.

    Cause: a batching rule that is wrong for these attributes, or an operator that is not
    deterministic.
    Way out: report it with the program.  Until it is fixed, ``analysis_budget=0`` runs the calls
    one by one.
    """


class QueueFullError(DynBatchError, RuntimeError):
    """The queue of a `RequestBatcher` is full.

    Cause: requests come faster than they are run.
    Way out: tell the client to come back later, or make the batcher with ``on_full="wait"``.
    """


class ClosedError(DynBatchError, RuntimeError):
    """A request was submitted to a closed `RequestBatcher`.

    Cause: it was closed, or it was made in the process that this one was forked from.
    Way out: submit before ``close()``.  Make a batcher in each process, after the fork.
    """


class RequestError(DynBatchError, RuntimeError):
    """A request ended by an exception that would end the thread or task that waits for it.

    Cause: the function raised ``SystemExit``, ``StopIteration`` or the like.  It is the
    ``__cause__`` of this error.
    Way out: raise an ordinary exception in the function.
    """


class MissingError(DynBatchError, ImportError):
    """A picture needs a program or a package that is not installed.

    Cause: the extra ``draw``, or the program ``dot`` of Graphviz, is missing.
    Way out: install what the message names; ``print`` shows plans and reports without it.
    """


class RunAsPythonError(Exception):
    """A block cannot be one recorded call.  Users never see it: the block is run as Python."""
