"""Cases of products, images, boxes, padded sequences, attention and recurrent layers."""

from itertools import product

from .interpreter import NEVER, Array, R, case

MATRICES = "det inverse potrf sumlogdiag extractdiag extracttrian slogdet syevd"


def fully_connected(a, b, c):
    for shape, flatten, width in [
        ((R, a), True, a),
        ((R, a, b), True, a * b),
        ((R, a, b), False, b),
        ((R, a, b, c), False, c),
        ((R, a), False, a),
    ]:
        weight, bias, attrs = Array((c, width)), Array((c,)), {"num_hidden": c, "flatten": flatten}
        data = Array(shape)
        yield case("FullyConnected", data, weight, bias, **attrs)
        yield case("FullyConnected", data, weight, no_bias=True, **attrs)
    vector = Array((R,))
    unary = {"num_hidden": c, "no_bias": True}
    yield case("FullyConnected", vector, Array((c, 1)), **unary)
    yield case("FullyConnected", Array((a,)), Array((c, a)), flatten=False, **unary)
    vector, bias = Array((a,)), Array((c,))
    yield case("FullyConnected", vector, Array((c, a)), bias, flatten=False, num_hidden=c)


def products(a, b, c):
    for left, right, tb in [
        ((R, a), (a, b), False), ((R, a), (b, a), True), ((R, a), (a,), False),
        ((R, b, a), (a, c), False), ((R, b, a), (a, c, 2), False), ((R, b, a), (c, 2, a), True),
    ]:  # fmt: skip
        yield case("dot", Array(left), Array(right), transpose_b=tb)
    for left, right, ta, tb in [
        ((a, b), (a, c), True, False), ((a, b, 2), (a, c), True, False),
        ((a, b, 2), (c, 3, a), True, True), ((a,), (a,), False, False),
        ((a,), (a, b), False, False),
        ((a,), (a, b), True, False), ((a,), (a, b, c), False, False), ((b, a), (a,), False, True),
    ]:  # fmt: skip
        yield case("dot", Array(left), Array(right), transpose_a=ta, transpose_b=tb)
    for ta, tb in product((False, True), repeat=2):
        left, right = ((a, b) if ta else (b, a)), ((c, a) if tb else (a, c))
        rows = Array((R, *left)), Array((R, *right))
        transposes = {"transpose_a": ta, "transpose_b": tb}
        yield case("batch_dot", *rows, **transposes)
        yield case("_linalg_gemm2", *rows, alpha=2, **transposes)
        yield case("_linalg_gemm2", Array(left), Array(right), **transposes)
    yield case("batch_dot", Array((R, 2, b, a)), Array((R, 2, a, c)))
    yield case("_linalg_gemm2", Array((R, a)), Array((a, c)))
    yield case("_linalg_gemm2", Array((b, R, a)), Array((b, a, c)), axis=-2)
    yield case("_linalg_gemm2", Array((3, b, a)), Array((a, b, c)), axis=0, **NEVER)


def matrices(a, b, c):
    for lead in ((R,), ()):
        square, lower = Array((*lead, 3, 3), "spd"), Array((*lead, 3, 3), "triangle")
        for op in MATRICES.split():
            yield case(f"_linalg_{op}", square)
        yield case("_linalg_potri", lower)
        yield case("_linalg_syrk", Array((*lead, a, b)), transpose=True)
        yield case("_linalg_gelqf", Array((*lead, 2, 3)), gradient=False)
        for op in ("trmm", "trsm"):
            yield case(f"_linalg_{op}", lower, Array((*lead, 3, a)), alpha=0.5)
        yield case("_linalg_extracttrian", square, offset=1)
        yield case("_linalg_makediag", Array((*lead, a)), offset=1)
        yield case("_linalg_maketrian", Array((*lead, 6)), lower=False)
    yield case("_linalg_gemm", Array((R, b, a)), Array((R, a, c)), Array((R, b, c)), beta=2)


def images(a, b, c):
    data, weights = Array((R, 4, 6, 5)), (Array((6, 4, 3, 3)), Array((6,)))
    conv = {"kernel": (3, 3), "num_filter": 6, "pad": (1, 1)}
    for op in ("Convolution", "Convolution_v1"):
        yield case(op, data, *weights, **conv, shared=(1, 2))
    grouped = {**conv, "num_group": 2, "no_bias": True, "stride": (2, 2)}
    yield case("Convolution", data, Array((6, 2, 3, 3)), shared=(1,), **grouped)
    line = Array((R, a, 5)), Array((c, a, 2)), Array((c,))
    yield case("Convolution", *line, kernel=(2,), num_filter=c, shared=(1, 2))
    attrs = {"num_filter": 6, "no_bias": True, "shared": (1,)}
    for kernel, pad, more in (((3, 2), (1, 1), {"dilate": (1, 2)}), ((1, 1), (1, 0), {})):
        kernels = Array((6, 4, *kernel))
        yield case("Convolution", data, kernels, kernel=kernel, pad=pad, **attrs, **more)
    volume = Array((R, 2, 3, 4, 2)), Array((6, 2, 2, 2, 2))
    yield case("Convolution", *volume, kernel=(2, 2, 2), **attrs)
    yield case("Convolution", Array((R, 9, 3, 2)), Array((6, 9, 3, 2)), kernel=(3, 2), **attrs)
    yield case("_contrib_DeformableConvolution", data, Array((R, 18, 6, 5)), *weights, **conv,
               shared=(2, 3))  # fmt: skip
    deconv = {"kernel": (2, 2), "num_filter": 3, "stride": (2, 2), "no_bias": False}
    yield case("Deconvolution", data, Array((4, 3, 2, 2)), Array((3,)), **deconv, shared=(1, 2))
    for kind in ("max", "avg", "sum", "lp"):
        more = {"p_value": 2} if kind == "lp" else {}
        yield case("Pooling", data, kernel=(2, 2), stride=(2, 1), pool_type=kind, **more)
    yield case("Pooling", data, global_pool=True, pool_type="avg")
    yield case("Pooling_v1", data, kernel=(2, 2), stride=(2, 1), pool_type="avg")
    yield case("LRN", data, nsize=3)
    for mode in ("constant", "edge", "reflect"):
        yield case("Pad", data, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=2)
    yield case("depth_to_space", data, block_size=2)
    yield case("space_to_depth", Array((R, a, 4, 6)), block_size=2)
    yield case("im2col", data, kernel=(2, 2), stride=(1, 1))
    yield case("col2im", Array((R, a * 4, 6)), output_size=(3, 4), kernel=(2, 2))
    yield case("_contrib_AdaptiveAvgPooling2D", data, output_size=(3, 2))
    yield case("_contrib_BilinearResize2D", data, height=7, width=9)
    yield case("Correlation", data, data, kernel_size=1, max_displacement=1, pad_size=1)
    yield case("Crop", data, num_args=1, h_w=(2, 3), offset=(1, 2))
    yield case("Crop", data, Array((R, 1, 3, 2)), num_args=2, center_crop=True)
    for count in (1, 2):
        nearest = {"scale": 2, "sample_type": "nearest", "num_args": count}
        yield case("UpSampling", *[data] * count, **nearest)
    bilinear = {"scale": 2, "sample_type": "bilinear", "num_filter": 4, "num_args": 2}
    yield case("UpSampling", data, Array((4, 1, 4, 4)), shared=(1,), **bilinear)
    yield case("BilinearSampler", data, Array((R, 2, 3, 3), "unit"))
    affine = {"transform_type": "affine", "target_shape": (4, 4)}
    yield case("GridGenerator", Array((R, 6), "unit"), **affine)
    yield case("GridGenerator", Array((R, 2, 4, 4), "unit"), transform_type="warp", **NEVER)
    yield case("SpatialTransformer", data, Array((R, 6), "unit"), sampler_type="bilinear", **affine)


def pictures(a, b, c):
    for lead in ((R,), ()):
        x = Array((*lead, 5, 6, 3))
        yield case("_image_crop", x, x=1, y=2, width=3, height=2)
        alone = {} if lead else {"stack": ""}
        yield case("_image_resize", x, size=(4, 3), gradient=False, **alone)
        yield case("_image_to_tensor", x, gradient=False)
        yield case("_image_normalize", Array((*lead, 3, a, b)), mean=(0.1, 0.2, 0.3), std=(1, 2, 3))
    alpha = (0.1, 0.2, 0.3)
    yield case("_image_adjust_lighting", Array((R, a, 3)), alpha=alpha, gradient=False)


def regions(a, b, c):
    rois, images = Array((3, 5), "region", a), Array((a, 2, 6, 6))
    rois_or_none = Array((3, 5), "region or none", a)
    attrs = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    yield case("ROIPooling", images, rois_or_none, **attrs)
    yield case("_contrib_ROIAlign", images, rois, **attrs)
    yield case("_contrib_ROIAlign", images, rois, sample_ratio=2, **attrs)


def boxes(a, b, c):
    no_gradient = {"gradient": False}
    yield case("_contrib_box_nms", Array((R, a, 6), "positive"))
    yield case("_contrib_box_nms", Array((a, 6), "positive"), overlap_thresh=0.1)
    for shape in ((R, a, b), (a, b)):
        yield case("_contrib_bipartite_matching", Array(shape), threshold=0.5, **no_gradient)
    boxes, anchors = Array((c, 4), "corners"), Array((1, c, 4), "corners")
    for shape in ((R, 4), (R, b, 4)):
        yield case("_contrib_box_iou", Array(shape, "corners"), boxes, shared=(1,), **no_gradient)
    yield case("_contrib_box_decode", Array((R, c, 4)), anchors, shared=(1,), **no_gradient)
    corners = Array((R, c, 4), "corners"), Array((R, b, 4), "corners")
    moments = Array((4,)), Array((4,), "positive")
    yield case("_contrib_box_encode", Array((R, c), "bit"), Array((R, c), "index", b), *corners,
               *moments, shared=(4, 5), **no_gradient)  # fmt: skip
    classes, shifts = Array((R, 3, c), "probability"), Array((R, 4 * c))
    yield case("_contrib_MultiBoxDetection", classes, shifts, anchors, shared=(2,), **no_gradient)
    labels = Array((R, b, 5), "positive"), Array((R, 3, c))
    yield case("_contrib_MultiBoxTarget", anchors, *labels, shared=(0,), **no_gradient)


GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


def sequences(a, b, c):
    for op in ("SequenceMask", "SequenceLast", "SequenceReverse"):
        value = {"value": 3} if op == "SequenceMask" else {}
        for tail in ((), (c,), (2, c)):
            lengths = {"use_sequence_length": True, **value}
            yield case(op, Array((a, b, *tail)), Array((b,), "length", a), **lengths)
            # MXNet corrupts its heap when it differentiates SequenceLast without lengths.
            plain = {"gradient": op != "SequenceLast", **value}
            yield case(op, Array((a, b, *tail)), **plain)
            if op != "SequenceReverse":
                data, length = Array((R, a, *tail)), Array((R,), "length", a)
                yield case(op, data, length, axis=1, **lengths)
                yield case(op, data, axis=1, **plain)


def attention(a, b, c):
    heads, size = 2, 3
    joint, weights = Array((a, b, heads * size * 3)), Array((b * heads, a, a))
    query, memory = Array((a, b, heads * size)), Array((c, b, heads * size * 2))
    for name, *inputs in [
        ("selfatt_qk", joint),
        ("selfatt_valatt", joint, weights),
        ("encdec_qk", query, memory),
        ("encdec_valatt", memory, Array((b * heads, a, c))),
    ]:
        yield case(f"_contrib_interleaved_matmul_{name}", *inputs, heads=heads)


def recurrent(a, b, c):
    def rnn(mode, layers, directions, **attrs):
        widths = [c] + [directions * 2] * (layers - 1)
        size = sum(directions * GATES[mode] * 2 * (width + 2 + 2) for width in widths)
        states = [Array((layers * directions, b, 2))] * (2 if mode == "lstm" else 1)
        return case("RNN", Array((a, b, c)), Array((size,), "small"), *states, mode=mode,
                    state_size=2, num_layers=layers, shared=(1,), **attrs)  # fmt: skip

    for mode in GATES:
        yield rnn(mode, 1, 1, bidirectional=False, state_outputs=False)
        yield rnn(mode, 2, 2, bidirectional=True, state_outputs=True)
    yield rnn("lstm", 2, 1, p=0.5, gradient=False, random=True)
    yield rnn("lstm", 2, 1, p=0.5, gradient=False, training=False)


def losses(a, b, c):
    scores, labels = Array((a + 3, b, c + 2)), Array((b, 2), "length", c)
    data_lengths, label_lengths = Array((b,), "full", a + 3), Array((b,), "length", 2)
    yield case("CTCLoss", scores, labels)
    yield case("CTCLoss", scores, labels, blank_label="last")
    yield case("CTCLoss", scores, labels, label_lengths, use_label_lengths=True)
    yield case("CTCLoss", scores, labels, data_lengths, label_lengths, use_data_lengths=True,
               use_label_lengths=True)  # fmt: skip


FAMILIES = (
    fully_connected, products, matrices, images, pictures, regions, boxes, sequences, attention,
    recurrent, losses,
)  # fmt: skip
