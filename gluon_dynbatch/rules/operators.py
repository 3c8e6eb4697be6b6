"""Rules of the operators that users of MXNet 1.9.1 call, by family.

docs/operators.md lists the families in this order.  `unsupported.py` has those that never merge.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from . import axes, elementwise, index, products, shape, vision
from .axes import EVERY, along
from .build import as_called, same
from .rule import BY_ROW, SAME, Family, Rule, each, family, instead
from .sequence import sequence, time_major
from .unsupported import DISTRIBUTIONS, UNSUPPORTED, unmerged

COMPARE = (
    "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
)
LEAKY_RELU = Rule(elementwise.leaky_relu, elementwise.leaky_relu)
IMAGES = Rule(same, vision.images_stack)
BINARY = Rule(as_called, elementwise.binary_stack)
MATRIX = Rule(products.matrix, products.matrix, row_dims=3)
REDUCE = Rule(axes.reduce, axes.reduce)
NUMPY_BINARY = Rule(as_called, elementwise.numpy_stack)
BROADCAST = Rule(as_called, shape.broadcast_stack)
SCATTER = Rule(None, index.scatter_stack)
TAKE = Rule(index.take, index.take)
RESHAPE = Rule(shape.reshape, shape.reshape)
BATCH_NORM = Rule(
    axes.batch_norm,
    axes.batch_norm,
    parameters=(1, 2, 3, 4),
    not_with="output_mean_var=True",
    no_gradient=(3, 4),
    refuses_gradient=True,
    writes="training",
)

MERGED: Tuple[Family, ...] = (
    family(
        "functions of an array, or of an array and a number; activations, casts, `add_n`",
        "always; not `LeakyReLU` with `act_type='rrelu'`",
        each(
            "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt cos cosh degrees erf erfinv exp "
            "expm1 gamma gammaln log log10 log1p log2 negative radians rcbrt reciprocal relu rsqrt "
            "sigmoid sin sinh softsign sqrt square tan tanh Activation Cast hard_sigmoid smooth_l1 "
            "_copy _contrib_gradientmultiplier _contrib_quadratic",
            SAME,
        ),
        each(
            "ceil fix floor logical_not ones_like rint round sign trunc zeros_like BlockGrad",
            SAME,
            no_gradient=(0,),
        ),
        each("amp_cast amp_multicast clip", SAME, overwrites=True),
        each("round_ste sign_ste", SAME, "_contrib_{}", overwrites=True),
        each("LeakyReLU", LEAKY_RELU, not_with="act_type=rrelu", random=True, single=True),
        each(
            "plus minus rminus mul div rdiv hypot maximum minimum mod rmod power rpower",
            SAME,
            "_{}_scalar",
        ),
        each(COMPARE, SAME, "_{}_scalar", no_gradient=(0,)),
        each("add_n", SAME),
    ),
    family(
        "arithmetic and comparison of two arrays, `where`",
        "shared arrays have one row, or the samples' shapes are equal",
        each("elemwise_add", BINARY, overwrites=True),
        each("sub mul div", BINARY, "elemwise_{}"),
        each("hypot maximum minimum mod power", BINARY, "_{}"),
        each("add sub mul div hypot maximum minimum mod power", BINARY, "broadcast_{}"),
        each(COMPARE, BINARY, "_{}", no_gradient=(0, 1)),
        each(COMPARE, BINARY, "broadcast_{}", no_gradient=(0, 1)),
        each("where", BY_ROW, no_gradient=(0,)),
    ),
    family(
        "`dot`, `batch_dot`, `FullyConnected`, `linalg.*`",
        "weights are shared and rows are not summed over, or shapes are equal",
        each("FullyConnected", Rule(as_called, products.dense_stack)),
        each("dot", Rule(as_called, products.dot_stack)),
        each("batch_dot", BY_ROW),
        each("potrf potri sumlogdiag syrk gelqf extractdiag extracttrian", MATRIX, "_linalg_{}"),
        each("det inverse slogdet trmm trsm gemm syevd", MATRIX, "_linalg_{}", overwrites=True),
        each("_linalg_gemm2", MATRIX, row_dims=2, overwrites=True),
        each("makediag maketrian", MATRIX, "_linalg_{}", row_dims=2),
    ),
    family(
        "convolution, pooling, padding and resizing of images",
        "parameters are shared; `GridGenerator` with `transform_type='affine'`",
        each("Convolution Deconvolution Convolution_v1", BY_ROW, parameters=(1, 2)),
        each("_contrib_DeformableConvolution", BY_ROW, parameters=(2, 3), overwrites=True),
        each(
            "Pooling Pooling_v1 LRN Pad depth_to_space space_to_depth im2col col2im "
            "BilinearSampler Correlation _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D "
            "_image_adjust_lighting",
            BY_ROW,
        ),
        each("Crop SpatialTransformer", BY_ROW, overwrites=True),
        each("GridGenerator", BY_ROW, not_with="transform_type=warp"),
        each("UpSampling", Rule(vision.up_sampling, vision.up_sampling)),
        each("crop normalize to_tensor", IMAGES, "_image_{}", row_dims=4),
        each("_image_resize", Rule(same, vision.resize_stack), row_dims=4),
    ),
    family(
        "`Embedding`, `take`, `pick`, `gather_nd`, `scatter_nd`, `one_hot`",
        "tables are shared, or shapes are equal",
        each(
            "Embedding",
            SAME._replace(parameters=(1,), no_gradient=(0,)),
            called="a table",
            refuses_gradient=True,
        ),
        each("take", TAKE, no_gradient=(1,), own=True),
        each("pick", along(axis=-1), no_gradient=(1,)),
        each("batch_take", instead("pick", axis=1, mode="clip"), no_gradient=(1,)),
        each("gather_nd", Rule(None, index.gather_nd_stack), no_gradient=(1,), own=True),
        each("scatter_nd", SCATTER, no_gradient=(1,), own=True),
        each("_backward_gather_nd", SCATTER, no_gradient=(1,), own=True),
        each("one_hot", SAME, no_gradient=(0,)),
        each("_ravel_multi_index", time_major(0, outputs=False), no_gradient=(0,)),
        each("_unravel_index", Rule(None, index.unravel_stack), no_gradient=(0,)),
    ),
    family(
        "`concat`, `split`, `slice`, `reshape`, `transpose`, `tile`, `flip` and similar",
        "axis 0 is unchanged, for any number of rows (`reshape`: begin with 0), "
        "or shapes are equal; at most five dimensions",
        each("Reshape Flatten expand_dims squeeze", RESHAPE),
        each("reshape_like", RESHAPE, no_gradient=(1,)),
        each("transpose", Rule(same, shape.transpose_stack)),
        each("SwapAxis", along(dim1=0, dim2=0)),
        each("Concat", along(dim=1)),
        each("stack", along(axis=0, more=1)),
        each("SliceChannel", along(axis=1)),
        each("_split_v2", along(axis=1), overwrites=True),
        each("slice", Rule(shape.cut, shape.cut)),
        each("slice_axis", along(axis=0)),
        each("slice_like", Rule(as_called, shape.slice_like_stack), no_gradient=(1,)),
        each("tile", Rule(same, shape.tile_stack)),
        each("repeat", along(axis=None)),
        each("reverse", along(axis=()), overwrites=True),
        each("broadcast_to broadcast_axis", BROADCAST),
        each("broadcast_like", BROADCAST, no_gradient=(1,)),
        each("diag", along(axis1=0, axis2=1), stack=shape.diag_stack, row_dims=3),
        each("_contrib_arange_like", Rule(None, shape.arange_like_stack), no_gradient=(0,)),
        each("_contrib_index_array", along(axes=EVERY), no_gradient=(0,)),
    ),
    family(
        "reductions, `norm`, `softmax` and similar (with lengths too), sorting, `argmax`, `cumsum`",
        "along axes other than 0, or shapes are equal",
        each("sum prod max min nansum nanprod", REDUCE),
        each("mean", REDUCE, overwrites=True),
        each("norm", Rule(same, axes.norm_stack)),
        each("moments", along(axes=EVERY), overwrites=True, reads_first_result=True),
        each("softmax log_softmax softmin", along(axis=-1), no_gradient=(1,)),
        each("SoftmaxActivation", BY_ROW, row_dims=2),
        each("_contrib_div_sqrt_dim", SAME, row_dims=2),
        each("sort topk", along(axis=-1)),
        each("argsort", along(axis=-1), no_gradient=(0,)),
        each("argmax argmin", along(axis=None), no_gradient=(0,)),
        each("argmax_channel", instead("argmax", axis=1), no_gradient=(0,)),
        each("_np_cumsum", along(axis=None), overwrites=True),
    ),
    family(
        "`LayerNorm`, `InstanceNorm`, `GroupNorm`, `L2Normalization`",
        "parameters are shared; along axes other than 0, or shapes are equal; "
        "not with `output_mean_var`",
        each("LayerNorm", along(axis=-1), parameters=(1, 2), not_with="output_mean_var=True"),
        each(
            "InstanceNorm GroupNorm L2Normalization",
            BY_ROW,
            parameters=(1, 2),
            row_dims=2,
            not_with="output_mean_var=True",
        ),
    ),
    family(
        "`BatchNorm`",
        "in prediction mode, or with `use_global_stats`; "
        "in training, each call has its own statistics, as in the loop",
        each("BatchNorm", BATCH_NORM),
        each("_contrib_BatchNormWithReLU", BATCH_NORM),
    ),
    family(
        "`Dropout`, `random.*_like`, `sample_*`",
        "every sample has its own draw",
        each("Dropout", along(axes=()), random=True),
        each(DISTRIBUTIONS, SAME, "_random_{}_like", random=True),
        each(DISTRIBUTIONS, SAME, "_sample_{}", random=True),
        each("_sample_multinomial", along(), row_dims=2, random=True),
    ),
    family(
        "`random_pdf_*`",
        "parameters are per row, or shapes are equal",
        each(DISTRIBUTIONS, BY_ROW, "_random_pdf_{}"),
        each("_random_pdf_dirichlet", Rule(elementwise.dirichlet_rows)),
    ),
    family(
        "`SequenceMask`, `SequenceLast`, `SequenceReverse`",
        "time is axis 1, or shapes are equal",
        each("SequenceMask SequenceLast", Rule(sequence, sequence), no_gradient=(1,)),
        each("SequenceReverse", Rule(None, sequence), no_gradient=(1,)),
    ),
    family(
        "`RNN` (fused layers), `CTCLoss`, `contrib.interleaved_matmul_*`",
        "shapes are equal, and the fused layer's parameters are shared",
        each(
            "RNN", time_major(0, 2, 3, outputs=True), parameters=(1,), random=True, overwrites=True
        ),
        each("CTCLoss", time_major(0, outputs=False), no_gradient=(1, 2, 3)),
        each("_contrib_interleaved_matmul_selfatt_qk", time_major(0, outputs=False)),
        each("_contrib_interleaved_matmul_encdec_qk", time_major(0, 1, outputs=False)),
        each(
            "selfatt encdec", time_major(0, outputs=True), "_contrib_interleaved_matmul_{}_valatt"
        ),
    ),
    family(
        "boxes and regions: `contrib.box_*`, `contrib.MultiBox*`, `ROIPooling`, `contrib.ROIAlign`",
        "anchors are shared; regions: shapes are equal",
        each("ROIPooling _contrib_ROIAlign", Rule(None, vision.regions_stack), no_gradient=(1,)),
        each("_contrib_MultiBoxDetection", BY_ROW, parameters=(2,), called="anchors"),
        each("_contrib_MultiBoxTarget", BY_ROW, parameters=(0,), called="anchors"),
        each("_contrib_box_decode", BY_ROW, parameters=(1,), called="anchors"),
        each("_contrib_box_encode", BY_ROW, parameters=(4, 5), called="means or deviations"),
        each("_contrib_box_iou", SAME, parameters=(1,), called="boxes to compare with"),
        each("_contrib_box_nms", SAME, row_dims=3, overwrites=True),
        each("_contrib_bipartite_matching", SAME, row_dims=3),
    ),
    family(
        "functions of `mx.np` that `mx.nd` does not have",
        "of two arrays: shared arrays have one row, or the samples' shapes are equal; `tril`: of "
        "matrices",
        each("arctan2 copysign", NUMPY_BINARY, "_npi_{}", overwrites=True),
        each("bitwise_and bitwise_or bitwise_xor lcm", NUMPY_BINARY, "_npi_{}", no_gradient=(0, 1)),
        each("arctan2 rarctan2", SAME, "_npi_{}_scalar", overwrites=True),
        each(
            "bitwise_and_scalar bitwise_or_scalar bitwise_xor_scalar lcm_scalar bitwise_not",
            SAME,
            "_npi_{}",
            no_gradient=(0,),
        ),
        each("isnan isinf isfinite isposinf isneginf", SAME, "_npi_{}", no_gradient=(0,)),
        each("_npi_around", SAME, no_gradient=(0,)),
        each("_npi_nan_to_num", SAME, overwrites=True),
        each("_npi_tril", Rule(shape.triangles, shape.triangles), row_dims=3, overwrites=True),
    ),
    family(
        "`MakeLoss`",
        "in prediction mode; in training, it sets its own gradient",
        each("MakeLoss make_loss", Rule(elementwise.loss, elementwise.loss)),
    ),
)
"""Operators that merge."""

CREATION = family(
    "creation",
    "all samples use one result",
    each("_zeros _ones _full _arange _eye _linspace _zeros_without_dtype", Rule()),
    each("zeros ones arange eye identity indices logspace", Rule(), "_npi_{}"),
    each("blackman hamming hanning", Rule(), "_npi_{}"),
)
"""Operators without inputs that create the same array each time."""

TABLE: Dict[str, Rule] = {op: rule for merged in MERGED for op, rule in merged.rules.items()}
"""Rules of the operators that merge, by canonical name."""
_REFUSED = {op: rule for refused in UNSUPPORTED for op, rule in refused.rules.items()}


def of(op: str) -> Rule:
    """Return the rule of an operator by its canonical name; an unknown operator never merges."""
    return TABLE.get(op) or _REFUSED.get(op) or unmerged(op)


def is_random(op: str, attrs: Optional[Mapping[str, str]] = None, training: bool = True) -> bool:
    """Return whether two calls of an operator with equal inputs may give different results.

    Without attributes, an operator counts as random if it is so for some attributes.
    """
    if op == "LeakyReLU" and attrs is not None:
        return attrs.get("act_type") == "rrelu"
    if op == "Dropout" and attrs is not None:
        return training or attrs.get("mode") == "always"
    return of(op).random
