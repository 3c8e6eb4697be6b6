"""Pieces: what `forward` of a dynamic block recorded for one structure of arguments.

A block that was hybridized with ``trace_once=True`` has `Pieces`.  They run its ``forward`` once
for each structure, watched by a `Trace`, which knows why what it recorded may not stand for another
call; from then on its piece of the tape is appended natively.
"""

from __future__ import annotations

import collections
import enum
import gc
import itertools
import random
import time
import types
import weakref
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray

from ..cache import PlanCache
from ..errors import MismatchError, Where
from ..native import recording
from .lazy import LazyNDArray
from .recorder import FLATTENER
from .tape import Tape
from .where import IS_USER_CODE, user_line, where_of

#: Bytes of the pieces of one block.
CAPACITY = 32 << 20
#: So many refusals that are not made up for by pieces end the attempts.
PATIENCE = 16
#: Attributes that say nothing of what `forward` does: names, and what is made from the others.
IGNORED = frozenset(
    ["_scope", "_params", "_cached_graph", "_cached_op", "_in_format", "_out_format"]
    + ["_cached_op_args"]  # but see `Pieces._look`
    + ["_dynbatch_callee", "_pieces", "_counter", "_init_counter"]
)
#: Draw when they are asked; nobody can tell whether they were.
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
#: Told apart by identity, as they are not changed.
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
#: What a class that is written in Python does not have.
IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)


# ---------------------------------------------------------------- how objects are told apart

_NUMBERS = itertools.count()
_IDENTITIES: Dict[int, Tuple[Any, int]] = {}


def _number_of(value: Any) -> int:
    """Return a number that no other object has or will have."""
    known = _IDENTITIES.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    number, key = next(_NUMBERS), id(value)
    try:
        held: Any = weakref.ref(value, lambda _: _IDENTITIES.pop(key, None))
    except TypeError:
        held = itertools.repeat(value).__next__  # for good
    _IDENTITIES[key] = held, number
    return number


def _array_values(value: Any) -> Tuple[Any, ...]:
    if value.dtype.hasobject:
        raise TypeError(value)
    return value.dtype.str, value.shape, value.tobytes()


def _describe(kind: type) -> Tuple[str, int, Any]:
    """Say how the objects of a class are told apart: see `Structure.other` in ``pieces.pxi``."""
    number = next(_NUMBERS)
    if kind is collections.OrderedDict:
        return "mapping", number, None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        if kind.__dictoffset__:
            return "values", number, lambda value: (tuple(value), vars(value))
        return "items", number, None
    if kind in (complex, range, slice, bytearray) or issubclass(kind, np.generic):
        return "values", number, repr
    if kind in (set, frozenset):
        return "values", number, tuple
    if kind is np.ndarray:
        return "values", number, _array_values
    if kind is types.MethodType:
        return "values", number, lambda method: (method.__func__, method.__self__)
    if issubclass(kind, GENERATORS):
        return "never", number, None
    if issubclass(kind, CODE) or issubclass(kind, enum.Enum):
        return "identity", number, None
    if issubclass(kind, Block):
        return "block", number, ()
    members = [item for base in kind.__mro__[:-1] for item in vars(base).items()]
    if issubclass(kind, Parameter) or any(isinstance(value, IN_C) for _, value in members):
        return "attribute", number, None
    slots = [name for name, value in members if isinstance(value, types.MemberDescriptorType)]
    return "object", number, tuple(slots)


recording.connect_structures(_describe, _number_of, IGNORED)


# ------------------------------------------------------------------------------ what was traced


class Refused(Exception):  # noqa: N818
    """What `forward` recorded may not stand for another call: why, and at which line."""

    def __init__(self, reason: str, where: Optional[Where] = None):
        super().__init__(reason)
        self.reason = reason
        #: None if it is no single line.
        self.where = where


class Trace:
    """One run of ``forward``, from here on; `piece` makes what it has recorded into a piece.

    Parameters
    ----------
    recorder : Recorder
        What the calls come to; it tells of what stands against a piece, by `refuse`.
    """

    def __init__(self, recorder: Any):
        self._recorder = recorder
        outer: Optional[Trace] = recorder.tracing
        while outer is not None and outer.tape is not recorder.tape:
            outer = outer.outer  # it waits, in a greenlet, for a value
        self.outer: Optional[Trace] = outer
        self.refusal: Optional[Refused] = None
        #: Views of arrays that are not lazy, by id: the view, its array and the index.
        self.views: Dict[int, Tuple[NDArray, NDArray, Any]] = {}
        #: What creation operators make, by token.
        self.creators: Dict[Any, Any] = {}
        self.tape: Tape = recorder.tape
        tape = self.tape
        self._nodes, self._operands = len(tape.node_entry), len(tape.sources)
        self._values, self._lazies = len(tape.value_type), len(tape.lazies)
        #: Pieces of runs within the outermost one, until that is over: see `settle`.
        self._pending: List[Tuple[Any, ...]] = outer._pending if outer is not None else []
        # To ask for them takes longer than all else: mostly they are as after the last run.
        if outer is None:
            self._random = recorder.random or _states_of_generators()
        recorder.tracing = self

    def end(self) -> None:
        """Watch no more."""
        self._recorder.tracing = self.outer

    def keep(self, *what: Any) -> None:
        """Have something kept: by which cache, and what that is given."""
        self._pending.append(what)

    def settle(self) -> bool:
        """Keep, after the outermost run, what is to be kept; False if random numbers were drawn."""
        if self.outer is not None:
            return True
        recorder, states = self._recorder, _states_of_generators()
        same = bool(states == self._random)
        for cache, *what in self._pending if same else ():
            cache.keep(*what)
        # Where nothing but presumed states differ, somebody else may draw, and do so again.
        recorder.random = states if same and recorder.random is not False else False
        return same

    def refuse(self, reason: str, where: Optional[Where] = None) -> None:
        """Take note of what stands against a piece, for this run and those around it."""
        trace: Optional[Trace] = self
        while trace is not None:
            trace.refusal = trace.refusal or Refused(reason, where or user_line())
            trace = trace.outer

    def note_view(self, view: NDArray, whole: NDArray, index: Any) -> None:
        """Take note of rows of an array that is not lazy, for this run and those around it."""
        trace: Optional[Trace] = self
        while trace is not None:
            trace.views[id(view)] = view, whole, index
            trace = trace.outer

    def note_constant(self, token: Any, create: Any) -> None:
        """Take note of what a creation operator makes."""
        trace: Optional[Trace] = self
        while trace is not None:
            trace.creators[token] = create
            trace = trace.outer

    def piece(self, leaves: List[NDArray], attributes: List[Any], result: Any) -> Any:
        """Make a piece out of what was recorded.

        Parameters
        ----------
        leaves : list of NDArray
            The arrays in the arguments.
        attributes : list
            Blocks, parameters and arrays that `forward` may know of without being given them.
        result : object
            What it has returned.

        Raises
        ------
        Refused
        """
        if self._recorder.tape is not self.tape:
            self.refuse("it computes what is pending")
        if self.refusal is not None:
            raise self.refusal
        recorded = self._results(result, leaves)
        inputs = _Inputs(self, leaves, attributes)
        tape, first = self.tape, self._nodes
        places = first, self._operands, self._values
        firsts, sources, offsets, kinds, numbers = recording.cut_out(tape, *places, inputs.find)
        made = {self._values + i: number for i, number in enumerate(numbers) if number >= 0}
        results, spec = self._handed_out(recorded, made, inputs)
        entries = dict.fromkeys(tape.node_entry[first:])
        self._check_blocks(entries, attributes)
        return recording.Piece(
            tape.node_entry[first:],
            firsts,
            sources,
            offsets,
            kinds,
            tuple(map(_PLACES.setdefault, tape.wheres[first:], tape.wheres[first:])),
            tuple((number, tape.entries[number]) for number in entries),
            tuple(inputs.given),
            tuple(inputs.types),
            results,
            spec,
        )

    def _check_blocks(self, entries: Any, attributes: List[Any]) -> None:
        known = {id(block) for block in attributes}
        for number in entries:
            entry = self.tape.entries[number]
            if entry.block_id is not None and entry.block_id not in known:
                raise Refused(f"it calls {entry.name}, which is no attribute of the block")

    def _results(self, result: Any, leaves: List[NDArray]) -> Tuple[List[NDArray], Any]:
        try:
            arrays, spec = FLATTENER.flatten(result)
        except TypeError as error:
            raise Refused(f"it returns an object of type {type(error.args[0]).__name__}") from None
        known = {id(one) for one in (*arrays, *leaves)}
        if recording.alive(self.tape, self._lazies, known):
            gc.collect(1)  # closures that call themselves hold what is theirs
            if recording.alive(self.tape, self._lazies, known):
                raise Refused("an array that it does not return is held elsewhere")
        return arrays, spec

    def _handed_out(
        self, recorded: Tuple[List[NDArray], Any], made: Dict[int, int], inputs: _Inputs
    ) -> Tuple[Tuple[Any, ...], Any]:
        arrays, spec = recorded
        results: List[Tuple[int, int, Any, Any]] = []
        earlier: Dict[int, int] = {}
        for number, one in enumerate(arrays):
            first = earlier.setdefault(id(one), number)
            if first < number:
                results.append((first, 0, None, None))
                continue
            if inputs.is_argument(one) or type(one) is not LazyNDArray or not one.pending:
                results.append((inputs.argument(one), 0, None, None))
                continue
            if one._value in self.tape.detached:
                raise Refused("it returns an array that is cut from the gradient graph")
            value, offset, kind = one._value, int(one._offset), type(one._offset)
            source, offset = (made[value], offset) if value in made else inputs.of(value, offset)
            results.append((source, offset, one._type, None if kind is int else kind))
        return tuple(results), spec


#: Lines of the user's, once each.
_PLACES: Dict[Any, Any] = {}


def _states_of_generators() -> Tuple[Any, ...]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


# What gives an input that is no argument: functions of the recorder and the inputs before it.


def _view(recorder: Any, found: List[Any], of: int, index: Any) -> Any:
    return found[of][index]


def _parameter(recorder: Any, found: List[Any], parameter: Parameter, context: Any) -> Any:
    return parameter.data(context)


def _held(recorder: Any, found: List[Any], one: _Same) -> Any:
    return one.value


def _constant(recorder: Any, found: List[Any], token: Any, context: Any, create: _Same) -> Any:
    return recorder.constant(token, create.value) if mx.current_context() == context else None


class _Same:
    """What is not to be compared."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    __hash__ = None  # type: ignore[assignment]


class _Inputs:
    """What the calls of a trace read that none of them made."""

    def __init__(self, trace: Trace, leaves: List[NDArray], attributes: List[Any]):
        self._trace, self._tape = trace, trace.tape
        self._attributes = attributes
        #: What gives them, and their types.
        self.given: List[Any] = []
        self.types: List[int] = []
        self._leaves = leaves
        #: By value, and by array.
        self._known: Dict[int, Tuple[int, int]] = {}
        self._numbers: Dict[int, int] = {}
        for number, leaf in enumerate(leaves):
            self._numbers.setdefault(id(leaf), number)
            if type(leaf) is LazyNDArray and leaf._real is not None:
                self._numbers.setdefault(id(leaf._real), number)
        #: By value, the first argument that is recorded there.
        self._recorded: Dict[int, int] = {}
        for number, leaf in enumerate(leaves):
            if type(leaf) is LazyNDArray and leaf._tape is self._tape:
                self._recorded.setdefault(leaf._value, number)

    def find(self, value: int, node: int) -> Tuple[int, int]:
        """Return the source of an operand of a call, and where it begins."""
        try:
            source, before = self.of(value, 0)
        except Refused as refusal:
            raise Refused(refusal.reason, where_of(self._tape.wheres[node])) from None
        return source, -before

    def of(self, value: int, offset: int) -> Tuple[int, int]:
        """Return source and offset of an operand."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._new(value)
        return known[0], offset - known[1]

    def is_argument(self, one: NDArray) -> bool:
        """Whether an array is one of the arguments."""
        return id(one) in self._numbers

    def argument(self, one: NDArray) -> int:
        """Return the source of an array that is returned as it is.

        Raises
        ------
        Refused
        """
        if not self.is_argument(one):
            raise Refused("it returns an array that no call recorded")
        return self._add(self._numbers[id(one)], -1)

    def _add(self, given: Any, kind: int) -> int:
        self.given.append(given)
        self.types.append(kind)
        return -len(self.given)

    def _new(self, value: int) -> Tuple[int, int]:
        tape = self._tape
        kind = tape.value_type[value]
        if value in self._recorded:
            number = self._recorded[value]
            return self._add(number, kind), int(self._leaves[number]._offset)
        for token, constant in tape.constants.items():
            if constant == value and token in self._trace.creators:
                create = _Same(self._trace.creators[token])
                return self._add((_constant, token, mx.current_context(), create), kind), 0
        position = list(tape.external_values).index(value) if value in tape.external_values else -1
        if position < 0:
            raise Refused("it reads an array of another sample")
        return self._outside(tape.externals[position], kind), 0

    def _outside(self, one: NDArray, kind: int) -> int:
        """Return the source of an array that existed before, or of a view."""
        if id(one) in self._numbers:
            return self._add(self._numbers[id(one)], kind)
        if id(one) in self._trace.views:
            _, whole, index = self._trace.views[id(one)]
            return self._add((_view, -1 - self._outside(whole, -1), index), kind)
        for known in self._attributes:
            if known is one:
                return self._add((_held, _Same(one)), kind)
            if isinstance(known, Parameter) and any(one is data for data in known._data or ()):
                return self._add((_parameter, known, one.context), kind)
        raise Refused("it reads an array that is neither an argument nor the block's own")


# ---------------------------------------------------------------------------------- pieces


class Pieces:
    """The pieces of one block, the least recently used ones forgotten first."""

    def __init__(self) -> None:
        self._held = PlanCache(CAPACITY)
        #: What was seen of the block, with its number, and what stands against pieces.
        self._seen: Any = None
        self._number = 0
        self._against: Optional[Refused] = None
        self._numbers: Dict[Any, Tuple[int, Any]] = {}
        self._count = itertools.count()
        self._refused = 0
        #: The last of them, and whether there were so many that it is not tried again.
        self._refusal: Optional[Refused] = None
        self._hopeless = False

    def __reduce__(self) -> Any:
        return Pieces, ()

    @property
    def size(self) -> int:
        """About how many bytes the pieces take."""
        return self._held.bytes

    def __len__(self) -> int:
        return len(self._held)

    def call(self, recorder: Any, block: Any, args: Tuple[Any, ...]) -> Any:
        """Return what ``block.forward(*args)`` returns, and have the same recorded."""
        if self._hopeless:
            return self._plain(recorder, block, args, self._refusal)
        if recorder.tracing is None:
            recorder.tape.started = recorder.tape.started or time.perf_counter()
        if self._seen is None or not self._seen.unchanged():
            self._look(block)
        if self._against is not None:
            return self._plain(recorder, block, args, self._against)
        given = recording.Structure(recorder.tape)
        try:
            key = given.write(4 * self._number + recorder.mode, args)
        except (TypeError, ValueError, RecursionError) as error:
            return self._plain(recorder, block, args, _not_told_apart(error, "an argument"))
        piece = self._held.find(key)
        if piece is None:
            return self._run(recorder, block, args, given.leaves, key)[0]
        if recorder.watch is not None:
            return self._compare(recorder, block, args, given.leaves, key, piece)
        result = piece.append(recorder.tape, given.leaves, recorder)
        if result is NotImplemented:
            return self._run(recorder, block, args, given.leaves, key)[0]
        recorder.pieces.known += 1
        return result

    def _plain(self, recorder: Any, block: Any, args: Tuple[Any, ...], why: Any) -> Any:
        """Run ``forward`` without making a piece of it."""
        self._note(recorder, block, why)
        return block.forward(*args)

    def _look(self, block: Any) -> None:
        """Look at the attributes of the block and all that it refers to."""
        self._against = None
        self._seen = seen = recording.Structure(None, True)
        try:
            text = seen.write(0, block)
        except (TypeError, ValueError, RecursionError) as error:
            self._against = _not_told_apart(error, "an attribute")
            return
        hooked = [b for b in seen.leaves if isinstance(b, Block) and b is not block and _hooks(b)]
        if hooked:
            self._against = Refused(f"{hooked[0].name} has hooks, which are to run each time")
        if len(self._numbers) > 1000:
            self._numbers.clear()
        # Gluon puts a new list here when a cached graph becomes invalid.
        graphs = [getattr(b, "_cached_op_args", None) for b in seen.leaves if isinstance(b, Block)]
        known = text, tuple(map(id, graphs))
        if known not in self._numbers:
            self._numbers[known] = next(self._count), graphs
        self._number = self._numbers[known][0]

    def _run(
        self,
        recorder: Any,
        block: Any,
        args: Tuple[Any, ...],
        leaves: List[NDArray],
        key: bytes,
    ) -> Tuple[Any, Any]:
        """Run ``forward``; return its result, and the piece that is kept of it, if one is."""
        started = time.perf_counter()
        trace, piece = Trace(recorder), None
        try:
            result = block.forward(*args)
        except BaseException as error:
            trace.refuse(f"it ends with {type(error).__name__}", _raised_at(error))
            self._note(recorder, block, trace.refusal)
            raise
        finally:
            trace.end()
        try:
            self._check_same(recorder, trace, block, args, key)
            piece = trace.piece(leaves, self._seen.leaves, result)
            trace.keep(self._held, key, piece, _weight(piece) + len(key))
        except Refused as refusal:
            self._note(recorder, block, refusal)
        if not trace.settle():
            self._note(recorder, block, Refused("random numbers are drawn in Python"))
        recorder.pieces.note_traced(1e3 * (time.perf_counter() - started))
        return result, piece

    def _note(self, recorder: Any, block: Any, refusal: Any) -> None:
        if refusal.where is None:
            code = getattr(type(block).forward, "__code__", None)
            refusal.where = user_line() if code is None else where_of((code, 0))
        self._refused += 1
        # Not what was raised, whose frames hold arrays.
        self._refusal = Refused(refusal.reason, refusal.where)
        self._hopeless = self._refused > PATIENCE + len(self._held)
        recorder.pieces.refuse(block.name, refusal.reason, refusal.where)

    def _check_same(
        self, recorder: Any, trace: Trace, block: Any, args: Tuple[Any, ...], key: bytes
    ) -> None:
        """Raise if ``forward`` has changed what it depends on."""
        if trace.refusal is not None or recorder.tape is not trace.tape:
            return
        number = self._number
        if not self._seen.unchanged():
            self._look(block)
            if self._number != number or self._against is not None:
                raise Refused("it changes an attribute of a block")
        if recording.Structure(trace.tape).write(4 * number + recorder.mode, args) != key:
            raise Refused("it changes its arguments, or the mode")

    def _compare(
        self,
        recorder: Any,
        block: Any,
        args: Tuple[Any, ...],
        leaves: List[NDArray],
        key: bytes,
        piece: Any,
    ) -> Any:
        """Run ``forward`` although its piece is known, and compare."""
        result, other = self._run(recorder, block, args, leaves, key)
        if other is not None and _content(other) == _content(piece):
            return result
        where = user_line()
        for place, another in itertools.zip_longest(piece.wheres, other.wheres if other else ()):
            if place != another:
                where = where_of(another or place)
                break
        raise MismatchError(
            "forward records other calls than when it was traced, for equal arguments",
            where,
            block.name,
            "let it depend on its arguments and on attributes of the block only, "
            "or hybridize without trace_once",
        )


def _content(piece: Any) -> Tuple[Any, ...]:
    own = (piece.node_entry, piece.node_value0, piece.sources, piece.offsets, piece.value_type)
    return (*own, piece.inputs, piece.input_types, piece.results, piece.wheres)


def _weight(piece: Any) -> int:
    """Return about what a piece takes in memory."""
    numbers = (piece.node_entry, piece.node_value0, piece.sources, piece.value_type)
    wide = len(piece.offsets) + len(piece.wheres) + 20 * len(piece.inputs)
    return 1000 + sum(4 * len(one) for one in numbers) + 8 * wide


def _raised_at(error: BaseException) -> Optional[Where]:
    """Return the last of the user's lines that an exception came through."""
    where, trace = None, error.__traceback__
    while trace is not None:
        if IS_USER_CODE(trace.tb_frame.f_code):
            where = trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next
    return None if where is None else where_of(where)


def _hooks(block: Any) -> bool:
    return bool(block._forward_hooks or block._forward_pre_hooks)


def _not_told_apart(error: Exception, what: str) -> Refused:
    if isinstance(error, RecursionError):
        return Refused(f"{what} is nested too deep")
    culprit = error.args[0] if isinstance(error, TypeError) and error.args else error
    return Refused(f"{what} is of type {type(culprit).__name__}, whose changes cannot be noticed")
