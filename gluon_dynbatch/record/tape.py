"""The tape: recorded calls as flat arrays, which is what one flush works on."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import ArgumentError
from ..native import recording
from .lazy import LazyNDArray
from .types import TYPES, memory_of
from .where import user_line

if TYPE_CHECKING:
    from ..trace.entry import Entry


class Call(NamedTuple):
    """One call of a tape, for those who look at it call by call."""

    entry: Entry
    #: Values that it reads, each from an offset in elements on: ``x[2:5]`` costs no call.
    operands: Tuple[Tuple[int, int], ...]
    results: range


class Reads:
    """What the calls of a tape read from outside; looked at when somebody asks."""

    def __init__(self) -> None:
        self._externals = self._entries = 0
        #: Per array: what names its memory, addresses of that, and its handle.
        self._words = array("q")

    def later(self, tape: Tape) -> Iterator[Tuple[NDArray, Optional[Parameter]]]:
        """Yield the arrays that came since this was asked last, of parameters with these."""
        externals, entries = tape.externals[self._externals :], list(tape.entries.values())
        self._externals, entries = len(tape.externals), entries[self._entries :]
        self._entries += len(entries)
        # To what is kept in arenas nobody writes.
        yield from ((one, None) for one in externals if type(one) is not LazyNDArray)
        for parameter in parameters_of(entries):
            yield from ((data, parameter) for data in parameter.list_data())

    def words(self, tape: Tape) -> np.ndarray[Any, Any]:
        """Return chunks, starts, stops and handles of all arrays."""
        for one, _ in self.later(tape):
            self._words.extend((*memory_of(one.handle), one.handle.value))
        return np.frombuffer(self._words, np.int64).reshape(-1, 4).T


def parameters_of(entries: Iterable[Any]) -> Iterator[Parameter]:
    """Yield the parameters of entries."""
    for entry in entries:
        yield from entry.program.parameters.values()


class Tape(recording.Tape):  # type: ignore[misc]
    """Recorded calls; positions are ids.

    A *value* is one array: a result of a call, or an *external* array that existed before.  A
    *node* is one call; its results are consecutive values.  An *operand* is a value and an offset.
    ``print(tape)`` shows a line per call, :func:`check_tape` checks it.

    Parameters
    ----------
    recorder : Recorder, optional
        Who computes the values when one of the arrays handed out is asked for its own.
    """

    __slots__ = ("__weakref__", "reads")

    def __init__(self, recorder: Any = None) -> None:
        super().__init__(recorder)
        self.reads = Reads()

    def calls(self) -> Iterator[Call]:
        """Yield the calls in the order in which they were made."""
        operand = 0
        for number, first in zip(self.node_entry, self.node_value0):
            entry = self.entries[number]
            places = range(operand, operand + len(entry.in_types))
            operand = places.stop
            yield Call(
                entry,
                tuple((self.sources[p], self.offsets[p]) for p in places),
                range(first, first + len(entry.out_types)),
            )

    def __str__(self) -> str:
        lines = []
        for node, call in enumerate(self.calls()):
            read = ", ".join(map(self._shown, call.operands, call.entry.in_types))
            types = [(v, TYPES[self.value_type[v]]) for v in call.results]
            made = ", ".join(f"%{v} {kind.dtype}{kind.shape}" for v, kind in types)
            where = f"  # {self.wheres[node].where}" if self.wheres else ""
            lines.append(f"{made} = {call.entry.name}({read}){where}")
        return "\n".join(lines)

    def _shown(self, operand: Tuple[int, int], array_type: Any) -> str:
        value, offset = operand
        part = ""
        if array_type.elements < TYPES[self.value_type[value]].elements:
            part = f"[{offset}:{offset + array_type.elements}]"
        return f"%{value}{part} {array_type.shape}"


def check_storage(array: NDArray) -> None:
    """Raise unless `array` is dense and not one of ``mx.np``."""
    if isinstance(array, mx.np.ndarray):
        kind, method = "of mx.np", "as_nd_ndarray()"
    elif array.stype != "default":
        kind, method = f"of storage type {array.stype!r}", "tostype('default')"
    else:
        return
    raise ArgumentError(
        f"an array {kind} cannot be batched", user_line(), None, f"convert it with .{method}"
    )


recording.check_array = check_storage


def check_tape(tape: Tape) -> None:
    """Raise ``AssertionError`` if an open `tape` breaks an invariant.

    Counts match the entries; every value is made once, as a result of a call or from outside; every
    operand is an earlier value, and lies within it.
    """
    types = [TYPES[number] for number in tape.value_type]
    assert len(tape.node_value0) == len(tape.wheres) == len(tape.node_entry), "counts of calls"
    assert len(tape.sources) == len(tape.offsets), "counts of operands"
    assert len(tape.externals) == len(tape.external_values), "externals"
    made, read = list(tape.external_values), 0
    for value, given in zip(tape.external_values, tape.given):
        assert tape.external_ids.get(id(given)) == value, f"%{value}: not known by its array"
    for node, number in enumerate(tape.node_entry):
        assert number in tape.entries, f"call {node}: no entry {number}"
        read += len(tape.entries[number].in_types)
    assert read == len(tape.sources), "operands do not match the entries"
    for node, (entry, operands, results) in enumerate(tape.calls()):
        assert entry.id == tape.node_entry[node], f"call {node}: entry of another number"
        for (value, offset), wanted in zip(operands, entry.in_types):
            assert 0 <= value < results.start, f"call {node}: %{value} is no earlier value"
            whole = types[value]
            fits = whole.dtype == wanted.dtype and whole.context == wanted.context
            assert fits, f"call {node}: %{value} is of another type than the entry's"
            inside = 0 <= offset <= whole.elements - wanted.elements
            assert inside, f"call {node}: reads beyond %{value}"
        assert list(tape.value_type[v] for v in results) == list(entry.out_types), (
            f"call {node}: results of other types than the entry's"
        )
        made += results
    assert sorted(made) == list(range(len(types))), "a value is not made exactly once"
