"""Run plans: arenas in memory, launches, and one node of MXNet's tape per scope.

Read `dispatch.py` (compile a segment for MXNet's operators), `engine.py` (how work is handed to
MXNet's engine), `pool.py` (memory), `buffers.py` (arenas in memory), `prepare.py` (a plan as the
programs of both directions), `execute.py` (run a plan), `operators.py` (launches of MXNet's
operators, recorded), `backward.py` (run a plan backward), `left_out.py` (losses without a
gradient), `keep.py` (arrays that stay in arenas), `chain.py` (the flushes of a scope),
`tape_node.py` (their backward passes as one node of MXNet's tape), `gradient.py` (how MXNet's tape
gets such a node), `variables.py` (who gets gradients), `direct.py` (backward passes without a node)
and `profiling.py`.
"""
