"""What MXNet's operators are as expressions.

Each operator has a handler, which is given a `Call` and returns a node per result, or nothing if
the result has the elements of the first input as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..rules.axes import reduced_axes
from ..rules.site import Site
from ..schedule.dependencies import Array
from . import columns
from .columns import Shape, require
from .expression import PRODUCT, Dot, Expressions, Node, Slot, Weight

#: Element types that kernels know, and those that they read numbers of places from.
DTYPES = ("float32", "float64")
NUMBERS = (*DTYPES, "int32", "int64")


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

    def node(self, number: int = 0, dtypes: Sequence[str] = DTYPES) -> Node:
        """Return an input, as it is."""
        value = self.values[number]
        require(value.dtype in dtypes, f"{value.dtype} has no kernels")
        if value.node is not None:
            return value.node
        assert value.slot is not None
        width = prod(value.shape)
        return self.build.read(value.slot, width, value.dtype, every=not value.rows)

    def wide(self, number: int = 0) -> Node:
        """Return an input, broadcast to the shape of the first result."""
        return columns.broadcast(self.node(number), self.values[number].shape, self.out)

    def matrix(self, number: int, like: int = 0) -> Slot:
        """Return a variable that all rows share, of the type of some input."""
        value = self.values[number]
        require(value.slot is not None and not value.rows, "a factor is computed")
        require(value.dtype == self.values[like].dtype, "dtypes differ")
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
    build = call.build
    products: List[Node] = []
    others: List[Node] = []
    for k, value in enumerate(call.values):
        node = call.wide(k)
        (products if value.once and node.kind == PRODUCT else others).append(node)
    if len({product.attrs[0][0].units for product in products}) > 1:
        products, others = [], products + others
    if products:
        terms = [pair for p in products for pair in zip(p.args, p.attrs[0])]
        # Biases are added by those that multiply.
        terms.sort(key=lambda term: term[1].chosen)
        biases = [bias for p in products for bias in p.attrs[1]]
        others.insert(0, build.product(terms, biases, products[0].dtype))
    total, *rest = others
    for one in rest:
        total = total + one
    return [total]


def activation(call: Call) -> Sequence[Node]:
    build, x, kind = call.build, call.node(), call.site.attrs["act_type"]
    if kind == "relu":
        # Unlike the operator of that name, oneDNN makes zero of what is no number.
        return [build.function("select", build.function("greater", x, 0), x, 0)]
    return [build.function(kind, x)]


def leaky_relu(call: Call) -> Sequence[Node]:
    build, x, kind = call.build, call.node(), call.site.attrs.get("act_type", "leaky")
    if kind == "gelu":
        return [build.function("gelu", x)]
    # MXNet's gradient of "selu" is not its derivative.
    slope = call.number("slope", 0.25)
    require(kind in ("leaky", "elu") and slope >= 0, f"not for {kind} with this slope")
    below = x if kind == "leaky" else build.function("expm1", x)
    return [build.function("select", build.function("lesser_equal", x, 0), below * slope, x)]


def cast(call: Call) -> Optional[Sequence[Node]]:
    dtype = call.site.attrs["dtype"]
    require(dtype in DTYPES, f"{dtype} has no kernels")
    if dtype == call.values[0].dtype:
        return None
    return [call.build.cast(call.node(dtypes=NUMBERS), dtype)]


def amp_cast(call: Call) -> None:
    # For other types, MXNet's own gradient fails.
    require({call.site.attrs["dtype"], call.values[0].dtype} == {"float32"}, "it casts")


def quadratic(call: Call) -> Sequence[Node]:
    a, b, c = (call.number(name, 0) for name in "abc")
    return [(call.node() * a + b) * call.node() + c]


def div_sqrt_dim(call: Call) -> Sequence[Node]:
    return [call.node() / sqrt(call.out[-1])]


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


def moved(call: Call, where: Array) -> Sequence[Node]:
    return [columns.moved(call.node(), where)]


def own_axes(call: Call, *axes: int) -> None:
    """Give up if one of these is the axis of rows."""
    require(0 not in axes or not call.values[0].rows, "it moves rows")


def transpose(call: Call) -> Sequence[Node]:
    numbers = columns.places(call.values[0].shape)
    if call.site.op == "SwapAxis":
        axes = [call.site.axis(name, 0) for name in ("dim1", "dim2")]
        own_axes(call, *axes)
        return moved(call, numbers.swapaxes(*axes))
    order = call.site.axes("axes") or tuple(range(numbers.ndim)[::-1])
    own_axes(call, *order[1:])
    return moved(call, numbers.transpose(order))


def reverse(call: Call) -> Sequence[Node]:
    axes = call.site.axes("axis")
    own_axes(call, *axes)
    return moved(call, np.flip(columns.places(call.values[0].shape), axes))


def repeat(call: Call) -> Sequence[Node]:
    axis = call.site.axis("axis", 0)
    own_axes(call, axis)
    times = call.site.integer("repeats", 1) or 1
    return moved(call, np.repeat(columns.places(call.values[0].shape), times, axis))


def tile(call: Call) -> Sequence[Node]:
    shape, times = call.values[0].shape, call.site.integers("reps")
    require(len(times) <= len(shape) or not call.values[0].rows, "it moves rows")
    own_axes(call, *[0] * (len(times) == len(shape) and times[0] != 1))
    return moved(call, np.tile(columns.places(shape), times))


def split(call: Call) -> Sequence[Node]:
    site, shape = call.site, call.values[0].shape
    axis = site.axis("axis", 1)
    parts = site.integer("num_outputs" if site.op == "SliceChannel" else "sections", 0) or 0
    own_axes(call, axis)
    where = parts or site.integers("indices")[1:]
    pieces = np.split(columns.places(shape), where, axis)
    return [columns.moved(call.node(), piece) for piece in pieces]


def slices(call: Call) -> Sequence[Node]:
    site, where = call.site, columns.places(call.values[0].shape)
    begins, steps = (dict(enumerate(site.slots(name))) for name in ("begin", "step"))
    if site.op == "slice_axis":
        begins = {site.axis("axis", 0): begins.get(0)}
    for axis, (before, extent) in enumerate(zip(where.shape, call.out)):
        step = steps.get(axis) or 1
        begin = begins.get(axis)
        if begin is None:
            begin = 0 if step > 0 else before - 1
        if (begin, step, extent) != (0, 1, before):
            own_axes(call, axis)
            where = where.take(begin % before + step * np.arange(extent), axis)
    return moved(call, where)


def concat(call: Call) -> Sequence[Node]:
    name, default = ("axis", 0) if call.site.op == "stack" else ("dim", 1)
    axis = call.site.integer(name, default)
    axis = call.site.positive(default if axis is None else axis, len(call.out))
    require(axis > 0 or not any(value.rows for value in call.values), "it moves rows")
    arrays, start = [], 0
    for value in call.values:
        arrays.append(columns.places(value.shape) + start)
        start += arrays[-1].size
    join = np.stack if call.site.op == "stack" else np.concatenate
    every = call.build.join(call.node(k) for k in range(len(call.values)))
    return [columns.moved(every, join(arrays, axis))]


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


def take(call: Call) -> Sequence[Node]:
    """Choose rows of a matrix: products with rows of which a single element is one."""
    site, build = call.site, call.build
    index, table = (0, 1) if site.op == "Embedding" else (1, 0)
    mode, shape = site.attrs.get("mode", "clip"), call.values[table].shape
    dtype = call.values[table].dtype
    require(dtype in DTYPES, f"{dtype} has no kernels")
    require(site.op == "Embedding" or site.axis("axis", 0) == 0, "it chooses columns")
    require(call.values[index].rows, "all rows choose the same")
    require(mode in ("clip", "wrap"), f"its mode is {mode}")
    numbers = call.node(index, NUMBERS)
    if mode == "wrap":
        numbers = _wrapped(numbers, shape[0])
    weight = Weight(call.matrix(table, table), shape[0], prod(shape[1:]), False, chosen=True)
    return [build.product([(numbers, weight)], dtype=dtype)]


def _wrapped(numbers: Node, count: int) -> Node:
    """Return places counted on from the beginning behind the end, as MXNet's mode says."""
    build = numbers.owner
    return build.function("mod", build.function("trunc", build.cast(numbers, "float64")), count)


def dot(call: Call) -> Sequence[Node]:
    site, (data, other) = call.site, call.values
    require(data.rows, "all rows share what is multiplied")
    require(not site.flag("transpose_a") or len(data.shape) == 1, "it multiplies columns")
    shape, turned = other.shape, site.flag("transpose_b") and len(other.shape) > 1
    if turned:
        rows, inner = prod(shape[:-1]), shape[-1]
    else:
        rows, inner = shape[0], prod(shape[1:])
    factor = Weight(call.matrix(1), rows, inner, turned)
    return [call.build.product([(call.node(), factor)])]


def batch_dot(call: Call) -> Sequence[Node]:
    """Multiply matrices of which each row has its own."""
    site, (left, right) = call.site, call.values
    require(left.rows and right.rows, "all rows share what is multiplied")
    turned = site.flag("transpose_a"), site.flag("transpose_b")
    m, k = left.shape[:-3:-1] if turned[0] else left.shape[-2:]
    how = Dot(prod(left.shape[:-2]), m, k, call.out[-1], turned)
    return [call.build.dot(call.node(), call.node(1), how)]


# Along columns.


def reduction(call: Call, x: Node, mean: bool = False, top: bool = False) -> Node:
    shape, axes = call.values[0].shape, reduced_axes(call.site)
    require(0 not in axes or not call.values[0].rows, "it reduces rows")
    found = columns.reduced(x, shape, axes, top)
    return found / prod(shape[axis] for axis in axes) if mean else found


def norm(call: Call) -> Sequence[Node]:
    x = call.node()
    if call.site.integer("ord", 2) == 1:
        return [reduction(call, call.build.function("abs", x))]
    return [call.build.function("sqrt", reduction(call, x * x))]


def l2_normalization(call: Call) -> Sequence[Node]:
    shape, x = call.values[0].shape, call.node()
    first = {"instance": 1, "channel": 1, "spatial": 2}[call.site.attrs.get("mode", "instance")]
    last = 2 if call.site.attrs.get("mode") == "channel" else len(shape)
    kept = (*shape[:first], *(1,) * (last - first), *shape[last:])
    total = columns.reduced(x * x, shape, range(first, last)) + call.number("eps", 1e-10)
    return [x / columns.broadcast(call.build.function("sqrt", total), kept, shape)]


def arange_like(call: Call) -> Sequence[Node]:
    shape, dtype, axis = call.values[0].shape, call.values[0].dtype, call.site.axis("axis", 0)
    require(axis > 0 or not call.values[0].rows, "it counts rows")
    require(dtype in DTYPES and call.site.integer("repeat", 1) == 1, "it repeats numbers")
    ramp = call.build.ramp(0, shape[axis], dtype)
    start, step = (call.number(name, default) for name, default in (("start", 0), ("step", 1)))
    return [ramp * step + start]


@dataclass(frozen=True)
class Along:
    """The columns of the first input along the axis that an operator is about."""

    call: Call
    shape: Shape
    axis: int

    @property
    def kept(self) -> Shape:
        """What an array has that is broadcast along the axis."""
        return (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])

    def spread(self, x: Node) -> Node:
        """Repeat elements along the axis."""
        return columns.broadcast(x, self.kept, self.shape)

    def total(self, x: Node, top: bool = False) -> Node:
        """Return sums, or largest elements."""
        return columns.reduced(x, self.shape, [self.axis], top)

    def are_at(self, places: Node) -> Node:
        """Return one where an element is at the place that is wanted, else zero."""
        numbers = columns.numbers(places.owner, self.shape, self.axis, places.dtype)
        return places.owner.function("equal", self.spread(places), numbers)


def along(call: Call, default: int = -1) -> Along:
    """Return columns along the axis that an operator names."""
    shape, axis = call.values[0].shape, call.site.axis("axis", default)
    require(axis > 0 or not call.values[0].rows, "it mixes rows")
    return Along(call, shape, axis)


def softmax(call: Call) -> Sequence[Node]:
    site, build, own, x = call.site, call.build, along(call), call.node()
    require(not site.flag("use_length"), "rows have lengths")
    require(site.attrs.get("dtype") in (None, "None", call.values[0].dtype), "dtypes differ")
    if site.op == "softmin":
        x = -x
    # No gradient flows through the largest: it makes no difference.
    x = x - own.spread(build.function("multiplier", own.total(x, top=True), values=(0,)))
    temperature = call.number("temperature", single=False)
    if temperature != 1:
        x = x / temperature
    powers = build.function("exp", x)
    total = own.total(powers)
    if site.op == "log_softmax":
        return [x - own.spread(build.function("log", total))]
    return [powers / own.spread(total)]


def layer_norm(call: Call) -> Sequence[Node]:
    own, x = along(call), call.node()
    width = own.shape[own.axis]
    vector = (width, *(1,) * (len(own.shape) - own.axis - 1))
    gamma, beta = (columns.broadcast(call.node(k), vector, own.shape) for k in (1, 2))
    centred = x - own.spread(own.total(x) / width)
    variance = own.total(centred * centred) / width
    scale = call.build.function("rsqrt", variance + call.number("eps", 1e-5))
    return [centred * own.spread(scale) * gamma + beta]


def pick(call: Call) -> Sequence[Node]:
    build, own, x = call.build, along(call), call.node()
    require(call.values[1].rows or not call.values[0].rows, "all rows choose the same")
    places = build.function("trunc", build.cast(call.node(1, NUMBERS), x.dtype))
    last = own.shape[own.axis] - 1
    if call.site.attrs.get("mode", "clip") == "wrap":
        places = build.function("mod", places, last + 1)
    else:
        least = build.function("minimum", places, last)
        places = build.function("select", build.function("greater", places, 0), least, 0)
    if x.width == last + 1:
        return [columns.chosen(x, own.are_at(places))]
    return [own.total(build.function("select", own.are_at(places), x, 0))]


def one_hot(call: Call) -> Sequence[Node]:
    build, dtype, axis = call.build, call.site.attrs.get("dtype", "float32"), len(call.out) - 1
    require(dtype in DTYPES, f"{dtype} has no kernels")
    places = build.function("trunc", build.cast(call.node(dtypes=NUMBERS), dtype))
    found = Along(call, call.out, axis).are_at(places)
    on, off = call.number("on_value", 1), call.number("off_value", 0)
    return [build.function("select", found, build.const(on, found.width, dtype), off)]


_ONE = (
    "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees erf erfinv exp "
    "expm1 fix floor gamma gammaln log log10 log1p log2 logical_not negative radians rcbrt "
    "reciprocal relu rint round rsqrt sigmoid sign sin sinh softsign sqrt square tan tanh trunc"
)
_TWO = (
    "hypot maximum minimum mod power equal not_equal greater greater_equal lesser lesser_equal "
    "logical_and logical_or logical_xor"
)
_ARITHMETIC = {"plus": "add", "minus": "sub", "mul": "mul", "div": "div"}

#: By operator; those that have none are left to MXNet.
HANDLERS: Dict[str, Handler] = {
    **{name: pointwise(name) for name in _ONE.split()},
    **{f"{form}_{n}": pointwise(n) for n in _TWO.split() for form in ("", "broadcast")},
    **{f"_{name}_scalar": with_number(name) for name in _TWO.split()},
    **{f"_r{name}_scalar": with_number(name, swapped=True) for name in ("mod", "power")},
    **{f"_{theirs}_scalar": with_number(name) for theirs, name in _ARITHMETIC.items()},
    "_rminus_scalar": with_number("sub", swapped=True),
    "_rdiv_scalar": with_number("div", swapped=True),
    **{
        f"{form}_{n}": pointwise(n)
        for n in ("sub", "mul", "div")
        for form in ("elemwise", "broadcast")
    },
    **dict.fromkeys(["elemwise_add", "broadcast_add", "_grad_add", "add_n"], add),
    "hard_sigmoid": pointwise("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "clip": pointwise("clip", ("a_min", 0), ("a_max", 0)),
    "smooth_l1": pointwise("smooth_l1", ("scalar", 1)),
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "Cast": cast,
    "amp_cast": amp_cast,
    "_contrib_quadratic": quadratic,
    "_contrib_gradientmultiplier": multiplier,
    "_contrib_div_sqrt_dim": div_sqrt_dim,
    "BlockGrad": blocked,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "where": where,
    "Dropout": dropout,
    **dict.fromkeys(["_copy", "Reshape", "Flatten", "expand_dims", "squeeze"], unchanged),
    "reshape_like": unchanged,
    **dict.fromkeys(["transpose", "SwapAxis"], transpose),
    "reverse": reverse,
    "repeat": repeat,
    "tile": tile,
    **dict.fromkeys(["SliceChannel", "_split_v2"], split),
    **dict.fromkeys(["slice", "slice_axis", "slice_like"], slices),
    **dict.fromkeys(["Concat", "stack"], concat),
    **dict.fromkeys(["broadcast_to", "broadcast_axis", "broadcast_like"], broadcast),
    "FullyConnected": dense,
    **dict.fromkeys(["Embedding", "take"], take),
    "dot": dot,
    "batch_dot": batch_dot,
    "sum": lambda call: [reduction(call, call.node())],
    "mean": lambda call: [reduction(call, call.node(), mean=True)],
    "max": lambda call: [reduction(call, call.node(), top=True)],
    "min": lambda call: [-reduction(call, -call.node(), top=True)],
    "norm": norm,
    "L2Normalization": l2_normalization,
    "_contrib_arange_like": arange_like,
    "pick": pick,
    "one_hot": one_hot,
    **dict.fromkeys(["softmax", "log_softmax", "softmin"], softmax),
    "LayerNorm": layer_norm,
}
