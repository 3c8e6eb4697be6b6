"""One run of a dynamic block's ``forward``, on a tape of its own, and a piece made out of it."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import Where
from ..native import recording
from .lazy import Constant, LazyNDArray
from .recorder import FLATTENER
from .tape import Tape
from .where import where_of


class Refused(Exception):  # noqa: N818
    """What `forward` recorded may not stand for another call: why, and at which line."""

    def __init__(self, reason: str, where: Optional[Where] = None):
        super().__init__(reason)
        self.reason = reason
        #: None if it is no single line.
        self.where = where


class Trace:
    """One run of ``forward``, from here on, until `end` or until something stands against a piece.

    Calls go to a tape of its own, on which lazy arguments are arrays from outside; at the end, the
    tape around it takes over all that is there.

    Parameters
    ----------
    recorder : Recorder
        What the calls come to.  Its `refuse` ends the run early.
    leaves : list of NDArray
        The arrays in the arguments.
    """

    def __init__(self, recorder: Any, leaves: List[NDArray]):
        self._recorder, self._leaves = recorder, leaves
        self._around: Tape = recorder.tape
        outer = self.outer = recorder.tracing
        #: What stands against a piece.
        self.refusal: Optional[Refused] = None
        #: Views of arrays that are not lazy, by id: the view, its array and the index.
        self.views: Dict[int, Tuple[NDArray, NDArray, Any]] = {} if outer is None else outer.views
        #: Pieces of runs within the outermost one, until that is over: by which cache they are
        #: kept, and what that is given.
        self.pending: List[Tuple[Any, ...]] = [] if outer is None else outer.pending
        #: Whether random numbers were drawn; known after the outermost run.
        self.draws = False
        if outer is None:
            self._random = _states_of_generators()
        self.tape = Tape(recorder)
        self.tape.ask_at = sys.maxsize  # type: ignore[misc]
        self._lent = recording.lend(leaves, self._around, self.tape)
        recorder.tape, recorder.tracing = self.tape, self

    def give_up(self, reason: str, where: Where) -> None:
        """End early: something stands against a piece."""
        self.refusal = self.refusal or Refused(reason, where)
        self.end()

    def end(self) -> None:
        """Put what was recorded onto the tape around it."""
        recorder, tape, around = self._recorder, self.tape, self._around
        recorder.tape, recorder.tracing = around, self.outer
        recording.splice(around, tape, self._lent, self._leaves)
        tape.recorder = None
        tape.close()
        if self.outer is None:
            self.draws = bool(self._random != _states_of_generators())
            for cache, *what in () if self.draws else self.pending:
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
        tape = self.tape
        numbers: Dict[int, int] = {}
        for number, leaf in enumerate(self._leaves):
            numbers.setdefault(id(leaf), number)
            numbers.setdefault(id(_array_of(leaf)), number)
        arrays, spec = self._returned(result)
        results = self._results(arrays, numbers)
        inputs = tuple(self._inputs(numbers, attributes))
        known = {id(block) for block in attributes}
        for entry in tape.entries.values():
            if entry.block_id is not None and entry.block_id not in known:
                raise Refused(f"it calls {entry.name}, which is no attribute of the block")
        wheres = tuple(map(_PLACES.setdefault, tape.wheres, tape.wheres))
        return recording.Piece(tape, wheres, inputs, results, spec)

    def _returned(self, result: Any) -> Tuple[List[NDArray], Any]:
        try:
            arrays, spec = FLATTENER.flatten(result)
        except TypeError as error:
            raise Refused(f"it returns an object of type {type(error.args[0]).__name__}") from None
        known = set(map(id, arrays))
        if not known.issuperset(map(id, self.tape.held())):
            gc.collect(1)  # closures that call themselves hold what is theirs
            if not known.issuperset(map(id, self.tape.held())):
                raise Refused("an array that it does not return is held elsewhere")
        return arrays, spec

    def _inputs(self, numbers: Dict[int, int], attributes: List[Any]) -> Iterator[Any]:
        """Say of each array from outside what gives it to another call: see `give`."""
        tape, originals = self.tape, iter(self.tape.kept)
        for value, array in zip(tape.external_values, tape.externals):
            try:
                one = next(originals) if type(array) is LazyNDArray else array
                yield self._source(one, numbers, attributes)
            except Refused as refusal:
                for node, call in enumerate(tape.calls()):
                    if any(value == read for read, _ in call.operands):
                        raise Refused(refusal.reason, where_of(tape.wheres[node])) from None
                raise

    def _source(self, one: NDArray, numbers: Dict[int, int], attributes: List[Any]) -> Any:
        if id(one) in numbers:
            return numbers[id(one)]
        if id(one) in self.views:
            _, whole, index = self.views[id(one)]
            return "view", self._source(whole, numbers, attributes), index
        for token, constant in self._recorder.constants.items():
            if constant.made is one:
                return "constant", token, mx.current_context()
        for number, known in enumerate(attributes):
            if known is one:
                return "attribute", number
            if isinstance(known, Parameter) and any(one is data for data in known._data or ()):
                return "parameter", number, one.context
        raise Refused("it reads an array that is neither an argument nor the block's own")

    def _results(self, arrays: List[NDArray], numbers: Dict[int, int]) -> Tuple[Any, ...]:
        """Return what a piece has of the arrays that `forward` returns."""
        results: List[Any] = []
        earlier: Dict[int, int] = {}
        for number, one in enumerate(arrays):
            first = earlier.setdefault(id(one), number)
            if first < number:
                results.append(first)
            elif id(one) in numbers:
                results.append(-1 - numbers[id(one)])
            elif type(one) is LazyNDArray and isinstance(one._tape, Constant):
                recording.external(self.tape, one)  # so that the context is looked at
                results.append(one._tape)
            elif type(one) is not LazyNDArray or one._tape is not self.tape:
                raise Refused("it returns an array that no call recorded")
            elif one._uncut is not None:
                raise Refused("it returns an array that is cut from the gradient graph")
            else:
                results.append((one._value, one._offset, one._type))
        return tuple(results)


def _array_of(leaf: NDArray) -> NDArray:
    """Return what is among arrays from outside for an argument that is not pending."""
    if type(leaf) is not LazyNDArray:
        return leaf
    if isinstance(leaf._tape, Constant):
        return leaf._tape.made
    return leaf if leaf._real is None else leaf._real


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


#: Lines of the user's, once each.
_PLACES: Dict[Any, Any] = {}


def _states_of_generators() -> Tuple[Any, ...]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]
