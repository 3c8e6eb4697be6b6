"""Pictures of plans and reports, called by methods of `Plan` and `Report`.

In: a `Plan` or a `Report`.  Out: a Graphviz graph or HTML for notebooks (`draw.py`), or a
matplotlib figure (`plot.py`).  Read `flow.py` first: it decides which launches form one node, and
counts the rows that flow between nodes.
"""
