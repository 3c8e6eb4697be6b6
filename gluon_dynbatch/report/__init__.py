"""What happened in a scope, what that means, and what a user can do about it.

In: a summary per flush, and findings, which other folders collect while the scope is open.  Out: a
`Report`, as text, HTML and JSON.  Read `findings.py` (what is found: calls, a reason, a line),
`advice.py` (the kinds of findings, and what to do about each), `summary.py` (one flush, and many)
and `report.py` (a scope).  Everything here is pure: no MXNet.
"""
