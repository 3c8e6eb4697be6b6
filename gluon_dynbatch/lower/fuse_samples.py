"""Granularity ``graph``: samples that did the same become one call each.

A sample is a connected component of the recorded graph.  Components with the same calls, wired in
the same way, are *isomorphic*: the program of one is composed once, out of the programs of its
calls, and each component becomes one recorded call of it.  Everything behind this step then works
as at granularity ``block``.  Components without a partner keep their calls.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..errors import CellError, DynBatchError
from ..record.tape import Tape
from ..record.types import TYPES
from ..record.where import where_of
from ..trace.entry import Entry, Library
from ..trace.program import VARIABLE, Program, compose, symbol_node
from .expand import Nodes, read_nodes

#: So many samples of one shape, on average, make up for composing its program.
SAMPLES_PER_SHAPE = 4
#: Composed programs remembered.
CAPACITY = 256


class Contracted:
    """A recording in which isomorphic samples are single calls; see :class:`Tape`."""

    def __init__(self, recording: Tape):
        self.entries: Dict[int, Any] = {}
        self.node_entry = array("i")
        self.node_value0 = array("i")
        self.sources = array("i")
        self.offsets = array("q")
        self.value_type = array("i", recording.value_type)
        self.external_values = recording.external_values
        self.externals = recording.externals
        #: Per node, a recorded call that it stands for.
        self.origin: List[int] = []
        #: Where a recorded value went, if that has changed.
        self.moved: Dict[int, int] = {}

    def append(
        self, entry: Any, sources: Sequence[int], offsets: Sequence[int], value0: int, origin: int
    ) -> None:
        """Append one call."""
        self.entries[entry.id] = entry
        self.node_entry.append(entry.id)
        self.node_value0.append(value0)
        self.sources.extend(sources)
        self.offsets.extend(offsets)
        self.origin.append(origin)


class _Shape(NamedTuple):
    """What isomorphic components have in common."""

    #: Per call: entry, and per operand (call or -1, output or external, offset).
    calls: Tuple[Tuple[int, Tuple[Tuple[int, int, int], ...]], ...]
    #: Types of the arrays from outside.
    externals: Tuple[int, ...]


class _Component(NamedTuple):
    calls: np.ndarray
    #: Values from outside.
    externals: List[int]
    #: Results that somebody holds: (call, output).
    wanted: List[Tuple[int, int]]


class Composer:
    """Composes programs for whole samples and remembers them."""

    def __init__(self, library: Library):
        self._library = library
        #: None where composing failed or would not merge.
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def contract(self, recording: Tape, wanted: Sequence[int]) -> Contracted:
        """Replace isomorphic samples by single calls.

        Parameters
        ----------
        recording : Tape
            What was recorded.
        wanted : sequence of int
            Values that somebody holds, in increasing order.
        """
        nodes = read_nodes(recording)
        held = np.zeros(len(recording.value_type), dtype=bool)
        held[list(wanted)] = True
        groups: Dict[_Shape, List[_Component]] = {}
        for members in components(nodes):
            shape, component = _shape_of(recording, nodes, members, held)
            groups.setdefault(shape, []).append(component)
        contracted = Contracted(recording)
        kept: List[np.ndarray] = []
        for shape, alike in groups.items():
            # What is held of one sample is computed for all: it is chance when Python lets go.
            results = tuple(sorted({ref for component in alike for ref in component.wanted}))
            entry = None
            if len(alike) > 1 and len(shape.calls) > 1:
                entry = self._entry(recording, shape, results, alike[0])
            if entry is None:
                kept += [component.calls for component in alike]
            else:
                for component in alike:
                    _append_component(contracted, recording, entry, results, component)
        for node in np.sort(np.concatenate(kept)).tolist() if kept else []:
            _append_call(contracted, recording, nodes, node)
        return contracted

    def repeats(self, recording: Tape) -> bool:
        """Whether most samples are isomorphic to several others, so that composing them pays."""
        nodes = read_nodes(recording)
        held = np.zeros(len(recording.value_type), dtype=bool)
        samples = components(nodes)
        shapes = {_shape_of(recording, nodes, members, held)[0] for members in samples}
        return len(samples) >= SAMPLES_PER_SHAPE * len(shapes)

    def _entry(self, recording: Tape, shape: _Shape, results: Any, example: _Component) -> Any:
        key = (shape, results)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        entry = self._compose(recording, shape, results, example)
        self._known[key] = entry
        while len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return entry

    def _compose(self, recording: Tape, shape: _Shape, results: Any, example: _Component) -> Any:
        calls = [recording.entries[number] for number, _ in shape.calls]
        modes = {entry.mode for entry in calls}
        if len(modes) > 1 or not shape.externals or not results:
            return None
        builder = _Builder(len(shape.externals))
        for entry, (_, operands) in zip(calls, shape.calls):
            builder.call(entry, operands)
        where = where_of(recording.wheres[int(example.calls[0])])
        types = tuple(TYPES[t] for t in shape.externals)
        places = tuple(range(len(types)))
        try:
            program = builder.program(results)
            entry = self._library.make_entry(
                _Sample((shape, results), calls),
                modes.pop(),
                program,
                types,
                places,
                where,
            )
        except (CellError, DynBatchError):
            return None
        return entry if entry.variant(frozenset()).mergeable else None


class _Sample:
    """The callee of a composed program."""

    def __init__(self, key: Any, calls: List[Entry]):
        self.token = ("sample", key)
        self.name = f"sample of {len(calls)} calls, the last of {calls[-1].name}"


def components(nodes: Nodes) -> List[np.ndarray]:
    """Return the connected components of the recorded calls, each in recording order."""
    count = len(nodes.entry)
    counts = np.diff(np.append(nodes.operand0, len(nodes.source)))
    consumer = np.repeat(np.arange(count), counts)
    producer = nodes.producer[nodes.source]
    inner = producer >= 0
    a, b = producer[inner], consumer[inner]
    label = np.arange(count)
    while True:
        before = label.copy()
        low = np.minimum(label[a], label[b])
        np.minimum.at(label, a, low)
        np.minimum.at(label, b, low)
        # Following labels to their labels halves the remaining distance.
        label = label[label]
        if np.array_equal(before, label):
            break
    order = np.argsort(label, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if count else []


def _shape_of(
    recording: Tape, nodes: Nodes, members: np.ndarray, held: np.ndarray
) -> Tuple[_Shape, _Component]:
    place: Dict[int, Tuple[int, int]] = {}
    externals: List[int] = []
    calls, wanted = [], []
    for position, node in enumerate(members.tolist()):
        entry = recording.entries[recording.node_entry[node]]
        first = int(nodes.operand0[node])
        operands = []
        for at in range(first, first + len(entry.in_types)):
            value = recording.sources[at]
            if value not in place:
                place[value] = (-1, len(externals))
                externals.append(value)
            operands.append((*place[value], recording.offsets[at]))
        calls.append((entry.id, tuple(operands)))
        value0 = recording.node_value0[node]
        for out in range(len(entry.out_types)):
            place[value0 + out] = (position, out)
            if held[value0 + out]:
                wanted.append((position, out))
    types = tuple(recording.value_type[value] for value in externals)
    return _Shape(tuple(calls), types), _Component(members, externals, wanted)


def _append_component(
    contracted: Contracted, recording: Tape, entry: Any, results: Any, component: _Component
) -> None:
    value0 = len(contracted.value_type)
    contracted.value_type.extend(entry.out_types)
    for k, (call, out) in enumerate(results):
        contracted.moved[recording.node_value0[int(component.calls[call])] + out] = value0 + k
    externals = component.externals
    contracted.append(entry, externals, [0] * len(externals), value0, int(component.calls[0]))


def _append_call(contracted: Contracted, recording: Tape, nodes: Nodes, node: int) -> None:
    entry = recording.entries[recording.node_entry[node]]
    first = int(nodes.operand0[node])
    last = first + len(entry.in_types)
    contracted.append(
        entry,
        memoryview(recording.sources)[first:last],
        memoryview(recording.offsets)[first:last],
        recording.node_value0[node],
        node,
    )


class _Builder:
    """Joins the programs of calls into one."""

    def __init__(self, externals: int):
        self._names = [f"dynbatch_argument{i}" for i in range(externals)]
        self._nodes: List[Dict[str, Any]] = [
            {"op": VARIABLE, "name": name, "inputs": []} for name in self._names
        ]
        self._parameters: Dict[str, Any] = {}
        self._parameter_nodes: Dict[str, int] = {}
        #: Per call: its results, with shapes.
        self._results: List[List[Tuple[Tuple[int, int], Tuple[int, ...]]]] = []

    def call(self, entry: Entry, operands: Sequence[Tuple[int, int, int]]) -> None:
        """Append the operators of one call."""
        program = entry.program
        made: Dict[Tuple[int, int], Tuple[int, int]] = {}
        for (call, out, offset), row, kind in zip(operands, program.arguments, entry.in_types):
            if row is not None:
                ref, shape = ((out, 0), kind.shape) if call < 0 else self._results[call][out]
                made[row, 0] = self._view(ref, shape, offset, kind.shape)
        for i, row in enumerate(program.rows):
            if row.op == VARIABLE:
                if i in program.parameters:
                    made[i, 0] = (self._parameter(program.parameters[i], row), 0)
                continue
            inputs = [
                made[ref[0], 0]
                if program.rows[ref[0]].op == VARIABLE
                else (made[ref[0], 0][0], ref[1])
                for ref in row.inputs
            ]
            made[i, 0] = (self._node(row.op, row.attrs, inputs, row.extra), 0)
        self._results.append(
            [((made[r, 0][0], out), entry.shapes[r, out]) for r, out in program.heads]
        )

    def program(self, wanted: Sequence[Tuple[int, int]]) -> Program:
        """Return the composed program with these results."""
        heads = [self._results[call][out][0] for call, out in wanted]
        return compose(self._nodes, heads, self._names, self._parameters)

    def _parameter(self, parameter: Any, row: Any) -> int:
        known = self._parameter_nodes.get(parameter.name)
        if known is None:
            known = self._parameter_nodes[parameter.name] = len(self._nodes)
            self._nodes.append(
                {"op": VARIABLE, "name": parameter.name, "attrs": row.attrs, "inputs": []}
            )
            self._parameters[parameter.name] = parameter
        return known

    def _node(self, op: str, attrs: Any, inputs: Any, extra: Any = None) -> int:
        name = f"call{len(self._nodes)}"
        self._nodes.append(symbol_node(op, name, attrs, inputs, extra))
        return len(self._nodes) - 1

    def _view(
        self, ref: Tuple[int, int], held: Tuple[int, ...], offset: int, shape: Tuple[int, ...]
    ) -> Tuple[int, int]:
        """Read an array with another shape, from an offset in elements on."""
        if held == shape:
            return ref
        size, whole = int(np.prod(shape)), int(np.prod(held))
        if size != whole:
            flat = self._node("Reshape", {"shape": "(-1,)"}, [ref])
            cut = {"axis": "0", "begin": str(offset), "end": str(offset + size)}
            ref = (self._node("slice_axis", cut, [(flat, 0)]), 0)
        return (self._node("Reshape", {"shape": str(tuple(shape))}, [ref]), 0)
