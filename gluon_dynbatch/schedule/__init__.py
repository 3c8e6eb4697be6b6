"""The scheduler: dependency graphs in, groups of units that run together out.

Read `dependencies.py` (what comes in), `budget.py` (what it may cost), `depth.py`, `agenda.py` and
`merge.py` (the three ways to group), `bound.py` (how good it can get) and `policies.py` (which of
these a policy does, and the entry point).  Everything here is pure: no MXNet, no state.
"""

from .bound import lower_bound
from .budget import Budget, parse_budget
from .depth import group_by_depth
from .groups import arrange, check_groups
from .policies import POLICIES, Analysis, Search, analyze, merges

__all__ = [
    "POLICIES",
    "Analysis",
    "Budget",
    "Search",
    "analyze",
    "arrange",
    "check_groups",
    "group_by_depth",
    "lower_bound",
    "merges",
    "parse_budget",
]
