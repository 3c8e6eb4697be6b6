"""What is known of an operator without its shapes."""

from __future__ import annotations

from typing import FrozenSet, Mapping, Optional, Tuple

from .site import words

CREATION: FrozenSet[str] = words("_zeros _ones _full _arange _eye _linspace _zeros_without_dtype")
"""Operators without inputs that give the same array each time."""

_COMPARE = words(
    "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
)
_NO_GRADIENT: Mapping[str, Tuple[int, ...]] = {
    **{f"broadcast_{name}": (0, 1) for name in _COMPARE},
    **{f"_{name}": (0, 1) for name in _COMPARE},
    **{f"_{name}_scalar": (0,) for name in _COMPARE},
    **{
        op: (0,)
        for op in words(
            "BlockGrad Embedding argmax argmax_channel argmin argsort ceil fix floor logical_not "
            "one_hot ones_like rint round shape_array sign size_array trunc where zeros_like "
            "_contrib_arange_like _contrib_index_array _ravel_multi_index _unravel_index"
        )
    },
    **{
        op: (1,)
        for op in words(
            "SequenceLast SequenceMask SequenceReverse batch_take broadcast_like gather_nd "
            "log_softmax pick reshape_like slice_like softmax softmin take ROIPooling "
            "_contrib_ROIAlign"
        )
    },
    "CTCLoss": (1, 2, 3),
    "BatchNorm": (3, 4),
}
UNREAD_IN_BACKWARD: Mapping[str, Tuple[int, ...]] = {"Embedding": (1,), "take": (0,)}
"""Inputs, tables mostly, of which an operator's gradient needs the shape but never the values."""

OVERWRITES: FrozenSet[str] = words(
    "Crop RNN SpatialTransformer amp_cast amp_multicast clip elemwise_add mean moments reverse "
    "_contrib_DeformableConvolution _contrib_box_nms _contrib_round_ste _contrib_sign_ste "
    "_linalg_det _linalg_gemm _linalg_gemm2 _linalg_inverse _linalg_slogdet _linalg_syevd "
    "_linalg_trmm _linalg_trsm _np_cumsum _split_v2"
)
"""Operators that overwrite, lose, spoil or refuse to write gradients that are to be added up."""

READS_FIRST_RESULT: FrozenSet[str] = words("moments")
"""Operators whose second result is wrong in a ``CachedOp`` in which nobody reads the first one."""

HANGS_IN_BACKWARD: FrozenSet[str] = words("Custom")
"""Operators whose backward pass, begun within that of a function, MXNet may never finish."""

_RANDOM = words("Dropout _shuffle Custom RNN")
_MUTATES = words("_set_value reset_arrays fill_element_0index")
_MUTATES_IN_TRAINING = words(
    "BatchNorm BatchNorm_v1 Custom IdentityAttachKLSparseReg _contrib_BatchNormWithReLU "
    "_contrib_SyncBatchNorm"
)


def nondifferentiable_inputs(op: str) -> Tuple[int, ...]:
    """Name the inputs that never get a gradient other than zero.

    Parameters
    ----------
    op : str
        Canonical operator name.

    Returns
    -------
    tuple of int
        Input positions: indices, lengths, conditions, arrays of which only the shape counts.
    """
    return _NO_GRADIENT.get(op, ())


def is_random(op: str, attrs: Optional[Mapping[str, str]] = None) -> bool:
    """Say whether two calls with equal inputs may differ, so that samples need their own.

    Parameters
    ----------
    op : str
        Canonical operator name.
    attrs : mapping of str to str, optional
        Without them, an operator that is random for some attributes counts as random.

    Returns
    -------
    bool
        True for ``Dropout`` too, which draws in training only.
    """
    if op == "LeakyReLU":
        return attrs is None or attrs.get("act_type") == "rrelu"
    drawn = op.startswith(("_random_", "_sample_")) and not op.startswith("_random_pdf_")
    return drawn or op in _RANDOM


def mutates(op: str, training: bool = True) -> bool:
    """Say whether `op` may write to its inputs (``BatchNorm`` does in training, optimizers always).

    Parameters
    ----------
    op : str
        Canonical operator name.
    training : bool, optional
        Whether in training; False asks for operators that always do.

    Returns
    -------
    bool
    """
    return op in _MUTATES or "_update" in op or (training and op in _MUTATES_IN_TRAINING)
