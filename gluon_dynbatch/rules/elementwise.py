"""Operators that compute each element from one element of each input, with broadcasting."""

from __future__ import annotations

from typing import Tuple

from .axes import require_few_groups
from .build import Builder
from .site import Ref, Shape, Site, padded, require


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
    require_few_groups(site, (pair for pair in zip(*broadcast_axes) if not all(pair)))
    # "elemwise_add" and "_power" do not broadcast a shared operand.
    return (build.add(f"broadcast_{site.op.split('_', 1)[1]}", *refs),)


def numpy_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat an operator of ``mx.np`` that broadcasts; a shared array has no batch axis."""
    ndim = len(site.outputs[0])
    refs = [
        build.reshape(ref, -1, *padded(shape, ndim)) if batched and len(shape) < ndim else ref
        for ref, shape, batched in zip(build.refs, site.inputs, site.batched)
    ]
    axes = zip(*(
        (not batched, *(extent == 1 for extent in padded(shape, ndim)))
        for shape, batched in zip(site.inputs, site.batched)
    ))  # fmt: skip
    require_few_groups(site, (pair for pair in axes if not all(pair)))
    return build.call(*refs)


def leaky_relu(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Rewrite prelu as ``relu(x) + slope * min(x, 0)``; repeat the other types unchanged.

    In a symbol, where gradients share memory, MXNet 1.9.1 overwrites the head gradient of prelu
    before it computes the gradient of the slopes from it.
    """
    if site.attrs.get("act_type") != "prelu":
        return build.same()
    data, slope = site.inputs
    aligned = _aligned_slopes(site)
    x, slopes = build.refs
    if build.stacked:
        x = x if site.batched[0] else build.add("expand_dims", x, axis=0)
        slopes = build.reshape(slopes, -1 if site.batched[1] else 1, *aligned)
    elif site.batched[1]:
        # Fewer axes than two are those of a row, if their extent happens to be that of axis 1.
        site.keep_rows(site.batched[0] and len(slope) == min(2, len(data)))
        slopes = build.reshape(slopes, 0, *aligned[1:])
    else:
        site.keep_rows(aligned[0] == 1)
        slopes = build.reshape(slopes, *aligned)
    negative = build.add("broadcast_mul", build.add("_minimum_scalar", x, scalar=0), slopes)
    return (build.add("broadcast_add", build.add("relu", x), negative),)


def _aligned_slopes(site: Site) -> Shape:
    """Return the shape in which the slopes of prelu broadcast to the data.

    As in MXNet, the axes of the slopes, from the last to the first, belong to axis 1 and axis 0 of
    the data; an axis that does not fit axis 1 belongs to axis 0.
    """
    data, slope = site.inputs[0], list(site.inputs[1])
    aligned = [1] * len(data)
    for axis in reversed(range(min(2, len(data)))):
        if slope and slope[-1] in (1, data[axis]):
            aligned[axis] = slope.pop()
    require(not slope, f"The slopes of this {site.called} do not fit its data.")
    return tuple(aligned)


def loss(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        not site.training and site.attrs.get("normalization", "null") == "null",
        f"Operator {site.called} sets its own gradient for the whole array, even if the loss is "
        "not used; remove it, or return the loss as Gluon's losses do.",
    )
    return build.same()


def dirichlet_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        len(site.inputs[1]) > 1,
        "The only axis of this random_pdf_dirichlet's parameter is the distribution, not rows.",
    )
    return build.same()
