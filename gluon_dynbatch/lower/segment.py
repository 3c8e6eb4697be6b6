"""Segments: pieces of programs in a batching layout; equal segments are one object."""

from __future__ import annotations

import sys
import threading
import weakref
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Tuple

import numpy as np
from mxnet.gluon import Parameter

from ..record.types import TYPES
from ..trace.symbols import VARIABLE, Op, Ref

#: In the place of a segment number in a `Source`: an argument of the call.
ARGUMENT = -1

#: Where an input of a segment comes from: an earlier segment of the call and its output, or
#: `ARGUMENT` and the number of the argument.
Source = Tuple[int, int]


#: Attributes of operators that say how large arrays are, and that are numbers: they may differ
#: between the parts of a launch.
SIZES = frozenset(["shape", "begin", "end", "reps", "repeats", "size", "depth", "num_outputs"])
NUMBERS = frozenset(["scalar", "a_min", "a_max"])


class Port(NamedTuple):
    """An input or output of a segment."""

    #: Elements of one row of the merged array.
    row_size: int
    #: Shape of a row (layout "rows") or of the whole array of a sample.
    shape: Tuple[int, ...]
    dtype: str
    #: Inputs only: one array for all members.
    shared: bool = False
    #: Inputs only: whether a gradient can flow into it.
    differentiable: bool = True
    #: Inputs only: its sources are not summed but stand one after another.
    concat: bool = False


@dataclass(frozen=True, eq=False)
class Segment:
    """A piece of a program in its batching layout."""

    layout: str
    #: Why calls of this segment run one by one; empty if they merge.
    reason: str
    mode: int
    context: Any
    inputs: Tuple[Port, ...]
    outputs: Tuple[Port, ...]
    parameters: Tuple[Parameter, ...]
    #: Variables are named ``in0``, ``in1``, ... for inputs and ``param0``, ... for parameters.
    ops: Tuple[Op, ...]
    heads: Tuple[Ref, ...]
    #: What runs it natively, or why nothing does; known once it has been run.
    kernels: Any = None

    @property
    def key(self) -> Any:
        """What equal segments have in common."""
        ops = tuple(
            (
                op.op,
                op.name if op.op == VARIABLE else "",
                tuple(sorted(op.attrs.items())),
                op.inputs,
                repr(op.extra.get("subgraphs")),
            )
            for op in self.ops
        )
        parameters = tuple(map(id, self.parameters))
        ports = self.inputs, self.outputs
        return ops, self.heads, ports, parameters, self.layout, self.mode, self.context

    @cached_property
    def family(self) -> str:
        """What segments have in common that are equal but for sizes and numbers."""
        ops, heads, ports, *rest = self.key
        like = [(*op[:2], [a for a in op[2] if a[0] not in SIZES | NUMBERS], *op[3:]) for op in ops]
        shapeless = [[(len(p.shape), *p[2:]) for p in side] for side in ports]
        return sys.intern(repr((like, heads, shapeless, *rest)))

    @cached_property
    def shared(self) -> Tuple[int, ...]:
        """The inputs that are one array for all members."""
        return tuple(p for p, port in enumerate(self.inputs) if port.shared)

    @cached_property
    def columns(self) -> Tuple[bytes, bytes]:
        """Inputs and outputs as numbers, see `plan.plan.Ports`."""
        inputs, outputs = (
            [(p.row_size, TYPES.kind_of(p.dtype, self.context), *p[3:]) for p in side]
            for side in (self.inputs, self.outputs)
        )
        return np.array(inputs, np.int64).tobytes(), np.array(outputs, np.int64).tobytes()


class SegmentUse(NamedTuple):
    """A segment in its place within a call."""

    segment: Segment
    #: Per input its sources, which are summed or stand one after another.
    sources: Tuple[Tuple[Source, ...], ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """A call as segments in topological order."""

    #: Of what is called, with so many arrays.
    name: str
    arguments: int
    uses: Tuple[SegmentUse, ...]
    #: Per result of the call: segment and output.
    heads: Tuple[Tuple[int, int], ...]
    #: Rows that a call adds to its launch, and of each argument in layout "concat".
    rows: int
    concat_rows: Tuple[int, ...]

    @cached_property
    def segments(self) -> Tuple[Segment, ...]:
        """The segment of each use."""
        return tuple(use.segment for use in self.uses)

    @cached_property
    def code(self) -> array[int]:
        """All but the segments, as integers: see ``Cuts`` in ``lowering.pyx``."""
        counts = [len(terms) for use in self.uses for terms in use.sources]
        slots = sum(len(use.segment.outputs) for use in self.uses)
        code = [len(self.uses), slots, len(counts), sum(counts), len(self.heads), self.arguments]
        for segment, sources in self.uses:
            rows = self.rows if segment.layout in ("rows", "concat") else 1
            code += [rows, len(segment.outputs), len(sources)]
            code += [rows * port.row_size for port in segment.outputs]
            for port, terms in zip(segment.inputs, sources):
                own = [1 if port.shared else rows] * len(terms)
                code.append(len(terms))
                for (position, number), count in zip(
                    terms, self.concat_rows if port.concat else own
                ):
                    # Of an argument its number, of a segment's output both.
                    inner = position != ARGUMENT
                    code += [1, position, number] if inner else [0, number, 0]
                    code.append(count * port.row_size)
        for head in self.heads:
            code += head
        return array("q", code)


#: Segments by what equal ones have in common, for as long as some cut uses them.
_SEGMENTS: weakref.WeakValueDictionary[Any, Segment] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def intern(segment: Segment) -> Segment:
    """Return the one segment that is equal to this one."""
    with _LOCK:
        return _SEGMENTS.setdefault(segment.key, segment)
