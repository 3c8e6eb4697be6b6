"""Batching rules: how one operator call, recorded for one sample, is run once for many.

`merge` appends the operators to run once instead of one call (a `Site`) per sample, or refuses with
a sentence for the user, which `why_not` returns.  In the *rows* layout the samples' arrays lie end
to end along axis 0, as many rows of each as it has; in the *stack* layout they are stacked along a
new axis 0, like ``vmap`` of JAX with ``in_axes`` 0 or None.

What is known of an operator is its `Rule`, one entry of `operators.py` or `unsupported.py`, and
``of(op)`` returns it.  Most rules are one line, of a handler for both layouts and of properties:

``SAME``
    The operator is repeated: it looks at one element at a time.
``BY_ROW``
    It is repeated for rows, and a stack is folded into rows and unfolded again.
``along(axis=-1)``
    It is repeated if the axis is not 0; in a stack, the axis is one more.

Where that does not do, a handler is a function ``(site, build) -> outputs`` in the file of its
kind.  ``Rule(parameters=(1, 2))`` names inputs without rows, which all samples have to share; the
other inputs that happen to be shared are repeated for each sample of a stack.

In rows, the call itself is run on more rows.  That it is possible, and gives as many more rows, is
seen from shapes by who asks; rules know where rows would see each other although shapes are right.

No MXNet is needed here.
"""

from __future__ import annotations

from .ask import merge, why_not
from .operators import CREATION, MERGED, TABLE, is_random, of
from .rule import Family, Rule
from .site import Ref, Site
from .unsupported import UNSUPPORTED

__all__ = [
    "CREATION",
    "MERGED",
    "TABLE",
    "UNSUPPORTED",
    "Family",
    "Ref",
    "Rule",
    "Site",
    "is_random",
    "merge",
    "of",
    "why_not",
]
