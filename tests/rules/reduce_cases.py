"""Cases of reductions, softmax, sorting and normalisation."""

from __future__ import annotations

from typing import Iterator

from .interpreter import Array, Case, R, case

REDUCE = ("max", "mean", "min", "nanprod", "nansum", "prod", "sum")


def reductions(a: int, b: int, c: int) -> Iterator[Case]:
    for op in REDUCE:
        vector, cube = Array((R,), "positive"), Array((R, a, b), "positive")
        inside = [(axis, "B") for axis in (1, "(1,)", "(-1,)", "(1, 2)")]
        across = [(axis, "") for axis in (0, "(0, 2)", "()", "(0, 1, 2)", "None")]
        for axis, rows in inside + across:
            yield case(op, cube, axis=axis, rows=rows, stack="B")
            yield case(op, cube, axis=axis, keepdims=True, rows=rows, stack="B")
        for axis, rows in [(0, "B"), ("(0, 1)", "B"), ("(0, -1)", "B"), ("(1,)", ""), ("()", "")]:
            yield case(op, cube, axis=axis, exclude=True, rows=rows, stack="B")
        yield case(op, cube, axis=0, exclude=1, keepdims=1, rows="B", stack="B")
        yield case(op, vector, axis=0, exclude=True, rows="B", stack="B")
        yield case(op, vector, stack="B")
        yield case(op, Array((2, 2, 2, 2, 2)), axis=(0, 2, 4))
        yield case(op, Array((R, 2, 2, 2, 2)), axis=(1, 3), rows="B", stack="B")
    for order in (1, 2):
        x = Array((R, a, b))
        for axis, rows in [(1, "B"), ("(1, 2)", "B"), (-1, "B"), (0, ""), ("(0, 1)", "")]:
            yield case("norm", x, ord=order, axis=axis, rows=rows, stack="B")
            yield case("norm", x, ord=order, axis=axis, keepdims=True, rows=rows, stack="B")
        yield case("norm", x, ord=order, stack="B")
        yield case("norm", Array((R,)), ord=order, keepdims=True, stack="B")
    for axis, rows in [("(1,)", "B"), ("(1, 2)", "B"), ("(0,)", ""), ("(0, 1, 2)", "")]:
        for keep in (False, True):
            yield case("moments", Array((R, a, b)), axes=axis, keepdims=keep, rows=rows, stack="B")


def sorting(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube, vector = (Array(s, "distinct") for s in ((R, a), (R, a, b), (R,)))
    for op in ("argmax", "argmin"):
        for axis, rows in [(1, "B"), (-1, "B"), (0, ""), ("None", "")]:
            yield case(op, cube, axis=axis, rows=rows, stack="B", gradient=False)
            yield case(op, cube, axis=axis, keepdims=True, rows=rows, stack="B", gradient=False)
        yield case(op, cube, stack="B", gradient=False)
        yield case(op, vector, axis=0, stack="B", gradient=False)
    yield case("argmax_channel", x, rows="B", stack="B", gradient=False)
    for axis, rows in [(1, "B"), (-1, "B"), (0, ""), ("None", "")]:
        yield case("sort", cube, axis=axis, is_ascend=False, rows=rows, stack="B")
        yield case("argsort", cube, axis=axis, dtype="int32", rows=rows, stack="B", gradient=False)
        if axis != -1:
            yield case("_np_cumsum", cube, axis=axis, rows=rows, stack="B")
        for kind in ("value", "both", "mask", "indices"):
            given = {
                "axis": axis,
                "k": 1 if axis == 0 else min(2, a),
                "ret_typ": kind,
                "gradient": kind in ("value", "both"),
            }
            yield case("topk", cube, rows=rows, stack="B", **given)
    yield case("_np_cumsum", x, stack="B")
    yield case("sort", vector, axis=-1, stack="B")
    yield case("sort", x, rows="B", stack="B", gradient=False)
    yield case("topk", x, rows="B", stack="B", gradient=False)


def softmax(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube, vector = Array((R, a)), Array((R, a, b)), Array((R,))
    for op in ("log_softmax", "softmax", "softmin"):
        yield case(op, x, rows="B", stack="B")
        for axis, rows in [(1, "B"), (-1, "B"), (0, ""), (-3, "")]:
            yield case(op, cube, axis=axis, rows=rows, stack="B")
        yield case(op, cube, axis=1, temperature=2.0, rows="B", stack="B")
        yield case(op, vector, stack="B")
    lengths = {"use_length": True, "stack": "BB BS SB"}
    rowwise = {"rows": "BB", "ones": "BS SB", **lengths}
    yield case("softmax", cube, Array((R, a), "length32", b), axis=-1, **rowwise)
    yield case("softmax", cube, Array((R, b), "length32", a), axis=1, temperature=0.5, **rowwise)
    yield case("softmax", Array((a, b)), Array((b,), "length32", a), axis=0, **lengths)
    yield case("SoftmaxActivation", x, rows="B", stack="B")
    yield case("SoftmaxActivation", cube, rows="B", stack="B")
    yield case("SoftmaxActivation", cube, mode="channel", rows="B", stack="B")
    yield case("SoftmaxActivation", vector, gradient=False)
    yield case("_contrib_div_sqrt_dim", cube, rows="B", stack="B")
    yield case("_contrib_div_sqrt_dim", vector, stack="B")


def norms(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube, image = Array((R, a)), Array((R, a, b)), Array((R, 4, 3, c))
    gain, shift = Array((a,), "positive"), Array((a,))
    yield case("LayerNorm", x, gain, shift, rows="BSS", stack="BSS")
    yield case("LayerNorm", cube, gain, shift, axis=1, rows="BSS", stack="BSS")
    yield case("LayerNorm", Array((a, b)), gain, shift, axis=0, stack="BSS")
    yield case("LayerNorm", cube, gain, shift, axis=-2, eps=0.1, rows="BSS", stack="BSS")
    yield case("LayerNorm", x, gain, shift, output_mean_var=True)
    four, two = (Array((4,), "positive"), Array((4,))), (Array((2,), "positive"), Array((2,)))
    yield case("InstanceNorm", image, *four, rows="BSS", stack="BSS")
    yield case("GroupNorm", image, *two, num_groups=2, rows="BSS", stack="BSS")
    yield case("L2Normalization", x, rows="B", stack="B")
    for mode in ("instance", "channel", "spatial"):
        yield case("L2Normalization", image, mode=mode, rows="B", stack="B")
    moving = (Array((a,)), Array((a,), "positive"))
    given = {"fix_gamma": False, "eps": 0.01}
    merges = {"rows": "BSSSS", "stack": "BSSSS"}
    predict = {"training": False, **merges}
    for data in (x, cube):
        yield case("BatchNorm", data, gain, shift, *moving, **predict, **given)
        yield case("BatchNorm", data, gain, shift, *moving, **given)
        yield case(
            "BatchNorm", data, gain, shift, *moving, use_global_stats=True, **merges, **given
        )
    yield case("BatchNorm", Array((R, b, a)), gain, shift, *moving, axis=-1, **predict, **given)
    yield case("BatchNorm", Array((a, b)), gain, shift, *moving, axis=0, training=False,
               stack="BSSSS", **given)  # fmt: skip
    yield case("BatchNorm", image, *four, Array((4,)), Array((4,), "positive"), **predict)
    rectified = (*four, Array((4,)), Array((4,), "positive"))
    yield case("_contrib_BatchNormWithReLU", image, *rectified, gradient=False, **predict)
    yield case("_contrib_BatchNormWithReLU", image, *rectified)
    yield case("BatchNorm", x, gain, shift, *moving, output_mean_var=True, training=False)


def cases(a: int, b: int, c: int) -> Iterator[Case]:
    for family in (reductions, sorting, softmax, norms):
        yield from family(a, b, c)
