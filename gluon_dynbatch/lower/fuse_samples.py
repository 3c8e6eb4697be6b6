"""Granularity ``graph``: samples that did the same become one call each.

A sample is a connected component of the recorded graph.  Components with the same calls, wired in
the same way, are *isomorphic*: the program of one is composed once, out of the programs of its
calls, and each component becomes one call of it on a new tape.  Everything behind this step then
works as at granularity ``block``.  Components without a partner keep their calls.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..errors import DynBatchError, Where
from ..record.tape import Call, Operand, Tape
from ..record.types import TYPES, ArrayType, elements
from ..trace.entry import Entry
from ..trace.program import Program, read_program
from ..trace.symbols import VARIABLE, Builder, Ref, make_symbol

#: Composed programs remembered.
CAPACITY = 256
#: A composed call fails nowhere: what cannot be composed keeps its calls.
NOWHERE = Where("", 0, "")


class Fused(NamedTuple):
    """A tape in which isomorphic samples are single calls."""

    tape: Tape
    #: Per call, a recorded call that it stands for.
    origin: List[int]
    #: Where a recorded value went, if that has changed.
    moved: Dict[int, int]

    def append(self, node: int, call: Call) -> None:
        """Append a call that stands for a recorded one."""
        self.tape.entries[call.entry.id] = call.entry
        self.tape.node_entry.append(call.entry.id)
        self.tape.node_value0.append(call.results.start)
        self.tape.sources.extend([value for value, _ in call.operands])
        self.tape.offsets.extend([offset for _, offset in call.operands])
        self.origin.append(node)


class _Shape(NamedTuple):
    """What isomorphic samples have in common."""

    #: Per call: its entry, and where each operand comes from, as (call, output, offset) or, from
    #: outside, (-1, external, offset).
    calls: Tuple[Tuple[Entry, Tuple[Tuple[int, int, int], ...]], ...]
    #: Types of the externals, by id.
    types: Tuple[int, ...]


class _Sample(NamedTuple):
    shape: _Shape
    #: Calls with their nodes.
    calls: List[Tuple[int, Call]]
    #: Values from outside.
    externals: List[int]
    #: Results that somebody holds: (call, output).
    held: List[Ref]


def fuse_samples(tape: Tape, wanted: Iterable[int]) -> Fused:
    """Replace isomorphic samples by single calls.

    Parameters
    ----------
    tape : Tape
        What was recorded.
    wanted : iterable of int
        Values that somebody holds.
    """
    alike: Dict[_Shape, List[_Sample]] = {}
    for sample in _samples(tape, set(wanted)):
        alike.setdefault(sample.shape, []).append(sample)
    fused = Fused(Tape(), [], {})
    fused.tape.value_type.extend(tape.value_type)
    fused.tape.external_values.extend(tape.external_values)
    kept: List[Tuple[int, Call]] = []
    for shape, samples in alike.items():
        # What is held of one sample is computed for all: it is chance when Python lets go.
        results = tuple(sorted({ref for sample in samples for ref in sample.held}))
        several = len(samples) > 1 and len(shape.calls) > 1
        entry = _fused_entry(shape, results) if several else None
        for sample in samples:
            if entry is None:
                kept += sample.calls
                continue
            first = len(fused.tape.value_type)
            fused.tape.value_type.extend(entry.out_types)
            for k, (position, out) in enumerate(results):
                fused.moved[sample.calls[position][1].results[out]] = first + k
            operands = tuple(Operand(value, 0) for value in sample.externals)
            made = range(first, first + len(results))
            fused.append(sample.calls[0][0], Call(entry, operands, made))
    for node, call in sorted(kept, key=itemgetter(0)):
        fused.append(node, call)
    return fused


@lru_cache(maxsize=CAPACITY)
def _fused_entry(shape: _Shape, results: Tuple[Ref, ...]) -> Optional[Entry]:
    """Return what samples of a shape call; None if that would not merge."""
    modes = {entry.mode for entry, _ in shape.calls}
    if len(modes) > 1 or not shape.types or not results:
        return None
    callee, types = _Callee(shape), tuple(TYPES[t] for t in shape.types)
    try:
        program = _compose(shape, results, types)
        entry = Entry(callee, modes.pop(), program, types, tuple(range(len(types))), NOWHERE)
    except DynBatchError:
        return None
    return entry if entry.variant(frozenset()).mergeable else None


class _Callee:
    def __init__(self, shape: _Shape):
        self.token = ("sample", object())
        self.name = f"sample of {len(shape.calls)} calls, the last of {shape.calls[-1][0].name}"


def _samples(tape: Tape, held: Set[int]) -> Iterator[_Sample]:
    """Yield the connected components of the recorded calls, each in recording order."""
    parent: List[int] = []
    producer: Dict[int, int] = {}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    calls = list(enumerate(tape.calls()))
    for node, call in calls:
        parent.append(node)
        for value, _ in call.operands:
            if value in producer:
                one, other = root(producer[value]), root(node)
                parent[max(one, other)] = min(one, other)
        producer.update(dict.fromkeys(call.results, node))
    components: Dict[int, List[Tuple[int, Call]]] = {}
    for node, call in calls:
        components.setdefault(root(node), []).append((node, call))
    for component in components.values():
        yield _sample(tape, component, held)


def _sample(tape: Tape, component: List[Tuple[int, Call]], held: Set[int]) -> _Sample:
    place: Dict[int, Ref] = {}
    externals: List[int] = []
    for position, (_, call) in enumerate(component):
        for value, _ in call.operands:
            if value not in place:
                place[value] = (-1, len(externals))
                externals.append(value)
        place.update((value, (position, out)) for out, value in enumerate(call.results))
    wired = tuple(
        (call.entry, tuple((*place[value], offset) for value, offset in call.operands))
        for _, call in component
    )
    types = tuple(tape.value_type[value] for value in externals)
    wanted = [ref for value, ref in place.items() if value in held and ref[0] >= 0]
    return _Sample(_Shape(wired, types), component, externals, wanted)


def _compose(shape: _Shape, results: Tuple[Ref, ...], types: Tuple[ArrayType, ...]) -> Program:
    """Make one program out of those of the calls."""
    builder = Builder("call")
    names = [f"dynbatch_argument{i}" for i in range(len(types))]
    #: Per call, and for arrays from outside: its results, with their shapes.
    made = {-1: [(builder.variable(name), kind.shape) for name, kind in zip(names, types)]}
    parameters: Dict[str, Any] = {}
    variables: Dict[str, Ref] = {}
    for number, (entry, operands) in enumerate(shape.calls):
        program = entry.program
        read: Dict[int, Ref] = {}
        for at, i in program.argument_at.items():
            producer, out, offset = operands[i]
            read[at] = _view(builder, *made[producer][out], offset, entry.in_types[i].shape)
        for at, parameter in program.parameters.items():
            if parameter.name not in variables:
                variables[parameter.name] = builder.variable(parameter.name, program.ops[at].attrs)
                parameters[parameter.name] = parameter
            read[at] = variables[parameter.name]
        row: Dict[int, int] = {}
        for i, op in enumerate(program.ops):
            if op.op != VARIABLE:
                inputs = [read[r] if r in read else (row[r], out) for r, out in op.inputs]
                row[i], _ = builder.add(op.op, inputs, op.attrs, op.extra)
        made[number] = [((row[r], out), entry.shapes[r, out]) for r, out in program.heads]
    symbol = make_symbol(builder.ops, [made[call][out][0] for call, out in results])
    return read_program(symbol, names, parameters, len(results))


def _view(
    builder: Builder, ref: Ref, held: Tuple[int, ...], offset: int, shape: Tuple[int, ...]
) -> Ref:
    """Read an array with another shape, from an offset in elements on."""
    if held == shape:
        return ref
    if elements(held) != elements(shape):
        ends = {"axis": "0", "begin": str(offset), "end": str(offset + elements(shape))}
        ref = builder.add("slice_axis", [builder.add("Reshape", [ref], {"shape": "(-1,)"})], ends)
    return builder.add("Reshape", [ref], {"shape": str(shape)})
