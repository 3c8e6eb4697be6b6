"""The scheduler: takes a dependency graph, returns groups of units that run together.

Read `dependencies.py` (the input and the output), `budget.py` (limits on the analysis), `depth.py`,
`agenda.py` and `merge.py` (three ways to group), `bound.py` (a lower bound on launches) and
`policies.py` (the steps of each policy, and the entry point).  Everything here is pure: no MXNet,
no state.
"""

from .bound import lower_bound, most_on_a_path
from .budget import Budget, parse_budget
from .dependencies import arrange, check_groups
from .depth import group_by_depth, unit_depth
from .policies import POLICIES, Analysis, Search, analyze, merges

__all__ = [
    "POLICIES", "Analysis", "Budget", "Search", "analyze", "arrange", "check_groups",
    "group_by_depth", "lower_bound", "merges", "most_on_a_path", "parse_budget", "unit_depth",
]  # fmt: skip
