"""Operators that compute each element from one element of each input, with broadcasting."""

from __future__ import annotations

from typing import Tuple

from .axes import check_groups
from .build import Builder
from .site import Ref, Site, padded, require


def binary_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if all(site.batched) and site.inputs[0] == site.inputs[1]:
        return build.same()
    ndim = len(site.outputs[0])
    refs, broadcast_axes = list(build.refs), []
    for index, (shape, batched) in enumerate(zip(site.inputs, site.batched)):
        # MXNet joins adjacent axes along which the same operands broadcast.  On the batch axis,
        # these are the shared ones, whatever the number of samples.
        broadcast_axes.append((not batched, *(extent == 1 for extent in padded(shape, ndim))))
        if batched and len(shape) < ndim:
            refs[index] = build.reshape(refs[index], -1, *padded(shape, ndim))
    check_groups(site, (pair for pair in zip(*broadcast_axes) if not all(pair)))
    # "elemwise_add" and "_power" do not broadcast a shared operand.
    return (build.add(f"broadcast_{site.op.split('_', 1)[1]}", *refs),)


def leaky_relu(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Rewrite prelu as ``relu(x) + slope * min(x, 0)``; repeat the other types unchanged.

    In a symbol, where gradients share memory, MXNet 1.9.1 overwrites the head gradient of prelu
    before it computes the gradient of the slopes from it.
    """
    if site.attrs.get("act_type") != "prelu":
        return build.same()
    data, slope = site.inputs
    aligned = slope
    if len(slope) < len(data):
        # A vector of slopes belongs to axis 1.
        aligned = (1, slope[0]) + (1,) * (len(data) - 2)
    x, slopes = build.refs
    if build.stacked:
        x = x if site.batched[0] else build.add("expand_dims", x, axis=0)
        slopes = build.reshape(slopes, -1 if site.batched[1] else 1, *aligned)
    else:
        by_row = aligned == slope if site.batched[1] else aligned[0] == 1
        site.keep_rows(site.batched[0] and by_row)
        slopes = slopes if aligned == slope else build.reshape(slopes, *aligned)
    negative = build.add("broadcast_mul", build.add("_minimum_scalar", x, scalar=0), slopes)
    return (build.add("broadcast_add", build.add("relu", x), negative),)


def loss(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        not site.training and site.attrs.get("normalization", "null") == "null",
        f"Operator {site.op} sets its own gradient for the whole array, even if the loss is not "
        "used; remove it, or return the loss as Gluon's losses do.",
    )
    return build.same()


def dirichlet_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        len(site.inputs[1]) > 1,
        "The only axis of this random_pdf_dirichlet's parameter is the distribution, not rows.",
    )
    return build.same()
