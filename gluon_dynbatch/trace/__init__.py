"""A callee in, its program out: the operators behind a call, and in which layout they merge.

Read `program.py` (what MXNet traced), then `entry.py` (what all calls of one kind have in common).
"""
