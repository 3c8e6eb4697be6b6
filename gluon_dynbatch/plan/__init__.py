"""Groups in, a plan out: the launches in order, with the place of every operand and result.

Read `order.py` (members within a launch), `plan.py` (places and operands), `gradient_plan.py` (the
same for the backward pass), `check.py` (what holds for every plan).
"""
