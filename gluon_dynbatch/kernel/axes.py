"""Handlers of operators that work along axes: they move, reduce or select elements of a row."""

from __future__ import annotations

from math import prod
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from mxnet import nd, sym
from mxnet.base import MXNetError

from ..cache import SizedCache
from ..rules.axes import reduced_axes
from ..rules.site import RefuseError, Shape, Site, public_attrs, require
from ..schedule.dependencies import Array
from .layout import CLIP, WRAP, Index, Order
from .recognize import MAX, PROD, SUM
from .tensor import BOUNDS, INDEX_DTYPES, Call, Tensor, TensorHandler, require_movable

# Moves of elements.

_MOVES = (
    "_copy Reshape Flatten expand_dims squeeze transpose SwapAxis reverse repeat tile SliceChannel "
    "_split_v2 slice slice_axis slice_like Concat stack broadcast_to broadcast_axis broadcast_like"
)

#: Those that leave all elements in their order.
KEEPING_ORDER = frozenset(["_copy", "Reshape", "Flatten", "expand_dims", "squeeze"])


def move(call: Call) -> List[Tensor]:
    """Gather the elements that MXNet's operator gathers."""
    results, sizes = [], [prod(x.shape) for x in call.tensors]
    for indices in _indices(Site(call.op, call.attrs, call.inputs, (), call.batched, False)):
        source = call.tensors[0]
        if indices.max(initial=0) >= sizes[0]:
            require(len({x.dtype for x in call.tensors}) == 1, "dtypes differ")
            joined = call.build.join(x.elements() for x in call.tensors)
            source = source.with_node(joined, (sum(sizes),))
        results.append(source.gathered(indices, any(call.batched)))
    return results


#: Results of `_find_indices`, because cells of all sizes make equal calls again and again.
_FOUND: SizedCache[List[Array]] = SizedCache(1 << 24)


def _indices(site: Site) -> List[Array]:
    """Return, per result, the index of each element among those of all inputs."""
    found: Optional[List[Array]] = _FOUND.find(site)
    if found is None:
        found = _find_indices(site)
        _FOUND.keep(site, found, sum(indices.nbytes for indices in found))
    return found


def _find_indices(site: Site) -> List[Array]:
    """Apply an operator to two rows of indices: it must treat the second row like the first."""
    sizes, attrs = [prod(shape) for shape in site.inputs], public_attrs(site.attrs)
    for size, batched in zip(sizes, site.batched):
        require_movable(size * (1 + batched))
    doubled = [(2 * s[0], *s[1:]) if both else s for s, both in zip(site.inputs, site.batched)]
    shapes = {f"x{i}": shape for i, shape in enumerate(doubled)}
    try:
        symbol = _operator(sym, site.op)(*map(sym.var, shapes), **attrs, name="permuted")
        result_shapes = symbol.infer_shape(**shapes)[1]
        for shape in result_shapes:
            require_movable(prod(shape))
        results = _moved(site.op, attrs, _numbered(site, sizes), result_shapes)
    except MXNetError:
        raise RefuseError("rows are not along axis 0") from None
    offset = sum(sizes)
    gathered = []
    for indices in results:
        if any(site.batched):
            first, second = indices[: len(indices) // 2], indices[len(indices) // 2 :]
            alike = first.shape == second.shape and first.max(initial=0) < offset
            require(alike, "rows are not along axis 0")
            shift = np.repeat(site.batched, sizes)[first] * offset
            require((second == first + shift).all(), "rows are not along axis 0")
            indices = first
        gathered.append(indices)
    return gathered


def _numbered(site: Site, sizes: Sequence[int]) -> List[Array]:
    """Return two rows of indices for each input with rows, and one for each other."""
    arrays, offset, start = [], sum(sizes), 0
    for shape, size, batched in zip(site.inputs, sizes, site.batched):
        row = np.arange(start, start + size).reshape(shape)
        arrays.append(np.concatenate([row, row + offset]) if batched else row)
        start += size
    return arrays


def _moved(
    op: str, attrs: Dict[str, str], arrays: Sequence[Array], shapes: Sequence[Shape]
) -> List[Array]:
    """Return the results of an operator; MXNet runs it, and its engine is waited for, if needed."""
    if op in KEEPING_ORDER:
        return [arrays[0].reshape(shapes[0])]
    if op == "Concat":
        return [np.concatenate(arrays, axis=int(attrs.get("dim", 1)))]
    results = _operator(nd, op)(*map(nd.from_numpy, arrays), **attrs)
    return [x.asnumpy() for x in (results if isinstance(results, list) else [results])]


def _operator(module: Any, name: str) -> Any:
    return getattr(module._internal if name.startswith("_") else module.op, name)


MOVES: Dict[str, TensorHandler] = dict.fromkeys(_MOVES.split(), move)


def lower_triangles(call: Call) -> Tensor:
    """Replace the elements above a diagonal of matrices with zeros."""
    x, (*outer, rows, columns) = call.tensors[0], call.tensors[0].shape
    x.refuse_axis_of_rows(len(outer))
    require_movable(prod(x.shape))
    indices = np.arange(prod(x.shape)).reshape(x.shape)
    kept = np.tril(np.ones((rows, columns), bool), call.integer("k", 0) or 0)
    order = Order(np.where(kept, indices, -1).ravel().tolist())
    return x.with_node(call.build.permuted(x.elements(), order))


def squeezed(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Remove axes of extent 1."""
    return x.reshaped([n for axis, n in enumerate(x.shape) if axis not in axes] or [1])


# Reductions and selections along an axis.


def reduce_axes(call: Call, x: Tensor, mean: bool = False, reduction: str = SUM) -> Tensor:
    axes = reduced_axes(call)
    reduced = x.reduced(axes, reduction)
    if mean:
        reduced = reduced / prod(x.shape[axis] for axis in axes)
    return reduced if call.flag("keepdims") else squeezed(reduced, axes)


def product(call: Call) -> Tensor:
    """Multiply; in MXNet, the gradient is the product divided by the factor, also if that is 0."""
    x, axes = call.tensors[0], reduced_axes(call)
    result = x.reduced(axes, PROD)
    factor = x.apply("multiplier", result / x, values=(0,))
    result = x.apply("as_if", result, (x * factor).reduced(axes))
    return result if call.flag("keepdims") else squeezed(result, axes)


def norm(call: Call) -> Tensor:
    x = call.tensors[0]
    require(call.attrs.get("out_dtype") in (None, "None", x.dtype), "dtypes differ")
    if call.integer("ord", 2) == 1:
        return reduce_axes(call, x.apply("abs", x))
    total = reduce_axes(call, x * x)
    return total.apply("sqrt", total)


def l2_normalization(call: Call) -> Tensor:
    x = call.tensors[0]
    first = {"instance": 1, "channel": 1, "spatial": 2}[call.attrs.get("mode", "instance")]
    last = 2 if call.attrs.get("mode") == "channel" else len(x.shape)
    total = (x * x).reduced(range(first, last)) + call.number("eps", 1e-10)
    return x / total.apply("sqrt", total)


def iota(x: Tensor, count: int, dtype: str, ndim: int = 1) -> Tensor:
    """Return 0, 1, ..., `count` - 1 along the first of `ndim` axes."""
    require(dtype in INDEX_DTYPES, f"{dtype} has no native steps")
    shape: Shape = (count, *(1,) * (ndim - 1))
    return Tensor(x.build.iota(0, count, dtype), shape, per_row=False)


def arange_like(call: Call) -> Tensor:
    x, axis = call.tensors[0], call.inner_axis(default=0)
    require(call.integer("repeat", 1) == 1, "it repeats numbers")
    step, start = call.number("step", single=False), call.number("start", 0, single=False)
    return iota(x, x.shape[axis], x.dtype) * step + start


def softmax(call: Call) -> Tensor:
    x, axes = call.tensors[0], [call.inner_axis()]
    require(not call.flag("use_length"), "rows have lengths")
    require(call.attrs.get("dtype") in (None, "None", x.dtype), "dtypes differ")
    if call.op == "softmin":
        x = -x
    # No gradient flows through the maximum, because the result does not depend on it.
    x = x - x.apply("multiplier", x.reduced(axes, MAX), values=(0,))
    temperature = call.number("temperature", single=False)
    if temperature != 1:
        x = x / temperature
    powers = x.apply("exp", x)
    total = powers.reduced(axes)
    if call.op == "log_softmax":
        return x - x.apply("log", total)
    return powers / total


def layer_norm(call: Call) -> Tensor:
    x, axis = call.tensors[0], call.inner_axis()
    width = x.shape[axis]
    vector = (width, *(1,) * (len(x.shape) - axis - 1))
    gamma, beta = (call.tensors[k].reshaped(vector) for k in (1, 2))
    centred = x - x.reduced([axis]) / width
    variance = (centred * centred).reduced([axis]) / width + call.number("eps", 1e-5)
    return centred * x.apply("rsqrt", variance) * gamma + beta


def batch_norm(call: Call) -> Tensor:
    """Normalize by running statistics, through which no gradient flows."""
    x, axis = call.tensors[0], call.axis("axis", 1)
    require(len({t.dtype for t in call.tensors}) == 1, "dtypes differ")
    x.refuse_axis_of_rows(axis)
    vector = (x.shape[axis], *(1,) * (len(x.shape) - axis - 1))
    gamma, beta, *statistics = (t.reshaped(vector) for t in call.tensors[1:])
    mean, variance = (t.apply("multiplier", t, values=(0,)) for t in statistics)
    deviation = variance + call.number("eps", 1e-3, single=False)
    normalized = (x - mean) * deviation.apply("rsqrt", deviation)
    return (normalized if call.flag("fix_gamma", True) else normalized * gamma) + beta


def pick(call: Call) -> Tensor:
    x, index = call.tensors
    axis = call.inner_axis()
    require(index.per_row or not x.per_row, "all rows share the index")
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    last, outer = x.shape[axis] - 1, prod(x.shape[:axis])
    if outer > 1:
        mode = call.attrs.get("mode", CLIP)
        chosen = Index(outer, (last + 1,), 1, prod(x.shape[axis + 1 :]), mode, each=True)
        indices = index.index("int32").node(INDEX_DTYPES)
        picked = x.with_node(call.build.gathered(x.node(), indices, chosen), shape, index.per_row)
        return picked if call.flag("keepdims") else squeezed(picked, [axis])
    if call.attrs.get("mode", "clip") == WRAP:
        # In single precision, the remainder of a large index would be inexact.
        index = index.index("float64")
        index = index.apply("mod", index, last + 1).cast(x.dtype)
        index = x.apply("trunc", index)
    else:
        index = index.index(x.dtype)
        index = x.apply("minimum", x.apply("maximum", index, 0), last)
    numbers = iota(x, last + 1, x.dtype, len(x.shape) - axis)
    mask = x.apply("equal", index.reshaped(shape), numbers)
    picked = x.apply("select", mask, x, 0).reduced([axis])
    return picked if call.flag("keepdims") else squeezed(picked, [axis])


def one_hot(call: Call) -> Tensor:
    x, dtype = call.tensors[0], call.attrs.get("dtype", "float32")
    numbers = iota(x, call.integer("depth", 0) or 0, dtype)
    index = x.index(dtype)
    # Read once per row, not once per column.
    index = index + 0 if dtype in BOUNDS else index.apply("trunc", index)
    index = index.reshaped((*x.shape, 1))
    mask = x.apply("equal", index, numbers)
    on, off = call.number("on_value", single=False), call.number("off_value", 0, single=False)
    return mask.apply("select", mask, mask.const(on), off)
