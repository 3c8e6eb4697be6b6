"""Shapes and attributes drawn at random: whatever the rules accept equals the loop."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mxnet.base import MXNetError

from .interpreter import Array, R, agree, case

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
brief = settings(quick, max_examples=30)
sizes = st.integers(1, 4)
shapes = st.lists(sizes, min_size=0, max_size=3)
flags = st.booleans()


def fits(shape: Tuple[int, ...], codes: List[int], reverse: bool) -> bool:
    symbol = mx.sym.Reshape(mx.sym.var("x"), shape=tuple(codes), reverse=reverse)
    try:
        found = symbol.infer_shape(x=shape)[1][0]
    except MXNetError:
        return False
    # MXNet lets some codes before -2 lose elements; running that reads past the array's end.
    return bool(np.prod(found) == np.prod(shape))


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
def test_reshape(drawn: Tuple[Tuple[int, ...], List[int]], reverse: bool) -> None:
    shape, codes = drawn
    # MXNet reads beyond the shape if codes follow -2, as they do from the right.
    assume(not (reverse and {-4, -2} & set(codes)))
    assume(all(fits((r, *shape[1:]), codes, reverse) for r in (1, 2, 3)))
    agree(case("Reshape", Array((R, *shape[1:])), shape=tuple(codes), reverse=reverse))


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


def axis_in(data: Any, ndim: int) -> int:
    """Draw an axis, counted from the front or the back."""
    return int(data.draw(st.integers(-ndim, ndim - 1)))


@brief
@given(st.data())
def test_convolutions(data: Any) -> None:
    ndim = data.draw(st.integers(1, 2))
    groups, back = data.draw(st.integers(1, 2)), data.draw(flags)
    channels, filters = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(ndim))
    given: Dict[str, Any] = {
        "kernel": kernel,
        "stride": tuple(data.draw(st.integers(1, 2)) for _ in range(ndim)),
        "pad": tuple(data.draw(st.integers(0, k - 1)) for k in kernel),
        "num_filter": filters,
        "num_group": groups,
        "no_bias": data.draw(flags),
    }
    if not back:
        given["dilate"] = tuple(data.draw(st.integers(1, 2)) for _ in range(ndim))
    space = [data.draw(st.integers(5, 7)) for _ in range(ndim)]
    weight = (channels, filters // groups) if back else (filters, channels // groups)
    inputs = [Array((R, channels, *space)), Array((*weight, *kernel))]
    if not given["no_bias"]:
        inputs.append(Array((filters,)))
    op = "Deconvolution" if back else "Convolution"
    agree(case(op, *inputs, **given), pattern="B" + "S" * (len(inputs) - 1))


@brief
@given(st.data())
def test_pooling(data: Any) -> None:
    ndim = data.draw(st.integers(1, 2))
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(ndim))
    given: Dict[str, Any] = {
        "kernel": kernel,
        "stride": tuple(data.draw(st.integers(1, 2)) for _ in range(ndim)),
        "pad": tuple(data.draw(st.integers(0, k // 2)) for k in kernel),
        "pool_type": data.draw(st.sampled_from(["max", "avg", "sum"])),
        "global_pool": data.draw(flags),
        "pooling_convention": data.draw(st.sampled_from(["valid", "full"])),
    }
    if given["pool_type"] == "avg":
        given["count_include_pad"] = data.draw(flags)
    space = [data.draw(st.integers(4, 6)) for _ in range(ndim)]
    agree(case("Pooling", Array((R, data.draw(sizes), *space)), **given))


@brief
@given(st.data())
def test_dense(data: Any) -> None:
    tail, hidden = data.draw(st.lists(sizes, min_size=1, max_size=2)), data.draw(sizes)
    flatten, bias = data.draw(flags), data.draw(flags)
    width = 1
    for extent in tail if flatten else tail[-1:]:
        width *= extent
    inputs = [Array((R, *tail)), Array((hidden, width)), Array((hidden,))][: 3 if bias else 2]
    given = {"num_hidden": hidden, "flatten": flatten, "no_bias": not bias}
    agree(case("FullyConnected", *inputs, **given))


@brief
@given(st.sampled_from(["batch_dot", "_linalg_gemm2"]), sizes, sizes, sizes, flags, flags)
def test_products_of_matrices(op: str, m: int, k: int, n: int, ta: bool, tb: bool) -> None:
    left = Array((R, k, m) if ta else (R, m, k))
    right = Array((R, n, k) if tb else (R, k, n))
    agree(case(op, left, right, transpose_a=ta, transpose_b=tb))


@brief
@given(st.data())
def test_choosing_by_number(data: Any) -> None:
    tail, index = data.draw(shapes), data.draw(shapes)
    kind = data.draw(st.sampled_from(["index", "index32", "wild"]))
    ndim = len(tail) + 1
    axis = axis_in(data, ndim)
    mode = data.draw(st.sampled_from(["clip", "wrap"]))
    count = [2, *tail][axis % ndim]
    agree(
        case("take", Array((R, *tail)), Array((R, *index), kind, count), axis=axis, mode=mode),
        always=False,
    )
    if axis % ndim and kind != "index32":
        kept = [extent for place, extent in enumerate([R, *tail]) if place != axis % ndim]
        keep = data.draw(flags)
        shape = [1 if a == axis % ndim else e for a, e in enumerate([R, *tail])] if keep else kept
        agree(case("pick", Array((R, *tail)), Array(tuple(shape), kind, count), axis=axis,
                   keepdims=keep, mode=mode))  # fmt: skip
    table = Array((5, *tail[:1])) if tail else Array((5, 3))
    rows = Array((R, *index), "index", 5)
    given = {"input_dim": 5, "output_dim": table.shape[1]}
    agree(case("Embedding", rows, table, **given), pattern="BS")
    agree(case("one_hot", Array((R, *index), "wild", 3), depth=3))


@brief
@given(st.data())
def test_gather_nd(data: Any) -> None:
    shape = data.draw(st.lists(sizes, min_size=1, max_size=3))
    depth = data.draw(st.integers(1, len(shape)))
    index = Array((depth, *data.draw(st.lists(sizes, min_size=1, max_size=2))), "index",
                  min(shape[:depth]))  # fmt: skip
    agree(case("gather_nd", Array(tuple(shape)), index))


@brief
@given(st.data())
def test_joining_and_cutting(data: Any) -> None:
    tail = data.draw(shapes)
    ndim = len(tail) + 1
    axis, count = axis_in(data, ndim), data.draw(st.integers(1, 3))
    parts: List[Array] = []
    for _ in range(count):
        own = [R, *tail]
        if axis % ndim:
            own[axis % ndim] = data.draw(sizes)
        parts.append(Array(tuple(own)))
    agree(case("Concat", *parts, num_args=count, dim=axis))
    new = axis_in(data, ndim + 1)
    agree(case("stack", *[Array((R, *tail))] * count, num_args=count, axis=new))
    agree(case("expand_dims", Array((R, *tail)), axis=new))
    if axis % ndim:
        wide = [R, *tail]
        wide[axis % ndim] = count * 2
        given: Dict[str, Any] = {"num_outputs": count, "axis": axis}
        agree(case("SliceChannel", Array(tuple(wide)), **given))
        begin = data.draw(st.integers(0, count))
        agree(case("slice_axis", Array(tuple(wide)), axis=axis, begin=begin, end=begin + count))
        cuts = sorted({0, *data.draw(st.lists(st.integers(1, count * 2 - 1), max_size=2))})
        agree(case("_split_v2", Array(tuple(wide)), axis=axis, indices=tuple(cuts), sections=0))
        wide[axis % ndim] = 1
        agree(case("squeeze", Array(tuple(wide)), axis=axis))


@brief
@given(st.data())
def test_repeating(data: Any) -> None:
    tail = data.draw(shapes)
    ndim = len(tail) + 1
    # With three axes repeated, MXNet itself has no gradient.
    reps = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=min(ndim, 2))))
    agree(case("tile", Array((R, *tail)), reps=reps), always=ndim < 3)
    axis = axis_in(data, ndim)
    agree(case("repeat", Array((R, *tail)), repeats=data.draw(st.integers(1, 3)), axis=axis))
    agree(case("reverse", Array((R, *tail)), axis=(axis % ndim,)))
    image = Array((R, *[data.draw(sizes) for _ in range(3)]))
    pad = (0, 0, 0, 0, *[data.draw(st.integers(0, 2)) for _ in range(4)])
    agree(case("Pad", image, mode=data.draw(st.sampled_from(["constant", "edge"])), pad_width=pad))


@brief
@given(st.data())
def test_norms_and_sorting(data: Any) -> None:
    tail = data.draw(shapes)
    ndim = len(tail) + 1
    axis: Any = data.draw(st.sampled_from(["None", *range(-ndim, ndim)]))
    keep = data.draw(flags)
    agree(case("norm", Array((R, *tail)), ord=data.draw(st.integers(1, 2)), axis=axis,
               keepdims=keep), always=ndim < 3 or axis == "None")  # fmt: skip
    distinct = Array((R, *tail), "distinct")
    agree(case("sort", distinct, axis=axis, is_ascend=data.draw(flags)))
    agree(case("argsort", distinct, axis=axis, gradient=False))
    agree(case("argmax", distinct, axis=axis, keepdims=keep, gradient=False))
    if axis == "None" or axis % ndim:
        agree(case("topk", distinct, axis=axis, k=1, ret_typ="both", is_ascend=keep))


@brief
@given(st.data())
def test_normalisation(data: Any) -> None:
    groups = data.draw(st.integers(1, 2))
    channels = groups * data.draw(st.integers(1, 2))
    space = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=2))
    x = Array((R, channels, *space))
    per_channel = (Array((channels,), "positive"), Array((channels,)))
    agree(case("InstanceNorm", x, *per_channel), pattern="BSS")
    per_group = (Array((groups,), "positive"), Array((groups,)))
    agree(case("GroupNorm", x, *per_group, num_groups=groups), pattern="BSS")
    mode = data.draw(st.sampled_from(["instance", "channel", "spatial"]))
    agree(case("L2Normalization", x, mode=mode))
    moving = (Array((channels,)), Array((channels,), "positive"))
    given = {"fix_gamma": data.draw(flags), "training": False}
    agree(case("BatchNorm", x, *per_channel, *moving, **given), pattern="BSSSS")


@brief
@given(st.data())
def test_sequences(data: Any) -> None:
    time, batch, axis = data.draw(sizes), data.draw(sizes), data.draw(st.integers(0, 1))
    tail = data.draw(st.lists(sizes, max_size=2))
    op = data.draw(st.sampled_from(["SequenceMask", "SequenceLast", "SequenceReverse"]))
    axis = 0 if op == "SequenceReverse" else axis
    shape = (R, time, *tail) if axis else (time, batch, *tail)
    lengths = Array((R,) if axis else (batch,), "length", time)
    agree(case(op, Array(shape), lengths, axis=axis, use_sequence_length=True))
    softened = Array((R, time), "length32", batch)
    agree(case("softmax", Array((R, time, batch)), softened, axis=2, use_length=True))


@brief
@given(st.data())
def test_attention(data: Any) -> None:
    heads, size, batch, queries, keys = (data.draw(st.integers(1, 3)) for _ in range(5))
    name = "_contrib_interleaved_matmul_{}".format
    joint = Array((queries, batch, heads * size * 3))
    agree(case(name("selfatt_qk"), joint, heads=heads))
    weights = Array((batch * heads, queries, queries))
    agree(case(name("selfatt_valatt"), joint, weights, heads=heads))
    memory = Array((keys, batch, heads * size * 2))
    agree(case(name("encdec_qk"), Array((queries, batch, heads * size)), memory, heads=heads))
    weights = Array((batch * heads, queries, keys))
    agree(case(name("encdec_valatt"), memory, weights, heads=heads))


@brief
@given(st.sampled_from(["rnn_relu", "rnn_tanh", "gru", "lstm"]), sizes, sizes, sizes, st.data())
def test_fused_recurrence(mode: str, time: int, batch: int, width: int, data: Any) -> None:
    layers, ways, hidden = (data.draw(st.integers(1, 2)) for _ in range(3))
    gates = {"gru": 3, "lstm": 4}.get(mode, 1)
    widths = [width, *[ways * hidden] * (layers - 1)]
    size = sum(ways * gates * hidden * (w + hidden + 2) for w in widths)
    state = Array((layers * ways, batch, hidden))
    states = [state, state] if mode == "lstm" else [state]
    given = {"mode": mode, "state_size": hidden, "num_layers": layers,
             "bidirectional": ways == 2, "state_outputs": data.draw(flags)}  # fmt: skip
    c = case("RNN", Array((time, batch, width)), Array((size,), "small"), *states, **given)
    for letters in ("B", "BS"):
        agree(c, pattern=("BS" + letters * 2)[: len(c.inputs)])


@brief
@given(st.data())
def test_where(data: Any) -> None:
    shape = (R, *data.draw(shapes))
    condition = Array(shape if data.draw(flags) else shape[:1], "bit")
    assume(len(shape) > 1 or condition.shape == shape)
    agree(case("where", condition, Array(shape), Array(shape)))
