"""One run of a dynamic block's ``forward``, watched, and a piece of the tape made out of it."""

from __future__ import annotations

import gc
import random
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import Where
from ..native import recording
from .lazy import LazyNDArray
from .recorder import FLATTENER
from .tape import Tape
from .where import user_line, where_of


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
        self.tape: Tape = recorder.tape
        outer: Optional[Trace] = recorder.tracing
        while outer is not None and outer.tape is not self.tape:
            outer = outer._outer  # it waits, in a greenlet, for a value
        self._outer: Optional[Trace] = outer
        #: What stands against pieces of this run and those around it; the first of this one.
        self._refused: List[Refused] = [] if outer is None else outer._refused
        self._first = len(self._refused)
        #: Views of arrays that are not lazy, by id: the view, its array and the index.
        self.views: Dict[int, Tuple[NDArray, NDArray, Any]] = {} if outer is None else outer.views
        #: Pieces of runs within the outermost one, until that is over: see `settle`.
        self._pending: List[Tuple[Any, ...]] = [] if outer is None else outer._pending
        tape = self.tape
        self._begin = len(tape.node_entry), len(tape.sources), len(tape.value_type)
        self._lazies = len(tape.lazies)
        # To ask for them takes longer than all else: mostly they are as after the last run.
        if outer is None:
            self._random = recorder.random or _states_of_generators()
        recorder.tracing = self

    def end(self) -> None:
        """Watch no more."""
        self._recorder.tracing = self._outer

    def keep(self, *what: Any) -> None:
        """Have something kept: by which cache, and what that is given."""
        self._pending.append(what)

    def settle(self) -> bool:
        """Keep, after the outermost run, what is to be kept; False if random numbers were drawn."""
        if self._outer is not None:
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
        self._refused.append(Refused(reason, where or user_line()))

    @property
    def refusal(self) -> Optional[Refused]:
        """The first thing that stands against a piece of this run."""
        return next(iter(self._refused[self._first :]), None)

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
        arrays, spec = self._returned(result, leaves)
        inputs = _Inputs(self, leaves, attributes)
        tape, (first, _, first_value) = self.tape, self._begin
        copied, numbers = recording.cut_out(tape, *self._begin, inputs.find)
        made = {first_value + i: number for i, number in enumerate(numbers) if number >= 0}
        results = inputs.results(arrays, made)
        entries = {number: tape.entries[number] for number in tape.node_entry[first:]}
        known = {id(block) for block in attributes}
        for entry in entries.values():
            if entry.block_id is not None and entry.block_id not in known:
                raise Refused(f"it calls {entry.name}, which is no attribute of the block")
        wheres = tape.wheres[first:]
        places = tuple(map(_PLACES.setdefault, wheres, wheres))
        given = tuple(inputs.given), tuple(inputs.types)
        return recording.Piece(*copied, places, tuple(entries.items()), *given, results, spec)

    def _returned(self, result: Any, leaves: List[NDArray]) -> Tuple[List[NDArray], Any]:
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


#: Lines of the user's, once each.
_PLACES: Dict[Any, Any] = {}


def _states_of_generators() -> Tuple[Any, ...]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


# What gives an input that is no argument: functions of the recorder, the inputs before it, and the
# attributes of the block.


def _view(recorder: Any, found: List[Any], attributes: List[Any], of: int, index: Any) -> Any:
    return found[of][index]


def _attribute(recorder: Any, found: List[Any], attributes: List[Any], number: int) -> Any:
    return attributes[number]


def _parameter(
    recorder: Any, found: List[Any], attributes: List[Any], number: int, context: Any
) -> Any:
    return attributes[number].data(context)


def _constant(
    recorder: Any, found: List[Any], attributes: List[Any], token: Any, context: Any
) -> Any:
    return recorder.constant(token) if mx.current_context() == context else None


class _Inputs:
    """What the calls of a trace read that none of them made."""

    def __init__(self, trace: Trace, leaves: List[NDArray], attributes: List[Any]):
        self._tape, self._views = trace.tape, trace.views
        self._leaves, self._attributes = leaves, attributes
        #: What gives them, and their types.
        self.given: List[Any] = []
        self.types: List[int] = []
        #: By value: the source, and where it begins there.
        self._sources: Dict[int, Tuple[int, int]] = {}
        #: Arguments by array, and by value.
        self._numbers: Dict[int, int] = {}
        self._recorded: Dict[int, int] = {}
        for number, leaf in enumerate(leaves):
            self._numbers.setdefault(id(leaf), number)
            if type(leaf) is LazyNDArray and leaf._real is not None:
                self._numbers.setdefault(id(leaf._real), number)
            elif type(leaf) is LazyNDArray and leaf._tape is self._tape:
                self._recorded.setdefault(leaf._value, number)

    def find(self, value: int, node: int) -> Tuple[int, int]:
        """Return the source of an operand of a call, and where it begins there."""
        try:
            return self._source(value)
        except Refused as refusal:
            raise Refused(refusal.reason, where_of(self._tape.wheres[node])) from None

    def results(self, arrays: List[NDArray], made: Dict[int, int]) -> Tuple[Any, ...]:
        """Return what a piece has of the arrays that `forward` returns.

        Parameters
        ----------
        arrays : list of NDArray
        made : dict
            Numbers of the values that calls of the piece make.

        Raises
        ------
        Refused
        """
        results: List[Tuple[int, int, Any, Any]] = []
        earlier: Dict[int, int] = {}
        for number, one in enumerate(arrays):
            first = earlier.setdefault(id(one), number)
            if first < number:
                results.append((first, 0, None, None))
            elif id(one) in self._numbers:
                results.append((self._add(self._numbers[id(one)], -1), 0, None, None))
            elif type(one) is not LazyNDArray or not one.pending:
                raise Refused("it returns an array that no call recorded")
            elif one._value in self._tape.detached:
                raise Refused("it returns an array that is cut from the gradient graph")
            else:
                own = made.get(one._value)
                source, begin = self._source(one._value) if own is None else (own, 0)
                kind = None if type(one._offset) is int else type(one._offset)
                results.append((source, int(one._offset) - begin, one._type, kind))
        return tuple(results)

    def _add(self, given: Any, kind: int) -> int:
        self.given.append(given)
        self.types.append(kind)
        return -len(self.given)

    def _source(self, value: int) -> Tuple[int, int]:
        if value not in self._sources:
            self._sources[value] = self._new(value)
        return self._sources[value]

    def _new(self, value: int) -> Tuple[int, int]:
        tape = self._tape
        kind = tape.value_type[value]
        if value in self._recorded:
            number = self._recorded[value]
            return self._add(number, kind), int(self._leaves[number]._offset)
        for token, constant in tape.constants.items():
            if constant == value:
                return self._add((_constant, token, mx.current_context()), kind), 0
        if value not in tape.external_values:
            raise Refused("it reads an array of another sample")
        return self._outside(tape.externals[tape.external_values.index(value)], kind), 0

    def _outside(self, one: NDArray, kind: int) -> int:
        """Return the source of an array that existed before, or of a view."""
        if id(one) in self._numbers:
            return self._add(self._numbers[id(one)], kind)
        if id(one) in self._views:
            _, whole, index = self._views[id(one)]
            return self._add((_view, -1 - self._outside(whole, -1), index), kind)
        for number, known in enumerate(self._attributes):
            if known is one:
                return self._add((_attribute, number), kind)
            if isinstance(known, Parameter) and any(one is data for data in known._data or ()):
                return self._add((_parameter, number, one.context), kind)
        raise Refused("it reads an array that is neither an argument nor the block's own")
