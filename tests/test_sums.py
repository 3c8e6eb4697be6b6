"""Sums in cells are operands: how they merge, and that they stay short."""

from __future__ import annotations

import numpy as np

from gluon_dynbatch.lower.cut import MOST_TERMS
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, cell, inputs


def batch_of(fn, counts):
    """Run a cell on an array and `counts` children, at granularity operator."""
    net = cell(fn)
    samples = [(attached(inputs(1))[0], attached(inputs(count))) for count in counts]
    options = {"granularity": "operator", "policy": "depth"}
    return check_against_loop(lambda sample: net(*sample), samples, **options)


def nested(F, x, children):
    """``tanh`` of sums in sums of what is computed per child."""
    total = F.add_n(*[F.sigmoid(child) for child in children])
    for _ in range(len(children)):
        total = F.add_n(total, x)
    return F.tanh(total)


def test_nested_sums_merge_whatever_their_depth() -> None:
    """One launch for the sigmoids of all children, and one for ``tanh`` of all sums.

    With 1 child the sum is nested once, with 3 children three times.
    """
    assert batch_of(nested, (1, 2, 3)).report.launches == 2


def doubled(F, x, _):
    """Written out as one sum, the last one would have 2 ** 40 terms."""
    total = x
    for _ in range(40):
        total = F.add_n(total, total)
    return F.tanh(total * 2.0**-40)


def test_sums_that_repeat_sums_stay_short() -> None:
    batch = batch_of(doubled, (0, 0, 0))
    assert batch.plan is not None
    assert np.diff(batch.plan.graph.term0).max() <= MOST_TERMS


def test_a_long_sum_in_another_one_is_the_same_sum() -> None:
    batch = batch_of(lambda F, x, c: F.tanh(F.add_n(F.add_n(*c), x)), (2, MOST_TERMS + 2))
    assert batch.report.launches == 1


def test_sums_with_a_shared_term_and_one_that_comes_twice() -> None:
    """Three deep: the sum of all children, of that and `x`, and of that twice and `w`."""
    (w,) = attached(inputs(1))
    net = cell(lambda F, x, c, w: F.tanh(F.add_n(*[F.add_n(F.add_n(*c), x)] * 2, w)))
    samples = [(attached(inputs(1))[0], attached(inputs(count))) for count in (1, 2, 2)]
    for granularity in ("operator", "block", "graph"):
        check_against_loop(lambda s: net(*s, w), samples, granularity=granularity)
