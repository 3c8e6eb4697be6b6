"""Shapes and attributes drawn at random: whatever the rules accept equals the loop."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .drawn import OFTEN, SELDOM, Draw, Drawn
from .interpreter import agree

#: Nothing that MXNet draws is compared.
MXNET_DRAWS = False

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")


@pytest.mark.parametrize("family", OFTEN + SELDOM, ids=lambda family: family.__name__)
def test_calls_drawn_at_random(family: Callable[[Draw], Drawn]) -> None:
    @settings(
        max_examples=40 if family in OFTEN else 20, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data: Any) -> None:
        for drawn, how in family(Draw(data.draw)):
            agree(drawn, **how)

    check()
