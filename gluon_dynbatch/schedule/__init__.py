"""The analyzer: dependency graphs in, groups of units that run together out.

Read `budget.py` (what it may cost), `depth.py` and `agenda.py` (the two classic policies),
`bound.py` (how good it can get), `search.py` (the ladder of all steps) and `ladder.py` (the
entry point).  Everything here is pure: no MXNet, no state.
"""

from gluon_dynbatch.schedule.agenda import group_by_agenda
from gluon_dynbatch.schedule.bound import lower_bound
from gluon_dynbatch.schedule.budget import DEFAULT_RATE, Budget, Meter, parse_budget
from gluon_dynbatch.schedule.depth import group_by_depth, unit_depth
from gluon_dynbatch.schedule.groups import check_groups, singles_in_order, split_by_rows
from gluon_dynbatch.schedule.ladder import POLICIES, Analysis, analyze

__all__ = [
    "DEFAULT_RATE",
    "POLICIES",
    "Analysis",
    "Budget",
    "Meter",
    "analyze",
    "check_groups",
    "group_by_agenda",
    "group_by_depth",
    "lower_bound",
    "parse_budget",
    "singles_in_order",
    "split_by_rows",
    "unit_depth",
]
