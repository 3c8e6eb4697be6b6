"""A plan in, values out: arenas in memory, launches, and MXNet's tape.

Read `dispatch.py` (a segment as an executable), `assemble.py` (a plan as a program), `buffers.py`
(arenas), `execute.py` (a run of a plan), `backward.py` (of its backward pass), `leaves.py` (what
stands for parameters there), `left_out.py` (losses without a gradient), `keep.py` (arrays in
arenas), `chain.py` (flushes as one node of MXNet's tape), `gradient.py` (such a node) and
`profiling.py`.
"""
