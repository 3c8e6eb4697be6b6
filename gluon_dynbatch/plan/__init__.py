"""Groups in, a plan out: the launches in order, with the place of every operand and result.

Read `plan.py` (what a plan is), `order.py` (members within a launch), `make.py` (the forward
plan), `transpose.py` (the plan of its backward pass, and what gets a gradient), `check.py` (what
holds for every plan).
"""
