"""What MXNet's operators are as expressions.

Each operator has a handler, which is given a `Call` and returns a node per result, or nothing if
the result has the elements of the first input as they are.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Dict, List, Optional, Sequence, Tuple

from . import axes, columns
from .call import DTYPES, NUMBERS, Call, Handler
from .columns import require
from .expression import PRODUCT, Dot, Node, Weight

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
    **dict.fromkeys(["_copy", "Reshape", "Flatten", "expand_dims", "squeeze"], axes.unchanged),
    "reshape_like": axes.unchanged,
    **dict.fromkeys(["transpose", "SwapAxis"], axes.transpose),
    "reverse": axes.reverse,
    "repeat": axes.repeat,
    "tile": axes.tile,
    **dict.fromkeys(["SliceChannel", "_split_v2"], axes.split),
    **dict.fromkeys(["slice", "slice_axis", "slice_like"], axes.slices),
    **dict.fromkeys(["Concat", "stack"], axes.concat),
    **dict.fromkeys(["broadcast_to", "broadcast_axis", "broadcast_like"], axes.broadcast),
    "FullyConnected": dense,
    **dict.fromkeys(["Embedding", "take"], take),
    "dot": dot,
    "batch_dot": batch_dot,
    "sum": lambda call: [axes.reduction(call, call.node())],
    "mean": lambda call: [axes.reduction(call, call.node(), mean=True)],
    "max": lambda call: [axes.reduction(call, call.node(), top=True)],
    "min": lambda call: [-axes.reduction(call, -call.node(), top=True)],
    "norm": axes.norm,
    "L2Normalization": axes.l2_normalization,
    "_contrib_arange_like": axes.arange_like,
    "pick": axes.pick,
    "one_hot": axes.one_hot,
    **dict.fromkeys(["softmax", "log_softmax", "softmin"], axes.softmax),
    "LayerNorm": axes.layer_norm,
}
