"""The oracle: the same program sample by sample, without a scope, compared with that in a scope.

Read `results.py` (results of any kind, taken apart and compared), `snapshot.py` (all that a program
can change, kept and put back, so that it can run twice) and `loop.py` (``debug=True`` of `map`).
The public check is the module `testing`.
"""
