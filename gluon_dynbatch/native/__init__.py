"""Native code: what runs once per recorded call, and what looks at every unit of a flush.

`recording` is called by `record`, `lowering` by `lower`, `scheduling` by `schedule`, `ordering` and
`resolving` by `plan`, `assembling` by `run`.  `executing` runs programs in MXNet's engine, with the
kernels in them; the C behind it is in `c`.
"""

from __future__ import annotations

__all__ = [
    "assembling",
    "executing",
    "lowering",
    "ordering",
    "recording",
    "resolving",
    "scheduling",
]

try:
    from . import assembling, executing, lowering, ordering, recording, resolving, scheduling
except ImportError as error:
    raise ImportError(
        "the native code of gluon_dynbatch is not built; run `pip install .`, or "
        "`python setup.py build_ext --inplace` in a checkout; it needs a C compiler and Cython"
    ) from error
