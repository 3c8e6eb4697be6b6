"""What is known of an operator: how it merges, or why not, and what else matters of it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .build import Handler, same


class Rule(NamedTuple):
    """All that is known of an operator without its shapes."""

    #: How it merges in either layout; without `stack`, or where that refuses, it is folded.
    rows: Optional[Handler] = None
    stack: Optional[Handler] = None
    #: Inputs without rows, which merge only if all samples share them.
    parameters: Tuple[int, ...] = ()
    #: What these are, for the refusal.
    called: str = "parameters"
    #: Dimensions that the first input has at least if its axis 0 numbers rows.
    row_dims: int = 1
    #: An attribute and a value for which no rule is right: ``"mode=raise"``.
    not_with: str = ""
    #: Why it never merges, as the end of a sentence.
    reason: str = ""
    #: Inputs that never get a gradient other than zero: indices, lengths, conditions, arrays of
    #: which only the shape counts.
    no_gradient: Tuple[int, ...] = ()
    #: Whether two calls with equal inputs may differ, so that samples need their own.
    random: bool = False
    #: When it writes to its inputs: ``"training"``, ``"always"`` or never.
    writes: str = ""
    #: Whether it overwrites, loses, spoils or refuses to write gradients that are to be added up.
    overwrites: bool = False
    #: Whether its second result is wrong in a ``CachedOp`` in which nobody reads the first one.
    reads_first_result: bool = False
    #: Whether MXNet may never finish its backward pass if that begins within a function's.
    hangs_in_backward: bool = False
    #: Whether the shapes of its results depend on values.
    sized_by_values: bool = False

    @property
    def merges(self) -> bool:
        """Whether some calls merge."""
        return self.rows is not None or self.stack is not None

    @property
    def adds_up(self) -> bool:
        """Whether MXNet can add its gradients to what is in the arrays for them.

        False for what never merges: nobody has looked.
        """
        return self.merges and not self.overwrites


SAME = Rule(same, same)
"""The operator looks at one element at a time, and does not care where a batch axis is."""
BY_ROW = Rule(same)
"""The operator treats axis 0 as independent rows."""


def instead(op: str, **attrs: object) -> Rule:
    """Return the rule of an operator that MXNet refuses to record within symbols: `op` runs."""
    return Rule(lambda site, build: (build.add(op, *build.inputs(), **attrs),))


class Family(NamedTuple):
    """Operators that merge under one condition, or do not for one reason; both are `text`."""

    name: str
    text: str
    rules: Mapping[str, Rule]


def each(names: str, rule: Rule, form: str = "{}", **properties: Any) -> Dict[str, Rule]:
    """Return `rule`, with more properties, for each of some operators: `names` put into `form`."""
    return {form.format(name): rule._replace(**properties) for name in names.split()}


def family(name: str, text: str, *parts: Mapping[str, Rule]) -> Family:
    """Return a family of operators that merge if `text`, a condition, holds."""
    rules = {op: rule for part in parts for op, rule in part.items()}
    assert len(rules) == sum(map(len, parts)), f"{name}: an operator has two rules"
    return Family(name, text, rules)
