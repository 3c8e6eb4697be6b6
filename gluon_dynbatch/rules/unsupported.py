"""Operators that never merge, with the reasons for users."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Dict, Tuple

from .rule import Family, Rule

DISTRIBUTIONS = (
    "exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform"
)

#: Other properties of operators that never merge, by patterns of names.
PROPERTIES: Tuple[Tuple[str, Dict[str, Any]], ...] = (
    ("Custom", {"hangs_in_backward": True, "writes": "auxiliary"}),
    ("Custom _random_* _sample_unique_zipfian _shuffle _image_random_*", {"random": True}),
    ("IdentityAttach* _contrib_SyncBatchNorm BatchNorm_v1", {"writes": "training"}),
    ("*_update *_update_phase* reset_arrays _set_value fill_element*", {"writes": "always"}),
    (
        "_npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic "
        "_npi_multinomial _npi_normal* _npi_pareto _npi_powerd _npi_rayleigh _npi_uniform* "
        "_npi_weibull",
        {"random": True},
    ),
    ("_npi_boolean_mask_assign_*", {"writes": "always"}),
    ("shape_array size_array", {"no_gradient": (0,)}),
    (
        "_while_loop _cond _contrib_boolean_mask _npi_bincount _npi_delete _npi_insert_tensor "
        "_npi_unique _npx_nonzero",
        {"sized_by_values": True},
    ),
)


def _read(table: str) -> Tuple[Family, ...]:
    """Read families: a name, a colon and a reason, followed by indented lines of operators."""
    families = re.findall(r"(\w[^:]*): ([^:]*?)\n((?: {4}[^\n]*\n)+)", table)
    rows = ([" ".join(text.split()) for text in row] for row in families)
    return tuple(
        Family(name, reason, {op: unmerged(op, reason) for op in operators.split()})
        for name, reason, operators in rows
    )


@lru_cache(maxsize=None)
def unmerged(op: str, reason: str = "") -> Rule:
    """Return the rule of an operator that never merges, or that is unknown."""
    matching: Dict[str, Any] = {}
    for patterns, properties in PROPERTIES:
        if any(fnmatchcase(op, pattern) for pattern in patterns.split()):
            matching.update(properties)
    return Rule(reason=reason, **matching)


UNSUPPORTED = _read(
    """\
custom operators: it is not known how the code of a custom operator uses axis 0
    Custom _CustomFunction
control flow operators: it holds a subgraph that has no batching rule; write the loop or condition
in Python
    _foreach _while_loop _cond
output layers: its gradient ignores the head gradient, so unused samples would get one too
    SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
statistics of the minibatch: it keeps moving statistics of the minibatch, which merging would change
    IdentityAttachKLSparseReg _contrib_SyncBatchNorm BatchNorm_v1
random arrays of a given shape: outside of blocks, it reads no array, so there are no rows to merge;
use an operator that draws for an array, such as random.normal_like
    _random_exponential _random_gamma _random_generalized_negative_binomial
    _random_negative_binomial _random_normal _random_poisson _random_uniform _random_randint
    _sample_unique_zipfian
one draw for a whole array: it draws once for the whole array, so merged samples would share the
draw
    _shuffle _image_random_brightness _image_random_color_jitter _image_random_contrast
    _image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue
    _image_random_lighting _image_random_saturation
shapes as values: its values depend on how many rows were merged
    shape_array size_array
shapes that depend on values: the shape of its output depends on values
    _contrib_boolean_mask
sums over the minibatch: it sums over axis 0; use gluon.loss.SoftmaxCrossEntropyLoss
    softmax_cross_entropy
anchor boxes: it uses only the shape of its input; call it once for all samples
    _contrib_MultiBoxPrior
proposals of regions: its result contains the numbers of images in the minibatch, which merging
would change
    _contrib_Proposal _contrib_MultiProposal
position-sensitive and rotated regions: its regions contain the numbers of images in the minibatch,
which merging would change; use ROIPooling or contrib.ROIAlign
    _contrib_PSROIPooling _contrib_DeformablePSROIPooling _contrib_RROIAlign
results for a whole array: it returns one result for the whole array
    _contrib_allclose _histogram
products of rows: it pairs the rows of its matrices, and MXNet cannot compile it
    khatri_rao
flips of images: in MXNet 1.9.1, it does not write the middle line of images of odd size, and does
not flip the gradient; use flip
    _image_flip_left_right _image_flip_top_bottom
Hawkes processes: in MXNet 1.9.1, it does not write the gradient of its state
    _contrib_hawkesll
writes to rows: it writes to rows of one array by index
    _contrib_index_copy
parameters of fused layers: it joins parameters, which all samples share, so there is nothing to
merge
    _rnn_param_concat
random arrays of `mx.np`: it draws an array of a given size
    _npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic
    _npi_multinomial _npi_normal _npi_normal_n _npi_pareto _npi_powerd _npi_rayleigh _npi_uniform
    _npi_uniform_n _npi_weibull
shapes that depend on values, of `mx.np`: the shape of its result depends on values
    _npi_bincount _npi_delete _npi_insert_tensor _npi_unique _npx_nonzero
linear algebra of `mx.np`: it has no rule; use `inv`, `det` and `slogdet`, or `mx.nd.linalg`
    _npi_cholesky _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh _npi_pinv _npi_pinv_scalar_rcond
    _npi_solve _npi_svd _npi_tensorinv _npi_tensorsolve
rarer operators of `mx.np`: it has no rule
    _npi_diag_indices_from _npi_ediff1d _npi_insert_scalar _npi_insert_slice _npi_pad
    _npi_percentile _npi_polyval _npi_rot90 _npi_share_memory _npx_constraint_check
writes by masks: it writes to an array
    _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor
operators for GPUs only: it runs only on GPUs, where no rule has been tested
    _contrib_fft _contrib_ifft _contrib_count_sketch _contrib_ModulatedDeformableConvolution
"""
)
"""Families of operators that users call and that never merge, the more common ones first."""
