"""Segments, which are pieces of programs in a batching layout, and cuts, which consist of them."""

from __future__ import annotations

import sys
import threading
import weakref
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
from mxnet.gluon import Parameter

from ..record.types import TYPES
from ..trace.symbols import VARIABLE, Op, Ref

#: Marks an argument of the call in a `Source`.
ARGUMENT = -1

#: The origin of a term: an earlier segment of the call and its output, or `ARGUMENT` and the number
#: of an argument.
Source = Tuple[int, int]
Terms = Tuple[Source, ...]

#: Attributes of operators that may differ between the parts of a launch: sizes of arrays, and
#: numbers.
SIZES = frozenset(["shape", "begin", "end", "reps", "repeats", "size", "depth", "num_outputs"])
NUMBERS = frozenset(["scalar", "a_min", "a_max"])


class Port(NamedTuple):
    """An input or output of a segment."""

    #: Elements of one row of the merged array.
    row_size: int
    #: Shape of a row in layout "rows", else of the whole array of a sample.
    shape: Tuple[int, ...]
    dtype: str
    #: Inputs only: whether it is one array for all members.
    shared: bool = False
    #: Inputs only: whether a gradient can flow into it.
    differentiable: bool = True
    #: Inputs only: whether its terms are concatenated, not summed.
    concat: bool = False


def _key_of(op: Op) -> Tuple[Any, ...]:
    """Return what is equal of equal operators."""
    name = op.name if op.op == VARIABLE else ""
    attrs, own = tuple(sorted(op.attrs.items())), "own" in op.extra
    return op.op, name, attrs, op.inputs, repr(op.extra.get("subgraphs")), own


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
    #: Results that kernels compute by the operator of one sample, not by those that merge it: each
    #: with this operator, whose inputs are values of the segment, and the number of its output.
    own: Tuple[Tuple[Ref, Op, int], ...] = ()
    #: Per operator, the name of the one that the user called.
    called: Tuple[str, ...] = ()

    @property
    def key(self) -> Any:
        """The key by which `intern` compares segments."""
        own = tuple((ref, *_key_of(op), out) for ref, op, out in self.own)
        ops = tuple(map(_key_of, self.ops))
        parameters = tuple(map(id, self.parameters))
        ports = self.inputs, self.outputs
        return ops, self.heads, ports, parameters, self.layout, self.mode, self.context, own

    @cached_property
    def native(self) -> Tuple[Tuple[Tuple[str, Op], ...], Tuple[Ref, ...]]:
        """Operators as kernels see them, each with the name that the user called, and results.

        Those of one sample have ``{"own": True}`` as `extra`.
        """
        if not self.own:
            return tuple(zip(self.called or (op.op for op in self.ops), self.ops)), self.heads
        own = {ref: (op, out) for ref, op, out in self.own}
        ops: List[Tuple[str, Op]] = []
        #: Positions in `ops`, by that in `self.ops` or by identity of an operator of one sample.
        positions: Dict[Any, int] = {}

        def find(ref: Ref) -> Tuple[Any, Op, int]:
            if ref in own:
                op, out = own[ref]
                return id(op), op, out
            return ref[0], self.ops[ref[0]], ref[1]

        stack = list(reversed(self.heads))
        while stack:
            key, op, _ = find(stack[-1])
            missing = [r for r in op.inputs if find(r)[0] not in positions]
            if missing and key not in positions:
                stack += reversed(missing)
                continue
            stack.pop()
            if key not in positions:
                inputs = tuple((positions[k], out) for k, _, out in map(find, op.inputs))
                positions[key] = len(ops)
                name = op.op if key == id(op) else self.called[key]
                ops.append((name, op._replace(inputs=inputs)))
        heads = tuple((positions[key], out) for key, _, out in map(find, self.heads))
        return tuple(ops), heads

    @cached_property
    def family(self) -> str:
        """The key of all segments that are equal but for sizes and numbers."""
        _, _, ports, *rest, _ = self.key
        ops, heads = self.native
        sizeless_ops = [
            (*key[:2], [a for a in key[2] if a[0] not in SIZES | NUMBERS], *key[3:])
            for key in (_key_of(op) for _, op in ops)
        ]
        sizeless_ports = [[(len(p.shape), *p[2:]) for p in side] for side in ports]
        return sys.intern(repr((sizeless_ops, heads, sizeless_ports, *rest)))

    @cached_property
    def shared(self) -> Tuple[int, ...]:
        """The inputs that are one array for all members."""
        return tuple(p for p, port in enumerate(self.inputs) if port.shared)

    @cached_property
    def columns(self) -> Tuple[bytes, bytes]:
        """Inputs and outputs as integers, see `plan.plan.Ports`."""
        inputs, outputs = (
            [(p.row_size, TYPES.kind_of(p.dtype, self.context), *p[3:]) for p in side]
            for side in (self.inputs, self.outputs)
        )
        return np.array(inputs, np.int64).tobytes(), np.array(outputs, np.int64).tobytes()


@dataclass(frozen=True, eq=False)
class Cut:
    """The segments of a call, in topological order."""

    segments: Tuple[Segment, ...]
    #: Per segment and input, its terms.
    sources: Tuple[Tuple[Terms, ...], ...]
    #: Per result of the call: segment and output.
    heads: Tuple[Tuple[int, int], ...]
    #: Name of the callee, and number of arguments.
    name: str
    arguments: int
    #: Rows that a call adds to its launch; in layout "concat", also those of each argument.
    rows: int
    concat_rows: Tuple[int, ...]

    @cached_property
    def code(self) -> array[int]:
        """Uses of the segments, with what they read, as integers: see ``native/lowering.pyx``."""
        uses: List[int] = []
        sizes: List[int] = []
        terms: List[int] = []
        slot0 = list(accumulate((len(segment.outputs) for segment in self.segments), initial=0))
        for segment, sources in zip(self.segments, self.sources):
            rows = self.rows if segment.layout in ("rows", "concat") else 1
            uses += [rows, len(segment.outputs), len(sources)]
            sizes += [rows * port.row_size for port in segment.outputs]
            for port, port_terms in zip(segment.inputs, sources):
                term_rows = self.concat_rows if port.concat else repeat(1 if port.shared else rows)
                for (use, number), count in zip(port_terms, term_rows):
                    terms.append(-1 - number if use == ARGUMENT else slot0[use] + number)
                    terms.append(count * port.row_size)
        counts = [len(port_terms) for sources in self.sources for port_terms in sources]
        results = [slot0[use] + number for use, number in self.heads]
        head = [len(uses) // 3, len(sizes), len(counts), len(terms) // 2, len(results)]
        return array("q", [*head, self.arguments, *uses, *sizes, *counts, *terms, *results])


def find_root(parent: Any, item: int) -> int:
    """Return the root of an item of a union-find structure, and shorten the path to it."""
    while parent[item] != item:
        parent[item] = item = parent[parent[item]]
    return item


#: The segments that are in use, by key.
_SEGMENTS: weakref.WeakValueDictionary[Any, Segment] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def intern(segment: Segment) -> Segment:
    """Return the segment in use that equals this one; this one, if there is none."""
    with _LOCK:
        return _SEGMENTS.setdefault(segment.key, segment)
