"""Calls in, a tape out: what runs while the user's program does.

Read `types.py` and `where.py` (what a tape says of arrays
and of the user's lines), `lazy.py` (what the user gets instead of a value), `tape.py` and
`recorder.py` (how calls are written down), `state.py` (what a thread knows of its scope),
`intercept.py` with `hooks.py` (how calls get here), `hazards.py` (what is computed first because
something is about to change).
"""
