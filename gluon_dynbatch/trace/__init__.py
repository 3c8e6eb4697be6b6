"""A callee in, its program out: the operators behind a call, and in which layouts they merge.

Read `symbols.py` (symbol JSON and ``CachedOp``, here only), `program.py` (what MXNet traced),
`infer.py` (its shapes and dtypes), `variant.py` (how calls merge) and `entry.py` (what all calls of
one kind have in common).
"""
