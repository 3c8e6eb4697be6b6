"""Operators that look at one element (and its partners under broadcasting) at a time."""

from __future__ import annotations

from typing import Tuple

from .axes import check_groups
from .build import Builder
from .site import Ref, Site, padded, require


def binary_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if all(site.batched) and site.inputs[0] == site.inputs[1]:
        return build.same()
    ndim = len(site.outputs[0])
    refs, ones = list(build.refs), []
    for index, (shape, own) in enumerate(zip(site.inputs, site.batched)):
        # Axes are joined by which operand broadcasts along them; the batch axis may be of any size.
        ones.append((not own, *(extent == 1 for extent in padded(shape, ndim))))
        if own and len(shape) < ndim:
            refs[index] = build.reshape(refs[index], -1, *padded(shape, ndim))
    check_groups(site, (pair for pair in zip(*ones) if not all(pair)))
    # "elemwise_add" and "_power" take no shared operand.
    return (build.add(f"broadcast_{site.op.split('_', 1)[1]}", *refs),)


def leaky_relu(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Write prelu as ``relu(x) + slope * min(x, 0)``; the other kinds are as they are.

    MXNet 1.9.1 computes the slopes' gradient after it has overwritten the head gradient if the two
    share memory, which they do inside a symbol.  The sum does not have that fault.
    """
    if site.attrs.get("act_type") != "prelu":
        return build.same()
    data, slope = site.inputs
    aligned = slope
    if len(slope) < len(data):
        # A vector of slopes lies along axis 1.
        aligned = (1, slope[0]) + (1,) * (len(data) - 2)
    x, slopes = build.refs
    if build.stacked:
        x = x if site.batched[0] else build.add("expand_dims", x, axis=0)
        slopes = build.reshape(slopes, -1 if site.batched[1] else 1, *aligned)
    else:
        by_row = aligned == slope if site.batched[1] else aligned[0] == 1
        site.keep_rows(site.batched[0] and by_row)
        slopes = slopes if aligned == slope else build.reshape(slopes, *aligned)
    below = build.add("broadcast_mul", build.add("_minimum_scalar", x, scalar=0), slopes)
    return (build.add("broadcast_add", build.add("relu", x), below),)


def loss(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        not site.training and site.attrs.get("normalization", "null") == "null",
        f"Operator {site.op} sets its own gradient for the whole array, wanted or not; leave it "
        "out, or return the loss as Gluon's losses do.",
    )
    return build.same()


def dirichlet_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        len(site.inputs[1]) > 1,
        "Axis 0 of the parameter of this random_pdf_dirichlet is the distribution.",
    )
    return build.same()
