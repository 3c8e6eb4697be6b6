"""Operators that never merge, with the reason that users read."""

from __future__ import annotations

from typing import Tuple

from .rule import Family, each, unsupported

DISTRIBUTIONS = (
    "exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform"
)

UNSUPPORTED: Tuple[Family, ...] = (
    unsupported(
        "custom operators",
        "what the code of a custom operator does with axis 0 is not known",
        each("Custom", random=True, writes="training", hangs_in_backward=True),
        "_CustomFunction",
    ),
    unsupported(
        "control flow operators",
        "it holds a subgraph that has no batching rule; write the loop or condition in Python",
        "_foreach _while_loop _cond",
    ),
    unsupported(
        "output layers",
        "its gradient ignores the head gradient, so unused samples would get one too",
        "SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput "
        "MAERegressionOutput",
    ),
    unsupported(
        "statistics of the minibatch",
        "it keeps moving statistics of the minibatch, which merging would change",
        each("IdentityAttachKLSparseReg _contrib_SyncBatchNorm BatchNorm_v1", writes="training"),
    ),
    unsupported(
        "random arrays of a given shape",
        "it draws without reading an array, and each call draws its own; "
        "what is drawn like an array (random.normal_like, Dropout of ones) merges",
        each(DISTRIBUTIONS + " randint", form="_random_{}", random=True),
        each("_sample_unique_zipfian", random=True),
    ),
    unsupported(
        "one draw for a whole array",
        "it draws once for the whole array, so merged samples would share the draw",
        each("_shuffle", random=True),
        each(
            "brightness color_jitter contrast flip_left_right flip_top_bottom hue lighting "
            "saturation",
            form="_image_random_{}",
            random=True,
        ),
    ),
    unsupported(
        "shapes as values",
        "its values depend on how many rows were merged",
        each("shape_array size_array", no_gradient=(0,)),
    ),
    unsupported(
        "shapes that depend on values",
        "the shape of its output depends on values",
        "_contrib_boolean_mask",
    ),
    unsupported(
        "sums over the minibatch",
        "it sums over axis 0; use gluon.loss.SoftmaxCrossEntropyLoss",
        "softmax_cross_entropy",
    ),
    unsupported(
        "anchor boxes",
        "it reads nothing of its input but the shape; call it once for all samples",
        "_contrib_MultiBoxPrior",
    ),
    unsupported(
        "proposals of regions",
        "its result names images by their place in the minibatch, which merging would change",
        "_contrib_Proposal _contrib_MultiProposal",
    ),
    unsupported(
        "position-sensitive and rotated regions",
        "its regions name images by their place in the minibatch, and no rule moves them; "
        "ROIPooling and contrib.ROIAlign have one",
        "_contrib_PSROIPooling _contrib_DeformablePSROIPooling _contrib_RROIAlign",
    ),
    unsupported(
        "scattering",
        "the shape of its output is an attribute, which cannot grow with the number of samples",
        "scatter_nd",
    ),
    unsupported(
        "answers for a whole array",
        "it has one answer for the whole array",
        "_contrib_allclose _histogram",
    ),
    unsupported(
        "products of rows",
        "it pairs the rows of its matrices, and MXNet cannot compile it",
        "khatri_rao",
    ),
    unsupported(
        "flips of images",
        "MXNet 1.9.1 does not write the middle line of odd images and does not flip the gradient; "
        "use flip",
        "_image_flip_left_right _image_flip_top_bottom",
    ),
    unsupported(
        "Hawkes processes",
        "MXNet 1.9.1 does not write the gradient of its state",
        "_contrib_hawkesll",
    ),
    unsupported(
        "writes to rows",
        "it writes to rows of one array by number",
        "_contrib_index_copy",
    ),
    unsupported(
        "parameters of fused layers",
        "it joins parameters, which all samples share, so there is nothing to merge",
        "_rnn_param_concat",
    ),
    unsupported(
        "operators for GPUs only",
        "MXNet has it for GPUs only, where no rule has been tested",
        "_contrib_fft _contrib_ifft _contrib_count_sketch _contrib_ModulatedDeformableConvolution",
    ),
)
"""Operators that users call and that never merge, the more common ones first."""

INTERNAL: Tuple[Family, ...] = (
    unsupported(
        "gradients",
        "it is the backward pass of another operator",
        "_backward_* _contrib_backward_* _broadcast_backward _split_v2_backward",
    ),
    unsupported(
        "optimizer steps",
        "it is a step of an optimizer, or a check of gradients before one; Trainer calls it",
        each("*_update *_update_phase[12] reset_arrays", writes="always"),
        "multi_lars multi_sum_sq multi_all_finite all_finite",
    ),
    unsupported(
        "NumPy interface",
        "it belongs to mx.np and mx.npx, whose arrays are not recorded",
        "_np_* _npi_* _npx_*",
    ),
    unsupported(
        "quantised and fused graphs",
        "MXNet's quantiser and graph optimiser insert it",
        "_contrib_quantize* _contrib_dequantize _contrib_requantize "
        "_contrib_calibrate_entropy _sg_mkldnn_*",
    ),
    unsupported(
        "sparse arrays",
        "it is for sparse arrays, which are not recorded",
        "cast_storage _sparse_retain _square_sum _contrib_SparseEmbedding _contrib_getnnz "
        "_contrib_edge_id _contrib_dgl_* _scatter_*_scalar _scatter_elemwise_div",
    ),
    unsupported(
        "assignments",
        "it writes into an array that exists, as x[...] = y does, and runs at once",
        each("_set_value fill_element_0index", writes="always"),
        "_slice_assign _slice_assign_scalar _scatter_set_nd _onehot_encode",
    ),
    unsupported(
        "image files",
        "it reads or prepares an image in NumPy's layout",
        "_cv* _imdecode",
    ),
    unsupported(
        "the engine's own",
        "MXNet's engine uses it to copy, to add gradients and to call back",
        "_copyto _CrossDeviceCopy _CachedOp _CachedOpThreadSafe _NDArray _Native _NoGradient "
        "_grad_add _identity_with_attr_like_rhs",
    ),
)
"""Operators that users do not call, by patterns; a rule of the operator's own goes first."""
