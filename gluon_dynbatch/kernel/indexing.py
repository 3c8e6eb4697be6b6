"""Handlers of operators that choose elements by index.

Those in `OWN` get the call of one sample: its shapes have no axis of rows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Dict, List, Tuple, Union

from ..native import executing
from ..rules.site import Shape, require
from .axes import squeezed
from .layout import (
    ARGMAX,
    ARGMIN,
    ASCENDING,
    CHECKED,
    CLIP,
    DESCENDING,
    MOST_SORTED,
    TRUNCATED,
    WRAP,
    Index,
    Ranking,
    Weight,
)
from .tensor import FLOAT_DTYPES, INDEX_DTYPES, Call, Tensor, TensorHandler


def take(call: Call) -> Tensor:
    index, table = (0, 1) if call.op == "Embedding" else (1, 0)
    chosen, data = call.tensors[index], call.tensors[table]
    mode, shape = call.attrs.get("mode", CLIP), data.shape
    _require_errors(mode)
    axis = 0 if call.op == "Embedding" else call.axis("axis", 0)
    in_place = not call.build.single or data.source.kind == "read"
    if axis == 0 and not data.per_row and in_place:
        return _from_table(call, index, table, mode)
    sizes = prod(shape[:axis]), (shape[axis],), prod(chosen.shape), prod(shape[axis + 1 :])
    shape = *shape[:axis], *chosen.shape, *shape[axis + 1 :]
    return _gathered(data, chosen, Index(*sizes, mode), shape)


def _from_table(call: Call, index: int, table: int, mode: str) -> Tensor:
    """Gather rows of a matrix that all rows share: a product with one-hot rows."""
    x, (count, *inner) = call.tensors[index], call.inputs[table]
    dtype = call.tensors[table].dtype
    require(dtype in FLOAT_DTYPES, f"{dtype} has no native steps")
    weight = Weight(call.shared_place(table, table), count, prod(inner), False, gathered=mode)
    product = call.build.product([(x.copied(INDEX_DTYPES), weight)], dtype=dtype)
    return x.with_node(product, (*x.shape, *inner))


def _gathered(data: Tensor, chosen: Tensor, index: Index, shape: Shape) -> Tensor:
    build = data.build
    # The gradient of a shared array is a row of its own for each sample.
    shares = not data.per_row and build.recorded and not build.single
    small = not shares or index.width <= 4 * index.gathered
    require(small, "samples choose from a large array that they share")
    _require_errors(index.mode)
    node = build.gathered(data.elements(), chosen.node(INDEX_DTYPES), index)
    return data.with_node(node, shape, chosen.per_row)


def _require_errors(mode: str) -> None:
    checks = mode not in (CLIP, WRAP)
    require(executing.can_fail() or not checks, "native code cannot report indices that do not fit")


def gather_nd(call: Call) -> Tensor:
    shape, (axes, *numbers) = call.inputs
    sizes = 1, shape[:axes], prod(numbers), prod(shape[axes:])
    data, chosen = call.tensors
    return _gathered(data, chosen, Index(*sizes, CHECKED), (*numbers, *shape[axes:]))


def scatter_nd(call: Call) -> Tensor:
    (data, chosen), shape = call.tensors, call.integers("shape")
    axes, *numbers = chosen.shape
    index = Index(1, shape[:axes], prod(numbers), prod(shape[axes:]), TRUNCATED)
    _require_errors(index.mode)
    nodes = data.elements(), chosen.node(INDEX_DTYPES)
    node = call.build.scattered(*nodes, index, adds=call.op != "scatter_nd")
    return data.with_node(node, shape, chosen.per_row)


def _ranking(call: Call, number: int, order: int) -> Tuple[Ranking, Shape]:
    """Return the ranking along the axis of a call, and the shape of its result."""
    shape, axis = call.inputs[0], call.inner_axis()
    sizes = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    return Ranking(*sizes, number, order), (*shape[:axis], number, *shape[axis + 1 :])


def argmax(call: Call) -> Tensor:
    x = call.tensors[0]
    ranking, shape = _ranking(call, 1, ARGMIN if call.op == "argmin" else ARGMAX)
    positions = x.with_node(call.build.ranked(x.node(), ranking, x.dtype), shape)
    return positions if call.flag("keepdims") else squeezed(positions, [call.inner_axis()])


def ordered(call: Call) -> Union[Tensor, List[Tensor]]:
    """Sort along an axis: values, positions, or a mask of the chosen ones."""
    x, count = call.tensors[0], call.inputs[0][call.inner_axis()]
    number = (call.integer("k", 1) or count) if call.op == "topk" else count
    number = min(number, count) if number > 0 else count
    # Less than an eighth of the elements are chosen without sorting all, as MXNet does.
    together = number if 8 * number <= count else count
    sorts = f"native steps sort or choose at most {MOST_SORTED} elements"
    require(together <= MOST_SORTED, sorts)
    ascending = call.flag("is_ascend", call.op != "topk")
    ranking, shape = _ranking(call, number, ASCENDING if ascending else DESCENDING)
    kind = "value" if call.op == "sort" else call.attrs.get("ret_typ", "indices")
    dtype = call.attrs.get("dtype", "float32") if kind in ("indices", "both") else "int64"
    require(dtype in INDEX_DTYPES, f"{dtype} has no native steps")
    positions = x.with_node(call.build.ranked(x.node(), ranking, dtype), shape)
    if kind == "indices":
        return positions
    index = Index(ranking.outer, (count,), number, ranking.inner, CLIP, each=True)
    if kind == "mask":
        ones = x.with_node(call.build.const(1, positions.source.width, x.dtype), shape)
        mask = call.build.scattered(ones.node(), positions.node(INDEX_DTYPES), index, adds=False)
        return x.with_node(mask)
    values = call.build.gathered(x.node(), positions.node(INDEX_DTYPES), index)
    value = x.with_node(values, shape)
    return value if kind == "value" else [value, positions]


def _of_sample(handler: TensorHandler) -> TensorHandler:
    """Call a handler without the axis of rows, and give it to the result."""

    def without(call: Call) -> Tensor:
        tensors = tuple(replace(x, shape=x.shape[1:]) if x.per_row else x for x in call.tensors)
        result = handler(replace(call, tensors=tensors, inputs=tuple(x.shape for x in tensors)))
        assert isinstance(result, Tensor) and result.per_row
        return result.reshaped((1, *result.shape))

    return without


#: Handlers of the calls of one sample, by operator.
OWN: Dict[str, TensorHandler] = {
    "take": _of_sample(take),
    "gather_nd": _of_sample(gather_nd),
    **dict.fromkeys(["scatter_nd", "_backward_gather_nd"], _of_sample(scatter_nd)),
}
