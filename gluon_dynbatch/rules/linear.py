"""Matrix products, convolutions and what else works on a whole minibatch by design."""

from __future__ import annotations

from typing import FrozenSet, Mapping, NamedTuple, Tuple

from .builder import Builder
from .site import Ref, Shape, Site, flag, integer, refuse_unless, size_of, words
from .table import rows_rule, stack_rule

# Data of shape (rows, ...) with shared parameters.
DATA_FIRST = words(
    "Convolution Deconvolution Pooling LRN Pad depth_to_space space_to_depth im2col col2im "
    "_contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D Convolution_v1 Pooling_v1"
)
# All inputs of shape (rows, ...).
PAIRED = words("batch_dot BilinearSampler SpatialTransformer GridGenerator Correlation Crop")
# Inputs of shape (rows, ...) beside some (by number) that have no rows: parameters, anchors, means.
PARTLY_SHARED: Mapping[str, Tuple[int, ...]] = {
    "_contrib_DeformableConvolution": (2, 3),
    "_contrib_MultiBoxDetection": (2,),
    "_contrib_MultiBoxTarget": (0,),
    "_contrib_box_decode": (1,),
    "_contrib_box_encode": (4, 5),
}
# Operators on the last two axes (the last one: `VECTOR_TO_MATRIX`), batched over all axes before.
MATRIX = frozenset(
    f"_linalg_{name}"
    for name in words(
        "det inverse potrf potri slogdet sumlogdiag syrk trmm trsm gelqf extractdiag "
        "extracttrian gemm gemm2 syevd"
    )
)
VECTOR_TO_MATRIX = words("_linalg_makediag _linalg_maketrian")


@rows_rule(*DATA_FIRST)
def _data_first(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        site.batched[0] and not any(site.batched[1:]),
        f"Every sample has parameters of its own for this {site.op}.",
    )
    return build.call(*build.refs)


@rows_rule(*PAIRED)
def _paired(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        site.op != "GridGenerator" or site.attrs.get("transform_type") == "affine",
        "GridGenerator has a batching rule for affine transforms only.",
    )
    return build.call(*build.spread_all())


def _own_inputs(site: Site) -> FrozenSet[int]:
    shared = PARTLY_SHARED[site.op]
    refuse_unless(
        not any(own for k, own in enumerate(site.batched) if k in shared),
        f"Every sample has parameters or anchors of its own for this {site.op}.",
    )
    return frozenset(range(len(site.inputs))).difference(shared)


@rows_rule(*PARTLY_SHARED)
def _partly_shared(site: Site, build: Builder) -> Tuple[Ref, ...]:
    own = _own_inputs(site)
    return build.call(*(build.spread(k) if k in own else ref for k, ref in enumerate(build.refs)))


@stack_rule(*PARTLY_SHARED)
def _partly_shared_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    own = _own_inputs(site)
    refs = (build.folded(k) if k in own else ref for k, ref in enumerate(build.refs))
    return build.restored(build.call(*refs))


@rows_rule("UpSampling")
def _up_sampling(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if site.attrs.get("sample_type") == "bilinear":
        return _data_first(site, build)
    return build.call(*build.spread_all())


def _matrix_axes(site: Site) -> None:
    refuse_unless(
        integer(site, "axis", -2) in (-2, len(site.inputs[0]) - 2),
        f"Operator {site.op} with another matrix axis has no batching rule.",
    )


@rows_rule(*MATRIX)
def _matrix(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _matrix_axes(site)
    if site.op == "_linalg_gemm2" and len(site.inputs[0]) == 2:
        refuse_unless(
            site.batched == (True, False) and not flag(site, "transpose_a"),
            "This linalg_gemm2 sums over axis 0 or pairs it with another sample's.",
        )
        return build.call(*build.refs)
    refuse_unless(min(map(len, site.inputs)) > 2, f"Axis 0 is a matrix axis of this {site.op}.")
    return build.call(*build.spread_all())


@rows_rule(*VECTOR_TO_MATRIX)
def _vector_to_matrix(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) > 1, f"Axis 0 is a matrix axis of this {site.op}.")
    return build.call(*build.refs)


@stack_rule(*MATRIX, *VECTOR_TO_MATRIX)
def _matrix_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _matrix_axes(site)
    # Counted from the back the matrix axis stays where it is.
    changes = {"axis": -2} if "axis" in site.attrs else {}
    outputs = build.call(*build.spread_all(), **changes)
    return build.restored(outputs) if (1,) in site.outputs else outputs


class _Factor(NamedTuple):
    """A matrix (one per sample, or shared) and whether it is used transposed."""

    ref: Ref
    shape: Tuple[int, int]
    batched: bool
    turned: bool


def _product(build: Builder, left: _Factor, right: _Factor) -> Ref:
    """Multiply per sample; the result has (N, rows, columns) elements in this order."""
    inner = left.shape[0 if left.turned else 1]
    flat_left = build.reshape(left.ref, *((-1,) if left.batched else ()), *left.shape)
    flat_right = build.reshape(right.ref, *((-1,) if right.batched else ()), *right.shape)
    flags = {"transpose_a": left.turned, "transpose_b": right.turned}
    if left.batched and right.batched:
        return build.add("batch_dot", flat_left, flat_right, **flags)
    if left.batched:
        if left.turned:
            flat_left = build.add("transpose", flat_left, axes=(0, 2, 1))
        tall = build.reshape(flat_left, -1, inner)
        return build.add("dot", tall, flat_right, transpose_b=right.turned)
    # A B_n = (B_n^T A^T)^T: the samples' columns become the rows of one tall matrix.
    if not right.turned:
        flat_right = build.add("transpose", flat_right, axes=(0, 2, 1))
    tall = build.reshape(flat_right, -1, inner)
    result = build.add("dot", tall, flat_left, transpose_b=not left.turned)
    rows = left.shape[1 if left.turned else 0]
    columns = right.shape[0 if right.turned else 1]
    cube = build.reshape(result, -1, columns, rows)
    return build.add("transpose", cube, axes=(0, 2, 1))


def _fully_connected_width(site: Site) -> int:
    data = site.inputs[0]
    return size_of(data[1:]) if flag(site, "flatten", True) else data[-1]


@rows_rule("FullyConnected")
def _fully_connected(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        site.batched[0] and not any(site.batched[1:]),
        "Every sample has a weight or bias of its own for this FullyConnected.",
    )
    refuse_unless(
        flag(site, "flatten", True) or len(site.inputs[0]) > 1,
        "FullyConnected of a vector without flatten sums over axis 0.",
    )
    return build.call(*build.refs)


@stack_rule("FullyConnected")
def _fully_connected_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, weight = site.inputs[:2]
    width, hidden = _fully_connected_width(site), weight[0]
    own_bias = len(site.inputs) == 3 and site.batched[2]
    if site.batched[1]:
        left = _Factor(build.refs[0], (size_of(data) // width, width), site.batched[0], False)
        result = _product(build, left, _Factor(build.refs[1], (hidden, width), True, True))
    elif site.batched[0]:
        natural = len(site.outputs[0]) == len(data) and data[-1] == width
        ref = build.refs[0] if natural else build.reshape(build.refs[0], -1, width)
        changes = {"flatten": False, "no_bias": len(site.inputs) == 2 or own_bias}
        (result,) = build.call(ref, *build.refs[1 : 2 if own_bias else None], **changes)
        if natural and not own_bias:
            return (result,)
    else:
        (result,) = build.call(*build.refs[:2], no_bias=True)
    if len(site.inputs) == 3 and (own_bias or site.batched[1]):
        return (_add_bias(site, build, result, own_bias),)
    return build.restored((result,))


def _add_bias(site: Site, build: Builder, result: Ref, own_bias: bool) -> Ref:
    out = site.outputs[0]
    has_batch = any(site.batched[:2])
    result = build.reshape(result, *((-1,) if has_batch else (1,)), *out)
    bias = build.refs[2]
    if own_bias:
        bias = build.reshape(bias, -1, *(1,) * (len(out) - 1), out[-1])
    return build.add("broadcast_add", result, bias)


@rows_rule("dot")
def _dot(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        site.batched == (True, False) and len(site.inputs[0]) > 1 and not flag(site, "transpose_a"),
        "This dot sums over axis 0 or pairs it with another sample's.",
    )
    return build.call(*build.refs)


def _as_matrix(shape: Shape, first: bool) -> Tuple[int, int]:
    """Flatten to a matrix whose first (or last) axis is that of the array."""
    if first:
        return shape[0], size_of(shape[1:])
    return size_of(shape[:-1]), shape[-1]


@stack_rule("dot")
def _dot_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    turned_left, turned_right = flag(site, "transpose_a"), flag(site, "transpose_b")
    lhs, rhs = site.inputs
    if site.batched == (True, False) and (len(lhs) == 1 or not turned_left):
        # The batch axis is one more of the axes that dot keeps.
        outputs = build.call(*build.refs, transpose_a=False)
        return build.restored(outputs) if len(lhs) == len(rhs) == 1 else outputs
    # A vector has one axis, which is summed over whatever the flags say.
    left = (1, lhs[0]) if len(lhs) == 1 else _as_matrix(lhs, turned_left)
    right = (rhs[0], 1) if len(rhs) == 1 else _as_matrix(rhs, not turned_right)
    turned_left, turned_right = (
        turned_left and len(lhs) > 1,
        turned_right and len(rhs) > 1,
    )
    result = _product(
        build,
        _Factor(build.refs[0], left, site.batched[0], turned_left),
        _Factor(build.refs[1], right, site.batched[1], turned_right),
    )
    return build.restored((result,))
