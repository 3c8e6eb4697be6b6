"""A tape in, a graph out: what may share a launch is decided here, and nowhere else.

Read `graph.py` (what comes out, and its checker), `segment.py`, `cut.py` and `normal_form.py` (a
program in pieces, and the form in which equal pieces are one object), `expand.py` and `wire.py`
(every call as units, with every operand named).
"""
