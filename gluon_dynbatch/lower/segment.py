"""Segments: pieces of programs in a batching layout, in a normal form.

Equal segments are one object, whichever call they come from.  Equality is that of the normal form:
operators in depth-first order from the results, with attributes, wiring, parameters, types, mode.
"""

from __future__ import annotations

import threading
import weakref
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from .. import rules
from ..modes import FLOATS, RECORDING
from ..record.types import elements
from ..trace.entry import Variant
from ..trace.program import VARIABLE, Ref, Shape, symbol_node

#: Operators whose gradient is the gradient of their result, unchanged, perhaps with another shape.
HANDS_THROUGH = frozenset(
    ["elemwise_add", "_grad_add", "add_n", "Reshape", "Flatten", "expand_dims"]
)


#: Where a segment's input comes from: ("in", argument, 0) or ("seg", segment, output).
Source = Tuple[str, int, int]


class Port(NamedTuple):
    """An input or output of a segment."""

    #: Elements of one row of the merged array.
    unit: int
    #: Shape of a row (layout "rows") or of the whole array of a sample.
    shape: Shape
    dtype: str
    #: Inputs only: one array for all members.
    shared: bool = False
    #: Inputs only: whether a gradient can flow into it.
    differentiable: bool = True
    #: Inputs only: its sources are not summed but stand one after another.
    joined: bool = False


class ParameterRows(NamedTuple):
    """Consecutive rows of a parameter, as an argument of an operator."""

    parameter: Parameter
    start: int
    stop: int

    @property
    def grad_req(self) -> str:
        """What happens to gradients of the parameter."""
        return self.parameter.grad_req  # type: ignore[no-any-return]

    def data(self, context: Any) -> NDArray:
        """Return the rows, in place."""
        return self.parameter.data(context)._slice(self.start, self.stop)


class Segment:
    """A piece of a program in its batching layout; equal pieces are one object."""

    __slots__ = (
        "layout",
        "inputs",
        "outputs",
        "nodes",
        "heads",
        "arguments",
        "parameters",
        "mode",
        "context",
        "reason",
        "spares_rows",
        "compiled",
        "__weakref__",
    )

    def __init__(self, normal: NormalForm, variant: Variant, layout: str, reason: str):
        self.layout = layout
        self.inputs: Tuple[Port, ...] = tuple(normal.ports)
        self.outputs: Tuple[Port, ...] = tuple(normal.outputs)
        self.nodes = normal.nodes
        self.heads = normal.heads
        #: Per variable node of the symbol: ("in", input) or ("param", parameter).
        self.arguments: Tuple[Tuple[str, int], ...] = tuple(normal.arguments)
        self.parameters: Tuple[Union[Parameter, ParameterRows], ...] = tuple(normal.parameters)
        self.mode = variant.entry.mode
        self.context = variant.entry.context
        #: Why calls of this segment run alone; empty if they merge.
        self.reason = reason
        operators = {node["op"] for node in self.nodes} - {VARIABLE}
        #: Whether a launch may have more rows than it needs, and does better with round numbers.
        self.spares_rows = (
            layout in ("rows", "stack")
            and not self.mode & RECORDING
            and not operators.isdisjoint(rules.BUILT_PER_SHAPE)
            and operators <= rules.SPARES_ROWS
        )
        #: The executable, once it was needed.
        self.compiled: Any = None


class SegmentUse(NamedTuple):
    """A segment in its place within a call."""

    segment: Segment
    #: Per input its sources; several are summed or joined.
    sources: Tuple[Tuple[Source, ...], ...]


class Cut(NamedTuple):
    """A call as segments in topological order."""

    uses: Tuple[SegmentUse, ...]
    #: Per result of the call: segment and output.
    heads: Tuple[Tuple[int, int], ...]


class SegmentTable:
    """Keeps one object per normal form for as long as some cut uses it."""

    def __init__(self) -> None:
        self._segments: weakref.WeakValueDictionary[Any, Segment] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def intern(self, normal: NormalForm, variant: Variant, layout: str, reason: str) -> Segment:
        """Return the segment with this normal form."""
        key = normal.key(variant, layout)
        with self._lock:
            found = self._segments.get(key)
            if found is None:
                found = self._segments[key] = Segment(normal, variant, layout, reason)
        return found


class NormalForm:
    """Builds a segment depth first from its results, so that equal segments come out equal."""

    def __init__(
        self,
        variant: Variant,
        members: Set[int],
        layout: str,
        sums: Mapping[int, Tuple[Ref, ...]],
        place: Dict[Ref, Source],
    ):
        self._variant = variant
        self._program = variant.entry.program
        self._members = members
        self._layout = layout
        self._sums = sums
        self._place = place
        self._done: Dict[Ref, Ref] = {}
        self._inputs: Dict[Any, Ref] = {}
        self.nodes: List[Dict[str, Any]] = []
        self.heads: List[Ref] = []
        #: What variable nodes stand for, and copies of them, by number of the node.
        self._variables: Dict[int, Tuple[str, int]] = {}
        self._copies: Dict[int, int] = {}
        self.arguments: List[Tuple[str, int]] = []
        self.ports: List[Port] = []
        self.sources: List[Tuple[Source, ...]] = []
        self.outputs: List[Port] = []
        self.parameters: List[Union[Parameter, ParameterRows]] = []
        self._split_products = _split_products(variant, members) if layout == "rows" else {}

    def key(self, variant: Variant, layout: str) -> Any:
        """Return what equal segments have in common."""
        nodes = tuple(
            (
                n["op"],
                tuple(sorted(n.get("attrs", {}).items())),
                tuple(map(tuple, n["inputs"])),
                repr(n.get("subgraphs")),
            )
            for n in self.nodes
        )
        entry = variant.entry
        return (
            nodes,
            tuple(self.heads),
            tuple(self.arguments),
            tuple(self.ports),
            tuple(self.outputs),
            tuple(
                (id(p.parameter), *p[1:]) if isinstance(p, ParameterRows) else id(p)
                for p in self.parameters
            ),
            layout,
            entry.mode,
            entry.context,
        )

    def join(self) -> None:
        """Put all arguments end to end: the segment of a call in layout "join"."""
        out = self._variant.entry.out_array_types[0]
        size = elements(out.shape) // sum(self._variant.joined)
        port = Port(size, (size,), out.dtype, differentiable=out.dtype in FLOATS)
        self.ports.append(port._replace(joined=True))
        self.sources.append(tuple(("in", i, 0) for i in range(len(self._variant.joined))))
        self.outputs.append(port._replace(differentiable=True))
        self.heads.append((self._node("_copy", {}, [self._variable("in", 0)]), 0))

    def result(self, ref: Ref) -> None:
        """Make a value of the program a result of the segment."""
        shape, dtype = self._variant.entry.shapes[ref], self._variant.entry.dtypes[ref]
        port = self._port(shape, dtype)
        self.outputs.append(port)
        made = self._value(ref)
        if not self._is_flat(port):
            # Results are written into an arena, whose rows have one axis.
            made = self._reshape(made, (-1, port.unit))
        if self._hands_through(made):
            made = (self._node("_copy", {}, [made]), 0)
        self.heads.append(made)

    def finish(self) -> None:
        """Note which inputs no result depends on as far as gradients go; after all results."""
        stack, reached = [row for row, _ in self.heads], set()
        while stack:
            row = stack.pop()
            if row not in reached:
                reached.add(row)
                node = self.nodes[row]
                fixed = rules.nondifferentiable_inputs(node["op"])
                stack += [r for k, (r, _, _) in enumerate(node["inputs"]) if k not in fixed]
        for row, (kind, number) in self._variables.items():
            if kind == "in" and row not in reached:
                self.ports[number] = self.ports[number]._replace(differentiable=False)

    def _hands_through(self, ref: Ref) -> bool:
        """Whether the gradient of `ref` is, as it is, the gradient of a variable too.

        MXNet then makes the head gradient itself the variable's gradient, and never writes the
        buffer that the variable was given.
        """
        stack = [ref]
        while stack:
            row, _ = stack.pop()
            node = self.nodes[row]
            if node["op"] == VARIABLE:
                return True
            if node["op"] in HANDS_THROUGH:
                stack.extend((r, o) for r, o, _ in node["inputs"])
        return False

    def _is_flat(self, port: Port) -> bool:
        """Whether the array has the two axes of arena rows."""
        return self._layout != "alone" and len(port.shape) == 1

    def _port(self, shape: Shape, dtype: str, **more: Any) -> Port:
        kept = shape[1:] if self._layout == "rows" else shape
        return Port(elements(kept), kept, dtype, **more)

    def _value(self, wanted: Ref) -> Ref:
        """Emit what `wanted` needs; iterative, because programs can be deep."""
        stack = [wanted]
        while stack:
            ref = stack[-1]
            if ref in self._done:
                stack.pop()
                continue
            row, _ = ref
            node = self._program.rows[row]
            if self._is_input(ref):
                self._done[ref] = self._input(ref)
            elif node.op == VARIABLE:
                self._done[ref] = self._parameter(row)
            elif row in self._split_products:
                product = self._split_products[row]
                data = self._program.rows[product].inputs[0]
                if data not in self._done:
                    stack.append(data)
                    continue
                self._done[ref] = self._product_part(product, ref)
            else:
                missing = [r for r in node.inputs if r not in self._done]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                self._operator(row)
            stack.pop()
        return self._done[wanted]

    def _is_input(self, ref: Ref) -> bool:
        row = ref[0]
        if row in self._program.argument_at:
            return True
        return row not in self._members and self._variant.batched[row]

    def _source(self, ref: Ref) -> Source:
        argument = self._program.argument_at.get(ref[0])
        return self._place[ref] if argument is None else ("in", argument, 0)

    def _input(self, ref: Ref) -> Ref:
        sources = tuple(self._source(r) for r in self._sums.get(ref[0], (ref,)))
        shape, dtype = self._variant.entry.shapes[ref], self._variant.entry.dtypes[ref]
        shared = not self._variant.batched[ref[0]]
        if shared:
            port = Port(elements(shape), shape, dtype, shared=True)
        else:
            port = self._port(shape, dtype)
        number = len(self.ports)
        flows = dtype in FLOATS and ref not in self._variant.entry.embedded
        self.ports.append(port._replace(differentiable=flows))
        self.sources.append(sources)
        made = self._variable("in", number)
        if shared or self._is_flat(port):
            return made
        return self._reshape(made, port.shape if self._layout == "alone" else (-1,) + port.shape)

    def _variable(self, kind: str, number: int) -> Ref:
        self.arguments.append((kind, number))
        self._variables[len(self.nodes)] = (kind, number)
        self.nodes.append({"op": VARIABLE, "name": f"{kind}{number}", "inputs": []})
        return (len(self.nodes) - 1, 0)

    def _parameter(self, row: int) -> Ref:
        self.parameters.append(self._program.parameters[row])
        return self._variable("param", len(self.parameters) - 1)

    def _product_part(self, product: int, ref: Ref) -> Ref:
        """Emit one part of a product that is split: the product with some rows of its weight."""
        row = self._program.rows[product]
        size = self._variant.entry.shapes[ref][-1]
        inputs = [self._done[row.inputs[0]]]
        for argument, _ in row.inputs[1:]:
            whole = self._program.parameters[argument]
            self.parameters.append(ParameterRows(whole, size * ref[1], size * (ref[1] + 1)))
            inputs.append(self._variable("param", len(self.parameters) - 1))
        attrs = {**rules.public_attrs(row.attrs), "num_hidden": str(size)}
        return (self._node(row.op, attrs, inputs), 0)

    def _node(
        self, op: str, attrs: Any, inputs: Sequence[Ref], extra: Optional[Dict[str, Any]] = None
    ) -> int:
        inputs = [self._guarded(op, ref) for ref in inputs]
        number = len(self.nodes)
        name = f"{self._variant.entry.name}_{op}{number}"
        self.nodes.append(symbol_node(op, name, attrs, inputs, extra))
        return number

    def _guarded(self, op: str, ref: Ref) -> Ref:
        """Return a copy of a variable whose gradients `op` could not add up."""
        kind, number = self._variables.get(ref[0], ("", 0))
        added = kind == "param" or (kind == "in" and self.ports[number].shared)
        if not added or op == "_copy" or rules.adds_up(op) or rules.mutates(op):
            return ref
        if ref[0] not in self._copies:
            self._copies[ref[0]] = self._node("_copy", {}, [ref])
        return (self._copies[ref[0]], 0)

    def _reshape(self, ref: Ref, shape: Shape) -> Ref:
        return (self._node("Reshape", {"shape": str(tuple(shape))}, [ref]), 0)

    def _operator(self, row: int) -> None:
        node = self._program.rows[row]
        inputs = [self._done[r] for r in node.inputs]
        rewrite = self._variant.rewrites.get(row) if self._layout != "alone" else None
        if rewrite is None or not self._variant.batched[row]:
            number = self._node(node.op, node.attrs, inputs, node.extra)
            for ref in self._program.outputs[row]:
                self._done[ref] = self._result_of(number, ref[1])
            return
        made: List[List[Ref]] = []
        for step in rewrite.steps:
            refs = [inputs[k] if s == rules.INPUT else made[s][k] for s, k in step.inputs]
            made.append(self._step(step, refs, row))
        for out, (s, k) in enumerate(rewrite.outputs):
            self._done[(row, out)] = inputs[k] if s == rules.INPUT else made[s][k]

    def _result_of(self, number: int, output: int) -> Ref:
        """Return a result of a node; if it needs the first one in memory, this one is read too."""
        if not output or self.nodes[number]["op"] not in rules.READS_FIRST_RESULT:
            return (number, output)
        nothing = self._node("_mul_scalar", {"scalar": "0"}, [(number, 0)])
        return (self._node("elemwise_add", {}, [(number, output), (nothing, 0)]), 0)

    def _step(self, step: rules.Step, refs: List[Ref], row: int) -> List[Ref]:
        """Emit one step, by the faster of two kernels where there are two."""
        size = None
        if step.op == "SliceChannel" and self._program.rows[row].op == "SliceChannel":
            # Whatever the layout, the axis that is split keeps its size: it is never the batch's.
            shape = self._variant.entry.shapes[self._program.rows[row].inputs[0]]
            axis = int(self._program.rows[row].attrs.get("axis", "1"))
            size = shape[axis]
        floating = self._variant.entry.dtypes.get((row, 0)) in FLOATS
        replaced = rules.faster(step, size, floating)
        if replaced is None:
            number = self._node(step.op, step.attrs, refs)
            if step.op in rules.READS_FIRST_RESULT:
                return [(number, 0), self._result_of(number, 1)]
            # More outputs than any operator has; only those that exist are ever asked for.
            return [(number, k) for k in range(max(2, int(step.attrs.get("num_outputs", "1"))) + 8)]
        numbers: List[int] = []
        for part in replaced.steps:
            inputs = [refs[k] if s == rules.INPUT else (numbers[s], k) for s, k in part.inputs]
            numbers.append(self._node(part.op, part.attrs, inputs))
        return [(numbers[s], k) for s, k in replaced.outputs]


def _split_products(variant: Variant, members: Set[int]) -> Dict[int, int]:
    """Find products with parameters of which nothing but equal parts of the columns is used.

    Each part is then a product with some rows of the weight: nothing is split, what is not used is
    not computed, and each result is written where it belongs.

    Returns
    -------
    dict
        Program row of the product, by that of the split.
    """
    program, found = variant.entry.program, {}
    for number in members:
        split = program.rows[number]
        if split.op != "SliceChannel" or not variant.batched[number]:
            continue
        product, _ = split.inputs[0]
        row, shape = program.rows[product], variant.entry.shapes[split.inputs[0]]
        axis, parts = int(split.attrs.get("axis", "1")), int(split.attrs["num_outputs"])
        if (
            row.op == "FullyConnected"
            and product in members
            and variant.batched[product]
            and all(argument in program.parameters for argument, _ in row.inputs[1:])
            and len(shape) == 2
            and axis in (1, -1)
            and shape[1] // parts > 0
            and split.attrs.get("squeeze_axis", "False") in ("False", "0")
            and all(r != product for r, _ in program.heads)
            and program.reads[product] == 1
        ):
            found[number] = product
    return found
