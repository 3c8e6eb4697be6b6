"""Lower a tape to a graph, which decides what may share a launch; no other folder does.

Read `graph.py` (the result, and its checker), `segment.py`, `cut.py` and `normal_form.py` (cut
programs into segments, and make equal segments one object), `expand.py` (turn every call into
units, and find all their operands).
"""
