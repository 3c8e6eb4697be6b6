"""Calls with shapes and attributes drawn at random; by family, which yields cases."""

from __future__ import annotations

from math import prod
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import mxnet as mx
from hypothesis import strategies as st
from mxnet.base import MXNetError

from .interpreter import Array, Case, R, case

#: A case, and more arguments of `agree`.
Drawn = Iterator[Tuple[Case, Dict[str, Any]]]


class Draw:
    """Draws from Hypothesis, which shrinks to the first, the lowest, and False."""

    def __init__(self, draw: Any):
        self._draw = draw

    def pick(self, options: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(options))

    def count(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))  # type: ignore[no-any-return]

    def flag(self) -> bool:
        return self._draw(st.booleans())  # type: ignore[no-any-return]

    def counts(self, low: int, high: int, least: int, most: int) -> List[int]:
        return [self.count(low, high) for _ in range(self.count(least, most))]

    def shape(self, most: int = 3) -> List[int]:
        return self.counts(1, 4, 0, most)

    def some(self, options: Any) -> List[Any]:
        options = list(options)
        return [
            options.pop(self.count(0, len(options) - 1)) for _ in range(self.count(0, len(options)))
        ]

    def axis(self, ndim: int) -> int:
        return self.count(-ndim, ndim - 1)


def fits(shape: Tuple[int, ...], codes: List[int], reverse: bool) -> bool:
    symbol = mx.sym.Reshape(mx.sym.var("x"), shape=tuple(codes), reverse=reverse)
    try:
        found = symbol.infer_shape(x=shape)[1][0]
    except MXNetError:
        return False
    # MXNet lets some codes before -2 lose elements; running that reads past the array's end.
    return prod(found) == prod(shape)


def reshape(d: Draw) -> Drawn:
    """Use a shape up in order, mostly without contradiction."""
    left = shape = [d.pick([2, 3, 4, 6]) for _ in range(d.count(1, 4))]
    codes: List[int] = []
    while left:
        code = d.pick([0, 0, -1, -2, -3, -4, left[0], 1])
        if code == -3 and len(left) < 2 or code == -1 and -1 in codes:
            code = 0
        codes += [code] + (d.pick([[-1, 1], [1, -1], [2, -1], [-1, 2]]) if code == -4 else [])
        left = [] if code == -2 else left[2 if code == -3 else 1 :]
    reverse = d.flag()
    # MXNet reads beyond the shape if codes follow -2, as they do from the right.
    if reverse and {-4, -2} & set(codes):
        return
    if all(fits((r, *shape[1:]), codes, reverse) for r in (1, 2, 3)):
        yield case("Reshape", Array((R, *shape[1:])), shape=tuple(codes), reverse=reverse), {}


def reductions(d: Draw) -> Drawn:
    op = d.pick(["sum", "mean", "prod", "max", "min", "nansum", "nanprod"])
    tail = d.shape()
    axes = tuple(a - (len(tail) + 1) * d.flag() for a in d.some(range(len(tail) + 1)))
    given = {"axis": axes, "keepdims": d.flag(), "exclude": d.flag()}
    yield case(op, Array((R, *tail), "positive"), **given), {}


def broadcasting(d: Draw) -> Drawn:
    ndims = [d.count(1, 4) for _ in range(2)]
    full = [d.count(2, 3) for _ in range(max(ndims))]
    shapes = [[1 if d.flag() else n for n in full[len(full) - ndim :]] for ndim in ndims]
    if ndims[0] == len(full):
        shapes[0][0] = R
        if ndims[1] == len(full):
            shapes[1][0] = d.pick([1, R])
    op = d.pick(["broadcast_add", "broadcast_mul", "broadcast_maximum"])
    # Alternating axes may be more than MXNet's kernels take with a batch axis.
    yield case(op, *(Array(tuple(s), "positive") for s in shapes)), {"always": max(ndims) < 4}


def transpose_and_swap(d: Draw) -> Drawn:
    x = Array((R, *d.counts(1, 3, 0, 3)))
    ndim = len(x.shape)
    left = list(range(ndim))
    axes = tuple(left.pop(d.count(0, len(left) - 1)) for _ in range(ndim))
    yield case("transpose", x, axes=axes), {}
    dims = d.axis(ndim), d.axis(ndim)
    if dims[0] % ndim != dims[1] % ndim:
        yield case("SwapAxis", x, dim1=dims[0], dim2=dims[1]), {}


def slices(d: Draw) -> Drawn:
    tail = d.counts(2, 4, 1, 3)
    begin: List[Any] = [None]
    end: List[Any] = [None]
    for extent in tail[: d.count(0, len(tail))]:
        first = d.count(0, extent - 1)
        last = d.count(first + 1, extent)
        begin.append(first - extent if d.flag() else first)
        end.append(None if last == extent else last)
    yield case("slice", Array((R, *tail)), begin=tuple(begin), end=tuple(end)), {}


def dot(d: Draw) -> Drawn:
    inner, outer = d.count(2, 3), [d.counts(1, 3, 0, 2) for _ in range(2)]
    turned = [bool(o) and d.flag() for o in outer]
    left = [inner, *outer[0]] if turned[0] else [*outer[0], inner]
    if outer[0] and not turned[0]:
        left[0] = R
    right = [*outer[1], inner] if turned[1] else [inner, *outer[1]]
    given = {"transpose_a": turned[0], "transpose_b": turned[1]}
    yield case("dot", Array(tuple(left)), Array(tuple(right)), **given), {}


def products(d: Draw) -> Drawn:
    op = d.pick(["batch_dot", "_linalg_gemm2"])
    (m, k, n), ta, tb = (d.count(1, 4) for _ in range(3)), d.flag(), d.flag()
    left, right = Array((R, k, m) if ta else (R, m, k)), Array((R, n, k) if tb else (R, k, n))
    yield case(op, left, right, transpose_a=ta, transpose_b=tb), {}
    tail, hidden, flatten, bias = d.counts(1, 4, 1, 2), d.count(1, 4), d.flag(), d.flag()
    width = prod(tail if flatten else tail[-1:])
    inputs = [Array((R, *tail)), Array((hidden, width)), Array((hidden,))][: 3 if bias else 2]
    yield case("FullyConnected", *inputs, num_hidden=hidden, flatten=flatten, no_bias=not bias), {}


def one_axis(d: Draw) -> Drawn:
    op = d.pick(["softmax", "log_softmax", "LayerNorm", "argmax", "_np_cumsum", "repeat"])
    tail = d.counts(2, 4, 0, 3)
    x, ndim = Array((R, *tail)), len(tail) + 1
    axis = d.count(0 if op == "_np_cumsum" else -ndim, ndim - 1)
    if op != "LayerNorm":
        more = {"repeats": 2} if op == "repeat" else {}
        yield case(op, x, axis=axis, gradient=op != "argmax", **more), {}
    elif axis % ndim:
        width = Array((tail[axis % ndim - 1],))
        yield case(op, x, width, width, axis=axis), {"pattern": "BSS"}


def choosing_by_number(d: Draw) -> Drawn:
    tail, index, kind = d.shape(), d.shape(), d.pick(["index", "index32", "wild"])
    x, ndim = Array((R, *tail)), len(tail) + 1
    axis, mode = d.axis(ndim), d.pick(["clip", "wrap"])
    place, count = axis % ndim, [2, *tail][axis % ndim]
    indices = Array((R, *index), kind, count)
    yield case("take", x, indices, axis=axis, mode=mode), {"always": False}
    if place and kind != "index32":
        keep = d.flag()
        kept = tuple(n for a, n in enumerate(x.shape) if a != place)
        shape = tuple(1 if a == place else n for a, n in enumerate(x.shape)) if keep else kept
        picked = Array(shape, kind, count)
        yield case("pick", x, picked, axis=axis, keepdims=keep, mode=mode), {}
    table = Array((5, *tail[:1])) if tail else Array((5, 3))
    given = {"input_dim": 5, "output_dim": table.shape[1]}
    yield case("Embedding", Array((R, *index), "index", 5), table, **given), {"pattern": "BS"}
    yield case("one_hot", Array((R, *index), "wild", 3), depth=3), {}
    shape = tuple(d.counts(1, 4, 1, 3))
    depth = d.count(1, len(shape))
    wanted = (depth, *d.counts(1, 4, 1, 2))
    yield case("gather_nd", Array(shape), Array(wanted, "index", min(shape[:depth]))), {}


def joining_and_cutting(d: Draw) -> Drawn:
    tail = d.shape()
    ndim = len(tail) + 1
    axis, count = d.axis(ndim), d.count(1, 3)

    def wide(extent: int) -> Array:
        return Array(tuple(extent if a == axis % ndim else n for a, n in enumerate((R, *tail))))

    parts = [wide(d.count(1, 4)) if axis % ndim else Array((R, *tail)) for _ in range(count)]
    yield case("Concat", *parts, num_args=count, dim=axis), {}
    new = d.axis(ndim + 1)
    yield case("stack", *[Array((R, *tail))] * count, num_args=count, axis=new), {}
    yield case("expand_dims", Array((R, *tail)), axis=new), {}
    if axis % ndim:
        x, begin = wide(count * 2), d.count(0, count)
        yield case("SliceChannel", x, num_outputs=count, axis=axis), {}
        yield case("slice_axis", x, axis=axis, begin=begin, end=begin + count), {}
        cuts = tuple(sorted({0, *d.counts(1, count * 2 - 1, 0, 2)}))
        yield case("_split_v2", x, axis=axis, indices=cuts, sections=0), {}
        yield case("squeeze", wide(1), axis=axis), {}


def repeating(d: Draw) -> Drawn:
    x = Array((R, *d.shape()))
    ndim = len(x.shape)
    # With three axes repeated, MXNet itself has no gradient.
    yield case("tile", x, reps=tuple(d.counts(1, 3, 1, min(ndim, 2)))), {"always": ndim < 3}
    axis = d.axis(ndim)
    yield case("repeat", x, repeats=d.count(1, 3), axis=axis), {}
    yield case("reverse", x, axis=(axis % ndim,)), {}
    pad = (0, 0, 0, 0, *[d.count(0, 2) for _ in range(4)])
    image = Array((R, *[d.count(1, 4) for _ in range(3)]))
    yield case("Pad", image, mode=d.pick(["constant", "edge"]), pad_width=pad), {}


def where(d: Draw) -> Drawn:
    shape = (R, *d.shape())
    condition = Array(shape if d.flag() or len(shape) == 1 else shape[:1], "bit")
    yield case("where", condition, Array(shape), Array(shape)), {}


FAMILIES = (
    reshape, reductions, broadcasting, transpose_and_swap, slices, dot, one_axis, products,
    choosing_by_number, joining_and_cutting, repeating, where,
)  # fmt: skip
