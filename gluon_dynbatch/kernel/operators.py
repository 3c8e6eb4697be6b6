"""What MXNet's operators are as expressions: each has a handler, which is given a `Call`."""

from __future__ import annotations

from math import prod, sqrt
from typing import Dict, List, Sequence, Tuple

from .. import rules
from ..rules.site import require
from . import axes
from .expression import TOP, Node
from .functions import DERIVATIVES
from .layout import Dot, Maps, Pair, Weight
from .tensor import DTYPES, NUMBERS, Call, Handler, Tensor, common_shape

# Functions of one element and its partners.


def pointwise(name: str, *numbers: Tuple[str, float]) -> Handler:
    """Return the handler of a function; `numbers` are attributes with their defaults."""

    def handler(call: Call) -> Tensor:
        values = tuple(call.number(*number) for number in numbers)
        return call.tensors[0].apply(name, *call.tensors, values=values)

    return handler


def with_number(name: str, swapped: bool = False) -> Handler:
    """Return the handler of a function of an array and a number."""

    def handler(call: Call) -> Tensor:
        x, number = call.tensors[0], call.number("scalar", single=False)
        if name == "power" and number == 2 and not swapped:
            return x.apply("square", x)
        return x.apply(name, number, x) if swapped else x.apply(name, x, number)

    return handler


def add(call: Call) -> Tensor:
    """Add arrays; products that nobody else reads become one."""
    build, shape, rows = call.build, common_shape(call.tensors), any(call.batched)
    products: List[Node] = []
    others: List[Node] = []
    for x in call.tensors:
        node = x.to(shape, rows).node()
        (products if x.once and node.kind == "product" else others).append(node)
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
    return call.tensors[0].of(total, shape, rows)


def activation(call: Call) -> Tensor:
    x, kind = call.tensors[0], call.attrs["act_type"]
    if kind == "relu":
        # Unlike the operator of that name, oneDNN makes zero of what is no number.
        return x.apply("select", x.apply("greater", x, 0), x, 0)
    return x.apply(kind, x)


def leaky_relu(call: Call) -> Tensor:
    x, kind = call.tensors[0], call.attrs.get("act_type", "leaky")
    if kind == "gelu":
        return x * (x.apply("erf", x * sqrt(0.5)) * 0.5 + 0.5)
    # MXNet's gradient of "selu" is not its derivative.
    slope = call.number("slope", 0.25)
    require(kind in ("leaky", "elu") and slope >= 0, f"not for {kind} with this slope")
    below = x if kind == "leaky" else x.apply("expm1", x)
    return x.apply("select", x.apply("lesser_equal", x, 0), below * slope, x)


def amp_cast(call: Call) -> Tensor:
    # For other types, MXNet's own gradient fails.
    require({call.attrs["dtype"], call.tensors[0].dtype} == {"float32"}, "it casts")
    return call.tensors[0]


def quadratic(call: Call) -> Tensor:
    x, (a, b, c) = call.tensors[0], (call.number(name, 0) for name in "abc")
    return (x * a + b) * x + c


def div_sqrt_dim(call: Call) -> Tensor:
    return call.tensors[0] / sqrt(call.inputs[0][-1])


def blocked(call: Call) -> Tensor:
    factor = 0 if call.op == "BlockGrad" else call.number("scalar", single=False)
    return call.tensors[0].apply("multiplier", call.tensors[0], values=(factor,))


def where(call: Call) -> Tensor:
    condition, one, other = call.tensors
    ones = (1,) * (len(one.shape) - len(condition.shape))
    return one.apply("select", condition.shaped(condition.shape + ones), one, other)


def dropout(call: Call) -> Tensor:
    require(not call.training and call.attrs.get("mode") != "always", "it draws")
    return call.tensors[0]


# Products.


def dense(call: Call) -> Tensor:
    x, (units, width) = call.tensors[0], call.inputs[1]
    require(x.rows, "all rows share what is multiplied")
    factor = Weight(call.matrix(1), units, width, True)
    biases = [call.matrix(k) for k in range(2, len(call.tensors))]
    kept = x.shape[:1] if call.flag("flatten", True) else x.shape[:-1]
    return x.of(call.build.product([(x.node(), factor)], biases), (*kept, units))


def split(call: Call) -> List[Tensor]:
    """Cut columns; parts of a product that nobody else reads are products with parts of its weight.

    What is not used is not computed, and each result is written where it belongs.
    """
    parts = axes.move(call)
    if not call.tensors[0].once:
        return parts
    return [part.of(call.build.own_product(part.node())) for part in parts]


def take(call: Call) -> Tensor:
    """Choose rows of a matrix: products with rows of which a single element is one."""
    index, table = (0, 1) if call.op == "Embedding" else (1, 0)
    mode, (count, *inner) = call.attrs.get("mode", "clip"), call.inputs[table]
    x, dtype = call.tensors[index], call.tensors[table].dtype
    require(dtype in DTYPES, f"{dtype} has no kernels")
    require(call.op == "Embedding" or call.axis("axis", 0) == 0, "it chooses columns")
    require(x.rows, "all rows choose the same")
    require(mode in ("clip", "wrap"), f"its mode is {mode}")
    if mode == "wrap":
        # Places are counted on from the beginning behind the end.
        x = x.apply("mod", x.apply("trunc", x.cast("float64")), count)
    weight = Weight(call.matrix(table, table), count, prod(inner), False, chosen=True)
    product = call.build.product([(x.node(NUMBERS), weight)], dtype=dtype)
    return x.of(product, (*x.shape, *inner))


def dot(call: Call) -> Tensor:
    x, shape = call.tensors[0], call.inputs[1]
    require(x.rows, "all rows share what is multiplied")
    require(len(x.shape) > 1, "rows are not along axis 0")
    require(not call.flag("transpose_a"), "it multiplies columns")
    turned = call.flag("transpose_b") and len(shape) > 1
    rows, inner = (prod(shape[:-1]), shape[-1]) if turned else (shape[0], prod(shape[1:]))
    product = call.build.product([(x.node(), Weight(call.matrix(1), rows, inner, turned))])
    return x.of(product, (*x.shape[:-1], *(shape[:-1] if turned else shape[1:])))


def batch_dot(call: Call) -> Tensor:
    """Multiply matrices of which each row has its own."""
    left, right = call.tensors
    require(left.rows and right.rows, "all rows share what is multiplied")
    turned = call.flag("transpose_a"), call.flag("transpose_b")
    *outer, m, k = left.shape
    m, k = (k, m) if turned[0] else (m, k)
    n = right.shape[-2 if turned[1] else -1]
    how = Dot(prod(outer), m, k, n, turned)
    return left.of(call.build.dot(left.node(), right.node(), how), (*outer, m, n))


def _pair(values: Sequence[int], default: int) -> Pair:
    """Return what holds for lines and for columns; without lines there is one."""
    first, last = (default, default, *values)[-2:]
    return first, last


def convolution(call: Call) -> Tensor:
    """Convolve maps, which have one axis or two."""
    x, (images, channels, *data) = call.tensors[0], call.inputs[0]
    filters, _, *kernel = call.inputs[1]
    require(x.rows, "all rows share what is convolved")
    require(len(kernel) <= 2, "its maps have three axes")
    require(call.attrs.get("layout", "None") in ("None", "NCW", "NCHW"), "channels come last")
    for k in range(1, len(call.tensors)):
        call.matrix(k)
    groups, attrs = call.integer("num_group", 1) or 1, (("stride", 1), ("dilate", 1), ("pad", 0))
    stride, dilate, pad = (_pair(call.integers(name), default) for name, default in attrs)
    sizes = _pair(data, 1), _pair(kernel, 1)
    how = Maps.of_sizes(images, groups, channels, filters, *sizes, stride, dilate, pad)
    require(all(p <= most for p, most in zip(pad, how.reach)), "the kernel fits between zeros")
    # Each row has its own gradient of the kernel.
    small = prod(call.inputs[1]) <= prod(call.inputs[0]) + how.width
    require(small, "its kernel has more elements than its maps")
    found = call.build.convolved([tensor.node() for tensor in call.tensors], how)
    return x.of(found, (images, filters, *how.result[2 - len(kernel) :]))


#: Names that functions have in operators with a number, where these differ.
_THEIRS = {"add": "plus", "sub": "minus"}

#: By operator; those that have none are left to MXNet.
HANDLERS: Dict[str, Handler] = {
    **{
        op: pointwise(name)
        for name in DERIVATIVES
        for op in (name, f"_{name}", f"elemwise_{name}", f"broadcast_{name}")
        if op in rules.TABLE
    },
    **{
        op: with_number(name, swapped)
        for name in DERIVATIVES
        for swapped in (False, True)
        if (op := f"_{'r' * swapped}{_THEIRS.get(name, name)}_scalar") in rules.TABLE
    },
    **dict.fromkeys(["elemwise_add", "broadcast_add", "_grad_add", "add_n"], add),
    "rcbrt": lambda call: 1 / call.tensors[0].apply("cbrt", call.tensors[0]),
    "hard_sigmoid": pointwise("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "clip": pointwise("clip", ("a_min", 0), ("a_max", 0)),
    "smooth_l1": pointwise("smooth_l1", ("scalar", 1)),
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "Cast": lambda call: call.tensors[0].cast(call.attrs["dtype"]),
    "amp_cast": amp_cast,
    "_contrib_quadratic": quadratic,
    "_contrib_div_sqrt_dim": div_sqrt_dim,
    **dict.fromkeys(["BlockGrad", "_contrib_gradientmultiplier"], blocked),
    "zeros_like": lambda call: call.tensors[0].const(0),
    "ones_like": lambda call: call.tensors[0].const(1),
    "where": where,
    "Dropout": dropout,
    **axes.MOVES,
    "FullyConnected": dense,
    "SliceChannel": split,
    **dict.fromkeys(["Embedding", "take"], take),
    "dot": dot,
    "Convolution": convolution,
    "batch_dot": batch_dot,
    "sum": lambda call: axes.reduction(call, call.tensors[0]),
    "mean": lambda call: axes.reduction(call, call.tensors[0], mean=True),
    "max": lambda call: axes.reduction(call, call.tensors[0], how=TOP),
    "min": lambda call: -axes.reduction(call, -call.tensors[0], how=TOP),
    "norm": axes.norm,
    "L2Normalization": axes.l2_normalization,
    "_contrib_arange_like": axes.arange_like,
    "pick": axes.pick,
    "one_hot": axes.one_hot,
    **dict.fromkeys(["softmax", "log_softmax", "softmin"], axes.softmax),
    "LayerNorm": axes.layer_norm,
}
