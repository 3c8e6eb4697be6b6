"""The normal form of a segment: equal pieces of programs come out as equal segments.

Operators are emitted depth first from the results, each as its rule merges it in the layout of the
segment.
"""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
)

from mxnet.gluon import Parameter

from .. import rules
from ..modes import FLOATS
from ..record.types import elements
from ..trace.symbols import VARIABLE, Builder, Ref
from ..trace.variant import Variant
from .segment import ARGUMENT, Port, Segment, Source

#: Operators whose gradient is the gradient of their result, unchanged, perhaps with another shape.
HANDS_THROUGH = frozenset(
    ["elemwise_add", "_grad_add", "add_n", "Reshape", "Flatten", "expand_dims"]
)

#: Operators for whose indices, or running statistics, MXNet refuses to find a gradient.
REFUSED = frozenset(["Embedding", "BatchNorm"])


def concat_segment(variant: Variant) -> Segment:
    """Return the segment of a call in layout "concat": its input, in which arrays lie end to end.

    Who reads the input sees to the order.
    """
    entry, builder = variant.entry, Builder(f"{variant.entry.name}_")
    out = entry.out_array_types[0]
    size = elements(out.shape) // sum(variant.concat_rows)
    port = Port(size, (size,), out.dtype, differentiable=out.dtype in FLOATS, concat=True)
    result = builder.add("_copy", [builder.variable("in0")])
    outputs = (Port(size, (size,), out.dtype),)
    ops = tuple(builder.ops)
    return Segment(
        variant.layout, "", entry.mode, entry.context, (port,), outputs, (), ops, (result,)
    )


class Sum(NamedTuple):
    """A sum of several arrays whose terms, none of which is such a sum, are gathered.

    Others are added by the segment that reads the sum; without any, it reads one operand.
    """

    others: Tuple[Ref, ...]
    terms: Tuple[Ref, ...]


class NormalForm:
    """Builds one segment of a call, in the layout of its variant or "unbatched"."""

    def __init__(
        self,
        variant: Variant,
        members: Set[int],
        layout: str,
        sums: Mapping[int, Sum],
        place: Mapping[Ref, Source],
    ):
        self._variant = variant
        self._entry = variant.entry
        self._program = variant.entry.program
        #: The operators of the segment.
        self._members = members
        self._layout = layout
        #: Sums that are operands; segment and output of what others make.
        self._sums = sums
        self._place = place
        #: Where values of the program are found in the segment.
        self._done: Dict[Ref, Ref] = {}
        self._builder = Builder(f"{self._entry.name}_")
        #: Variables that read inputs, by position; what is read in the place of some values.
        self._inputs: Dict[int, int] = {}
        self._copies: Dict[Ref, Ref] = {}
        self._ports: List[Port] = []
        self._parameters: List[Parameter] = []
        self.sources: List[Tuple[Source, ...]] = []

    def segment(self, results: Iterable[Ref], reason: str) -> Segment:
        """Return the segment with these results of the program."""
        outputs, heads = [], []
        for ref in results:
            outputs.append(self._port(ref))
            heads.append(self._result(ref, outputs[-1]))
        return Segment(
            self._layout,
            reason,
            self._entry.mode,
            self._entry.context,
            self._with_gradients(heads),
            tuple(outputs),
            tuple(self._parameters),
            tuple(self._builder.ops),
            tuple(heads),
        )

    def _result(self, wanted: Ref, port: Port) -> Ref:
        ref = self._readable(self._value(wanted))
        if not self._is_flat(port):
            # Results are written into an arena, whose rows have one axis.
            ref = self._reshape(ref, (-1, port.row_size))
        return self._add("_copy", [ref]) if self._hands_through(ref) else ref

    def _with_gradients(self, heads: Sequence[Ref]) -> Tuple[Port, ...]:
        """Return the ports; a gradient flows into what results depend on, and is no index.

        MXNet refuses to be asked for the gradient of what is embedded, however far back it is, and
        of what is a running statistic as well as something else.
        """
        reached = self._behind(row for row, _ in heads)
        refused = self._behind(
            op.inputs[k][0]
            for op in self._builder.ops
            for k in (rules.of(op.op).no_gradient if op.op in REFUSED else ())
        )
        ports = list(self._ports)
        for row, number in self._inputs.items():
            if row not in reached or row in refused:
                ports[number] = ports[number]._replace(differentiable=False)
        return tuple(ports)

    def _behind(self, rows: Iterable[int]) -> Set[int]:
        """Return all that gradients of these operators reach."""
        stack, reached = list(rows), set()
        while stack:
            row = stack.pop()
            if row not in reached:
                reached.add(row)
                op = self._builder.ops[row]
                fixed = rules.of(op.op).no_gradient
                stack += [r for k, (r, _) in enumerate(op.inputs) if k not in fixed]
        return reached

    def _hands_through(self, ref: Ref) -> bool:
        """Whether the gradient of `ref` is, as it is, the gradient of a variable too.

        MXNet then makes the head gradient itself the variable's gradient, and never writes the
        buffer that the variable was given.
        """
        stack = [ref[0]]
        while stack:
            op = self._builder.ops[stack.pop()]
            if op.op == VARIABLE:
                return True
            if op.op in HANDS_THROUGH:
                stack.extend(row for row, _ in op.inputs)
        return False

    def _is_flat(self, port: Port) -> bool:
        """Whether the array has the two axes of arena rows."""
        return self._layout != "unbatched" and len(port.shape) == 1

    def _port(self, ref: Ref, shared: bool = False) -> Port:
        shape, dtype = self._entry.shapes[ref], self._entry.dtypes[ref]
        kept = shape[1:] if self._layout == "rows" and not shared else shape
        return Port(elements(kept), kept, dtype, shared)

    def _value(self, wanted: Ref) -> Ref:
        """Emit what `wanted` needs; iterative, because programs can be deep."""
        stack = [wanted]
        while stack:
            ref = stack.pop()
            if ref not in self._done:
                emit, needs = self._rule(ref)
                missing = [r for r in needs if r not in self._done]
                if missing:
                    stack += [ref, *reversed(missing)]
                else:
                    emit(ref)
        return self._done[wanted]

    def _rule(self, ref: Ref) -> Tuple[Callable[[Ref], None], Sequence[Ref]]:
        """Return what emits a value, and the values that have to be emitted before."""
        op = self._program.ops[ref[0]]
        if self._is_input(ref):
            return self._input, ()
        if op.op == VARIABLE:
            return self._parameter, ()
        if ref[0] in self._sums:
            return self._sum, self._sums[ref[0]].others
        return self._operator, op.inputs

    def _is_input(self, ref: Ref) -> bool:
        row = ref[0]
        if row in self._program.argument_at:
            return True
        return row not in self._members and self._variant.batched[row]

    def _source(self, ref: Ref) -> Source:
        argument = self._program.argument_at.get(ref[0])
        return self._place[ref] if argument is None else (ARGUMENT, argument)

    def _input(self, ref: Ref) -> None:
        port = self._port(ref, shared=not self._variant.batched[ref[0]])
        made = self._builder.variable(f"in{len(self._ports)}")
        self._inputs[made[0]] = len(self._ports)
        self._ports.append(port._replace(differentiable=port.dtype in FLOATS))
        terms = self._sums[ref[0]].terms if ref[0] in self._sums else (ref,)
        self.sources.append(tuple(map(self._source, terms)))
        # What is unbatched is given arrays in their own shapes.
        if not (port.shared or self._layout == "unbatched" or self._is_flat(port)):
            made = self._reshape(made, (-1, *port.shape))
        self._done[ref] = made

    def _sum(self, ref: Ref) -> None:
        """Add what is computed here to the operand of all other terms."""
        self._input(ref)
        for other in self._sums[ref[0]].others:
            self._done[ref] = self._add("elemwise_add", [self._done[ref], self._done[other]])

    def _parameter(self, ref: Ref) -> None:
        self._done[ref] = self._builder.variable(f"param{len(self._parameters)}")
        self._parameters.append(self._program.parameters[ref[0]])

    def _add(
        self,
        op: str,
        inputs: Iterable[Ref],
        attrs: Mapping[str, str] = {},
        extra: Mapping[str, Any] = {},
    ) -> Ref:
        inputs = [self._guarded(op, self._readable(ref)) for ref in inputs]
        return self._builder.add(op, inputs, attrs, extra)

    def _guarded(self, op: str, ref: Ref) -> Ref:
        """Return a copy of a variable whose gradients `op` could not add up."""
        number = self._inputs.get(ref[0])
        read_by_all = number is None or self._ports[number].shared
        if self._builder.ops[ref[0]].op != VARIABLE or not read_by_all:
            return ref
        if op == "_copy" or rules.of(op).adds_up or rules.of(op).writes:
            return ref
        if ref not in self._copies:
            self._copies[ref] = self._add("_copy", [ref])
        return self._copies[ref]

    def _reshape(self, ref: Ref, shape: Tuple[int, ...]) -> Ref:
        return self._add("Reshape", [ref], {"shape": str(shape)})

    def _operator(self, ref: Ref) -> None:
        row = ref[0]
        op = self._program.ops[row]
        inputs = [self._done[r] for r in op.inputs]
        if self._layout == "unbatched" or not self._variant.batched[row]:
            made = self._add(op.op, inputs, op.attrs, op.extra)[0]
            outputs = tuple((made, out) for _, out in self._program.outputs[row])
        else:
            site = self._variant.sites[row]
            outputs = rules.merge(site, self._layout == "stack", inputs, self._add)
        self._done.update(zip(self._program.outputs[row], outputs))

    def _readable(self, ref: Ref) -> Ref:
        """Return a value; if its operator needs the first result in memory, read that one too."""
        row, number = ref
        if not number or not rules.of(self._builder.ops[row].op).reads_first_result:
            return ref
        if ref not in self._copies:
            nothing = self._builder.add("_mul_scalar", [(row, 0)], {"scalar": "0"})
            self._copies[ref] = self._builder.add("elemwise_add", [ref, nothing])
        return self._copies[ref]
