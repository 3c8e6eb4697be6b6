"""Random programs equal the loop under every option.

Every plan is checked as well: graph, groups, plan, and the lower bound.  The
fuzzer's programs have samples of several kinds, flushes within a scope, gradients that are
written, added up or not wanted, and every mode of autograd (`tests/fuzz/programs.py`).
"""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import array, attached, cell, check_invariants
from tests.common import ALL, by_mxnets_operators
from tests.depth import examples
from tests.fuzz.harness import ExcusedError
from tests.fuzz.programs import programs
from tests.strategies import tree_batches

SMALL = gdb.Budget(visits=12)
SETTINGS = [(g, p) for g in GRANULARITIES for p in POLICIES]


def check(program, **options):
    batch = check_against_loop(program.fn, program.samples, program.params, **options)
    return check_invariants(batch)


@examples(8)
@given(programs(tame=True), st.sampled_from(SETTINGS))
def test_random_programs_equal_the_loop(program, drawn):
    """All granularities run with one policy, and all policies with one granularity."""
    options = []
    for granularity, policy in SETTINGS:
        if granularity == drawn[0] or policy == drawn[1]:
            setting = {"granularity": granularity, "policy": policy}
            options += [{**setting, "analysis_budget": budget} for budget in (SMALL, None)]
    try:
        first_run, second_run, *batches = program.compare(*options)
    except ExcusedError:
        return
    check_invariants(first_run)
    check_invariants(second_run)
    for small, full in zip(batches[::2], batches[1::2]):
        assert check_invariants(full) <= check_invariants(small), "more analysis made more launches"


@pytest.mark.parametrize(
    "granularity, policy, operators",
    [(*setting, nullcontext) for setting in SETTINGS]
    + [(*setting, by_mxnets_operators) for setting in zip(GRANULARITIES, POLICIES)],
)
def test_random_trees_equal_the_loop(granularity, policy, operators):
    @examples(5)
    @given(tree_batches())
    def run(program):
        options = {"granularity": granularity, "policy": policy}
        with operators():
            small = check(program, analysis_budget=SMALL, **options)
            full = check(program, analysis_budget=None, **options)
        assert full <= small, "more analysis made more launches"

    run()


@examples(5)
@given(tree_batches(), st.sets(st.sampled_from(["child_sum", "embedding", "head"])))
def test_cells_that_are_not_hybridized_equal_the_loop(program, names):
    """Each of their operators is a call, or runs at once if no argument is lazy."""
    try:
        for name in names:
            getattr(program.block, name).hybridize(False)
        check(program)
    finally:
        program.block.hybridize()


@examples(6)
@given(tree_batches(), st.sampled_from(GRANULARITIES), st.sampled_from([1, 2, 5, 100]))
def test_max_rows_limits_every_launch(program, granularity, max_rows):
    options = {"granularity": granularity, "max_rows": max_rows}
    batch = check_against_loop(program.fn, program.samples, program.params, **options)
    for launch in batch.plan.launches if batch.plan else ():
        assert sum(part.rows for part in launch.parts) <= max_rows or len(launch.units) == 1


@ALL
def test_programs_in_half_precision_equal_the_loop(granularity):
    """The cell does without FullyConnected and dot, which a CPU cannot run in half precision."""
    mixed = cell(
        lambda F, x, rows: (
            F.tanh(F.softmax(F.broadcast_mul(x, rows), axis=-1)),
            F.mean(rows, axis=0, keepdims=True) * x,
        )
    )

    def fn(sample):
        scores, mean = mixed(*sample)
        return [scores.max(axis=0), mean + sample[0]]

    samples = [attached([array(n, 4, dtype="float16") for n in (1, rows)]) for rows in (1, 3, 3, 2)]
    check_against_loop(fn, samples, granularity=granularity)
