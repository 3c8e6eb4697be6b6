"""The rules in words: families of operators, and when they merge, as tables in Markdown."""

from __future__ import annotations

from typing import Callable, FrozenSet, Iterable, List, NamedTuple, Tuple

from . import elementwise, linear, reduce, sequence, shape, vision
from .apart import INTERNAL, NEVER, Apart
from .properties import CREATION
from .site import words
from .table import TABLE

NORMALISATION = words("LayerNorm InstanceNorm GroupNorm L2Normalization")
PRODUCTS = linear.MATRIX | linear.VECTOR_TO_MATRIX | words("FullyConnected dot batch_dot")
IMAGE_BLOCKS = words("UpSampling _contrib_DeformableConvolution _image_adjust_lighting")


class Family(NamedTuple):
    """Operators that merge under one condition."""

    name: str
    condition: str
    operators: FrozenSet[str]


MERGED: Tuple[Family, ...] = (
    Family(
        "functions of an array, or of an array and a number; activations, casts, `add_n`",
        "always; not `LeakyReLU` with `act_type='rrelu'`",
        elementwise.UNARY | elementwise.SCALAR | words("LeakyReLU add_n amp_multicast"),
    ),
    Family(
        "arithmetic and comparison of two arrays, `where`",
        "shared arrays have one row, or the samples' shapes are equal",
        elementwise.BROADCAST | frozenset(elementwise.ELEMWISE) | words("where"),
    ),
    Family(
        "`dot`, `batch_dot`, `FullyConnected`, `linalg.*`",
        "weights are shared and rows are not summed over, or shapes are equal",
        PRODUCTS,
    ),
    Family(
        "convolution, pooling, padding and resizing of images",
        "parameters are shared; `GridGenerator` with `transform_type='affine'`",
        linear.DATA_FIRST | (linear.PAIRED - PRODUCTS) | vision.IMAGES | IMAGE_BLOCKS,
    ),
    Family(
        "`Embedding`, `take`, `pick`, `gather_nd`, `one_hot`",
        "tables are shared, or shapes are equal and indices choose along axis 0; "
        "not `take` with `mode='raise'`",
        words("Embedding take pick batch_take gather_nd one_hot _ravel_multi_index _unravel_index"),
    ),
    Family(
        "`concat`, `split`, `slice`, `reshape`, `transpose`, `tile`, `flip` and their kin",
        "axis 0 is left as it is, for any number of rows (`reshape`: begin with 0), "
        "or shapes are equal; five dimensions at most",
        frozenset(shape.OPERATORS),
    ),
    Family(
        "reductions, `norm`, `softmax` and its kin (with lengths too), sorting, `argmax`, `cumsum`",
        "along other axes than 0, or shapes are equal",
        reduce.REDUCE
        | reduce.SORT
        | reduce.SOFTMAX
        | words("norm moments argmax_channel SoftmaxActivation _contrib_div_sqrt_dim"),
    ),
    Family(
        "`LayerNorm`, `InstanceNorm`, `GroupNorm`, `L2Normalization`",
        "parameters are shared; along other axes than 0, or shapes are equal; "
        "not with `output_mean_var`",
        NORMALISATION,
    ),
    Family(
        "`BatchNorm`",
        "in predict mode, or with `use_global_stats`; "
        "in training each call has statistics of its own, as in the loop",
        words("BatchNorm _contrib_BatchNormWithReLU"),
    ),
    Family(
        "`Dropout`, `random.*_like`, `sample_*`",
        "every sample has its own draw; not `sample_multinomial` with `get_prob`",
        elementwise.RANDOM_LIKE | elementwise.SAMPLE | words("Dropout _sample_multinomial"),
    ),
    Family(
        "`random_pdf_*`",
        "parameters are per row, or shapes are equal",
        elementwise.DENSITY,
    ),
    Family(
        "`SequenceMask`, `SequenceLast`, `SequenceReverse`",
        "time is axis 1, or shapes are equal",
        frozenset(sequence.SEQUENCE),
    ),
    Family(
        "`RNN` (fused layers), `CTCLoss`, `contrib.interleaved_matmul_*`",
        "shapes are equal, and the fused layer's parameters are shared",
        frozenset(sequence.TIME_MAJOR),
    ),
    Family(
        "boxes and regions: `contrib.box_*`, `contrib.MultiBox*`, `ROIPooling`, `contrib.ROIAlign`",
        "anchors are shared; regions: shapes are equal",
        vision.BOXES
        | vision.REGIONS
        | words("_contrib_box_iou")
        | (frozenset(linear.PARTLY_SHARED) - IMAGE_BLOCKS),
    ),
    Family(
        "`MakeLoss`",
        "in predict mode; in training it sets a gradient of its own",
        words("MakeLoss make_loss"),
    ),
)
"""All of `TABLE`, by family."""

COMMON = 8
"""So many families of `NEVER`, from the first, are in the summary by name."""

_PREFIXES = (
    ("_contrib_", "contrib."),
    ("_linalg_", "linalg."),
    ("_image_", "image."),
    ("_sample_unique_", "_sample_unique_"),
    ("_sample_", "sample_"),
    ("_random_pdf_", "random_pdf_"),
    ("_random_", "random."),
    ("_np_", ""),
)


def spelling(op: str) -> str:
    """Return how users write an operator that MXNet knows by its canonical name.

    Parameters
    ----------
    op : str
        Canonical operator name.

    Returns
    -------
    str
        Name within ``mx.nd`` and ``mx.sym``.

    Examples
    --------
    >>> spelling("_linalg_gemm2"), spelling("_np_cumsum"), spelling("dot")
    ('linalg.gemm2', 'cumsum', 'dot')
    """
    for prefix, written in _PREFIXES:
        if op.startswith(prefix):
            return written + op[len(prefix) :]
    return op


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _names(operators: Iterable[str], mark_stacked: bool = False) -> str:
    marked = {op: mark_stacked and TABLE[op].rows is None for op in operators}
    found = sorted((spelling(op), "\\*" if star else "") for op, star in marked.items())
    return ", ".join(f"`{name}`{star}" for name, star in found)


def _table(header: Tuple[str, ...], rows: Iterable[Tuple[str, ...]]) -> List[str]:
    return [_row(*header), _row(*["---"] * len(header)), *(_row(*cells) for cells in rows)]


def summary() -> str:
    """Return the short table: what merges by family, and what never does.

    Returns
    -------
    str
        Markdown.
    """
    rows = [(family.name, "yes", family.condition) for family in MERGED]
    common = [part.family for part in NEVER[:COMMON]] + ["and rarer ones"]
    rows.append((", ".join(common), "no", "each for a reason of its own, which the report gives"))
    return "\n".join(_table(("operators", "merged", "if, or why not"), rows)) + "\n"


def reference() -> str:
    """Return the page of all operators, ``docs/operators.md``.

    Returns
    -------
    str
        Markdown.
    """

    def section(title: str, text: str, table: List[str]) -> List[str]:
        return [f"## {title}", "", text, "", *table, ""]

    def apart(parts: Tuple[Apart, ...], names: Callable[[Iterable[str]], str]) -> List[str]:
        rows = ((part.family, names(part.operators), part.reason) for part in parts)
        return _table(("family", "operators", "reason"), rows)

    def patterns(found: Iterable[str]) -> str:
        return ", ".join(f"`{pattern}`" for pattern in sorted(found))

    merged = [(f.name, _names(f.operators, True), f.condition) for f in MERGED]
    lines = [_HEAD, summary()]
    lines += section("Merged", _MERGED_TEXT, _table(("family", "operators", "condition"), merged))
    lines += section("One array for all samples", _CREATION_TEXT, [_names(CREATION)])
    lines += section("Never merged", _NEVER_TEXT, apart(NEVER, _names))
    lines += section("Not for users", _INTERNAL_TEXT, apart(INTERNAL, patterns))
    return "\n".join(lines).rstrip("\n") + "\n"


_HEAD = """\
# Operators

Every operator of MXNet 1.9.1, and whether calls of many samples run as one. This page is made from
the rules by `python -m gluon_dynbatch.rules`. A test compares it with them, and them with MXNet.
"""

_MERGED_TEXT = """\
Samples whose arrays differ in size along axis 0 share a launch if the operator treats rows (axis 0)
one by one. Samples of equal shapes are stacked along a new axis, and then share a launch in any
case that the condition allows; operators with \\* merge in this way only. An array is *shared* if
all samples use the very same one. What does not fit runs call by call, and the report says why."""

_CREATION_TEXT = """\
These read no array, so there is nothing to merge: all samples use one result."""

_NEVER_TEXT = "Their calls run one by one, with equal results, and the report gives this reason."

_INTERNAL_TEXT = "Models do not call these; `*` stands for any text."
