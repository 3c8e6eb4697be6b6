"""Per-operator batching rules, as data: no MXNet needed.

`rows` and `stack` answer how one operator call, recorded for one sample, is run once for many.  In
the *rows* layout the samples' arrays lie end to end along axis 0; in the *stack* layout they are
stacked along a new axis 0, like ``vmap`` of JAX with ``in_axes`` 0 or None.

To add an operator, enter its name into the set of its family (`elementwise.UNARY`, for example), or
write a small function under `rows_rule` or `stack_rule` in the file of its family.
"""

from __future__ import annotations

from . import elementwise, index, linear, reduce, sequence, shape, vision
from .apart import INTERNAL, NEVER, REFUSED, internal
from .families import MERGED, Family, reference, spelling, summary
from .kernels import BUILT_PER_SHAPE, SPARES_ROWS, faster
from .properties import (
    CREATION,
    HANGS_IN_BACKWARD,
    OVERWRITES,
    READS_FIRST_RESULT,
    UNREAD_IN_BACKWARD,
    is_random,
    mutates,
    nondifferentiable_inputs,
)
from .site import INPUT, Ref, Refusal, Rewrite, Shape, Site, Step, public_attrs
from .table import TABLE, adds_up, rows, stack

FAMILIES = (elementwise, index, linear, reduce, sequence, shape, vision)
"""The modules that fill `TABLE`."""

__all__ = [
    "BUILT_PER_SHAPE",
    "CREATION",
    "UNREAD_IN_BACKWARD",
    "FAMILIES",
    "Family",
    "HANGS_IN_BACKWARD",
    "INPUT",
    "INTERNAL",
    "MERGED",
    "NEVER",
    "OVERWRITES",
    "READS_FIRST_RESULT",
    "REFUSED",
    "SPARES_ROWS",
    "TABLE",
    "Ref",
    "Refusal",
    "Rewrite",
    "Shape",
    "Site",
    "Step",
    "adds_up",
    "faster",
    "internal",
    "is_random",
    "mutates",
    "nondifferentiable_inputs",
    "public_attrs",
    "reference",
    "rows",
    "spelling",
    "stack",
    "summary",
]
