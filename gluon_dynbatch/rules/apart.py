"""Operators that stay apart: those that cannot be merged, and those that are not for users.

With `table.TABLE` and `properties.CREATION` these are all operators of MXNet 1.9.1; a test compares
them with its registry.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import FrozenSet, Mapping, NamedTuple, Optional, Tuple

from .site import words


class Apart(NamedTuple):
    """Operators with one reason not to merge; `operators` may be patterns of the shell."""

    family: str
    reason: str
    operators: FrozenSet[str]

    def names(self, op: str) -> bool:
        """Say whether an operator is one of these."""
        return any(fnmatchcase(op, pattern) for pattern in self.operators)


NEVER: Tuple[Apart, ...] = (
    Apart(
        "custom operators",
        "what the code of a custom operator does with axis 0 is not known",
        words("Custom _CustomFunction"),
    ),
    Apart(
        "control flow operators",
        "it holds a subgraph that has no batching rule; write the loop or condition in Python",
        words("_foreach _while_loop _cond"),
    ),
    Apart(
        "output layers",
        "its gradient ignores the head gradient, so unused samples would get one too",
        words(
            "SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput "
            "MAERegressionOutput"
        ),
    ),
    Apart(
        "statistics of the minibatch",
        "it keeps moving statistics of the minibatch, which merging would change",
        words("IdentityAttachKLSparseReg _contrib_SyncBatchNorm BatchNorm_v1"),
    ),
    Apart(
        "random arrays of a given shape",
        "it draws without reading an array, and each call draws its own; "
        "what is drawn like an array (random.normal_like, Dropout of ones) merges",
        words(
            "_random_uniform _random_normal _random_gamma _random_exponential _random_poisson "
            "_random_negative_binomial _random_generalized_negative_binomial _random_randint "
            "_sample_unique_zipfian"
        ),
    ),
    Apart(
        "one draw for a whole array",
        "it draws once for the whole array, so merged samples would share the draw",
        words(
            "_shuffle _image_random_brightness _image_random_color_jitter _image_random_contrast "
            "_image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue "
            "_image_random_lighting _image_random_saturation"
        ),
    ),
    Apart(
        "shapes as values",
        "its values depend on how many rows were merged",
        words("shape_array size_array"),
    ),
    Apart(
        "shapes that depend on values",
        "the shape of its output depends on values",
        words("_contrib_boolean_mask"),
    ),
    Apart(
        "sums over the minibatch",
        "it sums over axis 0; use gluon.loss.SoftmaxCrossEntropyLoss",
        words("softmax_cross_entropy"),
    ),
    Apart(
        "anchor boxes",
        "it reads nothing of its input but the shape; call it once for all samples",
        words("_contrib_MultiBoxPrior"),
    ),
    Apart(
        "proposals of regions",
        "its result names images by their place in the minibatch, which merging would change",
        words("_contrib_Proposal _contrib_MultiProposal"),
    ),
    Apart(
        "position-sensitive and rotated regions",
        "its regions name images by their place in the minibatch, and no rule moves them; "
        "ROIPooling and contrib.ROIAlign have one",
        words("_contrib_PSROIPooling _contrib_DeformablePSROIPooling _contrib_RROIAlign"),
    ),
    Apart(
        "scattering",
        "the shape of its output is an attribute, which cannot grow with the number of samples",
        words("scatter_nd"),
    ),
    Apart(
        "answers for a whole array",
        "it has one answer for the whole array",
        words("_contrib_allclose _histogram"),
    ),
    Apart(
        "products of rows",
        "it pairs the rows of its matrices, and MXNet cannot compile it",
        words("khatri_rao"),
    ),
    Apart(
        "flips of images",
        "MXNet 1.9.1 does not write the middle line of odd images and does not flip the gradient; "
        "use flip",
        words("_image_flip_left_right _image_flip_top_bottom"),
    ),
    Apart(
        "Hawkes processes",
        "MXNet 1.9.1 does not write the gradient of its state",
        words("_contrib_hawkesll"),
    ),
    Apart(
        "writes to rows",
        "it writes to rows of one array by number",
        words("_contrib_index_copy"),
    ),
    Apart(
        "parameters of fused layers",
        "it joins parameters, which all samples share, so there is nothing to merge",
        words("_rnn_param_concat"),
    ),
    Apart(
        "operators for GPUs only",
        "MXNet has it for GPUs only, where no rule has been tested",
        words(
            "_contrib_fft _contrib_ifft _contrib_count_sketch "
            "_contrib_ModulatedDeformableConvolution"
        ),
    ),
)
"""Operators that users call and that never merge, the more common ones first."""

INTERNAL: Tuple[Apart, ...] = (
    Apart(
        "gradients",
        "it is the backward pass of another operator",
        words("_backward_* _contrib_backward_* _broadcast_backward _split_v2_backward"),
    ),
    Apart(
        "optimizer steps",
        "it is a step of an optimizer, or a check of gradients before one; Trainer calls it",
        words(
            "*_update *_update_phase[12] multi_lars multi_sum_sq multi_all_finite all_finite "
            "reset_arrays"
        ),
    ),
    Apart(
        "NumPy interface",
        "it belongs to mx.np and mx.npx, whose arrays are not recorded",
        words("_np_* _npi_* _npx_*"),
    ),
    Apart(
        "quantised and fused graphs",
        "MXNet's quantiser and graph optimiser insert it",
        words(
            "_contrib_quantize* _contrib_dequantize _contrib_requantize "
            "_contrib_calibrate_entropy _sg_mkldnn_*"
        ),
    ),
    Apart(
        "sparse arrays",
        "it is for sparse arrays, which are not recorded",
        words(
            "cast_storage _sparse_retain _square_sum _contrib_SparseEmbedding _contrib_getnnz "
            "_contrib_edge_id _contrib_dgl_* _scatter_*_scalar _scatter_elemwise_div"
        ),
    ),
    Apart(
        "assignments",
        "it writes into an array that exists, as x[...] = y does, and runs at once",
        words(
            "_set_value _slice_assign _slice_assign_scalar _scatter_set_nd _onehot_encode "
            "fill_element_0index"
        ),
    ),
    Apart(
        "image files", "it reads or prepares an image in NumPy's layout", words("_cv* _imdecode")
    ),
    Apart(
        "the engine's own",
        "MXNet's engine uses it to copy, to add gradients and to call back",
        words(
            "_copyto _CrossDeviceCopy _CachedOp _CachedOpThreadSafe _NDArray _Native _NoGradient "
            "_grad_add _identity_with_attr_like_rhs"
        ),
    ),
)
"""Operators that users do not call, by patterns; a rule of the operator's own goes first."""

REFUSED: Mapping[str, str] = {op: part.reason for part in NEVER for op in part.operators}
"""Operators that can't be merged, with the reason to give."""


def internal(op: str) -> Optional[Apart]:
    """Return the part of `INTERNAL` that an operator is in.

    Parameters
    ----------
    op : str
        Canonical operator name; one that has a rule or is in `REFUSED` is not asked for.

    Returns
    -------
    Apart or None
    """
    return next((part for part in INTERNAL if part.names(op)), None)
