"""Segments, which are parts of programs in a batching layout, and cuts, which consist of them."""

from __future__ import annotations

import sys
import threading
import weakref
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, FrozenSet, List, NamedTuple, Tuple

from mxnet import Context
from mxnet.gluon import Parameter

from ..modes import RECORDING
from ..native import lowering, planning
from ..record.types import TYPES
from ..rules.site import Ref
from ..trace.symbols import VARIABLE, Op

#: The layout of segments that read only parameters and shared arrays, see `once.py`.
ONCE = "once"
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

    def without_sizes(self) -> Port:
        """Return a port with the same number of axes, all of size 0."""
        return self._replace(row_size=0, shape=(0,) * len(self.shape))


class OpKey(NamedTuple):
    """What tells operators apart."""

    op: str
    #: Of a variable; empty for others.
    name: str
    attributes: Tuple[Tuple[str, str], ...]
    inputs: Tuple[Ref, ...]
    subgraphs: str
    #: Whether it is an operator of one sample, as in `Segment.own`.
    own: bool

    def without(self, names: FrozenSet[str]) -> OpKey:
        """Return a key without some attributes."""
        return self._replace(attributes=tuple(a for a in self.attributes if a[0] not in names))


class Key(NamedTuple):
    """What tells segments apart."""

    ops: Tuple[OpKey, ...]
    heads: Tuple[Ref, ...]
    inputs: Tuple[Port, ...]
    outputs: Tuple[Port, ...]
    #: What tells parameters apart: their identities, or for kernels their shapes and types.
    parameters: Tuple[Any, ...]
    layout: str
    mode: int
    context: Context
    own: Tuple[Tuple[Ref, OpKey, int], ...]


def _key_of(op: Op) -> OpKey:
    return OpKey(
        op=op.op,
        name=op.name if op.op == VARIABLE else "",
        attributes=tuple(sorted(op.attrs.items())),
        inputs=op.inputs,
        subgraphs=repr(op.extra.get("subgraphs")),
        own="own" in op.extra,
    )


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a program in its batching layout."""

    layout: str
    #: Why calls of this segment run one by one; empty if they merge.
    reason: str
    mode: int
    context: Context
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

    @cached_property
    def key(self) -> Key:
        """The key by which `intern` compares segments, which keeps it as long as the segment."""
        return Key(
            ops=tuple(map(_key_of, self.ops)),
            heads=self.heads,
            inputs=self.inputs,
            outputs=self.outputs,
            parameters=tuple(map(id, self.parameters)),
            layout=self.layout,
            mode=self.mode,
            context=self.context,
            own=tuple((ref, _key_of(op), out) for ref, op, out in self.own),
        )

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
        key, (ops, heads) = self.key, self.native
        sizeless = key._replace(
            ops=tuple(_key_of(op).without(SIZES | NUMBERS) for _, op in ops),
            heads=heads,
            inputs=tuple(port.without_sizes() for port in key.inputs),
            outputs=tuple(port.without_sizes() for port in key.outputs),
            own=(),
        )
        return sys.intern(repr(sizeless))

    @cached_property
    def brief(self) -> lowering.SegmentBrief:
        """What native code reads of a segment at each flush."""
        return lowering.SegmentBrief(
            *(self.parameters, self.context, self.family, self.layout == "unbatched"),
            shares=bool(self.shared),
            plain=all([type(parameter) is Parameter for parameter in self.parameters]),
            recorded=self.mode & RECORDING > 0,
        )

    @property
    def is_single(self) -> bool:
        """Whether launches have one unit, whose arrays have the shapes that its call gave them."""
        return self.layout in ("unbatched", ONCE)

    @cached_property
    def shared(self) -> Tuple[int, ...]:
        """The inputs that are one array for all members."""
        return tuple(p for p, port in enumerate(self.inputs) if port.shared)

    @cached_property
    def ports(self) -> Tuple[bytes, bytes]:
        """Inputs and outputs as tables, see `planning.port_table`."""
        inputs, outputs = (
            planning.port_table(side, [TYPES.kind_of(p.dtype, self.context) for p in side])
            for side in (self.inputs, self.outputs)
        )
        return inputs, outputs


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
    #: Whether a sum stays in a segment with terms of which other calls have other numbers: that
    #: takes fewer launches.
    whole: bool = False

    @cached_property
    def code(self) -> array[int]:
        """The cut as integers."""
        return lowering.code_of_cut(self)


def find_root(parent: Any, item: int) -> int:
    """Return the root of an item of a union-find structure, and shorten the path to it."""
    while parent[item] != item:
        parent[item] = item = parent[parent[item]]
    return item


#: The segments that are in use, by key.
_SEGMENTS: weakref.WeakValueDictionary[Key, Segment] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def intern(segment: Segment) -> Segment:
    """Return the segment in use that equals this one; this one, if there is none."""
    with _LOCK:
        return _SEGMENTS.setdefault(segment.key, segment)
