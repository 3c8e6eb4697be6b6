"""The recorder: it turns calls into nodes of a tape, and returns lazy arrays."""

from __future__ import annotations

import math
import threading
from collections import Counter
from functools import partial
from textwrap import shorten
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import SymbolBlock
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import (
    ArgumentError,
    ContextError,
    DynBatchError,
    NotMergedError,
    ScopeError,
    StaleArrayError,
)
from ..modes import FLOATS
from ..native import recording
from ..report.advice import ordinary
from ..report.findings import Finding, read_by
from ..report.report import Report
from .constants import constant_number, constant_of
from .idle import IdleCell
from .lazy_base import Lazy
from .operators import SCALAR_OPERATORS, Operator
from .overridden import Overridden
from .state import Callees, NamedCallee, Result, Scope
from .tape import CallWatch, Tape
from .types import TYPES
from .where import user_call, user_line

#: Why a call with symbols, from which Gluon infers shapes, is not recorded.
SYMBOLS = "it is called with symbols"


class EndedScope:
    """The `Scope` of a recorder that is closed: nothing is pending, and nothing is recorded."""

    def unrecorded(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return its result."""
        return work()

    def flush(self) -> None:
        """Do nothing."""

    connect = run_ahead = flush

    @staticmethod
    def hybridizing_helps(library: Callees, cell: IdleCell) -> bool:
        """Return False: nothing is recorded."""
        return False

    def await_flush(self, waiting: int = 0) -> bool:
        """Do nothing."""
        return False


ENDED_SCOPE: Scope = EndedScope()
recording.ended_scope = ENDED_SCOPE


class Recorder(recording.Calls):
    """Turns calls into nodes of a tape.

    Of the `Callees`, ``operator(...)`` and ``callee(...)`` return callees, ``entry(...)`` the entry
    of a call.  The scope owns the recorder until `close`.  With `strict`, calls that cannot be
    recorded raise, instead of running at once.
    """

    def __init__(
        self,
        library: Callees,
        scope: Scope,
        report: Report,
        strict: bool,
        watch: Optional[CallWatch],
    ):
        self.library = library
        self.operators = library.operators
        self.scope: Scope = scope
        self.thread = threading.get_ident()
        self.tape: Tape = Tape(self)
        self.report = report
        self._strict = strict
        self.watch = watch
        #: Results of creation operators, by operator and attributes.
        self.constants: Dict[Any, recording.Constant] = {}
        #: The first call of each class of cells that are not hybridized, and the innermost one that
        #: is running.
        self._idle_cells: Dict[type, IdleCell] = {}
        self._idle: Optional[IdleCell] = None
        #: Number of operators on ordinary arrays.
        self._ordinary = 0

    def compute(self, lazy: Lazy) -> None:
        """Compute the value of a lazy array that is being read."""
        tape = lazy._owner
        if tape.open:
            if threading.get_ident() != self.thread:
                raise ScopeError(
                    "another thread read a value of an open batching scope",
                    user_line(),
                    advice="call batch.flush() in the scope's own thread first",
                )
            self.refuse("it reads a value")
            self._count_forced(self.scope.await_flush, reader=lazy._reader)
        if lazy._owner is tape:
            raise StaleArrayError(
                "this array was recorded in a batching scope and never computed: "
                + (tape.error or "the scope ended with an exception"),
                user_line(),
                advice="run the computation again in a new scope",
            )

    def run_pending(self) -> None:
        """Compute the pending calls, if there are any."""
        if self.tape.node_entry:
            self._count_forced(self.scope.flush, changes=True)
            self.scope.connect()

    def _count_forced(self, compute: Any, changes: bool = False, reader: str = "") -> None:
        """Compute pending calls by `compute`, and count this for the user's line.

        `compute` returns whether a sample of ``map`` has waited.  With `changes`, an array is about
        to change; otherwise a value is read, if from no function in Python, by `reader`.
        """
        where = user_line()
        in_map = bool(compute())

        def found() -> Finding:
            call = user_call()
            kind, call = read_by(reader if call == "compute" else call, changes, in_map)
            return Finding(kind, call, "", 1, where)

        self.report.found.count(("line", where), found)
        if in_map:
            self.read_places.add(recording.user_place())

    def count_reads(self, places: List[recording.Place]) -> None:
        """Count reads of samples of a map at places in `read_places`, several at a time."""
        # Samples in the same step read at the same place, and to count others takes long.
        same = places.count(places[0]) == len(places)
        for place, times in ((places[0], len(places)),) if same else Counter(places).items():
            self.report.found.count_again(("line", place.where), times)

    def count_ordinary(self, name: str) -> None:
        """Count an operator on ordinary arrays, which runs at once."""
        in_cell = self._idle is not None
        self._ordinary += 1
        self.report.found.count(
            ("ordinary", name, in_cell), lambda: ordinary(name, user_line(), in_cell)
        )

    def run_idle(self, original: Callable[..., Any], block: Any, args: Tuple[Any, ...]) -> Any:
        """Call a cell that is not hybridized, and count it if its call could be a recorded one.

        Its operators are calls of their own, or run at once.
        """
        if not args or isinstance(args[0], mx.sym.Symbol):
            return original(block, *args)
        outer, tape, ordinary = self._idle, self.tape, self._ordinary
        before = len(tape.node_entry)
        cell = self._idle_cells.get(type(block))
        if cell is None:
            helps = self.scope.hybridizing_helps
            cell = IdleCell(block, args, user_line(), outer, partial(helps, self.library))
            self._idle_cells[type(block)] = cell
        self._idle = cell
        try:
            result = original(block, *args)
        finally:
            self._idle = outer
        calls = len(tape.node_entry) - before
        ordinary = self._ordinary - ordinary
        # A flush means that it has read a value.
        if (calls != 1 or ordinary) and tape is self.tape:
            find = partial(cell.finding, calls + ordinary if calls else 0)
            self.report.found.count(cell.key, find, cell)
        return result

    def look_at_forward(
        self,
        calls: Optional[Overridden],
        original: Optional[Callable[..., Any]],
        block: Any,
        args: Tuple[Any, ...],
    ) -> Any:
        """Call a block that overrides ``forward``, the first of its class or one to look at."""
        if calls is None:
            calls = self.forwards[type(block)] = Overridden(block)
            self.report.found.sources.append(calls.findings)
        looks, tape = calls.begin(), self.tape
        first = len(tape.node_entry)
        result = block.forward(*args) if original is None else original(block, *args)
        if looks and tape is self.tape:
            calls.see(tape, first)
        elif looks:  # it has read a value
            calls.give_up()
        return result

    def run_ahead(self) -> None:
        """Let the scope compute pending calls during recording, if they are enough to pay."""
        tape = self.tape
        if self.tracing is None:
            self.scope.run_ahead()
            tape.next_check = len(tape.node_entry) + recording.CALLS_PER_CHECK

    def constant(
        self, token: Any, create: Callable[[], Any], values_by_numpy: Callable[[], Any]
    ) -> Any:
        """Return the result of a creation function, which runs once per scope.

        Many samples start from equal zeros.  All of these are one value on the tape.  For
        `values_by_numpy`, see `constant_of`.
        """
        constant = self.constants.get(token)
        if constant is None:
            created = self.scope.unrecorded(create)
            constant = constant_of(created, token, values_by_numpy)
            if constant is None:
                return created
            self.constants[token] = constant
        return constant.make()

    def reads(self, constant: recording.Constant) -> None:
        """End traces in which the values of a constant that is read do not depend on the key."""
        if self.tracing is not None and not self.tracing.makes(constant):
            self.refuse("it reads a value")

    def the_only(self, constant: recording.Constant) -> recording.Constant:
        """Return the constant that this scope has for the same call of a creation function."""
        if constant.token is None:
            return constant
        return self.constants.setdefault(constant.token, constant)

    def lift_number(self, token: Tuple[Any, ...], arrays: List[Any]) -> Tuple[Any, List[Any]]:
        """Lift the number of a scalar operator to an operand if it varies at this user's line.

        A number that is an attribute has its own program and its own launch.  So once a line has
        called the operator with two numbers, it calls the operator of two arrays.  The result is
        the token, as in `Operator`, and its operands.
        """
        kind, name, *attributes = token
        number = float(dict(zip(*attributes)).get("scalar", 1))
        place = recording.user_place(), name
        last = self.library.numbers.setdefault(place, number)
        if self.tracing is not None or last == number:
            return token, arrays
        if TYPES[arrays[0]._type].dtype not in FLOATS:
            return token, arrays
        self.library.numbers[place] = math.nan
        array_operator, number_first = SCALAR_OPERATORS[name]
        operands = [*arrays, constant_number(number, arrays[0]._type, kind == "np")]
        return (kind, array_operator, (), ()), operands[::-1] if number_first else operands

    def run_unrecorded(self, block: Any, args: Tuple[Any, ...], why: str) -> Any:
        """Run a block whose call is not recorded: its Python code, or else its graph."""
        if why is SYMBOLS or why is recording.ENDED:
            return block.forward(*args)
        if isinstance(block, SymbolBlock):
            return self.run_at_once(block, args, why)
        context = recording.flatten(args)[0][0].ctx
        try:
            with context:
                return run_as_python(block, args, context, self.scope.unrecorded)
        except (AttributeError, TypeError, mx.MXNetError) as error:
            # It may be written for symbols only, which take more keywords.
            if isinstance(error, DynBatchError):
                raise
            return self.run_at_once(block, args, why)

    def run_at_once(self, block: Any, args: Tuple[Any, ...], why: str) -> Any:
        """Run the graph of a block for this call alone."""
        self.report_at_once(self.library.callee(block), why)
        leaves = recording.flatten(args)[0]
        for leaf in leaves:
            if isinstance(leaf, Lazy):
                leaf.real()
        with leaves[0].ctx:
            return self.scope.unrecorded(lambda: block._call_cached_op(*args))

    def watch_call(self) -> None:
        """Show the last call to `Watch`."""
        self.scope.unrecorded(lambda: self.watch.note(self.tape))

    def report_at_once(self, callee: NamedCallee, why: str) -> None:
        """Report a call that runs at once; raise with ``strict=True``."""
        noun = "block" if callee.token[0] == "block" else "operator"
        reason = f"Calls of {noun} {callee.name} run at once: {why}."
        self.refuse(f"it calls {callee.name}, which runs at once")
        where = user_line()
        if self._strict:
            raise NotMergedError(
                f"a call cannot be merged: {reason}",
                where,
                callee.name,
                "open the scope with strict=False to run it at once",
            )
        self.report.found.add([Finding("alone", callee.name, reason, 1, where)])

    def refuse_argument(self, value: Any, callee: NamedCallee) -> str:
        """Raise for an argument of a wrong type; return a reason to run at once for a symbol."""
        if isinstance(value, mx.sym.Symbol):
            return SYMBOLS
        raise bad_argument(value, callee.name) from None

    def new_entry(self, key: Any, callee: NamedCallee, place: recording.Place) -> Any:
        """Return the entry for a new key of a callee, or why its calls are not recorded."""
        mode, spec, type_ids, argument_of = recording.read_key(key)
        if isinstance(callee, Operator) and callee.info.count_attribute:
            # The inputs of an operator with any number of arrays are one argument.
            argument_of = (0,) * len(argument_of)
        if not type_ids:
            raise ArgumentError(
                "this call has no array among its arguments",
                user_line(),
                callee.name,
                "pass at least one array; mx.nd.array(...) makes one of a number or a list",
            )
        contexts = {TYPES[t].context for t in type_ids}
        if len(contexts) > 1:
            raise context_error(contexts, callee.name)
        if any(TYPES[t].dtype == "bfloat16" for t in type_ids):
            return "NumPy has no numbers of the dtype bfloat16"
        call = callee, mode, spec, type_ids, argument_of, place.where
        # Tracing calls child blocks with symbols, which must not be recorded.
        return self.scope.unrecorded(lambda: self.library.entry(key, *call))


def run_as_python(
    block: Any, args: Tuple[Any, ...], context: mx.Context, unrecorded: Any = lambda work: work()
) -> Any:
    """Run ``hybrid_forward`` with `mx.nd` and the parameters in a context.

    Shapes of parameters are inferred if necessary, by `unrecorded`, so that this is not recorded.
    """
    parameters = block._reg_params.items()
    try:
        values = {name: p.data(context) for name, p in parameters}
    except DeferredInitializationError:
        unrecorded(lambda: block._deferred_infer_shape(*args))
        for parameter in block.params.values():
            parameter._finish_deferred_init()
        values = {name: p.data(context) for name, p in parameters}
    return block.hybrid_forward(mx.nd, *args, **values)


def bad_argument(value: Any, name: str) -> ArgumentError:
    """Return the error for an argument that holds an object of a wrong type."""
    advice = (
        "pass arrays of MXNet, numbers, strings, None, or lists, tuples and dictionaries of these"
    )
    if isinstance(value, np.ndarray):
        advice = "make an array of MXNet of it, by mx.nd.array(...)"
    return ArgumentError(
        f"an argument holds {shorten(repr(value), 60)} of type {type(value).__name__}",
        user_line(),
        name,
        advice,
    )


def context_error(contexts: Iterable[mx.Context], name: str) -> ContextError:
    """Return the error for a call whose arrays are in several contexts."""
    return ContextError(
        "the arrays of one call are in several contexts: " + ", ".join(sorted(map(str, contexts))),
        user_line(),
        name,
        "move them to one context with .as_in_context(...)",
    )
