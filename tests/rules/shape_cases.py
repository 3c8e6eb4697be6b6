"""Cases of operators that move, cut, join, repeat, reduce, sort or normalise."""

from __future__ import annotations

from typing import Iterator

from .interpreter import BOTH, Array, Case, R, case


def reshape(a: int, b: int, c: int) -> Iterator[Case]:
    x = Array((R, a, 2 * b))
    merging = [(0, -1), (-1, a, 2 * b), (0, 0, -4, 2, b), (0, 0, -4, -1, 2), (0, -3), (0, -2)]
    merging += [(0, a * 2 * b), (-1, 2 * a, b), (0, a, -1), (-2,)]
    for shape in merging:
        yield case("Reshape", x, shape=shape, rows="B", stack="B")
    for shape in [(-1,), (-3, -2), (-1, 7 * a * b), (-1, a), (-4, -1, 1, -2)]:
        if shape != (-1, 7 * a * b):
            yield case("Reshape", x, shape=shape, rows="B" if shape[0] == -4 else "", stack="B")
    yield case("Reshape", x, shape=(2, -1), stack="B")
    yield case("Reshape", x, shape=(0, 0, -1), reverse=True, rows="B", stack="B")
    yield case("Reshape", Array((R, a)), shape=(-1, 0), reverse=True, rows="B", stack="B")
    yield case("Reshape", Array((R,)), shape=(-1, 1), rows="B", stack="B")
    yield case("Reshape", Array((R,)), shape=(1, -1), stack="B")
    flat = Array((R, 2 * a * b))
    yield case("reshape_like", x, flat, rows="BB", stack=BOTH)
    inner = {"lhs_begin": 1, "lhs_end": 3, "rhs_begin": 1, "rhs_end": 2}
    yield case("reshape_like", x, flat, rows="BB BS", stack=BOTH, **inner)
    yield case("reshape_like", x, Array((5, 2 * a * b)), rows="BS", stack=BOTH, **inner)


def axes(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    yield case("Flatten", Array((R, a, b, c)), rows="B", stack="B")
    yield case("Flatten", Array((R,)), rows="B", stack="B")
    for axis, rows in [(0, ""), (1, "B"), (2, "B"), (-1, "B"), (-2, "B"), (-3, "")]:
        yield case("expand_dims", x, axis=axis, rows=rows, stack="B")
    hollow = Array((R, 1, a, 1))
    for axis in [1, "(1,)", "(1, 3)", "(-1,)", -3]:
        yield case("squeeze", hollow, axis=axis, rows="B", stack="B")
    yield case("squeeze", Array((2, 1, a, 1)), stack="B")
    yield case("squeeze", Array((1, 1)), axis=0, stack="B")
    for order, rows in [((0, 2, 1), "B"), ((1, 0, 2), ""), ((2, 1, 0), ""), ("()", "")]:
        yield case("transpose", cube, axes=order, rows=rows, stack="B")
    yield case("transpose", cube, stack="B")
    yield case("transpose", Array((R,)), rows="B", stack="B")
    yield case("transpose", Array((1, 2, 1, 2, 1, 2)), axes=(1, 0, 2, 3, 4, 5))
    yield case("transpose", Array((R, 2, 1, 2, 3, 2)), axes=(0, 2, 1, 3, 4, 5), rows="B")
    for dim1, dim2, rows in [(1, 2, "B"), (-1, 1, "B"), (0, 1, ""), (-3, -1, "")]:
        yield case("SwapAxis", cube, dim1=dim1, dim2=dim2, rows=rows, stack="B")
    yield case("SwapAxis", cube, stack="B")


def joins(a: int, b: int, c: int) -> Iterator[Case]:
    x, y = Array((R, a)), Array((R, b))
    yield case("Concat", x, y, num_args=2, rows="BB", stack=BOTH)
    yield case("Concat", x, y, num_args=2, dim=-1, rows="BB", stack=BOTH)
    yield case("Concat", x, Array((b, a)), num_args=2, dim=0, stack=BOTH)
    yield case("Concat", Array((R,)), Array((b,)), num_args=2, dim=0, stack=BOTH)
    for axis, rows in [(0, ""), (1, "BB"), (2, "BB"), (-1, "BB"), (-3, "")]:
        yield case("stack", x, x, num_args=2, axis=axis, rows=rows, stack=BOTH)
    yield case("stack", x, x, num_args=2, stack=BOTH)
    wide = Array((R, 6, b))
    for axis, rows in [(1, "B"), (-2, "B")]:
        yield case("SliceChannel", wide, num_outputs=3, axis=axis, rows=rows, stack="B")
    yield case("SliceChannel", Array((6, a)), num_outputs=3, axis=0, stack="B")
    yield case("SliceChannel", Array((R, 6)), num_outputs=2, rows="B", stack="B")
    yield case(
        "SliceChannel", Array((R, 3, a)), num_outputs=3, squeeze_axis=True, rows="B", stack="B"
    )
    yield case("SliceChannel", Array((3, a)), num_outputs=3, axis=0, squeeze_axis=True, stack="B")
    for axis, rows in [(1, "B"), (-2, "B")]:
        cuts = {"axis": axis, "indices": [0, 1, 4], "sections": 0, "squeeze_axis": False}
        yield case("_split_v2", wide, rows=rows, stack="B", **cuts)
    yield case("_split_v2", wide, indices="()", sections=2, axis=1, rows="B", stack="B")
    yield case("_split_v2", Array((6, a)), indices=[0, 2], axis=0, stack="B")


def cuts(a: int, b: int, c: int) -> Iterator[Case]:
    cube = Array((R, 4, 5))
    bounds = [
        ("(None, 1)", "(None, 3)"),
        ("(0, 1, 2)", "(None, 4, 4)"),
        ("(None, -3)", "(None, -1)"),
    ]
    for begin, end in bounds:
        yield case("slice", cube, begin=begin, end=end, rows="B", stack="B")
    step = {"begin": "(None, None, 4)", "end": "(None, None, 0)", "step": "(None, 2, -2)"}
    yield case("slice", cube, rows="B", stack="B", **step)
    yield case("slice", cube, begin="(0,)", end="(1,)", stack="B")
    yield case("slice", cube, begin="(-1,)", end="(None,)", stack="B")
    yield case("slice", cube, begin="(None,)", end="(None,)", step="(-1,)", stack="B")
    yield case("slice", Array((2, 2, 1, 2, 2)), begin="(0,)", end="(1,)")
    yield case(
        "slice", Array((R, 2, 1, 2, 2)), begin="(None, 0)", end="(None, 1)", rows="B", stack="B"
    )
    for axis, rows in [(1, "B"), (-1, "B"), (-2, "B")]:
        yield case("slice_axis", cube, axis=axis, begin=1, end=3, rows=rows, stack="B")
    yield case("slice_axis", cube, axis=1, begin=-3, end=None, rows="B", stack="B")
    yield case("slice_axis", cube, axis=0, begin=0, end=1, stack="B")
    small = Array((R, 2, 3))
    yield case("slice_like", cube, small, rows="BB", stack=BOTH)
    yield case("slice_like", cube, small, axes=(1, 2), rows="BB BS", stack=BOTH)
    yield case("slice_like", cube, Array((5, 2)), axes=(-2,), rows="BS", stack=BOTH)
    yield case("slice_like", cube, Array((5, 2)), axes=(1,), rows="BS", stack=BOTH)


def repeats(a: int, b: int, c: int) -> Iterator[Case]:
    x, cube = Array((R, a)), Array((R, a, b))
    for reps, rows in [((2,), "B"), ((1, 3), "B"), ((2, 1), ""), ((2, 1, 3), "")]:
        yield case("tile", x, reps=reps, rows=rows, stack="B")
    yield case("tile", Array((R,)), reps=(1,), rows="B", stack="B")
    yield case("tile", Array((2, 2, 1)), reps=(2, 2, 2))
    yield case("tile", Array((R, 2, 2)), reps=(2, 2), rows="B", stack="B")
    for axis, rows in [(1, "B"), (-1, "B"), (0, ""), (-3, ""), ("None", "")]:
        yield case("repeat", cube, repeats=2, axis=axis, rows=rows, stack="B")
    yield case("repeat", x, repeats=3, stack="B")
    for axis, rows in [("(1,)", "B"), ("(1, 2)", "B"), ("(0,)", ""), ("(0, 1)", "")]:
        yield case("reverse", cube, axis=axis, rows=rows, stack="B")
    thin = Array((R, 1, b))
    yield case("broadcast_to", thin, shape=(0, a, 0), rows="B", stack="B")
    yield case("broadcast_to", thin, shape=(0, a, b), rows="B", stack="B")
    yield case("broadcast_to", Array((1, b)), shape=(a, b), stack="B")
    yield case("broadcast_axis", thin, axis=1, size=a, rows="B", stack="B")
    yield case("broadcast_axis", Array((R, 1, b, 1)), axis=(1, 3), size=(a, c), rows="B", stack="B")
    yield case("broadcast_axis", Array((1, b)), axis=0, size=a, stack="B")
    yield case("broadcast_axis", Array((1, 2, 1, 2, 1)), axis=(0, 2, 4), size=(2, 2, 2))
    yield case("broadcast_like", thin, cube, rows="BB", stack=BOTH)
    yield case("broadcast_like", Array((1, 1, b)), cube, rows="SB", stack=BOTH)
    inner = {"lhs_axes": "(1,)", "rhs_axes": "(1,)"}
    yield case("broadcast_like", thin, Array((R, a)), rows="BB BS", stack=BOTH, **inner)
    wide = {"lhs_axes": "(1,)", "rhs_axes": "(-1,)"}
    yield case("broadcast_like", thin, Array((7, 8, a)), rows="BS", stack=BOTH, **wide)
    yield case("broadcast_like", thin, Array((R, a)), lhs_axes="(1,)", rhs_axes="(0,)", rows="BS",
               stack=BOTH)  # fmt: skip


def diagonals(a: int, b: int, c: int) -> Iterator[Case]:
    yield case("diag", Array((R, a, a)), axis1=1, axis2=2, rows="B", stack="B")
    yield case("diag", Array((R, a, b + 1, a)), axis1=-3, axis2=-1, k=1, rows="B", stack="B")
    yield case("diag", Array((a, b)), stack="B")
    for k in (-3, -1, 0, 1, 2):
        yield case("diag", Array((a,)), k=k, stack="B")
    still = {"gradient": False}
    yield case("_contrib_arange_like", Array((R, a)), axis=1, stack="B", **still)
    yield case("_contrib_arange_like", Array((R, a)), axis=-1, start=2, step=3, stack="B", **still)
    yield case("_contrib_arange_like", Array((R, a)), **still)
    for axes, rows in [((1,), "B"), ((2, 1), "B"), ((0,), ""), ((-1, -3), ""), ("None", "")]:
        yield case(
            "_contrib_index_array", Array((R, a, b)), axes=axes, rows=rows, stack="B", **still
        )


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
    rowwise = {"rows": "BB", **lengths}
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


FAMILIES = (
    reshape, axes, joins, cuts, repeats, diagonals, reductions, sorting, softmax, norms,
)  # fmt: skip
