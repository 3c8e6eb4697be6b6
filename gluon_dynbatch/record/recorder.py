"""Recording: calls become nodes of a tape, and their results become lazy arrays."""

from __future__ import annotations

import math
import threading
from textwrap import shorten
from typing import Any, Dict, Iterable, List, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import SymbolBlock
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import (
    ArgumentError,
    ContextError,
    NotMergedError,
    ScopeError,
    StaleArrayError,
)
from ..modes import FLOATS
from ..native import recording
from ..report import Alone, Report, count
from .lazy import LazyNDArray
from .operators import OF_NUMBERS, Operator
from .tape import Tape
from .types import TYPES, ArrayType
from .where import user_line

#: What callers may pass, for error messages.
ARGUMENTS = "pass mx.nd arrays, numbers, strings, None, or lists, tuples and dictionaries of these"
#: Why a call is not recorded from which Gluon infers something.
SYMBOLS = "it is called with symbols"


#: So many numbers stand in one array.
AT_ONCE = 1024


class Numbers:
    """Numbers that calls read, and the array in which they stand."""

    def __init__(self, values: np.ndarray[Any, Any], like: ArrayType):
        self.values, self.used = values, 0
        # Only the view that is lent can no longer be written to.
        on_cpu = mx.nd.from_numpy(values[:], zero_copy=True)
        self.array = on_cpu.as_in_context(like.context)


class Recorder(recording.Calls):  # type: ignore[misc]
    """Turns calls into nodes of a tape.

    Parameters
    ----------
    library : object
        Gives callees, ``library.operator(...)`` and ``library.callee(...)``, and the entry of a
        call, ``library.entry(...)``.
    scope : Batch
        Computes what is pending, by ``flush()``, or ``run_ahead()`` if that pays; makes it part of
        MXNet's tape, by ``connect()``, and has work done that is not recorded, by
        ``at_work(work)``.
    """

    def __init__(
        self, library: Any, scope: Any, report: Report, strict: bool = False, watch: Any = None
    ):
        self.library = library
        self.operators = library.operators
        self.scope = scope
        self.thread = threading.get_ident()
        self.tape = Tape(self)
        #: What happened in the scope so far.
        self.report = report
        #: Whether operators that only run at once are refused.
        self._strict = strict
        self.watch = watch
        #: What creation operators made, by operator and attributes.
        self.constants: Dict[Any, recording.Constant] = {}
        #: By type of elements and device, the numbers that calls read.
        self._numbers: Dict[Any, Numbers] = {}

    def compute(self, lazy: LazyNDArray) -> None:
        """Compute the value of `lazy`, which asks for it now."""
        tape = lazy._owner
        if tape.open:
            if threading.get_ident() != self.thread:
                raise ScopeError(
                    "another thread read a value of an open batching scope",
                    user_line(),
                    advice="call batch.flush() in the scope's own thread first",
                )
            self.refuse("it reads a value")
            self.report.forced[user_line()] += 1
            self.scope.await_flush()
        if lazy._owner is tape:
            raise StaleArrayError(
                "this array was recorded in a batching scope and never computed: "
                + (tape.error or "the scope ended with an exception"),
                user_line(),
                advice="run the computation again in a new scope",
            )

    def run_pending(self) -> None:
        """Compute what is pending, if anything is."""
        if self.tape.node_entry:
            self.report.forced[user_line()] += 1
            self.scope.flush()
            self.scope.connect()

    def run_ahead(self) -> None:
        """Have what is pending computed while more is recorded, if the scope finds it is enough."""
        tape = self.tape
        if self.tracing is None:
            self.scope.run_ahead()
            tape.ask_at = len(tape.node_entry) + recording.LOOK

    def constant(self, token: Tuple[Any, ...]) -> LazyNDArray:
        """Return a lazy array for what a call of a creation operator makes, once per scope.

        Many samples start from equal zeros; as one value they need neither memory nor time each.
        """
        constant = self.constants.get(token)
        if constant is None:
            _, name, keys, values = token
            create = getattr(mx.nd._internal, name)
            made = self.scope.at_work(lambda: create(**dict(zip(keys, values))))
            constant = self.constants[token] = recording.Constant(token, made)
        lazy: LazyNDArray = recording.make_lazy(constant, 0, 0, constant.type)
        return lazy

    def with_number(self, token: Tuple[Any, ...], arrays: List[Any]) -> Tuple[Any, List[Any]]:
        """Return a call of an operator of an array and a number, perhaps as one of two arrays.

        As part of an operator, each number has a launch of its own, and a program that is kept.  So
        it is one only where it is the same in every call from a line of the user's.
        """
        _, name, *attributes = token
        number, kind = float(dict(zip(*attributes)).get("scalar", 1)), TYPES[arrays[0]._type]
        place = recording.user_place(), name
        before = self.library.numbers.setdefault(place, number)
        if self.tracing is not None or before == number or kind.dtype not in FLOATS:
            return token, arrays
        self.library.numbers[place] = math.nan
        same, first = OF_NUMBERS[name]
        both = [*arrays, self._as_array(number, kind)]
        return ("op", same, (), ()), both[::-1] if first else both

    def _as_array(self, number: float, like: ArrayType) -> LazyNDArray:
        """Return an array of one element: numbers stand side by side in one array from outside."""
        if len(self.tape.node_entry) >= self.tape.ask_at:
            self.run_ahead()  # or the call that is to read it would, before it has
        own = self._numbers.get(like[1:])
        if own is None or own.used == len(own.values):
            # Who watches what calls read must not see it change; other devices get a copy.
            count = 1 if self.watch is not None or like.context != mx.cpu() else AT_ONCE
            values = np.full(count, number, like.dtype)
            made: Numbers = self.scope.at_work(lambda: Numbers(values, like))
            own = self._numbers[like[1:]] = made
        own.values[own.used] = number
        own.used += 1
        value = recording.external(self.tape, own.array)
        kind = TYPES.id_of(like._replace(shape=(1,) * len(like.shape)))
        lazy: LazyNDArray = recording.make_lazy(self.tape, value, own.used - 1, kind)
        return lazy

    def enter(self, block: Any, args: Tuple[Any, ...], why: str) -> Any:
        """Run a block that is not recorded as one call: as Python, or at once if it has none."""
        if why is SYMBOLS:
            return block.forward(*args)
        if isinstance(block, SymbolBlock):
            return self.run_at_once(block, args, why)
        context = recording.flatten(args)[0][0].context
        with context:
            return run_as_python(block, args, context, self.scope.at_work)

    def run_at_once(self, block: Any, args: Tuple[Any, ...], why: str) -> Any:
        """Run the graph of a block for this call alone."""
        self.note_at_once(self.library.callee(block), why)
        leaves = recording.flatten(args)[0]
        for leaf in leaves:
            if type(leaf) is LazyNDArray:
                leaf.real()
        with leaves[0].context:
            return self.scope.at_work(lambda: block._call_cached_op(*args))

    def watch_call(self) -> None:
        """Take note of what the last call reads."""
        self.scope.at_work(lambda: self.watch.note(self.tape))

    def note_at_once(self, callee: Any, why: str) -> None:
        """Take note of a call that runs at once; with ``strict=True`` it is an error."""
        what = "operator" if callee.token[0] == "op" else "block"
        reason = f"Calls of {what} {callee.name} run at once: {why}."
        self.refuse(f"it calls {callee.name}, which runs at once")
        where = user_line()
        if self._strict:
            raise NotMergedError(
                f"a call cannot be merged: {reason}",
                where,
                callee.name,
                "open the scope with strict=False to run it at once",
            )
        count(self.report.immediate, callee.name, Alone(callee.name, reason, 1, where))

    def refuse_argument(self, value: Any, callee: Any) -> str:
        """Raise for an argument that may not be among arrays, unless it is a symbol."""
        if isinstance(value, mx.sym.Symbol):
            return SYMBOLS
        raise bad_argument(value, callee.name)

    def new_entry(self, key: Any, callee: Any, args: Any, place: Any) -> Any:
        """Make the entry of a call like which none was recorded before, from a place."""
        _, spec = recording.flatten(tuple(args))
        mode, *types = [number for number in key if type(number) is int]
        # An operator of any number of arrays takes them as one argument.
        listed = isinstance(callee, Operator) and callee.info.count_attribute
        places = tuple(
            0 if listed else i for i, arg in enumerate(args) for _ in recording.flatten(arg)[0]
        )
        if not types:
            raise ArgumentError(
                "this call has no array among its arguments",
                user_line(),
                callee.name,
                "pass at least one array",
            )
        contexts = {TYPES[t].context for t in types}
        if len(contexts) > 1:
            raise context_error(contexts, callee.name)
        call = callee, mode, spec, types, places, place.where
        # Tracing calls children with symbols: these are not calls to record.
        return self.scope.at_work(lambda: self.library.entry(key, *call))


def run_as_python(
    block: Any, args: Tuple[Any, ...], context: mx.Context, at_work: Any = lambda work: work()
) -> Any:
    """Run ``hybrid_forward`` with parameters on a device; who is at work finds missing shapes."""
    parameters = block._reg_params.items()
    try:
        drawn = {name: p.data(context) for name, p in parameters}
    except DeferredInitializationError:
        at_work(lambda: block._deferred_infer_shape(*args))
        for parameter in block.params.values():
            parameter._finish_deferred_init()
        drawn = {name: p.data(context) for name, p in parameters}
    return block.hybrid_forward(mx.nd, *args, **drawn)


def bad_argument(value: Any, name: str) -> ArgumentError:
    """Make the error for an argument that is neither an array nor a plain value."""
    return ArgumentError(
        f"an argument holds {shorten(repr(value), 60)} of type {type(value).__name__}",
        user_line(),
        name,
        ARGUMENTS,
    )


def context_error(contexts: Iterable[mx.Context], name: str) -> ContextError:
    """Make the error for a call whose arrays are on several devices."""
    return ContextError(
        "the arrays of one call are on several contexts: " + ", ".join(sorted(map(str, contexts))),
        user_line(),
        name,
        "move them to one context with .as_in_context(...)",
    )
