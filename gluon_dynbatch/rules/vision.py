"""Operators on images, and on boxes and regions in them."""

from __future__ import annotations

from typing import Tuple

from .builder import Builder
from .site import Ref, Site, refuse_unless, words
from .table import rows_rule, stack_rule

# Operators on (rows, ...) of images; one image has an axis less.
IMAGES = words("_image_crop _image_resize _image_normalize _image_to_tensor")
# Operators on the last two axes: boxes, and what is known of each.
BOXES = words("_contrib_box_nms _contrib_bipartite_matching")
REGIONS = words("ROIPooling _contrib_ROIAlign")


@rows_rule(*IMAGES)
def _images(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) == 4, f"Axis 0 of this {site.op} belongs to one image.")
    return build.call(*build.refs)


@stack_rule(*IMAGES)
def _images_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) == 3, f"Operator {site.op} takes four dimensions at most.")
    return build.call(*build.refs)


@rows_rule("_image_adjust_lighting")
def _lines(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # It treats the lines of its one image alike.
    return build.call(*build.refs)


@rows_rule(*BOXES)
def _boxes(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(len(site.inputs[0]) > 2, f"Axis 0 of this {site.op} numbers the boxes.")
    return build.call(*build.refs)


@stack_rule(*BOXES)
def _boxes_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs)


@rows_rule("_contrib_box_iou")
@stack_rule("_contrib_box_iou")
def _box_iou(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(site.batched == (True, False), "This box_iou pairs all boxes of both arrays.")
    return build.call(*build.refs)


@stack_rule(*REGIONS)
def _regions(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Lay the images end to end; a region names its image by number, which is moved along."""
    images = site.inputs[0]
    regions = build.spread(1)
    number = build.add("slice_axis", regions, axis=2, begin=0, end=1)
    places = build.add("slice_axis", regions, axis=2, begin=1, end=None)
    start = build.add("_contrib_arange_like", regions, axis=0)
    start = build.reshape(build.add("_mul_scalar", start, scalar=images[0]), -1, 1, 1)
    # A negative number stands for no image.
    is_image = build.add("_greater_equal_scalar", number, scalar=0)
    moved = build.add("broadcast_mul", is_image, start)
    number = build.add("elemwise_add", number, moved)
    regions = build.add("Concat", number, places, dim=2, num_args=2)
    flat = build.reshape(build.spread(0), -1, *images[1:])
    return build.restored(build.call(flat, build.reshape(regions, -1, site.inputs[1][1])))
