"""Calls in, a tape out: the code that runs while the user's program does.

Read `types.py` and `where.py` (array types; the user's lines), `lazy_base.py` and `lazy.py` (the
arrays that recorded calls return), `tape.py` and `recorder.py` (how calls are recorded), `state.py`
(the scope of a thread), `intercept.py` with `hooks.py` (which functions of MXNet are replaced),
`nd_functions.py` and `numpy_functions.py` (with what), `stock.py` (which blocks are one call), and
`hazards.py` (what has to be computed before an array changes).
"""
