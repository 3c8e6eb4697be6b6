"""Pictures of plans and reports, called by methods of `Plan` and `Report`.

In: the nodes and edges of a plan, or the times and widths of a report.  Out: a Graphviz graph or
HTML for notebooks (`draw.py`), or a matplotlib figure (`plot.py`).
"""
