"""The rule of an operator: how its calls merge, or why they do not, and other properties."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .build import Handler, same


class Rule(NamedTuple):
    """The properties of an operator that do not depend on shapes."""

    #: The handler of each layout.  A stack without one, or refused by it without a reason, is
    #: folded into rows.
    rows: Optional[Handler] = None
    stack: Optional[Handler] = None
    #: Inputs without rows; calls merge only if all samples share them.
    parameters: Tuple[int, ...] = ()
    #: The name of these inputs in a refusal.
    called: str = "parameters"
    #: Least number of dimensions of the first input for its axis 0 to be rows.
    row_dims: int = 1
    #: An attribute with a value that the rule does not cover, like ``"mode=raise"``.
    not_with: str = ""
    #: Why calls never merge, as the end of a sentence.
    reason: str = ""
    #: Inputs whose gradients are always zero: indices, lengths, conditions, and arrays of which
    #: only the shape is used.
    no_gradient: Tuple[int, ...] = ()
    #: Whether MXNet refuses to compute these gradients, instead of writing zeros.
    refuses_gradient: bool = False
    #: Whether two calls with equal inputs may give different results.
    random: bool = False
    #: When a call writes to its inputs: ``"training"``, ``"always"``, or empty for never; in
    #: ``"auxiliary"``, to auxiliary states, which some calls do not have.
    writes: str = ""
    #: Whether MXNet computes wrong gradients, or none, if it is to add them to existing ones.
    overwrites: bool = False
    #: Whether the second result is wrong in a ``CachedOp`` where the first result is not used.
    reads_first_result: bool = False
    #: Whether MXNet may never finish its backward pass inside that of another function.
    hangs_in_backward: bool = False
    #: Whether MXNet computes it of doubles in single precision, at least in part.
    single: bool = False
    #: Whether kernels compute a stack by the operator itself, not by those that merge it.
    own: bool = False
    #: Whether shapes of results depend on values.
    sized_by_values: bool = False

    @property
    def merges(self) -> bool:
        """Whether some calls merge."""
        return self.rows is not None or self.stack is not None

    @property
    def adds_to_gradients(self) -> bool:
        """Whether MXNet can add its gradients to existing ones.

        False for operators that never merge, as this has not been tested.
        """
        return self.merges and not self.overwrites


SAME = Rule(same, same)
"""The operator works element by element, so a batch axis may be anywhere."""
BY_ROW = Rule(same)
"""The operator treats the rows of axis 0 independently."""


def instead(op: str, **attrs: object) -> Rule:
    """Return a rule that runs `op` instead of an operator that MXNet cannot record in a symbol."""
    return Rule(lambda site, build: (build.add(op, *build.inputs(), **attrs),))


class Family(NamedTuple):
    """Operators that merge under the same condition, or never for the same reason: `text`."""

    name: str
    text: str
    rules: Mapping[str, Rule]


def each(names: str, rule: Rule, form: str = "{}", **properties: Any) -> Dict[str, Rule]:
    """Give each operator the rule with these properties; `form` makes operators of the names."""
    return {form.format(name): rule._replace(**properties) for name in names.split()}


def family(name: str, text: str, *parts: Mapping[str, Rule]) -> Family:
    """Make a family from the tables of `each`; `text` is the condition under which they merge."""
    rules = {op: rule for part in parts for op, rule in part.items()}
    assert len(rules) == sum(map(len, parts)), f"{name}: an operator has two rules"
    return Family(name, text, rules)
