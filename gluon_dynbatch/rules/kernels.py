"""Operators that MXNet has twice: the slower of two kernels is replaced by the faster.

The figures behind each choice, for arrays of 12 MB on one core: ``sigmoid`` 3.5 ms against 0.26 ms
as an ``Activation``, ``tanh`` 8.2 ms against 0.3 ms.  Splitting the 450 columns of 2671 rows in
three takes ``SliceChannel`` three times as long as splitting the middle axis of (2671, 3, 150),
which is the same memory; ``slice_axis`` is as fast forward, but half as fast backward.  Adding two
arrays of 500 rows takes ``elemwise_add`` 80 us, ``add_n`` 43 us, and 217 us and 107 us backward;
where oneDNN adds, it also builds something for each new number of rows.
"""

from __future__ import annotations

from typing import Mapping, Optional

from .site import INPUT, Rewrite, Step, words

BUILT_PER_SHAPE = words("FullyConnected Activation LeakyReLU softmax log_softmax LayerNorm")
"""Operators that oneDNN builds anew for every number of rows: some 0.2 ms each, once."""

SPARES_ROWS = BUILT_PER_SHAPE | words(
    "elemwise_add elemwise_sub elemwise_mul add_n _copy Reshape SliceChannel slice_axis Concat "
    "broadcast_add broadcast_sub broadcast_mul _plus_scalar _minus_scalar _rminus_scalar "
    "_mul_scalar negative square expand_dims"
)
"""Operators that may be given rows that nobody reads, whatever these hold: they neither look
anything up with them, nor draw, nor fail."""

_ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu"}


def faster(step: Step, size: Optional[int], floating: bool) -> Optional[Rewrite]:
    """Return a cheaper way to do what `step` does, or None.

    Parameters
    ----------
    step : Step
        An operator of a merged program.
    size : int or None
        For an operator that splits its input, the size of the axis it splits; None if not known.
    floating : bool
        Whether the result is of floating-point numbers; ``Activation`` knows no others.
    """
    if step.op in _ACTIVATIONS and floating:
        made = Step("Activation", {"act_type": _ACTIVATIONS[step.op]}, ((INPUT, 0),))
        return Rewrite((made,), ((0, 0),))
    if step.op == "elemwise_add":
        added = Step("add_n", {"num_args": "2"}, ((INPUT, 0), (INPUT, 1)))
        return Rewrite((added,), ((0, 0),))
    if step.op == "SliceChannel" and size is not None:
        return _split(step.attrs, size)
    return None


def _split(attrs: Mapping[str, str], size: int) -> Optional[Rewrite]:
    parts, axis = int(attrs["num_outputs"]), int(attrs.get("axis", "1"))
    if attrs.get("squeeze_axis", "False") not in ("False", "0") or size % parts or axis < 0:
        return None
    shape = (0,) * axis + (-4, parts, size // parts, -2)
    apart = Step("Reshape", {"shape": str(shape)}, ((INPUT, 0),))
    split = {"num_outputs": str(parts), "axis": str(axis), "squeeze_axis": "True"}
    return Rewrite(
        (apart, Step("SliceChannel", split, ((0, 0),))), tuple((1, k) for k in range(parts))
    )
