"""A plan in, values out: arenas in memory, launches, and MXNet's tape.

Read `dispatch.py` (a segment as an executable), `execute.py` (the launches of a plan),
`gradient.py` (their backward pass, as one node of MXNet's tape), `notice.py` (when MXNet drops that
node), `left_out.py` (losses without a gradient) and `profiling.py`.
"""
