"""Batching rules: how an operator call that was recorded for one sample runs once for many.

`merge` appends the operators that replace one call (a `Site`) per sample, or refuses with a
sentence for the user, which `why_not` returns.  In the *rows* layout, the samples' arrays are
concatenated along axis 0, and their leading sizes may differ.  In the *stack* layout, they are
stacked along a new axis 0, as by ``vmap`` of JAX with ``in_axes`` 0 or None.

Each operator has a `Rule`, an entry of `operators.py` or `unsupported.py`; ``of(op)`` returns it.
Most rules are one line: a handler for both layouts and some properties.

``SAME``
    The operator works element by element: repeat it unchanged.
``BY_ROW``
    The operator works row by row: repeat it on rows; fold a stack into rows, and unfold the result.
``along(axis=-1)``
    The operator works along one axis: repeat it unless that is axis 0; in a stack, add 1 to it.

Any other operator has a handler, a function ``(site, build) -> outputs``, in the file of its kind.
``Rule(parameters=(1, 2))`` names inputs without rows, which all samples must share.  Any other
shared input is broadcast to all samples of a stack.

A rows rule runs the same call on more rows.  The caller of `merge` has to infer shapes to check
that this is possible and gives as many more rows.  The rules refuse calls in which rows depend on
each other, which shapes do not show.

This folder never imports MXNet.
"""

from __future__ import annotations

from .ask import MOST_DIMS, merge, why_not
from .operators import CREATION, MERGED, TABLE, is_random, of
from .refused import REFUSED, refuses
from .rule import Family, Rule
from .site import Site
from .unsupported import UNSUPPORTED

__all__ = [
    "CREATION", "MERGED", "MOST_DIMS", "REFUSED", "TABLE", "UNSUPPORTED", "Family", "Rule", "Site",
    "is_random", "merge", "of", "refuses", "why_not",
]  # fmt: skip
