"""How `map` runs samples: each in a fiber, which sees the attributes that it would see in the loop.

Read `arguments.py` (how a sample is passed to a function), `fibers.py` (each sample runs until it
reads a value), `stores.py` and `reach.py` (which attributes a program may change, by its source and
by the objects that it reaches) and `turns.py` (when a sample may read one that others change).
"""
