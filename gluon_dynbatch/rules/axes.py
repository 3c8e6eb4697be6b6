"""Operators that work along some axes, each of which the stack layout moves by one."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, Dict, Hashable, Iterable, Tuple

from .build import Builder
from .rule import Rule
from .site import Ref, Site, public_attrs, require

MAX_GROUPS = 5
"""MXNet's broadcasting and reducing kernels know at most this many groups of axes."""


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
    flat = build.reshape(build.refs[0], -1, prod(site.inputs[0]))
    return build.restored(build.call(flat, axis=1, **changes))


def _whole(site: Site, build: Builder, outputs: Tuple[Ref, ...]) -> Tuple[Ref, ...]:
    """Return one number per sample as MXNet does: in an array of one axis."""
    return build.restored(outputs) if (1,) in site.outputs else outputs


#: Every axis, whatever the number of dimensions.
EVERY = tuple(range(32))


def along(more: int = 0, reduces: bool = False, **defaults: Any) -> Rule:
    """Return the rule of an operator with axes in one or more attributes.

    An attribute is one axis or a tuple of them, as its default is: None stands for all elements in
    a row.  Axes count `more` dimensions than the first input has; some operators leave them out.
    """

    def read(site: Site) -> Dict[str, Any]:
        ndim = len(site.inputs[0]) + more
        found: Dict[str, Any] = {}
        for name, default in defaults.items():
            if isinstance(default, tuple):
                found[name] = site.axes(name) or default[:ndim]
            else:
                axis = site.integer(name, default)
                found[name] = None if axis is None else site.positive(axis, ndim)
        return found

    def handler(site: Site, build: Builder) -> Tuple[Ref, ...]:
        axes = read(site)
        if not build.stacked:
            first = (0 in axis if isinstance(axis, tuple) else not axis for axis in axes.values())
            site.keep_rows(not any(first))
            # A symbol of MXNet 1.9.1 can't be differentiated if the axis of `sort` is left out.
            return build.same(**axes)
        if None in axes.values():
            return _flat(site, build)
        for name, axis in axes.items():
            axes[name] = tuple(a + 1 for a in axis) if isinstance(axis, tuple) else axis + 1
        outputs = build.same(**axes)
        return _whole(site, build, outputs) if reduces else outputs

    return Rule(handler, handler)


def reduced_axes(site: Site) -> Tuple[int, ...]:
    """Return the axes that a reduction sums away; no axis given means all of them."""
    ndim = len(site.inputs[0])
    axes = site.axes("axis")
    if axes and site.flag("exclude"):
        return tuple(axis for axis in range(ndim) if axis not in axes)
    return tuple(sorted(axes)) or tuple(range(ndim))


def reduce_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, axes = site.inputs[0], reduced_axes(site)
    check_groups(site, [False, *(a in axes for a, size in enumerate(data) if size != 1)])
    if not axes:
        # An empty tuple would mean all axes; excluding all of them means none.
        return build.same(axis=tuple(range(len(data) + 1)), exclude=True)
    outputs = build.same(axis=tuple(a + 1 for a in axes), exclude=False)
    return outputs if site.flag("keepdims") else _whole(site, build, outputs)


def norm_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = reduced_axes(site)
    if len(axes) == len(site.inputs[0]):
        return _flat(site, build, keepdims=False)
    return build.same(axis=tuple(a + 1 for a in axes))


def argmax_channel_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # The operator itself makes MXNet refuse to record the symbol around it.
    return (build.add("argmax", *build.refs, axis=1),)


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
