"""Operators on images and their regions."""

from __future__ import annotations

from typing import Tuple

from .build import Builder
from .site import Ref, RefuseError, Site, require


def up_sampling(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if site.attrs.get("sample_type") != "bilinear":
        # The stack is folded into rows.
        require(not build.stacked, "")
        return build.same()
    own = "Each call of UpSampling has a weight of its own; those that share it merge."
    require(not site.batched[1], own)
    if not build.stacked:
        return build.call(*build.refs)
    flat = build.reshape(build.refs[0], -1, *site.inputs[0][1:])
    return build.unfold(build.call(flat, build.refs[1]))


def images_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # A stack of samples with several images is folded into rows.
    require(len(site.inputs[0]) == 3, "")
    return build.same()


def resize_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Refuse: for several images, MXNet ends the process where it raises an error for one."""
    several = len(site.inputs[0]) > 3
    raise RefuseError(
        "" if several else f"Operator {site.called} merges only minibatches of images."
    )


def regions_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Concatenate the images of all samples, and adjust the image numbers in the regions."""
    images = site.inputs[0]
    regions = build.batched_input(1)
    number = build.add("slice_axis", regions, axis=2, begin=0, end=1)
    corners = build.add("slice_axis", regions, axis=2, begin=1, end=None)
    start = build.add("_contrib_arange_like", regions, axis=0)
    start = build.reshape(build.add("_mul_scalar", start, scalar=images[0]), -1, 1, 1)
    # A negative number means no image.
    is_image = build.add("_greater_equal_scalar", number, scalar=0)
    shift = build.add("broadcast_mul", is_image, start)
    number = build.add("elemwise_add", number, shift)
    regions = build.add("Concat", number, corners, dim=2, num_args=2)
    flat = build.reshape(build.batched_input(0), -1, *images[1:])
    return build.unfold(build.call(flat, build.reshape(regions, -1, site.inputs[1][1])))
