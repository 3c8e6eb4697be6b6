"""The normal form of a segment: equal parts of programs become equal segments.

Operators are emitted depth first from the results, each as its rule merges it in the layout of the
segment.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from mxnet.gluon import Parameter

from .. import rules
from ..record.types import elements
from ..rules.site import Ref
from ..trace.symbols import VARIABLE, Op, SymbolBuilder
from ..trace.variant import Variant
from .segment import Port, Segment, Source


def concat_segment(variant: Variant) -> Segment:
    """Return the segment of a call in layout "concat": a copy of the concatenated arguments."""
    typed, builder = variant.typed, SymbolBuilder(f"{variant.typed.name}_")
    out = typed.out_array_types[0]
    size = elements(out.shape) // sum(variant.concat_rows)
    port = Port(size, (size,), out.dtype, concat=True)
    head = builder.add("_copy", [builder.variable("in0")])
    ports, ops = ((port,), (Port(size, (size,), out.dtype),)), tuple(builder.ops)
    return Segment("concat", "", typed.mode, typed.context, *ports, (), ops, (head,))


class OperandSum(NamedTuple):
    """A sum of several arrays that becomes an operand; none of these arrays is such a sum."""

    #: Values that the reading segment adds to the operand.
    local: Tuple[Ref, ...]
    #: The terms of the operand.
    terms: Tuple[Ref, ...]


class NormalForm:
    """Builds one segment of a call, in the layout of its variant or "unbatched"."""

    def __init__(
        self,
        variant: Variant,
        members: Set[int],
        layout: str,
        sums: Mapping[int, OperandSum],
        source_of: Mapping[Ref, Source],
    ):
        self._variant, self._typed, self._program = variant, variant.typed, variant.typed.program
        #: The operators of the segment, and the sums that are operands, by position in the program.
        self._members, self._sums, self._layout = members, sums, layout
        #: The origin of each argument, and of values that segments of the call compute for others.
        self._source_of = source_of
        #: Values of the program that are emitted, to values of the segment.
        self._emitted: Dict[Ref, Ref] = {}
        self._builder = SymbolBuilder(f"{self._typed.name}_")
        #: Positions of the variables that are inputs, to the numbers of the inputs.
        self._inputs: Dict[int, int] = {}
        self._ports: List[Port] = []
        #: As in `Segment`; names by position.
        self._own: List[Tuple[Ref, Op, int]] = []
        self._called: Dict[int, str] = {}
        self._parameters: List[Parameter] = []
        self.sources: List[Tuple[Source, ...]] = []

    def segment(self, results: Sequence[Ref], reason: str) -> Segment:
        """Return the segment with these results of the program."""
        outputs = [self._port(ref) for ref in results]
        heads = [self._value(ref) for ref in results]
        return Segment(
            self._layout,
            reason,
            self._typed.mode,
            self._typed.context,
            self._input_ports(heads),
            tuple(outputs),
            tuple(self._parameters),
            tuple(self._builder.ops),
            tuple(heads),
            tuple(self._own),
            tuple(self._called.get(i, op.op) for i, op in enumerate(self._builder.ops)),
        )

    def _input_ports(self, heads: Sequence[Ref]) -> Tuple[Port, ...]:
        """Return the ports of the inputs, differentiable if the gradients of `heads` reach them.

        MXNet refuses to compute the gradient of an array on which the indices of an embedding
        depend, or of a running statistic that is read as something else, too.
        """
        reached = self._gradient_paths(position for position, _ in heads)
        refused = self._gradient_paths(
            op.inputs[k][0]
            for op in self._builder.ops
            for rule in (rules.of(op.op),)
            for k in (rule.no_gradient if rule.refuses_gradient else ())
        )
        ports = list(self._ports)
        for position, number in self._inputs.items():
            if position not in reached or position in refused:
                ports[number] = ports[number]._replace(differentiable=False)
        return tuple(ports)

    def _gradient_paths(self, positions: Iterable[int]) -> Set[int]:
        """Return these operators, and all operators and variables that their gradients reach."""
        stack, reached = list(positions), set()
        while stack:
            position = stack.pop()
            if position not in reached:
                reached.add(position)
                op = self._builder.ops[position]
                no_gradient = rules.of(op.op).no_gradient
                stack += [r for k, (r, _) in enumerate(op.inputs) if k not in no_gradient]
        return reached

    def _port(self, ref: Ref, shared: bool = False) -> Port:
        shape, dtype = self._typed.shapes[ref], self._typed.dtypes[ref]
        port_shape = shape[1:] if self._layout == "rows" and not shared else shape
        return Port(elements(port_shape), port_shape, dtype, shared)

    def _value(self, result: Ref) -> Ref:
        """Emit a value and all that it depends on; iterative, because programs can be deep."""
        stack = [result]
        while stack:
            ref = stack.pop()
            if ref not in self._emitted:
                emit, needs = self._emitter(ref)
                missing = [r for r in needs if r not in self._emitted]
                if missing:
                    stack += [ref, *reversed(missing)]
                else:
                    emit(ref)
        return self._emitted[result]

    def _emitter(self, ref: Ref) -> Tuple[Callable[[Ref], None], Sequence[Ref]]:
        """Return the method that emits a value, and the values to be emitted before it."""
        position = ref[0]
        op, is_batched = self._program.ops[position], self._variant.batched[position]
        elsewhere = is_batched or ref in self._source_of
        if position in self._program.argument_at or position not in self._members and elsewhere:
            return self._input, ()
        if op.op == VARIABLE:
            return self._parameter, ()
        if position in self._sums:
            return self._sum, self._sums[position].local
        return self._operator, op.inputs

    def _input(self, ref: Ref) -> None:
        port = self._port(ref, shared=not self._variant.batched[ref[0]])
        value = self._builder.variable(f"in{len(self._ports)}")
        self._inputs[value[0]] = len(self._ports)
        self._ports.append(port)
        terms = self._sums[ref[0]].terms if ref[0] in self._sums else (ref,)
        self.sources.append(tuple(self._source_of[term] for term in terms))
        self._emitted[ref] = value

    def _sum(self, ref: Ref) -> None:
        """Emit the operand of a sum, and add its local values."""
        self._input(ref)
        for local in self._sums[ref[0]].local:
            inputs = [self._emitted[ref], self._emitted[local]]
            self._emitted[ref] = self._builder.add("elemwise_add", inputs)

    def _parameter(self, ref: Ref) -> None:
        self._emitted[ref] = self._builder.variable(f"param{len(self._parameters)}")
        self._parameters.append(self._program.parameters[ref[0]])

    def _operator(self, ref: Ref) -> None:
        position = ref[0]
        op = self._program.ops[position]
        inputs = [self._emitted[r] for r in op.inputs]
        if self._layout == "unbatched" or not self._variant.batched[position]:
            emitted = self._builder.add(op.op, inputs, op.attrs, op.extra)[0]
            outputs = tuple((emitted, out) for _, out in self._program.outputs[position])
        else:
            site, start = self._variant.sites[position], len(self._builder.ops)
            outputs = rules.merge(site, self._layout == "stack", inputs, self._builder.add)
            added = range(start, len(self._builder.ops))
            self._called.update(dict.fromkeys(added, site.op))
            if self._layout == "stack" and rules.of(site.op).own:
                own = op._replace(inputs=tuple(inputs), extra={"own": True})
                self._own += ((ref, own, out) for out, ref in enumerate(outputs))
        self._emitted.update(zip(self._program.outputs[position], outputs))
