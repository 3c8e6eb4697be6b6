"""Cases of the operators on images, boxes and regions."""

from __future__ import annotations

from typing import Iterator

from .interpreter import Array, Case, R, case

BOTH = "BB BS SB"


def images(a: int, b: int, c: int) -> Iterator[Case]:
    several, one = Array((R, 5, 6, 3)), Array((5, 6, 3))
    calls = {
        "_image_crop": {"x": 1, "y": 2, "width": 3, "height": 2},
        "_image_resize": {"size": (4, 3), "gradient": False},
        "_image_to_tensor": {"gradient": False},
    }
    for op, given in calls.items():
        yield case(op, several, rows="B", stack="B", **given)
        yield case(op, one, stack="B", **given)
    colours = {"mean": (0.1, 0.2, 0.3), "std": (1, 2, 3)}
    yield case("_image_normalize", Array((R, 3, a, b)), rows="B", stack="B", **colours)
    yield case("_image_normalize", Array((3, a, b)), stack="B", **colours)
    yield case("_image_adjust_lighting", Array((R, a, 3)), alpha=(0.1, 0.2, 0.3), rows="B",
               stack="B", gradient=False)  # fmt: skip


def regions(a: int, b: int, c: int) -> Iterator[Case]:
    many, images = Array((3, 5), "region", a), Array((a, 2, 6, 6))
    absent = Array((3, 5), "region or none", a)
    given = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    yield case("ROIPooling", images, absent, stack=BOTH, **given)
    yield case("_contrib_ROIAlign", images, many, stack=BOTH, **given)
    yield case("_contrib_ROIAlign", images, many, stack=BOTH, sample_ratio=2, **given)


def boxes(a: int, b: int, c: int) -> Iterator[Case]:
    still = {"gradient": False}
    yield case("_contrib_box_nms", Array((R, a, 6), "positive"), rows="B", stack="B")
    yield case("_contrib_box_nms", Array((a, 6), "positive"), stack="B", overlap_thresh=0.1)
    pairs = {"threshold": 0.5, **still}
    yield case("_contrib_bipartite_matching", Array((R, a, b)), rows="B", stack="B", **pairs)
    yield case("_contrib_bipartite_matching", Array((a, b)), stack="B", **pairs)
    some, other = Array((R, 4), "corners"), Array((c, 4), "corners")
    yield case("_contrib_box_iou", some, other, rows="BS", stack="BS", **still)
    yield case("_contrib_box_iou", Array((R, b, 4), "corners"), other, rows="BS", stack="BS",
               **still)  # fmt: skip
    anchors = Array((1, c, 4), "corners")
    yield case("_contrib_box_decode", Array((R, c, 4)), anchors, rows="BS", stack="BS", **still)
    four = "BBBB BBBS BBSB BBSS BSBB BSBS BSSB BSSS SBBB SBBS SBSB SBSS SSBB SSBS SSSB"
    merged = " ".join(f"{p}SS" for p in four.split())
    yield case("_contrib_box_encode", Array((R, c), "bit"), Array((R, c), "index", b),
               Array((R, c, 4), "corners"), Array((R, b, 4), "corners"), Array((4,)),
               Array((4,), "positive"), rows="BBBBSS", ones=merged,
               stack=merged, **still)  # fmt: skip
    odds, shifts = Array((R, 3, c), "probability"), Array((R, 4 * c))
    pair = {"rows": "BBS", "ones": "BSS SBS", "stack": "BBS BSS SBS", **still}
    yield case("_contrib_MultiBoxDetection", odds, shifts, anchors, **pair)
    labels = Array((R, b, 5), "positive")
    pair = {"rows": "SBB", "ones": "SBS SSB", "stack": "SBB SBS SSB", **still}
    yield case("_contrib_MultiBoxTarget", anchors, labels, Array((R, 3, c)), **pair)


def cases(a: int, b: int, c: int) -> Iterator[Case]:
    for family in (images, regions, boxes):
        yield from family(a, b, c)
