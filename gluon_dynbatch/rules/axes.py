"""Operators that work along axes given as attributes, to which the stack layout adds 1."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, Dict, Hashable, Iterable, Tuple

from .build import Builder
from .rule import Rule
from .site import Ref, Site, public_attrs, require

MAX_GROUPS = 5
"""Most groups of axes in MXNet's kernels for broadcasting, reductions and slices."""


def require_few_groups(site: Site, kinds: Iterable[Hashable]) -> None:
    """Refuse a merged call with more groups of axes than MXNet's kernels support.

    MXNet joins adjacent axes that it treats alike; these are adjacent equal items of `kinds`.
    """
    require(
        len(list(groupby(kinds))) <= MAX_GROUPS,
        f"With a batch axis, operator {site.called} has more dimensions than MXNet supports.",
    )


def _flattened(site: Site, build: Builder, **changes: object) -> Tuple[Ref, ...]:
    """Apply an operator that works on all elements: flatten each sample to one row."""
    site.keep_rows(build.stacked)
    flat = build.reshape(build.refs[0], -1, prod(site.inputs[0]))
    return build.unfold(build.call(flat, axis=1, **changes))


#: All axes, for any number of dimensions.
EVERY = tuple(range(32))


def along(more: int = 0, **defaults: Any) -> Rule:
    """Return the rule of an operator with axes in the attributes `defaults`.

    A default is an axis, a tuple of axes, or None for all elements as one row.  The attributes
    count `more` dimensions than the first input has.
    """

    def handler(site: Site, build: Builder) -> Tuple[Ref, ...]:
        ndim = len(site.inputs[0]) + more
        merged: Dict[str, Any] = {}
        for name, default in defaults.items():
            if isinstance(default, tuple):
                axes = site.axes(name) or default[:ndim]
                merged[name] = tuple(axis + build.stacked for axis in axes)
                site.keep_rows(0 not in merged[name])
            else:
                axis = site.integer(name, default)
                if axis is None:
                    return _flattened(site, build)
                merged[name] = site.normalize_axis(axis, ndim) + build.stacked
                site.keep_rows(merged[name] != 0)
        # Axes are always explicit: MXNet 1.9.1 cannot differentiate `sort` in a symbol without.
        return build.same_with_scalars(**merged)

    return Rule(handler, handler)


def reduced_axes(site: Site) -> Tuple[int, ...]:
    """Return the axes that a reduction removes: all if the call names none."""
    ndim = len(site.inputs[0])
    axes = site.axes("axis")
    if axes and site.flag("exclude"):
        return tuple(axis for axis in range(ndim) if axis not in axes)
    return tuple(sorted(axes)) or tuple(range(ndim))


def reduce(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, axes = site.inputs[0], tuple(axis + build.stacked for axis in reduced_axes(site))
    site.keep_rows(0 not in axes)
    if not build.stacked:
        return build.same()
    require_few_groups(site, [False, *(i in axes for i, size in enumerate(data, 1) if size != 1)])
    if not axes:
        # An empty tuple would mean all axes; excluding all axes reduces none.
        return build.same(axis=tuple(range(len(data) + 1)), exclude=True)
    return build.same_with_scalars(axis=axes, exclude=False)


def norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = reduced_axes(site)
    if len(axes) == len(site.inputs[0]):
        return _flattened(site, build, keepdims=False)
    return build.same(axis=tuple(axis + 1 for axis in axes))


def batch_norm(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Append ``BatchNorm``, and ``relu`` for the operator that includes it.

    In prediction mode with oneDNN, MXNet 1.9.1 does not write an array that the gradient of the
    combined operator reads.
    """
    require(
        not site.training or site.flag("use_global_stats"),
        f"Operator {site.called} in training mode computes statistics over the minibatch and "
        "updates its moving averages, so merging would change them.",
    )
    axis = site.axis("axis", 1)
    if build.stacked:
        # MXNet's fast kernels need channels on axis 1, so any other stack is folded into rows.
        require(axis == 0, "")
    else:
        site.keep_rows(axis != 0)
    attrs = {**public_attrs(site.attrs), "axis": axis + build.stacked}
    normalized = build.add("BatchNorm", *build.refs, **attrs)
    return (normalized if site.op == "BatchNorm" else build.add("relu", normalized),)
