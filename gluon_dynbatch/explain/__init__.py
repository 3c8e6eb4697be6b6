"""``python -m gluon_dynbatch explain script.py``: what the scopes of a script did, line by line.

In: a script.  Out: a page of text for each place that opens scopes.  Read `observe.py` (what is
noted of scopes, flushes and launches while the script runs) and `pages.py` (runs the script, and
writes the pages).
"""
