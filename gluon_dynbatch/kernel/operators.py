"""What MXNet's operators are as expressions: a segment in, its results per row out.

Each operator has a handler, which is given a `Call` and returns a node per result, or nothing if
the result has the elements of the first input as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet.base import MXNetError

from ..lower.segment import ParameterRows, Segment
from ..modes import TRAINING
from ..rules.axes import reduced_axes
from ..rules.site import RefuseError, Site
from ..trace.symbols import VARIABLE, Ref, make_symbol
from . import columns
from .columns import NotExpressed, Shape, require
from .expression import PRODUCT, Expressions, Node, Slot, Weight

#: Element types that kernels know.
DTYPES = ("float32", "float64")
#: Numbers of rows for which shapes are inferred.
ROWS = (1009, 1013)


@dataclass(frozen=True)
class Expressed:
    """What a segment computes for each row of a launch."""

    expressions: Expressions
    #: Per head of the segment, as wide as the rows of its output.
    results: Tuple[Node, ...]
    #: What gradients are wanted of.
    differentiable: FrozenSet[Slot]


class Value(NamedTuple):
    """A value within a segment."""

    #: What it is; None for a variable, which is read only if some function does so.
    node: Optional[Node]
    #: The variable whose elements these are, as they are.
    slot: Optional[Slot]
    dtype: str
    #: Axis 0 is counted per row of the launch.
    shape: Shape
    #: Whether each row of a launch has its own; else all rows share it.
    rows: bool
    #: Whether there is only one reader.
    once: bool


@dataclass(frozen=True)
class Call:
    """One operator of a segment."""

    site: Site
    build: Expressions
    values: Tuple[Value, ...]
    training: bool

    @property
    def out(self) -> Shape:
        """Shape of the first result."""
        return self.site.outputs[0]

    def node(self, number: int = 0) -> Node:
        """Return an input, as it is."""
        value = self.values[number]
        require(value.dtype in DTYPES, f"{value.dtype} has no kernels")
        if value.node is not None:
            return value.node
        assert value.slot is not None
        width = prod(value.shape)
        return self.build.read(value.slot, width, value.dtype, every=not value.rows)

    def wide(self, number: int = 0) -> Node:
        """Return an input, broadcast to the shape of the first result."""
        return columns.broadcast(self.node(number), self.values[number].shape, self.out)

    def matrix(self, number: int) -> Slot:
        """Return a variable that all rows share."""
        value = self.values[number]
        require(value.slot is not None and not value.rows, "a factor is computed")
        require(value.dtype == self.values[0].dtype, "dtypes differ")
        assert value.slot is not None
        return value.slot

    def number(self, name: str, default: float = 1, single: bool = True) -> float:
        """Read a number, which MXNet keeps in single precision."""
        text = self.site.attrs.get(name, "None")
        value = default if text == "None" else float(text)
        return float(np.float32(value)) if single else value

    def const(self, value: float) -> Node:
        """Return the same number in all elements of the first result."""
        return self.build.const(value, prod(self.out), self.values[0].dtype)


#: Returns results; None if the result has the elements of the first input.
Handler = Callable[[Call], Optional[Sequence[Node]]]


# Functions of one element and its partners.


def pointwise(name: str, *numbers: Tuple[str, float]) -> Handler:
    """Return the handler of a function; `numbers` are attributes with their defaults."""

    def handler(call: Call) -> Sequence[Node]:
        values = tuple(call.number(*number) for number in numbers)
        inputs = [call.wide(k) for k in range(len(call.values))]
        return [call.build.function(name, *inputs, values=values)]

    return handler


def with_number(name: str, swapped: bool = False) -> Handler:
    """Return the handler of a function of an array and a number."""

    def handler(call: Call) -> Sequence[Node]:
        x, number = call.node(), call.number("scalar", single=False)
        if name == "power" and number == 2 and not swapped:
            return [call.build.function("square", x)]
        pair = (number, x) if swapped else (x, number)
        return [call.build.function(name, *pair)]

    return handler


def add(call: Call) -> Sequence[Node]:
    """Add arrays; products that nobody else reads become one."""
    build, products, others = call.build, [], []
    for k, value in enumerate(call.values):
        node = call.wide(k)
        (products if value.once and node.kind == PRODUCT else others).append(node)
    if len({product.attrs[0][0].units for product in products}) > 1:
        products, others = [], products + others
    if products:
        terms = [pair for p in products for pair in zip(p.args, p.attrs[0])]
        others.insert(0, build.product(terms, [bias for p in products for bias in p.attrs[1]]))
    total, *rest = others
    for one in rest:
        total = total + one
    return [total]


def activation(call: Call) -> Sequence[Node]:
    return [call.build.function(call.site.attrs["act_type"], call.node())]


def leaky_relu(call: Call) -> Sequence[Node]:
    build, x, kind = call.build, call.node(), call.site.attrs.get("act_type", "leaky")
    if kind == "gelu":
        return [build.function("gelu", x)]
    # MXNet's gradient of "selu" is not its derivative.
    slope = call.number("slope", 0.25)
    require(kind in ("leaky", "elu") and slope >= 0, f"not for {kind} with this slope")
    below = x if kind == "leaky" else build.function("expm1", x)
    return [build.function("select", build.function("greater", x, 0), x, below * slope)]


def cast(call: Call) -> Optional[Sequence[Node]]:
    dtype = call.site.attrs["dtype"]
    require(dtype in DTYPES, f"{dtype} has no kernels")
    return None if dtype == call.values[0].dtype else [call.build.cast(call.node(), dtype)]


def quadratic(call: Call) -> Sequence[Node]:
    a, b, c = (call.number(name, 0) for name in "abc")
    return [(call.node() * a + b) * call.node() + c]


def blocked(call: Call) -> Sequence[Node]:
    return [call.build.function("multiplier", call.node(), values=(0,))]


def multiplier(call: Call) -> Sequence[Node]:
    factor = call.number("scalar", single=False)
    return [call.build.function("multiplier", call.node(), values=(factor,))]


def filled(value: float) -> Handler:
    """Return the handler of an operator that fills an array with a number."""
    return lambda call: [call.const(value)]


def where(call: Call) -> Sequence[Node]:
    shape = call.values[0].shape
    shape += (1,) * (len(call.out) - len(shape))
    condition = columns.broadcast(call.node(), shape, call.out)
    return [call.build.function("select", condition, call.node(1), call.node(2))]


def dropout(call: Call) -> None:
    require(not call.training and call.site.attrs.get("mode") != "always", "it draws")


# Columns that move.


def unchanged(call: Call) -> None:
    """Leave all elements where they are, in another shape."""


def transpose(call: Call) -> None:
    ndim = len(call.site.inputs[0])
    if call.site.op == "SwapAxis":
        order = list(range(ndim))
        one, other = (call.site.axis(name, 0) for name in ("dim1", "dim2"))
        order[one], order[other] = other, one
    else:
        order = list(call.site.axes("axes") or range(ndim)[::-1])
    shape, rows = call.values[0].shape, call.values[0].rows
    moved = [axis for axis in order if shape[axis] != 1 or (rows and axis == 0)]
    require(moved == sorted(moved), "it moves elements")


def split(call: Call) -> Sequence[Node]:
    site, shape, x = call.site, call.values[0].shape, call.node()
    axis = site.axis("axis", 1)
    parts = site.integer("num_outputs" if site.op == "SliceChannel" else "sections", 0) or 0
    if parts:
        bounds = [shape[axis] // parts * k for k in range(parts + 1)]
    else:
        bounds = [*site.integers("indices"), shape[axis]]
    return [columns.cut(x, shape, axis, a, b - a) for a, b in zip(bounds, bounds[1:])]


def slices(call: Call) -> Sequence[Node]:
    site, shape, x = call.site, call.values[0].shape, call.node()
    require(not set(site.slots("step")) - {1, None}, "it leaves elements out")
    begins = dict(enumerate(site.slots("begin")))
    if site.op == "slice_axis":
        begins = {site.axis("axis", 0): begins.get(0)}
    for axis, extent in enumerate(call.out):
        begin = begins.get(axis) or 0
        x = columns.cut(x, shape, axis, begin + shape[axis] if begin < 0 else begin, extent)
        shape = (*shape[:axis], extent, *shape[axis + 1 :])
    return [x]


def concat(call: Call) -> Sequence[Node]:
    name, default = ("axis", 0) if call.site.op == "stack" else ("dim", 1)
    axis = call.site.integer(name, default)
    axis = call.site.positive(default if axis is None else axis, len(call.out))
    require(axis > 0 or not any(value.rows for value in call.values), "it moves rows")
    nodes = [call.node(k) for k in range(len(call.values))]
    return [columns.joined(nodes, prod(call.out[:axis]))]


def broadcast(call: Call) -> Sequence[Node]:
    return [call.wide()]


# Products.


def dense(call: Call) -> Sequence[Node]:
    data, weight = call.values[:2]
    require(data.rows, "all rows share what is multiplied")
    units, inputs = weight.shape
    factor = Weight(call.matrix(1), units, inputs, True)
    biases = [call.matrix(k) for k in range(2, len(call.values))]
    return [call.build.product([(call.node(), factor)], biases)]


def dot(call: Call) -> Sequence[Node]:
    site, (data, other) = call.site, call.values
    require(data.rows and not other.rows, "each row has a factor of its own")
    require(not site.flag("transpose_a") or len(data.shape) == 1, "it multiplies columns")
    shape, turned = other.shape, site.flag("transpose_b") and len(other.shape) > 1
    if turned:
        rows, inner = prod(shape[:-1]), shape[-1]
    else:
        rows, inner = shape[0], prod(shape[1:])
    factor = Weight(call.matrix(1), rows, inner, turned)
    return [call.build.product([(call.node(), factor)])]


# Sums along columns.


def reduction(call: Call, x: Node, mean: bool = False) -> Node:
    shape, axes = call.values[0].shape, reduced_axes(call.site)
    require(0 not in axes or not call.values[0].rows, "it sums rows")
    total = columns.summed(x, shape, axes)
    return total / prod(shape[axis] for axis in axes) if mean else total


def norm(call: Call) -> Sequence[Node]:
    require(call.site.integer("ord", 2) == 2, "this kind has none")
    x = call.node()
    return [call.build.function("sqrt", reduction(call, x * x))]


def last_axis(call: Call) -> int:
    """Return how many rows there are along the axis that a row is normalised along."""
    shape, axis = call.values[0].shape, call.site.axis("axis", -1)
    require(prod(shape[axis + 1 :]) == 1, "it normalises another axis than the last")
    return prod(shape[:axis])


def softmax(call: Call) -> Sequence[Node]:
    site, build = call.site, call.build
    require(not site.flag("use_length"), "rows have lengths")
    require(site.attrs.get("dtype") in (None, "None", call.values[0].dtype), "dtypes differ")
    x, found = call.node(), []
    if site.op == "softmin":
        x = -x
    for row in columns.pieces(x, last_axis(call)):
        row = row - columns.spread(build.top(row), row.width)
        temperature = call.number("temperature", single=False)
        if temperature != 1:
            row = row / temperature
        powers = build.function("exp", row)
        total = build.total(powers)
        if site.op == "log_softmax":
            found.append(row - columns.spread(build.function("log", total), row.width))
        else:
            found.append(powers / columns.spread(total, row.width))
    return [build.join(found)]


def layer_norm(call: Call) -> Sequence[Node]:
    build, found = call.build, []
    gamma, beta = call.node(1), call.node(2)
    for row in columns.pieces(call.node(), last_axis(call)):
        width = row.width
        centred = row - columns.spread(build.total(row) / width, width)
        variance = build.total(centred * centred) / width
        scale = build.function("rsqrt", variance + call.number("eps", 1e-5))
        found.append(centred * columns.spread(scale, width) * gamma + beta)
    return [build.join(found)]


def _table() -> Dict[str, Handler]:
    table: Dict[str, Handler] = {}

    def each(names: str, handler: Handler) -> None:
        table.update(dict.fromkeys(names.split(), handler))

    for name in (
        "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt cos cosh degrees erf erfinv exp "
        "expm1 gamma gammaln log log10 log1p log2 radians rcbrt reciprocal relu rsqrt sigmoid "
        "sin sinh softsign sqrt square tan tanh negative ceil fix floor logical_not rint round "
        "sign trunc"
    ).split():
        table[name] = pointwise(name)
    table["hard_sigmoid"] = pointwise("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5))
    table["clip"] = pointwise("clip", ("a_min", 0), ("a_max", 0))
    table["smooth_l1"] = pointwise("smooth_l1", ("scalar", 1))
    compared = (
        "equal not_equal greater greater_equal lesser lesser_equal "
        "logical_and logical_or logical_xor"
    )
    for name in f"hypot maximum minimum mod power {compared}".split():
        each(f"_{name} broadcast_{name}", pointwise(name))
        table[f"_{name}_scalar"] = with_number(name)
    for name in ("sub", "mul", "div"):
        each(f"elemwise_{name} broadcast_{name}", pointwise(name))
    for theirs, name in (("plus", "add"), ("minus", "sub"), ("mul", "mul"), ("div", "div")):
        table[f"_{theirs}_scalar"] = with_number(name)
    for theirs, name in (("minus", "sub"), ("div", "div"), ("mod", "mod"), ("power", "power")):
        table[f"_r{theirs}_scalar"] = with_number(name, swapped=True)
    each("elemwise_add broadcast_add _grad_add add_n", add)
    each("Cast amp_cast", cast)
    each("_copy Reshape Flatten expand_dims squeeze reshape_like", unchanged)
    each("transpose SwapAxis", transpose)
    each("SliceChannel _split_v2", split)
    each("slice slice_axis slice_like", slices)
    each("Concat stack", concat)
    each("broadcast_to broadcast_axis broadcast_like", broadcast)
    each("softmax log_softmax softmin", softmax)
    table.update(
        {
            "Activation": activation,
            "LeakyReLU": leaky_relu,
            "_contrib_quadratic": quadratic,
            "_contrib_gradientmultiplier": multiplier,
            "BlockGrad": blocked,
            "zeros_like": filled(0),
            "ones_like": filled(1),
            "where": where,
            "Dropout": dropout,
            "FullyConnected": dense,
            "dot": dot,
            "sum": lambda call: [reduction(call, call.node())],
            "mean": lambda call: [reduction(call, call.node(), mean=True)],
            "norm": norm,
            "LayerNorm": layer_norm,
        }
    )
    return table


#: Operators that have kernels.
HANDLERS = _table()


# Segments.


def express(segment: Segment) -> Expressed:
    """Express what a segment computes.

    Raises
    ------
    NotExpressed
        With the reason why it is left to MXNet.
    """
    require(segment.layout in ("rows", "stack", "concat"), "calls run one by one")
    require(segment.context.device_type == "cpu", f"no kernels for {segment.context}")
    for op in segment.ops:
        require(op.op == VARIABLE or op.op in HANDLERS, f"operator {op.op} has no kernel")
    expressing = _Expressing(segment)
    for row in range(len(segment.ops)):
        expressing.emit(row)
    return Expressed(expressing.build, expressing.results(), _differentiable(segment))


class _Expressing:
    """The values of a segment, found one operator after another."""

    def __init__(self, segment: Segment):
        self._segment = segment
        self.build = Expressions()
        self._values: Dict[Ref, Value] = {}
        self._uses: Dict[Ref, int] = {}
        for ref in [*segment.heads, *(ref for op in segment.ops for ref in op.inputs)]:
            self._uses[ref] = self._uses.get(ref, 0) + 1
        self._shapes = _shapes(segment, list(self._uses))

    def emit(self, row: int) -> None:
        """Find the results of an operator that are used."""
        op = self._segment.ops[row]
        if op.op == VARIABLE and (row, 0) in self._uses:
            kind = "param" if op.name.startswith("param") else "in"
            slot = Slot(kind, int(op.name[len(kind) :]))
            shape, rows = self._shapes[row, 0]
            dtype = _dtype(self._segment, slot)
            self._values[row, 0] = Value(None, slot, dtype, shape, rows, self._uses[row, 0] == 1)
        if op.op == VARIABLE:
            return
        used = {out: self._shapes[row, out] for r, out in self._uses if r == row}
        call = self._call(row, [shape for shape, _ in used.values()])
        try:
            made = HANDLERS[op.op](call)
        except (NotExpressed, RefuseError) as error:
            raise NotExpressed(f"operator {op.op} has no kernel here: {error}") from None
        for out, (shape, rows) in used.items():
            once = self._uses[row, out] == 1
            if made is None:
                value = call.values[0]
                require(out == 0 and prod(shape) == prod(value.shape), f"{op.op} loses elements")
                value = value._replace(shape=shape, rows=rows, once=once and value.once)
            else:
                require(out < len(made), f"operator {op.op} has no kernel for result {out}")
                node = made[out]
                assert node.width == prod(shape), (op, node, shape)
                value = Value(node, None, node.dtype, shape, rows, once)
            shared = not rows and any(v.rows for v in call.values)
            require(not shared, f"operator {op.op} joins rows")
            self._values[row, out] = value

    def _call(self, row: int, outputs: List[Shape]) -> Call:
        op = self._segment.ops[row]
        values = tuple(self._values[ref] for ref in op.inputs)
        training = bool(self._segment.mode & TRAINING)
        shapes, rows = tuple(v.shape for v in values), tuple(v.rows for v in values)
        site = Site(op.op, op.attrs, shapes, tuple(outputs), rows, training)
        return Call(site, self.build, values, training)

    def results(self) -> Tuple[Node, ...]:
        """Return the results of the segment."""
        found = []
        for ref, port in zip(self._segment.heads, self._segment.outputs):
            value = self._values[ref]
            require(value.rows, "a result is the same for all rows")
            call = Call(Site("", {}, (), (), (), False), self.build, (value,), False)
            found.append(call.node())
            assert (found[-1].width, found[-1].dtype) == (port.row_size, port.dtype)
        return tuple(found)


def _dtype(segment: Segment, slot: Slot) -> str:
    if slot.kind == "in":
        return segment.inputs[slot.number].dtype
    parameter = segment.parameters[slot.number]
    whole = parameter.parameter if isinstance(parameter, ParameterRows) else parameter
    return np.dtype(whole.dtype).name


def _differentiable(segment: Segment) -> FrozenSet[Slot]:
    inputs = {Slot("in", k) for k, port in enumerate(segment.inputs) if port.differentiable}
    return frozenset(inputs) | {
        Slot("param", k) for k, p in enumerate(segment.parameters) if p.grad_req != "null"
    }


def _shapes(segment: Segment, refs: List[Ref]) -> Dict[Ref, Tuple[Shape, bool]]:
    """Return shapes per row of a launch, and whether rows have values of their own.

    What differs between two numbers of rows grows with the rows.
    """
    symbol = make_symbol(segment.ops, refs)
    shared = {f"in{k}": port.shape for k, port in enumerate(segment.inputs) if port.shared}
    for k, p in enumerate(segment.parameters):
        part = isinstance(p, ParameterRows)
        shared[f"param{k}"] = (p.stop - p.start, *p.parameter.shape[1:]) if part else p.shape
    names = set(symbol.list_inputs())
    inferred = []
    for count in ROWS:
        known = {
            f"in{k}": (count, port.row_size)
            for k, port in enumerate(segment.inputs)
            if not port.shared
        }
        known = {name: shape for name, shape in {**shared, **known}.items() if name in names}
        try:
            _, outputs, _ = symbol._infer_shape_impl(False, **known)
        except MXNetError:
            outputs = None
        require(outputs is not None, "shapes depend on the number of rows")
        inferred.append(outputs)
    return {ref: _per_row(*pair) for ref, pair in zip(refs, zip(*inferred))}


def _per_row(one: Shape, other: Shape) -> Tuple[Shape, bool]:
    if one == other:
        return one, False
    factor, rest = divmod(one[0], ROWS[0])
    grown = (factor * ROWS[1], *one[1:])
    require(rest == 0 and other == grown, "rows are not along axis 0")
    return (factor, *one[1:]), True
