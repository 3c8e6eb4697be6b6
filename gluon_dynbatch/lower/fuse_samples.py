"""Granularity ``graph``: samples that did the same become one call each.

A sample is a connected component of the recorded graph.  Components with the same calls, wired in
the same way, are *isomorphic*: the program of one is composed once, out of the programs of its
calls, and each component becomes one call of it on a new tape.  Everything behind this step then
works as at granularity ``block``.  Components without a partner keep their calls.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..errors import DynBatchError
from ..record.tape import Tape
from ..record.types import TYPES, ArrayType, elements
from ..record.where import where_of
from ..trace.entry import Entry, Library
from ..trace.program import Program, read_program
from ..trace.symbols import VARIABLE, Builder, Ref, make_symbol

#: So many samples of one shape, on average, make up for composing its program.
SAMPLES_PER_SHAPE = 4
#: Composed programs remembered.
CAPACITY = 256


class Call(NamedTuple):
    """One call of a tape."""

    node: int
    entry: Entry
    #: Value and offset in elements of each array that it reads.
    operands: Tuple[Tuple[int, int], ...]
    #: The values that it makes.
    results: range


class Fused(NamedTuple):
    """A tape in which isomorphic samples are single calls."""

    tape: Tape
    #: Per call, a recorded call that it stands for.
    origin: List[int]
    #: Where a recorded value went, if that has changed.
    moved: Dict[int, int]

    def append(self, entry: Entry, operands: Any, value0: int, origin: int) -> None:
        """Append a call."""
        self.tape.entries[entry.id] = entry
        self.tape.node_entry.append(entry.id)
        self.tape.node_value0.append(value0)
        self.tape.sources.extend([value for value, _ in operands])
        self.tape.offsets.extend([offset for _, offset in operands])
        self.origin.append(origin)


class _Sample(NamedTuple):
    """One component."""

    calls: List[Call]
    #: Values from outside.
    externals: List[int]
    #: Results that somebody holds: (call, output).
    held: List[Ref]
    #: What isomorphic components have in common: per call its entry and where each operand comes
    #: from, as (call, output, offset) or (-1, external, offset); types of externals.
    shape: Any


class Composer:
    """Composes programs for whole samples and remembers them."""

    def __init__(self, library: Library):
        self._library = library
        #: None where composing failed or would not merge.
        self._known: OrderedDict[Any, Optional[Entry]] = OrderedDict()

    def fuse(self, tape: Tape, wanted: Sequence[int]) -> Fused:
        """Replace isomorphic samples by single calls.

        Parameters
        ----------
        tape : Tape
            What was recorded.
        wanted : sequence of int
            Values that somebody holds.
        """
        alike: Dict[Any, List[_Sample]] = {}
        for sample in _samples(tape, set(wanted)):
            alike.setdefault(sample.shape, []).append(sample)
        fused = Fused(Tape(), [], {})
        fused.tape.value_type.extend(tape.value_type)
        fused.tape.external_values.extend(tape.external_values)
        kept: List[Call] = []
        for samples in alike.values():
            # What is held of one sample is computed for all: it is chance when Python lets go.
            results = tuple(sorted({ref for sample in samples for ref in sample.held}))
            several = len(samples) > 1 and len(samples[0].calls) > 1
            entry = self._entry(tape, samples[0], results) if several else None
            for sample in samples:
                if entry is None:
                    kept += sample.calls
                    continue
                value0 = len(fused.tape.value_type)
                fused.tape.value_type.extend(entry.out_types)
                for k, (call, out) in enumerate(results):
                    fused.moved[sample.calls[call].results[out]] = value0 + k
                operands = [(value, 0) for value in sample.externals]
                fused.append(entry, operands, value0, sample.calls[0].node)
        for call in sorted(kept):
            fused.append(call.entry, call.operands, call.results.start, call.node)
        return fused

    def repeats(self, tape: Tape) -> bool:
        """Whether most samples are isomorphic to several others, so that composing them pays."""
        shapes = [sample.shape for sample in _samples(tape, set())]
        return len(shapes) >= SAMPLES_PER_SHAPE * len(set(shapes))

    def _entry(self, tape: Tape, sample: _Sample, results: Tuple[Ref, ...]) -> Optional[Entry]:
        key = sample.shape, results
        if key not in self._known:
            self._known[key] = self._compose(tape, sample, results)
        self._known.move_to_end(key)
        while len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return self._known[key]

    def _compose(self, tape: Tape, sample: _Sample, results: Tuple[Ref, ...]) -> Optional[Entry]:
        modes = {call.entry.mode for call in sample.calls}
        if len(modes) > 1 or not sample.externals or not results:
            return None
        types = [TYPES[t] for t in sample.shape[1]]
        try:
            entry = self._library.make_entry(
                _Callee((sample.shape, results), [call.entry for call in sample.calls]),
                modes.pop(),
                _program(sample, results, types),
                tuple(types),
                tuple(range(len(types))),
                where_of(tape.wheres[sample.calls[0].node]),
            )
        except DynBatchError:
            return None
        return entry if entry.variant(frozenset()).mergeable else None


class _Callee:
    """What a composed call calls."""

    def __init__(self, key: Any, calls: List[Entry]):
        self.token = ("sample", key)
        self.name = f"sample of {len(calls)} calls, the last of {calls[-1].name}"


def calls(tape: Tape) -> Iterator[Call]:
    """Yield the calls of a tape in order."""
    sources, offsets = memoryview(tape.sources).tolist(), memoryview(tape.offsets).tolist()
    first = 0
    for node, (number, value0) in enumerate(zip(tape.node_entry, tape.node_value0)):
        entry = tape.entries[number]
        last = first + len(entry.in_types)
        operands = tuple(zip(sources[first:last], offsets[first:last]))
        yield Call(node, entry, operands, range(value0, value0 + len(entry.out_types)))
        first = last


def _samples(tape: Tape, held: Set[int]) -> Iterator[_Sample]:
    """Yield the connected components of the recorded calls, each in recording order."""
    parent: List[int] = []
    producer: Dict[int, int] = {}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    recorded = list(calls(tape))
    for call in recorded:
        parent.append(call.node)
        for value, _ in call.operands:
            if value in producer:
                one, other = root(producer[value]), root(call.node)
                parent[max(one, other)] = min(one, other)
        producer.update(dict.fromkeys(call.results, call.node))
    components: Dict[int, List[Call]] = {}
    for call in recorded:
        components.setdefault(root(call.node), []).append(call)
    for component in components.values():
        yield _sample(tape, component, held)


def _sample(tape: Tape, component: List[Call], held: Set[int]) -> _Sample:
    place: Dict[int, Ref] = {}
    externals: List[int] = []
    for position, call in enumerate(component):
        for value, _ in call.operands:
            if value not in place:
                place[value] = (-1, len(externals))
                externals.append(value)
        place.update((value, (position, out)) for out, value in enumerate(call.results))
    shape = tuple(
        (call.entry.id, tuple((*place[value], offset) for value, offset in call.operands))
        for call in component
    )
    types = tuple(tape.value_type[value] for value in externals)
    wanted = [ref for value, ref in place.items() if value in held and ref[0] >= 0]
    return _Sample(component, externals, wanted, (shape, types))


def _program(sample: _Sample, results: Tuple[Ref, ...], types: List[ArrayType]) -> Program:
    """Compose the programs of the calls of a sample."""
    builder = Builder("call")
    names = [f"dynbatch_argument{i}" for i in range(len(types))]
    #: Per call, and for arrays from outside: its results, with their shapes.
    made = {-1: [(builder.variable(name), kind.shape) for name, kind in zip(names, types)]}
    parameters: Dict[str, Any] = {}
    variables: Dict[str, Ref] = {}
    for number, (call, (_, operands)) in enumerate(zip(sample.calls, sample.shape[0])):
        entry, program = call.entry, call.entry.program
        read: Dict[int, Ref] = {}
        for (producer, out, offset), at, kind in zip(operands, program.arguments, entry.in_types):
            if at is not None:
                read[at] = _view(builder, *made[producer][out], offset, kind.shape)
        for at, parameter in program.parameters.items():
            name = parameter.name
            if name not in variables:
                variables[name] = builder.variable(name, program.ops[at].attrs)
                parameters[name] = parameter
            read[at] = variables[name]
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
