"""Every rule, in both layouts: merged equals the loop, and what does not merge is refused."""

from __future__ import annotations

from typing import Tuple

import numpy as np
import pytest
from mxnet.base import MXNetError

from gluon_dynbatch import rules

from .all_cases import CASES, EVERY, NAMES, draw
from .interpreter import Case, Loop, agree, check_rows, check_stack

#: Nothing that MXNet draws is compared.
MXNET_DRAWS = False

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")


@pytest.mark.parametrize("variants", CASES, ids=NAMES)
def test_rows_equal_the_loop(variants: Tuple[Case, ...]) -> None:
    for seed, c in enumerate(variants):
        check_rows(c, np.random.default_rng(seed))


@pytest.mark.parametrize("variants", CASES, ids=NAMES)
def test_stack_equals_the_loop(variants: Tuple[Case, ...]) -> None:
    for seed, c in enumerate(variants):
        check_stack(c, np.random.default_rng(seed), samples=(3, 1)[seed])


@pytest.mark.parametrize("c", draw(1, 1, 1), ids=NAMES)
def test_extents_of_one(c: Case) -> None:
    """Whatever merges equals the loop, unless MXNet refuses the call itself."""
    try:
        Loop(c, "B" * len(c.inputs), True, [2, 2], np.random.default_rng(0)).expected()
    except MXNetError:
        return
    agree(c, always=False)


def test_extents_make_no_other_calls() -> None:
    for variants in CASES:
        assert len({c.op for c in variants}) == 1
        assert len({(c.rows, c.ones, c.stack) for c in variants}) == 1


def test_every_rows_rule_has_a_case_that_merges() -> None:
    known = {op for op, rule in rules.TABLE.items() if rule.rows is not None}
    assert {c.op for c in EVERY if c.rows} == known


def test_every_operator_has_a_case_that_stacks() -> None:
    assert {c.op for c in EVERY if c.stack} == set(rules.TABLE)


def test_some_calls_merge_in_the_stack_layout_only() -> None:
    stack_only = {c.op for c in EVERY if c.stack and not c.rows}
    assert {"sum", "transpose", "Concat", "softmax", "BatchNorm", "slice"} <= stack_only
