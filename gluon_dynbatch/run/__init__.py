"""Run plans: arenas in memory, launches, and one node of MXNet's tape per scope.

Read `dispatch.py` (compile a segment), `assemble.py` (a plan as a program), `buffers.py` (arrays
for native code), `pool.py` (their memory), `arenas.py` (what is read and written there),
`prepare.py` (the code of both directions), `execute.py` (run a plan), `operators.py` (launches of
MXNet's operators, recorded), `backward.py` (run a plan backward), `leaves.py` (copies of parameters
for that), `left_out.py` (losses without a gradient), `keep.py` (arrays that stay in arenas),
`chain.py` (the flushes of a scope as one node of MXNet's tape), `gradient.py` (such a node) and
`profiling.py`.
"""
