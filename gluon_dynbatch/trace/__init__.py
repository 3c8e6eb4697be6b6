"""Trace calls: find the operators behind a call, and the layout in which its calls merge.

Read `symbols.py` (the only module that knows symbol JSON and ``CachedOp``), `program.py` (the
traced operators), `infer.py` (shapes and dtypes), `variant.py` (layouts) and `entry.py` (what all
calls of one kind have in common).
"""
