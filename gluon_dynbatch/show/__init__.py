"""Pictures of plans and reports, for `Plan` and `Report` to hand out; pure functions of both.

In: an inert `Plan` or `Report`.  Out: a Graphviz graph or HTML for notebooks (`draw.py`), or a
matplotlib figure (`plot.py`).  Read `flow.py` first: it says which launches are
shown as one, and what flows between them.
"""
