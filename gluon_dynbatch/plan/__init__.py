"""Groups in, a plan out: launches in order, with a memory location for every operand and result.

Read `plan.py` (the type), `launch.py` (its launches as objects), `make.py` (the forward plan),
`transpose.py` (the backward plan, and which arrays get a gradient), `check.py` (the invariants of
every plan), `flow.py` (nodes and edges of its picture).
"""
