"""Reductions, softmax, sorting and normalisation: operators that work along some axes."""

from __future__ import annotations

from typing import Dict, Tuple

from .builder import Builder
from .elementwise import check_groups
from .site import (
    Ref,
    Site,
    UseRowsError,
    axis_of,
    flag,
    integer,
    integers,
    positive_axis,
    public_attrs,
    refuse_unless,
    size_of,
    words,
)
from .table import rows_rule, stack_rule

REDUCE = words("sum mean prod max min nansum nanprod")
SOFTMAX = words("softmax log_softmax softmin")
SORT = words("sort argsort topk argmax argmin _np_cumsum")
_DEFAULT_AXIS = {"argmax": None, "argmin": None, "_np_cumsum": None}


def reduced_axes(site: Site, name: str = "axis") -> Tuple[int, ...]:
    """Return the axes that a reduction sums away; no axis given means all of them."""
    ndim = len(site.inputs[0])
    axes = tuple(positive_axis(site, axis, ndim) for axis in integers(site, name))
    if not axes:
        return tuple(range(ndim))
    if flag(site, "exclude"):
        return tuple(axis for axis in range(ndim) if axis not in axes)
    return tuple(sorted(axes))


def _along(site: Site, *axes: int) -> None:
    refuse_unless(
        0 not in axes, f"Operator {site.op} works along axis 0, so the rows see each other."
    )


@rows_rule(*REDUCE, "norm")
def _reduce(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _along(site, *reduced_axes(site))
    return build.call(*build.refs)


@stack_rule(*REDUCE)
def _reduce_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, axes = site.inputs[0], reduced_axes(site)
    check_groups(site, [False, *(a in axes for a, size in enumerate(data) if size != 1)])
    if not axes:
        # An empty tuple would mean all axes; excluding all of them means none.
        return build.call(*build.refs, axis=tuple(range(len(data) + 1)), exclude=True)
    outputs = build.call(*build.refs, axis=tuple(a + 1 for a in axes), exclude=False)
    # Reducing everything leaves shape (1,) for one sample but no axis beside the batch axis.
    whole = len(axes) == len(data) and not flag(site, "keepdims")
    return build.restored(outputs) if whole else outputs


@stack_rule("norm")
def _norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, axes = site.inputs[0], reduced_axes(site)
    if len(axes) < len(data):
        return build.call(*build.refs, axis=tuple(a + 1 for a in axes))
    flat = build.reshape(build.refs[0], -1, size_of(data))
    return build.restored(build.call(flat, axis=1, keepdims=False))


@rows_rule("moments")
def _moments(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _along(site, *reduced_axes(site, "axes"))
    return build.call(*build.refs)


@stack_rule("moments")
def _moments_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = reduced_axes(site, "axes")
    return build.restored(build.call(*build.refs, axes=tuple(a + 1 for a in axes)))


@rows_rule(*SORT)
def _sort(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = integer(site, "axis", _DEFAULT_AXIS.get(site.op, -1))
    refuse_unless(axis is not None, f"Operator {site.op} without an axis joins all rows.")
    number = positive_axis(site, -1 if axis is None else axis, len(site.inputs[0]))
    _along(site, number)
    # A symbol of MXNet 1.9.1 can't be differentiated if the axis of `sort` is left out.
    return build.call(*build.refs, axis=number)


@stack_rule(*SORT)
def _sort_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data = site.inputs[0]
    axis = integer(site, "axis", _DEFAULT_AXIS.get(site.op, -1))
    if axis is None:
        flat = build.reshape(build.refs[0], -1, size_of(data))
        return build.restored(build.call(flat, axis=1))
    outputs = build.call(*build.refs, axis=positive_axis(site, axis, len(data)) + 1)
    # The arg-reductions of a vector give (1,) for one sample.
    return build.restored(outputs) if len(data) == 1 else outputs


@rows_rule(*SOFTMAX)
def _softmax(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _along(site, axis_of(site, "axis", -1, len(site.inputs[0])))
    return build.call(*build.spread_all())


@stack_rule(*SOFTMAX)
def _softmax_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = axis_of(site, "axis", -1, len(site.inputs[0]))
    return build.call(*build.spread_all(), axis=axis + 1)


@rows_rule("SoftmaxActivation")
def _softmax_activation(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) > 1, "SoftmaxActivation of a vector mixes its elements.")
    return build.call(*build.refs)


@rows_rule("argmax_channel")
def _argmax_channel(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # The operator itself makes MXNet refuse to record the symbol around it.
    return (build.add("argmax", *build.refs, axis=1),)


@rows_rule("_contrib_div_sqrt_dim")
def _div_sqrt_dim(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) > 1, "div_sqrt_dim of a vector depends on its length.")
    return build.call(*build.refs)


@stack_rule("_contrib_div_sqrt_dim")
def _div_sqrt_dim_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs)


def _shared_parameters(site: Site) -> None:
    refuse_unless(
        not any(site.batched[1:]), f"Every sample has parameters of its own for this {site.op}."
    )
    refuse_unless(
        not flag(site, "output_mean_var"),
        f"Operator {site.op} with output_mean_var=True has no batching rule.",
    )


@rows_rule("LayerNorm")
def _layer_norm(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _shared_parameters(site)
    _along(site, axis_of(site, "axis", -1, len(site.inputs[0])))
    return build.call(*build.refs)


@stack_rule("LayerNorm")
def _layer_norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _shared_parameters(site)
    return build.call(*build.refs, axis=axis_of(site, "axis", -1, len(site.inputs[0])) + 1)


@rows_rule("InstanceNorm", "GroupNorm", "L2Normalization")
def _per_row_norm(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _shared_parameters(site)
    refuse_unless(len(site.inputs[0]) > 1, f"{site.op} of a vector mixes its elements.")
    return build.call(*build.refs)


def _batch_norm_axis(site: Site) -> int:
    _shared_parameters(site)
    refuse_unless(
        not site.training or flag(site, "use_global_stats"),
        f"Operator {site.op} in training mode computes statistics over the minibatch and updates "
        "its moving averages, so merging would change them.",
    )
    return axis_of(site, "axis", 1, len(site.inputs[0]))


def _normalised(site: Site, build: Builder, axis: int) -> Tuple[Ref, ...]:
    """Normalise, and rectify if the operator does both.

    With oneDNN, MXNet 1.9.1 does not write what the gradient of both at once reads in predict mode.
    """
    attrs: Dict[str, object] = {**public_attrs(site.attrs), "axis": axis}
    result = build.add("BatchNorm", *build.refs, **attrs)
    return (result if site.op == "BatchNorm" else build.add("relu", result),)


@rows_rule("BatchNorm", "_contrib_BatchNormWithReLU")
def _batch_norm(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = _batch_norm_axis(site)
    _along(site, axis)
    return _normalised(site, build, axis)


@stack_rule("BatchNorm", "_contrib_BatchNormWithReLU")
def _batch_norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if _batch_norm_axis(site) != 0:
        # MXNet's fast kernels want the channels on axis 1, which folding keeps.
        raise UseRowsError("rows with channels")
    return _normalised(site, build, 1)
