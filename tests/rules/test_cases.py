"""Every rule, in both layouts: merged equals the loop, and what does not merge is refused."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet.base import MXNetError

from gluon_dynbatch import rules

from .all_cases import EVERY, EXTENTS, NAMES, draw
from .drawn import FAMILIES, Draw, Drawn
from .interpreter import Case, Checker

#: Nothing that MXNet draws is compared.
MXNET_DRAWS = False

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")


@pytest.mark.parametrize("variants", zip(*[draw(*extents) for extents in EXTENTS]), ids=NAMES)
def test_calls_that_are_listed(variants: Tuple[Case, ...]) -> None:
    *some, ones = variants
    for seed, c in enumerate(some):
        Checker(c, seed).check_rows()
        Checker(c, seed).check_stack(samples=(3, 1)[seed])
    # Of extents of one, whatever merges equals the loop, unless MXNet refuses the call itself.
    try:
        Checker(ones).loop([2, 2])
    except MXNetError:
        return
    Checker(ones).agree(always=False)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_calls_drawn_at_random(family: Callable[[Draw], Drawn]) -> None:
    """With shapes and attributes of all kinds, whatever the rules accept equals the loop."""

    @settings(
        max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def check(data: Any) -> None:
        for drawn, how in family(Draw(data.draw)):
            Checker(drawn).agree(**how)

    check()


def test_every_rule_has_a_case_that_merges() -> None:
    known = {op for op, rule in rules.TABLE.items() if rule.rows is not None}
    assert {c.op for c in EVERY if c.rows} == known
    assert {c.op for c in EVERY if c.stack} == set(rules.TABLE)
