"""Trace one run of a dynamic block's ``forward``, and make a piece of the calls it recorded."""

from __future__ import annotations

import bisect
import ctypes
import gc
import random
from typing import Any, Dict, Iterator, List, Optional, Tuple, cast

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import Where
from ..native import recording
from .lazy_base import Lazy
from .recorder import Recorder
from .tape import Tape
from .types import TYPES, ArrayType
from .where import user_line


class Refused(Exception):  # noqa: N818
    """Why the calls that `forward` recorded cannot be a piece, and the line to blame, if any."""

    def __init__(self, reason: str, where: Optional[Where] = None):
        super().__init__(reason)
        self.reason, self.where = reason, where


#: Why an array cannot be found by a later call.
_UNKNOWN = "it reads an array that is neither an argument nor the block's own"


def _closed() -> Refused:
    """Return the refusal if Python code, such as the collector runs, has flushed the calls."""
    return Refused("it flushes the scope")


def _placed(recorder: Recorder, leaves: List[NDArray]) -> Dict[int, int]:
    """Return, by id of each argument that is a part of a plain array, its value on the tape."""
    while True:
        tape = recorder.tape
        placed = recording.places_on(tape, leaves)
        if recorder.tape is tape:
            return placed


def _key_of(constant: recording.Constant) -> Tuple[str, int]:
    return "constant", constant.serial


class Trace:
    """One run of ``forward``: it begins here, and ends with `end` or with a refusal.

    The leaves are the arrays in the arguments.  `Recorder.refuse` ends the trace early.
    """

    def __init__(self, recorder: Recorder, leaves: List[NDArray]):
        self.recorder = recorder
        placed = _placed(recorder, leaves)
        tape = self._tape = recorder.tape
        #: Indices of the first call, operand and lazy array of the run on the tape.
        self._first = len(tape.node_entry), len(tape.sources), len(tape.lazies)
        self._first_value = len(tape.value_type)
        outer = self.outer = recorder.tracing
        #: Why there is no piece.
        self.refusal: Optional[Refused] = None
        #: Whether autograd records where the run begins, and where later calls make views again.
        self._records = autograd.is_recording()
        #: Views of plain arrays, by id: the view, its array, whether autograd recorded, "part" or
        #: "reshape", and the index or the shape.
        self.views: Dict[int, Tuple[NDArray, NDArray, bool, str, Any]] = (
            outer.views if outer else {}
        )
        #: Whether an array that is not computed here has a view that gets no gradient only because
        #: this array gets none.
        self._bare = False
        #: Pieces that are kept when the outermost run ends: the cache, and the arguments of `keep`.
        self.pending: List[Tuple[Any, ...]] = [] if outer is None else outer.pending
        if outer is None:
            self._random = _states_of_generators()
        #: Constants of a smaller serial are not made in this run.
        self.serial = recording.next_serial()
        #: Values of the piece, by value of the tape, by -1 - n for the n-th argument, or by what
        #: tells apart other inputs.
        self._values: Dict[Any, int] = {}
        #: By id of an array, the number of the argument that it is.
        self._arguments: Dict[int, int] = {}
        #: By value of the tape or serial of a constant, the arguments that are in it: the array,
        #: its offset there, and its number.
        self._ranges: Dict[Any, List[Tuple[Lazy, int, int]]] = {}
        #: Sources of the inputs of the piece, see `give`, with their types.
        self._inputs: List[Tuple[Any, int]] = []
        for number, leaf in enumerate(leaves):
            self._arguments.setdefault(id(leaf), number)
            # A lazy array that is computed by now is an external as its real array.
            self._arguments.setdefault(id(getattr(leaf, "_owner", leaf)), number)
            if isinstance(leaf, Lazy):
                owner, whole = leaf._owner, cast(Any, leaf._value)
                if id(leaf) in placed:
                    owner, whole = tape, placed[id(leaf)]
                # Those that a creation function made are part of the key.
                if isinstance(owner, recording.Constant) and owner.token is None:
                    whole = _key_of(owner)
                if owner is tape or whole != leaf._value:
                    self._ranges.setdefault(whole, []).append((leaf, leaf._offset, number))
        recorder.tracing = self

    @property
    def calls(self) -> int:
        """Number of calls that were recorded so far."""
        return len(self._tape.node_entry) - self._first[0]

    def give_up(self, reason: str, where: Optional[Where]) -> None:
        """End early without a piece; the line to blame is the current one unless given."""
        self.refusal = self.refusal or Refused(reason, where or user_line())
        self.end()

    def end(self) -> None:
        """End the trace; the outermost one also keeps all pending pieces."""
        self.recorder.tracing = self.outer
        if self.outer is None:
            if self._random != _states_of_generators():
                self.refusal = self.refusal or Refused("random numbers are drawn in Python")
                self.pending.clear()
            for cache, *arguments in self.pending:
                cache.keep(*arguments)

    def piece(self, block: recording.Structure, result: Any) -> Any:
        """Make a piece of the recorded calls and the result of `forward`, before `end`.

        The leaves of the block are blocks, parameters and arrays that it refers to: `forward` may
        use them.  Raises `Refused` if the calls would not be right for another call of the block.
        """
        tape, (node, operand, lazy) = self._tape, self._first
        arrays, spec = _returned_arrays(result, tape, lazy)
        self._attributes = block.leaves
        calls = recording.take_calls(tape, node, operand, self._values, self._find)
        if calls is None:
            raise _closed()
        for entry in calls.entries.values():
            if entry.block_id is not None and entry.block_id not in block.ids:
                raise Refused(f"it calls {entry.name}, which is no attribute of the block")
        results: Any = sum(self._results(arrays), ())  # may add inputs
        return recording.Piece(calls, sum(self._inputs, ()), results, spec, self._bare)

    def see_bare_view(self, value: int) -> None:
        """Note a view that autograd does not record, of a value of the tape; -1 for another one."""
        is_external = value in self._tape.external_values
        self._bare |= is_external or value < self._first_value
        if self.outer is not None:
            self.outer.see_bare_view(value)

    def _find(
        self, value: int, offset: int, array_type: ArrayType, place: Any = None
    ) -> Tuple[int, int]:
        """Return value and offset in the piece of an operand on the tape; add it as an input."""
        constant, first = self._tape.constant_at(value, offset) or (None, 0)
        whole: Any = value if constant is None else _key_of(constant)
        offset -= first
        for array, begin, argument in self._ranges.get(whole, ()):
            if begin <= offset and offset + array_type.elements <= begin + array.size:
                kind = self._tape.value_type[value] if constant is None else array._type
                return self._add_input(-1 - argument, argument, kind), offset - begin
        if constant is not None:
            return self._find_constant(constant, offset, array_type, place)
        if value not in self._values:
            source = self._external_source(value, place)
            self._add_input(value, source, self._tape.value_type[value])
        return self._values[value], offset

    def _find_constant(
        self, constant: recording.Constant, offset: int, array_type: ArrayType, place: Any
    ) -> Tuple[int, int]:
        """Return value and offset in the piece of an array that is no argument."""
        if self.makes(constant):
            return self._add_constant(constant), offset
        for number, array in enumerate(self._attributes):
            if isinstance(array, Lazy) and array._owner is constant:
                begin = array._offset
                if begin <= offset and offset + array_type.elements <= begin + array.size:
                    source = "attribute", number
                    return self._add_input(source, source, array._type), offset - begin
        raise Refused(_UNKNOWN, place and place.where)

    def makes(self, constant: recording.Constant) -> bool:
        """Return whether another run of ``forward`` makes a constant that is equal to this one."""
        return constant.token is not None or constant.serial > self.serial

    def _add_constant(self, constant: recording.Constant) -> int:
        source = "constant", constant, mx.current_context()
        return self._add_input(_key_of(constant), source, constant.type)

    def _add_input(self, key: Any, source: Any, kind: int) -> int:
        """Return the value of an input in the piece; add the input unless `key` is known."""
        if key not in self._values:
            self._inputs.append((source, kind))
            self._values[key] = -len(self._inputs)
        return self._values[key]

    def _external_source(self, value: int, place: Any) -> Any:
        """Return the source of an external, from which `give` finds the array of a later call."""
        externals, reason = self._tape.external_values, "it reads an array of another sample"
        at, originals = bisect.bisect_left(externals, value), self._tape.originals
        if at < len(externals) and externals[at] == value:
            if at >= len(originals):
                raise _closed()
            source = self._array_source(originals[at])
            if source is not None:
                return source
            reason = _UNKNOWN
        excerpt = recording.excerpt_at(self.recorder, value)
        if excerpt is not None:
            source = self._array_source(excerpt.array)
            if source is not None:
                return "rows", source, excerpt.first, excerpt.count
            reason = _UNKNOWN
        raise Refused(reason, place and place.where)

    def _array_source(self, array: NDArray) -> Any:
        """Return the source of an external array, None if a later call cannot find it."""
        if id(array) in self._arguments:
            return self._arguments[id(array)]
        if id(array) in self.views:
            _, whole, records, kind, how = self.views[id(array)]
            source = self._array_source(whole)
            return None if source is None or records != self._records else (kind, source, how)
        for number, attribute in enumerate(self._attributes):
            # A lazy array that is computed by now is an external as its real array.
            if attribute is array or getattr(attribute, "_owner", None) is array:
                return "attribute", number
            data = attribute._data if isinstance(attribute, Parameter) else None
            if any(array is copy for copy in data or ()):
                return "parameter", number, array.ctx
        return None

    def _results(self, arrays: List[NDArray]) -> Iterator[Any]:
        """Yield what `Piece` takes for each array that `forward` returns."""
        numbers: Dict[int, int] = {}
        for number, array in enumerate(arrays):
            first = numbers.setdefault(id(array), number)
            if first < number:
                yield first, None, None, None
            elif id(array) in self._arguments:
                yield -1 - self._arguments[id(array)], None, None, None
            elif isinstance(array, Lazy) and isinstance(array._owner, recording.Constant):
                constant = array._owner
                if array._detached_from is not None:
                    raise Refused("it returns a part of an array that it makes")
                if not self.makes(constant):
                    raise Refused("it returns an array that no call recorded")
                # As an input, too, so that a call with another context is traced anew.
                self._add_constant(constant)
                yield constant, None, None, None
            elif not isinstance(array, Lazy) or array._owner is not self._tape:
                raise Refused("it returns an array that no call recorded")
            elif array._detached_from is not None:
                raise Refused("it returns an array that is cut from the gradient graph")
            else:
                operand = self._find(array._value, array._offset, TYPES[array._type])
                yield *operand, array._type, isinstance(array, mx.np.ndarray)


def _returned_arrays(result: Any, tape: Tape, first: int) -> Tuple[List[NDArray], Any]:
    """Flatten the result of ``forward``.

    Refuses if it contains an object of another type, or another lazy array of the run is alive.
    """
    try:
        arrays, spec = recording.flatten(result)
    except TypeError as error:
        raise Refused(f"it returns an object of type {type(error.args[0]).__name__}") from None
    returned = set(map(id, arrays))
    if not returned.issuperset(map(id, tape.held(first))):
        gc.collect(1)  # recursive closures are cycles, and hold arrays
        if not returned.issuperset(map(id, tape.held(first))):
            raise Refused("an array that it does not return is held elsewhere")
    return arrays, spec


def give(source: Any, recorder: Recorder, leaves: List[NDArray], attributes: List[Any]) -> Any:
    """Return the array for an input of a piece; None if the piece is not valid for this call.

    The leaves are the arrays in the arguments, the attributes those of the block's `Structure`.  A
    source is the number of an argument, or one of ``("part", source, index)``, ``("reshape",
    source, shape)``, ``("rows", source, first, count)``, ``("constant", constant, context)``,
    ``("attribute", number)``, and ``("parameter", number, context)``.
    """
    if type(source) is int:
        return leaves[source]
    kind, origin, *rest = source
    if kind == "part":
        return give(origin, recorder, leaves, attributes)[rest[0]]
    if kind == "rows":
        return recording.excerpt_again(recorder, give(origin, recorder, leaves, attributes), *rest)
    if kind == "reshape":
        return give(origin, recorder, leaves, attributes).reshape(rest[0])
    if kind == "constant":
        return recorder.the_only(origin) if mx.current_context() == rest[0] else None
    return attributes[origin].data(*rest) if kind == "parameter" else attributes[origin]


#: The generators behind the functions of `random` and `numpy.random`.
_PYTHONS: Any = random.getstate.__self__  # type: ignore[attr-defined]
_NUMPYS: Any = np.random.get_state.__self__  # type: ignore[attr-defined]
#: The state of NumPy's, beside what the object itself has: 624 words, and which of them is next.
_WORDS: Any = (ctypes.c_uint32 * 625).from_address(
    _NUMPYS._bit_generator.ctypes.state_address  # which stays where it is as long as the object
)


def _states_of_generators() -> Tuple[Any, ...]:
    """Return what each draw changes, from memory: to ask for the states takes 30 us."""
    return _memory_of(_PYTHONS), _PYTHONS.gauss_next, _memory_of(_NUMPYS), bytes(_WORDS)


def _memory_of(generator: Any) -> bytes:
    """Return the members of an object: all but the reference count and the type."""
    header = object.__basicsize__
    return ctypes.string_at(id(generator) + header, type(generator).__basicsize__ - header)
