"""Calls in, a tape out: the code that runs while the user's program does.

Read `types.py` and `where.py` (array types; the user's lines), `lazy_base.py` and `lazy.py` (the
arrays that recorded calls return), `constants.py` (arrays whose values are known), `tape.py` and
`recorder.py` (how calls are recorded), `state.py` (the scope of a thread).

Which functions of MXNet are replaced: `intercept.py`, with `hooks.py`.  With what:
`nd_functions.py`, `numpy_functions.py`, `indexing.py` (``x[indices]``), `many_arrays.py` (joins and
sums of very many arrays); `operators.py` says what MXNet knows of an operator, `stock.py` which
blocks are one call, and `hazards.py` what has to be computed before an array changes.

Calls of ``forward`` that are recorded once: `pieces.py`, `tracing.py`, `identity.py`.  Blocks that
would be faster as one call, for reports: `idle.py` and `overridden.py`.
"""
