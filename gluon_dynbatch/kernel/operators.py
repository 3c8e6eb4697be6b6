"""Handlers that express MXNet's operators; each gets a `Call`."""

from __future__ import annotations

from math import prod, sqrt
from typing import Dict, List, Tuple

from .. import rules
from ..rules.site import require
from . import axes, convolution, created, draws, indexing
from .expression import Node
from .functions import DERIVATIVES
from .layout import Dot, Pair, Weight
from .recognize import MAX
from .tensor import FLOAT_DTYPES, Call, Tensor, TensorHandler, common_shape

# Elementwise functions.


def pointwise(name: str, *numbers: Tuple[str, float], single: bool = True) -> TensorHandler:
    """Return the handler of a function; `numbers` are names and defaults of attributes."""

    def handler(call: Call) -> Tensor:
        values = tuple(call.number(*number, single=single) for number in numbers)
        return call.tensors[0].apply(name, *call.tensors, values=values)

    return handler


def with_scalar(name: str, swapped: bool = False) -> TensorHandler:
    """Return the handler of a function of an array and a scalar, in this order or `swapped`."""

    def handler(call: Call) -> Tensor:
        x, scalar = call.tensors[0], call.number("scalar", single=False)
        if name == "power" and scalar == 2 and not swapped:
            return x.apply("square", x)
        return x.apply(name, scalar, x) if swapped else x.apply(name, x, scalar)

    return handler


def add(call: Call) -> Tensor:
    """Add arrays; fuse products that have no other reader."""
    build, shape, per_row = call.build, common_shape(call.tensors), any(call.batched)
    products: List[Node] = []
    others: List[Node] = []
    require(len({x.dtype for x in call.tensors}) == 1, "dtypes differ")
    for x in call.tensors:
        node = x.broadcast(shape, per_row).elements()
        (products if x.read_once and node.kind == "product" else others).append(node)
    if len({product.attrs[0][0].units for product in products}) > 1:
        products, others = [], products + others
    if products:
        terms = [pair for p in products for pair in zip(p.args, p.attrs[0])]
        # Biases go to the first terms, and steps that gather rows cannot add any.
        terms.sort(key=lambda term: term[1].gathered)
        biases = [bias for p in products for bias in p.attrs[1]]
        others.insert(0, build.product(terms, biases, products[0].dtype))
    return call.tensors[0].with_node(sum(others[1:], others[0]), shape, per_row)


def activation(call: Call) -> Tensor:
    x, kind = call.tensors[0], call.attrs["act_type"]
    require(x.dtype in FLOAT_DTYPES, f"{x.dtype} has no native steps")
    if kind == "relu" and x.dtype == "float32":
        # Unlike the operator "relu", oneDNN turns NaN to 0.
        return x.apply("select", x.apply("greater", x, 0), x, 0)
    return x.apply(kind, x)


def leaky_relu(call: Call) -> Tensor:
    x, kind = call.tensors[0], call.attrs.get("act_type", "leaky")
    require(x.dtype in FLOAT_DTYPES, f"{x.dtype} has no native steps")
    if kind == "gelu":
        return x * (x.apply("erf", x * sqrt(0.5)) * 0.5 + 0.5)
    # MXNet's gradient of "selu" is not its derivative.
    slope = call.number("slope", 0.25)
    require(kind in ("leaky", "elu") and slope >= 0, f"not for {kind} with this slope")
    below = x if kind == "leaky" else x.apply("expm1", x)
    return x.apply("select", x.apply("lesser_equal", x, 0), below * slope, x)


def amp_cast(call: Call) -> Tensor:
    # For other types, MXNet's own gradient fails.
    require({call.attrs["dtype"], call.tensors[0].dtype} == {"float32"}, "it converts dtypes")
    return call.tensors[0]


def quadratic(call: Call) -> Tensor:
    x, (a, b, c) = call.tensors[0], (call.number(name, 0) for name in "abc")
    return (x * a + b) * x + c


def multiply_gradient(call: Call) -> Tensor:
    factor = 0 if call.op == "BlockGrad" else call.number("scalar", single=False)
    return call.tensors[0].apply("multiplier", call.tensors[0], values=(factor,))


def where(call: Call) -> Tensor:
    condition, x, y = call.tensors
    ones = (1,) * (len(x.shape) - len(condition.shape))
    if condition.dtype != x.dtype:
        condition = condition.cast("bool").cast(x.dtype)
    return x.apply("select", condition.reshaped(condition.shape + ones), x, y)


# Products.


def dense(call: Call) -> Tensor:
    x, (units, width) = call.tensors[0], call.inputs[1]
    if call.build.single:
        return _dense_once(call)
    weight = Weight(call.shared_place(1), units, width, transposed=True)
    biases = [call.shared_place(k) for k in range(2, len(call.tensors))]
    outer = x.shape[:1] if call.flag("flatten", True) else x.shape[:-1]
    return x.with_node(call.build.product([(x.copied(), weight)], biases), (*outer, units))


def _dense_once(call: Call) -> Tensor:
    """Return what `dense` does, of a launch whose only row has all arrays."""
    x, (units, width) = call.tensors[0], call.inputs[1]
    outer = x.shape[:1] if call.flag("flatten", True) else x.shape[:-1]
    transposed = False, True
    product = _matrices(call, (prod(x.shape) // width, width), (units, width), transposed)
    result = x.with_node(product, (*outer, units))
    return result if len(call.tensors) == 2 else result + call.tensors[2]


def _matrices(call: Call, left: Pair, right: Pair, transposed: Tuple[bool, bool]) -> Node:
    """Return the product of the first two inputs, matrices that are stored in these shapes."""
    require(len({x.dtype for x in call.tensors}) == 1, "dtypes differ")
    m, k = left[::-1] if transposed[0] else left
    sizes = Dot(matrices=1, m=m, k=k, n=right[not transposed[1]], transposed=transposed)
    return call.build.dot(call.tensors[0].copied(), call.tensors[1].node(), sizes)


def split(call: Call) -> List[Tensor]:
    """Split columns; a product without other readers becomes a product per part.

    So unused parts are not computed, and each part is written directly to its place.
    """
    parts = axes.move(call)
    if not call.tensors[0].read_once:
        return parts
    return [part.with_node(_narrowed(part.node())) for part in parts]


def _narrowed(x: Node) -> Node:
    """Return adjacent columns of a product as a product with some rows of its matrix.

    Return `x` unless it has such columns, and the product has one term, whose matrix is transposed.
    """
    product, first, step = x.column_run()
    is_single = product.kind == "product" and len(product.args) == 1
    weight = product.attrs[0][0] if is_single else None
    if weight is None or not (step and weight.transposed and weight.units == product.width):
        return x
    rows = weight._replace(place=weight.place.shifted(first * weight.columns), rows=x.width)
    biases = [bias.shifted(first) for bias in product.attrs[1]]
    return x.owner.product([(product.args[0], rows)], biases)


def dot(call: Call) -> Tensor:
    x, shape = call.tensors[0], call.inputs[1]
    if call.build.single:
        return _dot_once(call)
    require(len(x.shape) > 1, "rows are not along axis 0")
    require(not call.flag("transpose_a"), "its first input is transposed")
    transposed = call.flag("transpose_b") and len(shape) > 1
    rows, columns = (prod(shape[:-1]), shape[-1]) if transposed else (shape[0], prod(shape[1:]))
    weight = Weight(call.shared_place(1), rows, columns, transposed)
    product = call.build.product([(x.copied(), weight)])
    return x.with_node(product, (*x.shape[:-1], *(shape[:-1] if transposed else shape[1:])))


def _dot_once(call: Call) -> Tensor:
    """Return what `dot` does, of a launch whose only row has all arrays."""
    left, right = call.inputs
    # The only axis of a vector is summed over, whatever the flags say.
    first = call.flag("transpose_a") and len(left) > 1
    last = call.flag("transpose_b") or len(right) == 1
    kept = (left[1:] if first else left[:-1]), (right[:-1] if last else right[1:])
    (rows, columns), depth = map(prod, kept), left[0] if first else left[-1]
    matrix = (depth, rows) if first else (rows, depth)
    other = (columns, depth) if last else (depth, columns)
    product = _matrices(call, matrix, other, (first, last))
    return call.tensors[0].with_node(product, kept[0] + kept[1] or (1,))


def batch_dot(call: Call) -> Tensor:
    """Multiply matrices that differ from row to row, or of a launch with one row."""
    left, right = call.tensors[:2]
    require(left.per_row and right.per_row or call.build.single, "all rows share an input")
    transposed = call.flag("transpose_a"), call.flag("transpose_b")
    *outer, m, k = left.shape
    m, k = (k, m) if transposed[0] else (m, k)
    n = right.shape[-2 if transposed[1] else -1]
    sizes = Dot(matrices=prod(outer), m=m, k=k, n=n, transposed=transposed)
    product = call.build.dot(left.copied(), right.node(), sizes)
    return left.with_node(product, (*outer, m, n))


def gemm(call: Call) -> Tensor:
    """Multiply matrices, times a number; perhaps add another matrix, times a number."""
    product = (dot if len(call.inputs[0]) == 2 else batch_dot)(call)
    alpha = call.number("alpha", single=False)
    product = product if alpha == 1 else product * alpha
    if len(call.tensors) == 2:
        return product
    return product + call.tensors[2] * call.number("beta", single=False)


#: Names of functions in MXNet's scalar operators, where they differ.
_SCALAR_NAMES = {"add": "plus", "sub": "minus"}

#: Handlers by operator; MXNet runs segments with any other operator.
HANDLERS: Dict[str, TensorHandler] = {
    **{
        op: pointwise(name)
        for name in DERIVATIVES
        for op in (name, f"_{name}", f"elemwise_{name}", f"broadcast_{name}")
        if op in rules.TABLE
    },
    **{
        op: with_scalar(name, swapped)
        for name in DERIVATIVES
        for swapped in (False, True)
        if (op := f"_{'r' * swapped}{_SCALAR_NAMES.get(name, name)}_scalar") in rules.TABLE
    },
    **dict.fromkeys(["elemwise_add", "broadcast_add", "_grad_add", "add_n"], add),
    "rcbrt": lambda call: 1 / call.tensors[0].apply("cbrt", call.tensors[0]),
    "hard_sigmoid": pointwise("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "clip": pointwise("clip", ("a_min", 0), ("a_max", 0)),
    "smooth_l1": pointwise("smooth_l1", ("scalar", 1), single=False),
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "Cast": lambda call: call.tensors[0].cast(call.attrs["dtype"]),
    "amp_cast": amp_cast,
    "_contrib_quadratic": quadratic,
    "_contrib_div_sqrt_dim": lambda call: call.tensors[0] / sqrt(call.inputs[0][-1]),
    **dict.fromkeys(["BlockGrad", "_contrib_gradientmultiplier"], multiply_gradient),
    "zeros_like": lambda call: call.tensors[0].const(0),
    "ones_like": lambda call: call.tensors[0].const(1),
    "where": where,
    **created.CREATED,
    **draws.DRAWS,
    **axes.MOVES,
    "FullyConnected": dense,
    **dict.fromkeys(["SliceChannel", "_split_v2"], split),
    **dict.fromkeys(["Embedding", "take"], indexing.take),
    **dict.fromkeys(["argmax", "argmin"], indexing.argmax),
    **dict.fromkeys(["sort", "argsort", "topk"], indexing.ordered),
    "dot": dot,
    "Convolution": convolution.convolution,
    "Pooling": convolution.pooling,
    "batch_dot": batch_dot,
    **dict.fromkeys(["_linalg_gemm", "_linalg_gemm2"], gemm),
    "sum": lambda call: axes.reduce_axes(call, call.tensors[0]),
    "mean": lambda call: axes.reduce_axes(call, call.tensors[0], mean=True),
    "max": lambda call: axes.reduce_axes(call, call.tensors[0], reduction=MAX),
    "min": lambda call: -axes.reduce_axes(call, -call.tensors[0], reduction=MAX),
    "prod": axes.product,
    "_npi_tril": axes.lower_triangles,
    "norm": axes.norm,
    "L2Normalization": axes.l2_normalization,
    "_contrib_arange_like": axes.arange_like,
    "pick": axes.pick,
    "one_hot": axes.one_hot,
    **dict.fromkeys(["softmax", "log_softmax", "softmin"], axes.softmax),
    "LayerNorm": axes.layer_norm,
    "BatchNorm": axes.batch_norm,
}

#: Operators that kernels compute, if not in all cases.
NATIVE = frozenset(HANDLERS).union(indexing.OWN)
