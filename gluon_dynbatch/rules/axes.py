"""Operators that work along some axes, each of which the stack layout moves by one."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, Dict, Hashable, Iterable, Tuple

from .build import Builder
from .rule import Rule
from .site import Ref, Site, public_attrs, require

MAX_GROUPS = 5
"""MXNet's kernels that broadcast, reduce or slice know at most this many groups of axes."""


def check_groups(site: Site, kinds: Iterable[Hashable]) -> None:
    """Refuse if the merged call had more groups of axes than MXNet's kernels take.

    MXNet joins neighbouring axes that are treated alike, which are of equal `kinds`.
    """
    require(
        len(list(groupby(kinds))) <= MAX_GROUPS,
        f"With a batch axis, operator {site.op} has more dimensions than MXNet supports.",
    )


def _flat(site: Site, build: Builder, **changes: object) -> Tuple[Ref, ...]:
    """Call an operator on all elements of each sample, laid in a row."""
    site.keep_rows(build.stacked)
    flat = build.reshape(build.refs[0], -1, prod(site.inputs[0]))
    return build.restored(build.call(flat, axis=1, **changes))


#: Every axis, whatever the number of dimensions.
EVERY = tuple(range(32))


def along(more: int = 0, **defaults: Any) -> Rule:
    """Return the rule of an operator with axes in one or more attributes.

    An attribute is one axis or a tuple of them, as its default is: None stands for all elements in
    a row.  Axes count `more` dimensions than the first input has; some operators leave them out.
    """

    def handler(site: Site, build: Builder) -> Tuple[Ref, ...]:
        ndim = len(site.inputs[0]) + more
        axes: Dict[str, Any] = {}
        for name, default in defaults.items():
            if isinstance(default, tuple):
                given = site.axes(name) or default[:ndim]
                axes[name] = tuple(axis + build.stacked for axis in given)
                site.keep_rows(0 not in axes[name])
            else:
                axis = site.integer(name, default)
                if axis is None:
                    return _flat(site, build)
                axes[name] = site.positive(axis, ndim) + build.stacked
                site.keep_rows(axes[name] != 0)
        # A symbol of MXNet 1.9.1 can't be differentiated if the axis of `sort` is left out.
        return build.reduced(**axes)

    return Rule(handler, handler)


def reduced_axes(site: Site) -> Tuple[int, ...]:
    """Return the axes that a reduction sums away; no axis given means all of them."""
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
    check_groups(site, [False, *(i in axes for i, size in enumerate(data, 1) if size != 1)])
    if not axes:
        # An empty tuple would mean all axes; excluding all of them means none.
        return build.same(axis=tuple(range(len(data) + 1)), exclude=True)
    return build.reduced(axis=axes, exclude=False)


def norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = reduced_axes(site)
    if len(axes) == len(site.inputs[0]):
        return _flat(site, build, keepdims=False)
    return build.same(axis=tuple(a + 1 for a in axes))


def batch_norm(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Normalise, and rectify if the operator does both.

    With oneDNN, MXNet 1.9.1 does not write what the gradient of both at once reads in predict mode.
    """
    require(
        not site.training or site.flag("use_global_stats"),
        f"Operator {site.op} in training mode computes statistics over the minibatch and updates "
        "its moving averages, so merging would change them.",
    )
    axis = site.axis("axis", 1)
    if build.stacked:
        # MXNet's fast kernels want the channels on axis 1, which folding keeps.
        require(axis == 0, "")
    else:
        site.keep_rows(axis != 0)
    attrs = {**public_attrs(site.attrs), "axis": axis + build.stacked}
    result = build.add("BatchNorm", *build.refs, **attrs)
    return (result if site.op == "BatchNorm" else build.add("relu", result),)
