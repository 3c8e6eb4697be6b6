"""The tape: recorded calls as flat arrays, the input of a flush."""

from __future__ import annotations

from array import array
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Tuple,
)

import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import ArgumentError
from ..native import recording
from .lazy_base import Lazy
from .types import TYPES, ArrayType, memory_of
from .where import user_line


class RecordedProgram(Protocol):
    """What a tape knows of the program of a call."""

    @property
    def parameters(self) -> Dict[int, Parameter]:
        """The parameters that it reads, by position of their operators."""
        ...


class RecordedEntry(Protocol):
    """What a tape knows of an entry: one kind of call."""

    id: int
    #: Name of the callee.
    name: str
    #: ``id()`` of the block; None for an operator.
    block_id: Optional[int]
    #: A number that only this block ever has; None for an operator.
    block_number: Optional[int]
    #: Autograd's mode, as bits of `modes`.
    mode: int
    #: Types of the arguments, and numbers of the types of the results, see `TYPES`.
    in_types: Tuple[ArrayType, ...]
    out_types: List[int]
    #: Whether an operator is random.
    draws: bool

    @property
    def program(self) -> RecordedProgram:
        """Its operators."""
        ...


class TapeCall(NamedTuple):
    """One call of a tape, as `Tape.calls` yields it."""

    entry: RecordedEntry
    #: Pairs of a value and an offset in elements: a view such as ``x[2:5]`` needs no call.
    operands: Tuple[Tuple[int, int], ...]
    results: range


class ExternalReads:
    """The external arrays that the calls of a tape read, collected on demand."""

    def __init__(self) -> None:
        #: Numbers of externals and entries that have been collected.
        self._externals = self._entries = 0
        #: Four numbers per array: see `memory`.
        self._memory = array("q")

    def later(self, tape: Tape) -> Iterator[Tuple[NDArray, Optional[Parameter]]]:
        """Yield the arrays that were added since the last call, with their parameter or None."""
        first, self._externals = self._externals, len(tape.externals)
        externals = zip(tape.externals[first:], tape.originals[first:])
        entries, self._entries = [*tape.entries.values()][self._entries :], len(tape.entries)
        # Lazy ones are kept in arenas, which are never written to.  An array of `mx.np` is read by
        # another handle, but the user writes to the original.
        for array_, original in externals:
            if not isinstance(array_, Lazy):
                yield (array_ if isinstance(original, Lazy) else original), None
        for parameter in parameters_of(entries):
            yield from ((data, parameter) for data in parameter.list_data())

    def memory(self, tape: Tape) -> np.ndarray[Any, Any]:
        """Return chunks, starts, stops (see `memory_of`) and handles of all arrays."""
        for array_, _ in self.later(tape):
            self._memory.extend((*memory_of(array_.handle), array_.handle.value))
        return np.frombuffer(self._memory, np.int64).reshape(-1, 4).T


def parameters_of(entries: Iterable[RecordedEntry]) -> Iterator[Parameter]:
    """Yield the parameters that calls of these entries read."""
    for entry in entries:
        yield from entry.program.parameters.values()


class Tape(recording.FlatTape):
    """Recorded calls; positions are ids.

    A *value* is one array: a result of a call, or an *external* array that existed before.  A
    *node* is one call; its results are consecutive values.  An *operand* is a value and an offset.
    ``print(tape)`` shows a line per call, :func:`check_tape` checks the invariants.
    """

    __slots__ = ("__weakref__", "reads")

    if TYPE_CHECKING:

        @property
        def entries(self) -> Dict[int, RecordedEntry]:
            """The entries of all calls, by id."""

    def __init__(self, recorder: Any = None) -> None:
        super().__init__(recorder)
        self.reads = ExternalReads()

    def calls(self) -> Iterator[TapeCall]:
        """Yield the calls in the order in which they were recorded."""
        stop = 0
        for entry_id, first in zip(self.node_entry, self.node_value0):
            entry = self.entries[entry_id]
            start, stop = stop, stop + len(entry.in_types)
            yield TapeCall(
                entry,
                tuple(zip(self.sources[start:stop], self.offsets[start:stop])),
                range(first, first + len(entry.out_types)),
            )

    def __str__(self) -> str:
        lines = []
        for node, call in enumerate(self.calls()):
            operands = ", ".join(map(self._format, call.operands, call.entry.in_types))
            types = [(v, TYPES[self.value_type[v]]) for v in call.results]
            results = ", ".join(f"%{v} {type_.dtype}{type_.shape}" for v, type_ in types)
            where = f"  # {self.place(node).where}"
            lines.append(f"{results} = {call.entry.name}({operands}){where}")
        return "\n".join(lines)

    def _format(self, operand: Tuple[int, int], array_type: Any) -> str:
        value, offset = operand
        part = ""
        if array_type.elements < TYPES[self.value_type[value]].elements:
            part = f"[{offset}:{offset + array_type.elements}]"
        return f"%{value}{part} {array_type.shape}"


class CallWatch(Protocol):
    """What ``debug=True`` notes of each call, a `debug.Watch`."""

    def note(self, tape: Tape) -> None:
        """Keep copies of what calls of a tape read that were added since the last time."""

    def check(self) -> None:
        """Raise if something has changed what pending calls read."""


def check_storage(array: NDArray) -> None:
    """Raise ``ArgumentError`` if `array` is sparse."""
    if array.stype != "default":
        raise ArgumentError(
            f"an array of storage type {array.stype!r} cannot be recorded",
            user_line(),
            advice="convert it with .tostype('default')",
        )


recording.check_array = check_storage


def check_tape(tape: Tape) -> None:
    """Raise ``AssertionError`` if an open `tape` breaks an invariant.

    Counts match the entries; every value is defined once, as a result of a call or as an external;
    every operand is an earlier value, and lies within it.
    """
    types = [TYPES[number] for number in tape.value_type]
    assert len(tape.node_value0) == len(tape.node_place) == len(tape.node_entry), "counts of calls"
    assert len(tape.sources) == len(tape.offsets), "counts of operands"
    assert len(tape.externals) == len(tape.external_values), "externals"
    defined, reads = list(tape.external_values), 0
    for value, given in zip(tape.external_values, tape.originals):
        assert tape.external_ids.get(id(given)) == value, f"%{value}: not registered by its array"
    for node, entry_id in enumerate(tape.node_entry):
        assert entry_id in tape.entries, f"call {node}: no entry {entry_id}"
        reads += len(tape.entries[entry_id].in_types)
    assert reads == len(tape.sources), "operands do not match the entries"
    for node, (entry, operands, results) in enumerate(tape.calls()):
        assert entry.id == tape.node_entry[node], f"call {node}: entry with another id"
        for (value, offset), wanted in zip(operands, entry.in_types):
            assert 0 <= value < results.start, f"call {node}: %{value} is no earlier value"
            whole = types[value]
            fits = (whole.dtype, whole.context) == (wanted.dtype, wanted.context)
            assert fits, f"call {node}: %{value} has another type than the entry's"
            inside = 0 <= offset <= whole.elements - wanted.elements
            assert inside, f"call {node}: reads beyond %{value}"
        assert [tape.value_type[v] for v in results] == list(entry.out_types), (
            f"call {node}: results have other types than the entry's"
        )
        defined += results
    assert sorted(defined) == list(range(len(types))), "a value is not defined exactly once"
