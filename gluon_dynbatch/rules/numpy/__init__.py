"""Operators of ``mx.np`` and ``mx.npx``, written with the operators of ``mx.nd`` that do the same.

`translate` appends them for one call of known shapes and dtypes.  So both kinds of calls share
rules and kernels, and merge with each other.  Read `call.py` (the call, and what shapes mean), then
`table.py` (one entry per operator); the other files hold the translations that need more than a
name, by kind.

There, an array without axes is an array of shape (1,), as in ``mx.nd``.
"""

from __future__ import annotations

from .call import NumPyArray, NumPyCall
from .table import TRANSLATED, translate

__all__ = ["TRANSLATED", "NumPyArray", "NumPyCall", "translate"]
