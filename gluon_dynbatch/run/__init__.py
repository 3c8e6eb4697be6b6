"""A plan in, values out: arenas in memory, launches, and MXNet's tape.

Read `dispatch.py` (a segment as an executable), `assemble.py` (a plan as a program), `buffers.py`
(arenas), `execute.py` (a run of a plan), `backward.py` (of its backward pass), `leaves.py` (what
stands for parameters there), `left_out.py` (losses without a gradient), `gradient.py` (a flush as a
node of MXNet's tape), `notice.py` (when MXNet drops it), `hand_out.py` (what is still held becomes
real) and `profiling.py`.
"""
