"""Attributes drawn at random: whatever the rules accept equals the loop."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mxnet.base import MXNetError

from gluon_dynbatch.rules.shape import infer_reshape

from .interpreter import Array, R, agree, case

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
sizes = st.integers(1, 4)


def infer(shape: Tuple[int, ...], codes: List[int], reverse: bool) -> Optional[Tuple[int, ...]]:
    symbol = mx.sym.Reshape(mx.sym.var("x"), shape=tuple(codes), reverse=reverse)
    try:
        found = symbol.infer_shape(x=shape)[1][0]
    except MXNetError:
        return None
    # MXNet lets some codes before -2 lose elements; running that reads past the array's end.
    return found if np.prod(found) == np.prod(shape) else None


@st.composite
def reshapes(draw: Any) -> Tuple[Tuple[int, ...], List[int]]:
    """Draw a shape, and codes that use it up in order, mostly without contradiction."""
    shape = draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=4))
    codes: List[int] = []
    left = list(shape)
    while left:
        code = draw(st.sampled_from([0, 0, -1, -2, -3, -4, left[0], 1]))
        if code == -3 and len(left) < 2 or code == -1 and -1 in codes:
            code = 0
        codes.append(code)
        if code == -4:
            codes += draw(st.sampled_from([[-1, 1], [1, -1], [2, -1], [-1, 2]]))
        left = [] if code == -2 else left[2 if code == -3 else 1 :]
    return tuple(shape), codes


@quick
@given(reshapes(), st.booleans())
def test_reshape_codes_mean_what_mxnet_says(
    drawn: Tuple[Tuple[int, ...], List[int]], reverse: bool
) -> None:
    shape, codes = drawn
    # MXNet reads beyond the shape if codes follow -2, as they do from the right.
    assume(not (reverse and {-4, -2} & set(codes)))
    assert infer_reshape(shape, tuple(codes), reverse) == infer(shape, codes, reverse)


@quick
@given(reshapes())
def test_reshape(drawn: Tuple[Tuple[int, ...], List[int]]) -> None:
    shape, codes = drawn
    fits = [infer((r, *shape[1:]), codes, False) for r in (1, 2, 3)]
    assume(all(fits))
    agree(case("Reshape", Array((R, *shape[1:])), shape=tuple(codes)))


@quick
@given(
    st.sampled_from(["sum", "mean", "prod", "max", "min", "nansum", "nanprod"]),
    st.lists(sizes, min_size=0, max_size=3),
    st.data(),
)
def test_reductions(op: str, tail: List[int], data: Any) -> None:
    ndim = len(tail) + 1
    axes = data.draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=ndim))
    axes = [a - ndim if data.draw(st.booleans()) else a for a in axes]
    keep, exclude = data.draw(st.booleans()), data.draw(st.booleans())
    array = Array((R, *tail), "positive")
    agree(case(op, array, axis=tuple(axes), keepdims=keep, exclude=exclude))


@quick
@given(st.data())
def test_broadcasting(data: Any) -> None:
    ndims = [data.draw(st.integers(1, 4)) for _ in range(2)]
    full = [data.draw(st.integers(2, 3)) for _ in range(max(ndims))]
    shapes = []
    for ndim in ndims:
        own = full[len(full) - ndim :]
        shapes.append([1 if data.draw(st.booleans()) else extent for extent in own])
    if ndims[0] == len(full):
        shapes[0][0] = R
        if ndims[1] == len(full):
            shapes[1][0] = data.draw(st.sampled_from([1, R]))
    left, right = (Array(tuple(shape), "positive") for shape in shapes)
    op = data.draw(st.sampled_from(["broadcast_add", "broadcast_mul", "broadcast_maximum"]))
    # Alternating axes may be more than MXNet's kernels take with a batch axis.
    agree(case(op, left, right), always=max(ndims) < 4)


@quick
@given(st.lists(st.integers(1, 3), min_size=0, max_size=3), st.data())
def test_transpose_and_swap(tail: List[int], data: Any) -> None:
    ndim = len(tail) + 1
    agree(case("transpose", Array((R, *tail)), axes=tuple(data.draw(st.permutations(range(ndim))))))
    dims = [data.draw(st.integers(-ndim, ndim - 1)) for _ in range(2)]
    assume(dims[0] % ndim != dims[1] % ndim)
    agree(case("SwapAxis", Array((R, *tail)), dim1=dims[0], dim2=dims[1]))


@quick
@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_slices(tail: List[int], data: Any) -> None:
    begin: List[Optional[int]] = [None]
    end: List[Optional[int]] = [None]
    for extent in tail[: data.draw(st.integers(0, len(tail)))]:
        first = data.draw(st.integers(0, extent - 1))
        last = data.draw(st.integers(first + 1, extent))
        begin.append(first - extent if data.draw(st.booleans()) else first)
        end.append(None if last == extent else last)
    agree(case("slice", Array((R, *tail)), begin=tuple(begin), end=tuple(end)))


@quick
@given(st.data())
def test_dot(data: Any) -> None:
    inner = data.draw(st.integers(2, 3))
    outer = [data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=2)) for _ in range(2)]
    turned = [data.draw(st.booleans()) if len(o) > 0 else False for o in outer]
    left = [inner, *outer[0]] if turned[0] else [*outer[0], inner]
    if outer[0] and not turned[0]:
        left[0] = R
    right = [*outer[1], inner] if turned[1] else [inner, *outer[1]]
    agree(
        case(
            "dot",
            Array(tuple(left)),
            Array(tuple(right)),
            transpose_a=turned[0],
            transpose_b=turned[1],
        )
    )


@quick
@given(
    st.sampled_from(["softmax", "log_softmax", "LayerNorm", "argmax", "_np_cumsum", "repeat"]),
    st.lists(st.integers(2, 4), min_size=0, max_size=3),
    st.data(),
)
def test_one_axis(op: str, tail: List[int], data: Any) -> None:
    ndim = len(tail) + 1
    lowest = 0 if op == "_np_cumsum" else -ndim
    axis = data.draw(st.integers(lowest, ndim - 1))
    if op != "LayerNorm":
        more = {"repeats": 2} if op == "repeat" else {}
        agree(case(op, Array((R, *tail)), axis=axis, gradient=op != "argmax", **more))
    elif axis % ndim:
        width = Array((tail[axis % ndim - 1],))
        agree(case(op, Array((R, *tail)), width, width, axis=axis), pattern="BSS")
