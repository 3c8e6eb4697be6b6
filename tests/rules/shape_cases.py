"""Cases of operators that move, cut, join, repeat, reduce, sort or normalise."""

from itertools import permutations

from .interpreter import NEVER, Array, R, case


def reshape(a, b, c):
    x, flat = Array((R, a, 2 * b)), Array((R, 2 * a * b))
    for shape in [
        (0, -1), (-1, a, 2 * b), (0, 0, -4, 2, b), (0, 0, -4, -1, 2), (0, -3), (0, -2),
        (0, a * 2 * b), (-1, 2 * a, b), (0, a, -1), (-2,), (-4, -1, 1, -2),
    ]:  # fmt: skip
        yield case("Reshape", x, shape=shape)
    for shape in [(-1,), (-3, -2), (-1, a), (2, -1)]:
        yield case("Reshape", x, shape=shape, rows="")
    yield case("Reshape", x, shape=(0, 0, -1), reverse=True)
    yield case("Reshape", Array((R, a)), shape=(-1, 0), reverse=True)
    yield case("Reshape", Array((R,)), shape=(-1, 1))
    yield case("Reshape", Array((R,)), shape=(1, -1), rows="")
    yield case("reshape_like", x, flat)
    inner = {"lhs_begin": 1, "lhs_end": 3, "rhs_begin": 1, "rhs_end": 2}
    yield case("reshape_like", x, flat, rows="BB BS", **inner)
    yield case("reshape_like", x, Array((5, 2 * a * b)), **inner)


def axes(a, b, c):
    x, cube = Array((R, a)), Array((R, a, b))
    yield case("Flatten", Array((R, a, b, c)))
    yield case("Flatten", Array((R,)))
    for axis, rows in [(0, ""), (1, "B"), (2, "B"), (-1, "B"), (-2, "B"), (-3, "")]:
        yield case("expand_dims", x, axis=axis, rows=rows)
    hollow = Array((R, 1, a, 1))
    for axis in [1, "(1,)", "(1, 3)", "(-1,)", -3]:
        yield case("squeeze", hollow, axis=axis)
    yield case("squeeze", Array((2, 1, a, 1)))
    yield case("squeeze", Array((1, 1)), axis=0)
    for order in permutations(range(3)):
        yield case("transpose", cube, axes=order, rows="" if order[0] else "B")
    yield case("transpose", cube, axes="()", rows="")
    yield case("transpose", cube, rows="")
    yield case("transpose", Array((R,)))
    yield case("transpose", Array((1, 2, 1, 2, 1, 2)), axes=(1, 0, 2, 3, 4, 5), **NEVER)
    yield case("transpose", Array((R, 2, 1, 2, 3, 2)), axes=(0, 2, 1, 3, 4, 5), stack="")
    for dim1, dim2, rows in [(1, 2, "B"), (-1, 1, "B"), (0, 1, ""), (-3, -1, "")]:
        yield case("SwapAxis", cube, dim1=dim1, dim2=dim2, rows=rows)
    yield case("SwapAxis", cube, rows="")


def joins(a, b, c):
    x, y = Array((R, a)), Array((R, b))
    yield case("Concat", x, y, num_args=2)
    yield case("Concat", x, y, num_args=2, dim=-1)
    yield case("Concat", x, Array((b, a)), num_args=2, dim=0, rows="")
    yield case("Concat", Array((R,)), Array((b,)), num_args=2, dim=0, rows="")
    for axis, rows in [(0, ""), (1, "BB"), (2, "BB"), (-1, "BB"), (-3, "")]:
        yield case("stack", x, x, num_args=2, axis=axis, rows=rows)
    yield case("stack", x, x, num_args=2, rows="")
    wide = Array((R, 6, b))
    for axis in (1, -2):
        yield case("SliceChannel", wide, num_outputs=3, axis=axis)
        yield case("_split_v2", wide, axis=axis, indices=[0, 1, 4], sections=0, squeeze_axis=False)
    yield case("SliceChannel", Array((6, a)), num_outputs=3, axis=0)
    yield case("SliceChannel", Array((R, 6)), num_outputs=2)
    yield case("SliceChannel", Array((R, 3, a)), num_outputs=3, squeeze_axis=True)
    yield case("SliceChannel", Array((3, a)), num_outputs=3, axis=0, squeeze_axis=True)
    yield case("_split_v2", wide, indices="()", sections=2, axis=1)
    yield case("_split_v2", Array((6, a)), indices=[0, 2], axis=0)


def cuts(a, b, c):
    cube = Array((R, 4, 5))
    for begin, end in [
        ("(None, 1)", "(None, 3)"), ("(0, 1, 2)", "(None, 4, 4)"), ("(None, -3)", "(None, -1)"),
    ]:  # fmt: skip
        yield case("slice", cube, begin=begin, end=end)
    steps = {"begin": "(None, None, 4)", "end": "(None, None, 0)", "step": "(None, 2, -2)"}
    yield case("slice", cube, **steps)
    yield case("slice", cube, begin="(0,)", end="(1,)", rows="")
    yield case("slice", cube, begin="(-1,)", end="(None,)", rows="")
    yield case("slice", cube, begin="(None,)", end="(None,)", step="(-1,)", rows="")
    yield case("slice", Array((2, 2, 1, 2, 2)), begin="(0,)", end="(1,)", **NEVER)
    yield case("slice", Array((R, 2, 1, 2, 2)), begin="(None, 0)", end="(None, 1)")
    for axis in (1, -1, -2):
        yield case("slice_axis", cube, axis=axis, begin=1, end=3)
    yield case("slice_axis", cube, axis=1, begin=-3, end=None)
    yield case("slice_axis", cube, axis=0, begin=0, end=1, rows="")
    small = Array((R, 2, 3))
    yield case("slice_like", cube, small)
    yield case("slice_like", cube, small, axes=(1, 2), rows="BB BS")
    yield case("slice_like", cube, Array((5, 2)), axes=(-2,))
    yield case("slice_like", cube, Array((5, 2)), axes=(1,))


def repeats(a, b, c):
    x, cube = Array((R, a)), Array((R, a, b))
    for reps, rows in [((2,), "B"), ((1, 3), "B"), ((2, 1), ""), ((2, 1, 3), "")]:
        yield case("tile", x, reps=reps, rows=rows)
    yield case("tile", Array((R,)), reps=(1,))
    yield case("tile", Array((2, 2, 1)), reps=(2, 2, 2), **NEVER)
    yield case("tile", Array((R, 2, 2)), reps=(2, 2))
    yield case("tile", Array((1, 1, 2, 1)), reps=(2, 2, 1, 2))
    for axis, rows in [(1, "B"), (-1, "B"), (0, ""), (-3, ""), ("None", "")]:
        yield case("repeat", cube, repeats=2, axis=axis, rows=rows)
    yield case("repeat", x, repeats=3, rows="")
    for axis, rows in [("(1,)", "B"), ("(1, 2)", "B"), ("(0,)", ""), ("(0, 1)", "")]:
        yield case("reverse", cube, axis=axis, rows=rows)
    thin = Array((R, 1, b))
    yield case("broadcast_to", thin, shape=(0, a, 0))
    yield case("broadcast_to", thin, shape=(0, a, b))
    yield case("broadcast_to", Array((1, b)), shape=(a, b))
    yield case("broadcast_axis", thin, axis=1, size=a)
    yield case("broadcast_axis", Array((R, 1, b, 1)), axis=(1, 3), size=(a, c))
    yield case("broadcast_axis", Array((1, b)), axis=0, size=a)
    yield case("broadcast_axis", Array((1, 2, 2, 2, 2)), axis=0, size=a)
    yield case("broadcast_axis", Array((1, 2, 1, 2, 1)), axis=(0, 2, 4), size=(2, 2, 2), **NEVER)
    yield case("broadcast_like", thin, cube)
    yield case("broadcast_like", Array((1, 1, b)), cube)
    inner = {"lhs_axes": "(1,)", "rhs_axes": "(1,)"}
    yield case("broadcast_like", thin, Array((R, a)), rows="BB BS", **inner)
    yield case("broadcast_like", thin, Array((7, 8, a)), lhs_axes="(1,)", rhs_axes="(-1,)")
    first = {"lhs_axes": "(1,)", "rhs_axes": "(0,)", "rows": "BS"}
    yield case("broadcast_like", thin, Array((R, a)), **first)


def diagonals(a, b, c):
    yield case("diag", Array((R, a, a)), axis1=1, axis2=2)
    yield case("diag", Array((R, a, b + 1, a)), axis1=-3, axis2=-1, k=1)
    yield case("diag", Array((a, b)))
    for k in (-3, -1, 0, 1, 2):
        yield case("diag", Array((a,)), k=k)
    no_gradient = {"gradient": False}
    x = Array((R, a))
    yield case("_contrib_arange_like", x, axis=1, rows="", **no_gradient)
    yield case("_contrib_arange_like", x, axis=-1, start=2, step=3, rows="", **no_gradient)
    yield case("_contrib_arange_like", x, **no_gradient, **NEVER)
    for axes, rows in [((1,), "B"), ((2, 1), "B"), ((0,), ""), ((-1, -3), ""), ("None", "")]:
        yield case("_contrib_index_array", Array((R, a, b)), axes=axes, rows=rows, **no_gradient)


REDUCE = ("max", "mean", "min", "nanprod", "nansum", "prod", "sum")


def reductions(a, b, c):
    for op in REDUCE:
        vector, cube = Array((R,), "positive"), Array((R, a, b), "positive")
        inside = [(axis, "B") for axis in (1, "(1,)", "(-1,)", "(1, 2)")]
        across = [(axis, "") for axis in (0, "(0, 2)", "()", "(0, 1, 2)", "None")]
        for axis, rows in inside + across:
            yield case(op, cube, axis=axis, rows=rows)
            yield case(op, cube, axis=axis, keepdims=True, rows=rows)
        for axis, rows in [(0, "B"), ("(0, 1)", "B"), ("(0, -1)", "B"), ("(1,)", ""), ("()", "")]:
            yield case(op, cube, axis=axis, exclude=True, rows=rows)
        yield case(op, cube, axis=0, exclude=1, keepdims=1)
        yield case(op, vector, axis=0, exclude=True)
        yield case(op, vector, rows="")
        yield case(op, Array((2, 2, 2, 2, 2)), axis=(0, 2, 4), **NEVER)
        yield case(op, Array((2, 1, 2, 2, 2)), axis=(0, 2, 4), rows="")  # four groups of axes
        yield case(op, Array((2, 2, 2, 2, 2)), axis=(0, 1))
        yield case(op, Array((R, 2, 2, 2, 2)), axis=(1, 3))
    for order in (1, 2):
        x = Array((R, a, b))
        for axis, rows in [(1, "B"), ("(1, 2)", "B"), (-1, "B"), (0, ""), ("(0, 1)", "")]:
            yield case("norm", x, ord=order, axis=axis, rows=rows)
            yield case("norm", x, ord=order, axis=axis, keepdims=True, rows=rows)
        yield case("norm", x, ord=order, rows="")
        yield case("norm", Array((R,)), ord=order, keepdims=True, rows="")
    for axis, rows in [("(1,)", "B"), ("(1, 2)", "B"), ("(0,)", ""), ("(0, 1, 2)", "")]:
        for keep in (False, True):
            yield case("moments", Array((R, a, b)), axes=axis, keepdims=keep, rows=rows)


def sorting(a, b, c):
    x, cube, vector = (Array(s, "distinct") for s in ((R, a), (R, a, b), (R,)))
    for op in ("argmax", "argmin"):
        for axis, rows in [(1, "B"), (-1, "B"), (0, ""), ("None", "")]:
            for keep in (False, True):
                yield case(op, cube, axis=axis, keepdims=keep, rows=rows, gradient=False)
        yield case(op, cube, rows="", gradient=False)
        yield case(op, vector, axis=0, rows="", gradient=False)
    yield case("argmax_channel", x, gradient=False)
    for axis, rows in [(1, "B"), (-1, "B"), (0, ""), ("None", "")]:
        yield case("sort", cube, axis=axis, is_ascend=False, rows=rows)
        yield case("argsort", cube, axis=axis, dtype="int32", rows=rows, gradient=False)
        if axis != -1:
            yield case("_np_cumsum", cube, axis=axis, rows=rows)
        for kind in ("value", "both", "mask", "indices"):
            attrs = {"axis": axis, "k": 1 if axis == 0 else min(2, a), "ret_typ": kind}
            yield case("topk", cube, rows=rows, gradient=kind in ("value", "both"), **attrs)
    yield case("_np_cumsum", x, rows="")
    yield case("sort", vector, axis=-1, rows="")
    yield case("sort", x, gradient=False)
    yield case("topk", x, gradient=False)


def softmax(a, b, c):
    x, cube, vector = Array((R, a)), Array((R, a, b)), Array((R,))
    for op in ("log_softmax", "softmax", "softmin"):
        yield case(op, x)
        for axis, rows in [(1, "B"), (-1, "B"), (0, ""), (-3, "")]:
            yield case(op, cube, axis=axis, rows=rows)
        yield case(op, cube, axis=1, temperature=2.0)
        yield case(op, vector, rows="")
    for data, lengths, attrs in [
        (cube, Array((R, a), "length32", b), {"axis": -1}),
        (cube, Array((R, b), "length32", a), {"axis": 1, "temperature": 0.5}),
        (Array((a, b)), Array((b,), "length32", a), {"axis": 0}),
    ]:
        yield case("softmax", data, lengths, use_length=True, **attrs)
    yield case("SoftmaxActivation", x)
    yield case("SoftmaxActivation", cube)
    yield case("SoftmaxActivation", cube, mode="channel")
    yield case("SoftmaxActivation", vector, gradient=False, **NEVER)
    yield case("_contrib_div_sqrt_dim", cube)
    yield case("_contrib_div_sqrt_dim", vector, rows="")


def norms(a, b, c):
    x, cube, image = Array((R, a)), Array((R, a, b)), Array((R, 4, 3, c))
    gain, shift = Array((a,), "positive"), Array((a,))
    yield case("LayerNorm", x, gain, shift, shared=(1, 2))
    yield case("LayerNorm", cube, gain, shift, axis=1, shared=(1, 2))
    yield case("LayerNorm", Array((a, b)), gain, shift, axis=0, shared=(1, 2))
    yield case("LayerNorm", cube, gain, shift, axis=-2, eps=0.1, shared=(1, 2))
    yield case("LayerNorm", x, gain, shift, output_mean_var=True, **NEVER)
    four, two = (Array((4,), "positive"), Array((4,))), (Array((2,), "positive"), Array((2,)))
    yield case("InstanceNorm", image, *four, shared=(1, 2))
    yield case("GroupNorm", image, *two, num_groups=2, shared=(1, 2))
    yield case("L2Normalization", x)
    for mode in ("instance", "channel", "spatial"):
        yield case("L2Normalization", image, mode=mode)
    predict, attrs = {"training": False, "shared": (1, 2, 3, 4)}, {"fix_gamma": False, "eps": 0.01}
    train = {"use_global_stats": True, "shared": (1, 2, 3, 4)}
    parameters = (gain, shift, Array((a,)), Array((a,), "positive"))
    for data in (x, cube):
        yield case("BatchNorm", data, *parameters, **predict, **attrs)
        yield case("BatchNorm", data, *parameters, **attrs, **NEVER)
        yield case("BatchNorm", data, *parameters, **train, **attrs)
    yield case("BatchNorm", Array((R, b, a)), *parameters, axis=-1, **predict, **attrs)
    yield case("BatchNorm", Array((a, b)), *parameters, axis=0, **predict, **attrs)
    yield case("BatchNorm", x, *parameters, output_mean_var=True, training=False, **NEVER)
    of_images = (*four, Array((4,)), Array((4,), "positive"))
    yield case("BatchNorm", image, *of_images, **predict)
    yield case("_contrib_BatchNormWithReLU", image, *of_images, gradient=False, **predict)
    yield case("_contrib_BatchNormWithReLU", image, *of_images, **NEVER)


FAMILIES = (
    reshape, axes, joins, cuts, repeats, diagonals, reductions, sorting, softmax, norms,
)  # fmt: skip
