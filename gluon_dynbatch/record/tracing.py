"""One run of a dynamic block's ``forward``, and a piece made out of what it recorded."""

from __future__ import annotations

import bisect
import gc
import random
from typing import Any, Dict, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import Where
from ..native import recording
from .lazy import LazyNDArray
from .tape import Tape
from .types import TYPES, ArrayType
from .where import user_line


class Refused(Exception):  # noqa: N818
    """What `forward` recorded may not stand for another call: why, and at which line."""

    def __init__(self, reason: str, where: Optional[Where] = None):
        super().__init__(reason)
        self.reason = reason
        #: None if it is no single line.
        self.where = where


class Trace:
    """One run of ``forward``, from here on, until `end` or until something stands against a piece.

    Parameters
    ----------
    recorder : Recorder
        What the calls come to.  Its `refuse` ends the run early.
    leaves : list of NDArray
        The arrays in the arguments.
    """

    def __init__(self, recorder: Any, leaves: List[NDArray]):
        self.recorder = recorder
        tape = self._tape = recorder.tape
        #: Numbers of the first call, operand and lazy array of the run.
        self._first = len(tape.node_entry), len(tape.sources), len(tape.lazies)
        outer = self.outer = recorder.tracing
        #: What stands against a piece.
        self.refusal: Optional[Refused] = None
        #: Views of arrays that are not lazy, by id: the view, its array and the index.
        self.views: Dict[int, Tuple[NDArray, NDArray, Any]] = {} if outer is None else outer.views
        #: Pieces of runs within the outermost one, until that is over: by which cache they are
        #: kept, and what that is given.
        self.pending: List[Tuple[Any, ...]] = [] if outer is None else outer.pending
        if outer is None:
            self._random = _states_of_generators()
        #: Numbers in the piece by value of the tape, and by -1 - number of an argument.
        self._numbers: Dict[int, int] = {}
        #: By id of an array, which argument it is; by value, the parts that are arguments.
        self._arguments: Dict[int, int] = {}
        self._parts: Dict[int, List[Tuple[int, int, int]]] = {}
        for number, leaf in enumerate(leaves):
            self._arguments.setdefault(id(leaf), number)
            # What is among arrays from outside for one that is real.
            self._arguments.setdefault(id(getattr(leaf, "_owner", leaf)), number)
            if type(leaf) is LazyNDArray and leaf._owner is tape:
                part = leaf._offset, leaf._offset + leaf.size, number
                self._parts.setdefault(leaf._value, []).append(part)
        recorder.tracing = self

    def give_up(self, reason: str, where: Optional[Where]) -> None:
        """End early: something stands against a piece, at a line or at the current one."""
        self.refusal = self.refusal or Refused(reason, where or user_line())
        self.end()

    def end(self) -> None:
        """Look no more at what is recorded; after the outermost run, keep all pieces."""
        self.recorder.tracing = self.outer
        if self.outer is None:
            if self._random != _states_of_generators():
                self.refusal = self.refusal or Refused("random numbers are drawn in Python")
                self.pending.clear()
            for cache, *what in self.pending:
                cache.keep(*what)

    def piece(self, attributes: List[Any], result: Any) -> Any:
        """Make a piece out of what was recorded, before the end.

        Parameters
        ----------
        attributes : list
            Blocks, parameters and arrays that `forward` may know of without being given them.
        result : object
            What it has returned.

        Raises
        ------
        Refused
        """
        tape, (node, operand, lazy) = self._tape, self._first
        arrays, spec = _returned(result, tape, lazy)
        made, known = recording.Piece(), {id(block) for block in attributes}
        self._attributes, self._inputs = attributes, made.inputs
        made.take(tape, node, operand, self._numbers, self._find)
        for entry in made.entries.values():
            if entry.block_id is not None and entry.block_id not in known:
                raise Refused(f"it calls {entry.name}, which is no attribute of the block")
        made.results, made.spec = tuple(self._results(arrays)), spec
        return made

    def _find(self, value: int, offset: int, kind: ArrayType, place: Any = None) -> Tuple[int, int]:
        """Return number and offset of what is read at a place of the program."""
        for begin, stop, argument in self._parts.get(value, ()):
            if begin <= offset and offset + kind.elements <= stop:
                return self._number(-1 - argument, value, argument), offset - begin
        if value not in self._numbers:
            self._number(value, value, self._source_of(value, place))
        return self._numbers[value], offset

    def _number(self, key: int, value: int, source: Any) -> int:
        if key not in self._numbers:
            self._inputs.append((source, self._tape.value_type[value]))
            self._numbers[key] = -len(self._inputs)
        return self._numbers[key]

    def _source_of(self, value: int, place: Any) -> Any:
        """Say what gives an array from outside to another call: see `give`."""
        outside, reason = self._tape.external_values, "it reads an array of another sample"
        at = bisect.bisect_left(outside, value)
        if at < len(outside) and outside[at] == value:
            source = self._source(self._tape.given[at])
            if source is not None:
                return source
            reason = "it reads an array that is neither an argument nor the block's own"
        raise Refused(reason, place and place.where)

    def _source(self, one: NDArray) -> Any:
        if id(one) in self._arguments:
            return self._arguments[id(one)]
        if id(one) in self.views:
            _, whole, index = self.views[id(one)]
            source = self._source(whole)
            return source if source is None else ("view", source, index)
        for token, constant in self.recorder.constants.items():
            if constant.made is one:
                return "constant", token, mx.current_context()
        for number, known in enumerate(self._attributes):
            if known is one:
                return "attribute", number
            if isinstance(known, Parameter) and any(one is data for data in known._data or ()):
                return "parameter", number, one.context
        return None

    def _results(self, arrays: List[NDArray]) -> Iterator[Any]:
        """Yield what a piece has of the arrays that `forward` returns."""
        earlier: Dict[int, int] = {}
        for number, one in enumerate(arrays):
            first = earlier.setdefault(id(one), number)
            if first < number:
                yield first
            elif id(one) in self._arguments:
                yield -1 - self._arguments[id(one)]
            elif type(one) is LazyNDArray and isinstance(one._owner, recording.Constant):
                # An input, so that the context is looked at.
                self._find(recording.external(self._tape, one), 0, TYPES[one._type])
                yield one._owner
            elif type(one) is not LazyNDArray or one._owner is not self._tape:
                raise Refused("it returns an array that no call recorded")
            elif one._uncut is not None:
                raise Refused("it returns an array that is cut from the gradient graph")
            else:
                yield (*self._find(one._value, one._offset, TYPES[one._type]), one._type)


def _returned(result: Any, tape: Tape, first: int) -> Tuple[List[NDArray], Any]:
    """Return the arrays that ``forward`` returns, the only ones from a first on that are held."""
    try:
        arrays, spec = recording.flatten(result)
    except TypeError as error:
        raise Refused(f"it returns an object of type {type(error.args[0]).__name__}") from None
    known = set(map(id, arrays))
    if not known.issuperset(map(id, tape.held(first))):
        gc.collect(1)  # closures that call themselves hold what is theirs
        if not known.issuperset(map(id, tape.held(first))):
            raise Refused("an array that it does not return is held elsewhere")
    return arrays, spec


def give(source: Any, recorder: Any, leaves: List[NDArray], attributes: List[Any]) -> Any:
    """Return an array that a piece reads; None if it is not there."""
    if type(source) is int:
        return leaves[source]
    kind, what, *more = source
    if kind == "view":
        return give(what, recorder, leaves, attributes)[more[0]]
    if kind == "constant":
        return recorder.constant(what) if mx.current_context() == more[0] else None
    return attributes[what].data(*more) if kind == "parameter" else attributes[what]


def _states_of_generators() -> Tuple[Any, ...]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]
