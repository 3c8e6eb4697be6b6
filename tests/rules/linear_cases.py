"""Cases of products, images, boxes, padded sequences, attention and recurrent layers."""

from __future__ import annotations

from itertools import product
from typing import Iterator

from .interpreter import BOTH, Array, Case, R, case

MATRICES = "det inverse potrf sumlogdiag extractdiag extracttrian slogdet syevd"


def fully_connected(a: int, b: int, c: int) -> Iterator[Case]:
    every = "BBB BBS BSB BSS SBB SBS SSB"
    for shape, flatten, width in [
        ((R, a), True, a),
        ((R, a, b), True, a * b),
        ((R, a, b), False, b),
        ((R, a, b, c), False, c),
        ((R, a), False, a),
    ]:
        weight, bias, given = Array((c, width)), Array((c,)), {"num_hidden": c, "flatten": flatten}
        data = Array(shape)
        yield case("FullyConnected", data, weight, bias, rows="BSS", stack=every, **given)
        yield case("FullyConnected", data, weight, no_bias=True, rows="BS", stack=BOTH, **given)
    vector = Array((R,))
    unary = {"num_hidden": c, "no_bias": True}
    yield case("FullyConnected", vector, Array((c, 1)), rows="BS", stack=BOTH, **unary)
    yield case("FullyConnected", Array((a,)), Array((c, a)), flatten=False, stack=BOTH, **unary)
    yield case("FullyConnected", Array((a,)), Array((c, a)), Array((c,)), flatten=False,
               num_hidden=c, stack=every)  # fmt: skip


def products(a: int, b: int, c: int) -> Iterator[Case]:
    for left, right, tb in [
        ((R, a), (a, b), False), ((R, a), (b, a), True), ((R, a), (a,), False),
        ((R, b, a), (a, c), False), ((R, b, a), (a, c, 2), False), ((R, b, a), (c, 2, a), True),
    ]:  # fmt: skip
        yield case("dot", Array(left), Array(right), transpose_b=tb, rows="BS", stack=BOTH)
    for left, right, ta, tb in [
        ((a, b), (a, c), True, False), ((a, b, 2), (a, c), True, False),
        ((a, b, 2), (c, 3, a), True, True), ((a,), (a,), False, False),
        ((a,), (a, b), False, False),
        ((a,), (a, b), True, False), ((a,), (a, b, c), False, False), ((b, a), (a,), False, True),
    ]:  # fmt: skip
        yield case("dot", Array(left), Array(right), transpose_a=ta, transpose_b=tb, stack=BOTH)
    both = {"rows": "BB", "stack": BOTH}
    for ta, tb in product((False, True), repeat=2):
        left, right = ((a, b) if ta else (b, a)), ((c, a) if tb else (a, c))
        rows = Array((R, *left)), Array((R, *right))
        turned = {"transpose_a": ta, "transpose_b": tb}
        yield case("batch_dot", *rows, **both, **turned)
        yield case("_linalg_gemm2", *rows, alpha=2, **both, **turned)
        yield case("_linalg_gemm2", Array(left), Array(right), stack=BOTH, **turned)
    yield case("batch_dot", Array((R, 2, b, a)), Array((R, 2, a, c)), **both)
    yield case("_linalg_gemm2", Array((R, a)), Array((a, c)), rows="BS", stack=BOTH)
    yield case("_linalg_gemm2", Array((b, R, a)), Array((b, a, c)), axis=-2, stack=BOTH)
    yield case("_linalg_gemm2", Array((3, b, a)), Array((a, b, c)), axis=0)


def matrices(a: int, b: int, c: int) -> Iterator[Case]:
    for lead in ((R,), ()):
        by_row = "B" if lead else ""
        square, lower = Array((*lead, 3, 3), "spd"), Array((*lead, 3, 3), "triangle")
        for op in MATRICES.split():
            yield case(f"_linalg_{op}", square, rows=by_row, stack="B")
        yield case("_linalg_potri", lower, rows=by_row, stack="B")
        yield case("_linalg_syrk", Array((*lead, a, b)), transpose=True, rows=by_row, stack="B")
        yield case("_linalg_gelqf", Array((*lead, 2, 3)), rows=by_row, stack="B", gradient=False)
        both = {"rows": "BB" if lead else "", "stack": BOTH}
        for op in ("trmm", "trsm"):
            yield case(f"_linalg_{op}", lower, Array((*lead, 3, a)), alpha=0.5, **both)
        if lead:
            mixed = "BBS BSB SBB BSS SBS SSB"
            yield case("_linalg_gemm", Array((R, b, a)), Array((R, a, c)), Array((R, b, c)), beta=2,
                       rows="BBB", stack=f"BBB {mixed}")  # fmt: skip
        yield case("_linalg_extracttrian", square, offset=1, rows=by_row, stack="B")
        yield case("_linalg_makediag", Array((*lead, a)), offset=1, rows=by_row, stack="B")
        yield case("_linalg_maketrian", Array((*lead, 6)), lower=False, rows=by_row, stack="B")


def images(a: int, b: int, c: int) -> Iterator[Case]:
    data = Array((R, 4, 6, 5))
    one = {"rows": "B", "stack": "B"}
    shared = {"rows": "BSS", "stack": "BSS"}
    conv = {"kernel": (3, 3), "num_filter": 6, "pad": (1, 1)}
    yield case("Convolution", data, Array((6, 4, 3, 3)), Array((6,)), **conv, **shared)
    grouped = {**conv, "num_group": 2, "no_bias": True, "stride": (2, 2)}
    yield case("Convolution", data, Array((6, 2, 3, 3)), rows="BS", stack="BS", **grouped)
    line = {"kernel": (2,), "num_filter": c}
    yield case("Convolution", Array((R, a, 5)), Array((c, a, 2)), Array((c,)), **line, **shared)
    back = {"kernel": (2, 2), "num_filter": 3, "stride": (2, 2), "no_bias": False}
    yield case("Deconvolution", data, Array((4, 3, 2, 2)), Array((3,)), **back, **shared)
    for kind in ("max", "avg", "sum", "lp"):
        more = {"p_value": 2} if kind == "lp" else {}
        yield case("Pooling", data, kernel=(2, 2), stride=(2, 1), pool_type=kind, **more, **one)
    yield case("Pooling", data, global_pool=True, pool_type="avg", **one)
    yield case("LRN", data, nsize=3, **one)
    for mode in ("constant", "edge", "reflect"):
        yield case(
            "Pad", data, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=2, **one
        )
    yield case("depth_to_space", data, block_size=2, **one)
    yield case("space_to_depth", Array((R, a, 4, 6)), block_size=2, **one)
    yield case("im2col", data, kernel=(2, 2), stride=(1, 1), **one)
    yield case("col2im", Array((R, a * 4, 6)), output_size=(3, 4), kernel=(2, 2), **one)
    yield case("_contrib_AdaptiveAvgPooling2D", data, output_size=(3, 2), **one)
    yield case("_contrib_BilinearResize2D", data, height=7, width=9, **one)
    yield case("UpSampling", data, scale=2, sample_type="nearest", num_args=1, **one)
    yield case("Convolution_v1", data, Array((6, 4, 3, 3)), Array((6,)), **conv, **shared)
    yield case("Pooling_v1", data, kernel=(2, 2), stride=(2, 1), pool_type="avg", **one)
    offsets = Array((R, 18, 6, 5))
    bent = {"rows": "BBSS", "stack": "BBSS BSSS SBSS", **conv}
    yield case("_contrib_DeformableConvolution", data, offsets, Array((6, 4, 3, 3)), Array((6,)),
               **bent)  # fmt: skip
    pair = {"rows": "BB", "stack": BOTH}
    yield case("Correlation", data, data, kernel_size=1, max_displacement=1, pad_size=1, **pair)
    yield case("Crop", data, num_args=1, h_w=(2, 3), offset=(1, 2), **one)
    yield case("Crop", data, Array((R, 1, 3, 2)), num_args=2, center_crop=True, **pair)
    yield case("UpSampling", data, data, scale=2, sample_type="nearest", num_args=2, **pair)
    yield case("UpSampling", data, Array((4, 1, 4, 4)), scale=2, sample_type="bilinear",
               num_filter=4, num_args=2, rows="BS", stack="BS")  # fmt: skip
    yield case("BilinearSampler", data, Array((R, 2, 3, 3), "unit"), **pair)
    turn = {"transform_type": "affine", "target_shape": (4, 4)}
    yield case("GridGenerator", Array((R, 6), "unit"), **turn, **one)
    yield case("GridGenerator", Array((R, 2, 4, 4), "unit"), transform_type="warp")
    yield case(
        "SpatialTransformer", data, Array((R, 6), "unit"), sampler_type="bilinear", **turn, **pair
    )


def pictures(a: int, b: int, c: int) -> Iterator[Case]:
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
               Array((4,), "positive"), rows="BBBBSS", stack=merged,
               **still)  # fmt: skip
    odds, shifts = Array((R, 3, c), "probability"), Array((R, 4 * c))
    pair = {"rows": "BBS", "stack": "BBS BSS SBS", **still}
    yield case("_contrib_MultiBoxDetection", odds, shifts, anchors, **pair)
    labels = Array((R, b, 5), "positive")
    pair = {"rows": "SBB", "stack": "SBB SBS SSB", **still}
    yield case("_contrib_MultiBoxTarget", anchors, labels, Array((R, 3, c)), **pair)


GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


def mixtures(inputs: int, shared: int = -1) -> str:
    """List all patterns of batched and shared inputs, one of which may have to be shared."""
    found = ["".join(letters) for letters in product("BS", repeat=inputs)]
    return " ".join(p for p in found if "B" in p and (shared < 0 or p[shared] == "S"))


def sequences(a: int, b: int, c: int) -> Iterator[Case]:
    every = {"rows": "BB", "stack": BOTH}
    for op in ("SequenceMask", "SequenceLast", "SequenceReverse"):
        value = {"value": 3} if op == "SequenceMask" else {}
        for tail in ((), (c,), (2, c)):
            lengths = {"use_sequence_length": True, **value}
            yield case(op, Array((a, b, *tail)), Array((b,), "length", a), stack=BOTH, **lengths)
            # MXNet corrupts its heap when it differentiates SequenceLast without lengths.
            plain = {"gradient": op != "SequenceLast", **value}
            yield case(op, Array((a, b, *tail)), stack="B", **plain)
            if op != "SequenceReverse":
                data, length = Array((R, a, *tail)), Array((R,), "length", a)
                yield case(op, data, length, axis=1, **lengths, **every)
                yield case(op, data, axis=1, rows="B", stack="B", **plain)


def attention(a: int, b: int, c: int) -> Iterator[Case]:
    heads, size = 2, 3
    contrib = "_contrib_interleaved_matmul"
    joint = Array((a, b, heads * size * 3))
    yield case(f"{contrib}_selfatt_qk", joint, heads=heads, stack="B")
    own = Array((b * heads, a, a))
    yield case(f"{contrib}_selfatt_valatt", joint, own, heads=heads, stack=BOTH)
    query, memory = Array((a, b, heads * size)), Array((c, b, heads * size * 2))
    yield case(f"{contrib}_encdec_qk", query, memory, heads=heads, stack=BOTH)
    other = Array((b * heads, a, c))
    yield case(f"{contrib}_encdec_valatt", memory, other, heads=heads, stack=BOTH)


def recurrent(a: int, b: int, c: int) -> Iterator[Case]:
    for mode, gates in GATES.items():
        for layers, both_ways in ((1, False), (2, True)):
            ways = 2 if both_ways else 1
            size = 0
            for layer in range(layers):
                width = c if layer == 0 else ways * 2
                size += ways * gates * 2 * (width + 2 + 2)
            states = [Array((layers * ways, b, 2))] * (2 if mode == "lstm" else 1)
            merged = mixtures(2 + len(states), shared=1)
            yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, mode=mode,
                       state_size=2, num_layers=layers, bidirectional=both_ways,
                       state_outputs=both_ways, stack=merged)  # fmt: skip
    size = 4 * 2 * (c + 2 + 2) + 4 * 2 * (2 + 2 + 2)
    states = [Array((2, b, 2))] * 2
    given = {"mode": "lstm", "state_size": 2, "num_layers": 2, "p": 0.5, "gradient": False}
    merged = mixtures(4, shared=1)
    yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, **given, stack=merged,
               random=True)  # fmt: skip
    yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, **given, stack=merged,
               training=False)  # fmt: skip


def losses(a: int, b: int, c: int) -> Iterator[Case]:
    scores, labels = Array((a + 3, b, c + 2)), Array((b, 2), "length", c)
    yield case("CTCLoss", scores, labels, stack=BOTH)
    yield case("CTCLoss", scores, labels, blank_label="last", stack=BOTH)
    whole, some = Array((b,), "full", a + 3), Array((b,), "length", 2)
    yield case("CTCLoss", scores, labels, whole, some, use_data_lengths=True,
               use_label_lengths=True, stack=mixtures(4))  # fmt: skip
    yield case("CTCLoss", scores, labels, some, use_label_lengths=True, stack=mixtures(3))


FAMILIES = (
    fully_connected, products, matrices, images, pictures, regions, boxes, sequences, attention,
    recurrent, losses,
)  # fmt: skip
