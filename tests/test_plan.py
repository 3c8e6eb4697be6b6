"""Plans as text, and the checker of plans.

The golden plans in ``tests/golden`` are meant to be read.  After a change that is wanted, run
``python -m tests.test_plan`` to write them anew, and look at the difference.
"""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.plan.check import check_plan, check_transposed, evaluate
from gluon_dynbatch.plan.plan import (
    Plan,
    Reads,
    Rows,
    Slice,
    Whole,
)
from gluon_dynbatch.plan.resolve import resolve
from gluon_dynbatch.plan.transpose import transpose
from tests.cells import (
    WIDTH,
    Attention,
    Unary,
    heads_of,
    inputs,
    ready,
)
from tests.golden.cases import CASES

GOLDEN = Path(__file__).parent / "golden"


def plan_of(name: str) -> Plan:
    fn, samples, options = CASES[name]()
    options = {"policy": "depth", "analysis_budget": None, **options}
    with autograd.record(), gdb.batching(**options) as batch:
        results = [fn(sample) for sample in samples]
    del results
    return batch.plan


def test_every_golden_plan_has_a_case():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_plans_read_as_they_did(name):
    plan = plan_of(name)
    assert str(plan) + "\n" == (GOLDEN / f"{name}.txt").read_text("utf-8")
    check_plan(plan)
    heads = heads_of(plan)
    check_transposed(plan, heads, transpose(plan, heads))
    assert plan.pieces.shape[1:] == (5,) and plan.pieces.dtype == np.int64
    assert (plan.rows_gathered == 0) == (len(plan.pieces) == 0)
    sizes = [n * arena.row_size for n, arena in zip(plan.sizes, plan.arenas)]
    assert plan.arena_bytes >= 4 * sum(sizes)


def test_the_cases_show_every_kind_of_operand():
    found = {
        type(o) for name in CASES for launch in plan_of(name).launches for o in launch.operands
    }
    assert found == {Whole, Slice, Rows}
    layouts = {launch.segment.layout for name in CASES for launch in plan_of(name).launches}
    assert layouts == {"rows", "stack", "concat", "unbatched"}


def test_a_shared_matrix_that_is_computed_is_an_operand_of_its_own():
    a, lookup = ready(Unary()), ready(Attention())
    with gdb.batching(granularity="block", policy="depth") as batch:
        memory = a(mx.nd.ones((3, WIDTH)))
        results = [lookup(x, memory) for x in inputs(4)]
    operands = batch.plan.launches[-1].operands
    assert Slice(*batch.plan.place(0), 1, 3 * WIDTH) in operands
    assert len(results) == 4
    check_plan(batch.plan)


# Broken plans ----------------------------------------------------------------------------------


def with_launch(plan, number, **changes):
    launches = list(plan.launches)
    launches[number] = launches[number]._replace(**changes)
    return plan._replace(launches=tuple(launches))


def with_operand(plan, number, operand):
    return with_launch(plan, number, operands=(operand, *plan.launches[number].operands[1:]))


def with_joined(plan):
    """Run the first two launches as one."""
    first, second, *rest = plan.launches
    units = np.concatenate([first.units, second.units])
    parts = (first.parts[0]._replace(rows=len(units)),)
    return plan._replace(launches=(first._replace(units=units, parts=parts), *rest))


def shifted(plan, by):
    (region,) = plan.launches[1].outputs
    return with_launch(plan, 1, outputs=(region._replace(start=region.start + by),))


def other_row(plan):
    """Read from the right launch, but from the wrong member."""
    rows, found = plan.launches[0].outputs[0], plan.launches[2].operands[0]
    slices = [Slice(rows.arena, (rows.start + k) * WIDTH, 1, WIDTH) for k in range(rows.rows)]
    return with_operand(plan, 2, next(s for s in slices if s != found))


def too_early(plan):
    """Let launch 0 read rows that are written later."""
    later = plan.launches[2].outputs[0]
    return with_operand(plan, 0, Slice(later.arena, later.start * WIDTH, 3, WIDTH))


def with_pieces(plan, column):
    changed = plan.pieces.copy()
    changed[:, column] += 1
    return plan._replace(pieces=changed)


#: Of a plan (a case), what is done to it and what the checker says.  "chains" are a fill and then
#: {a a a}, {a a}, {a}.
REFUSED = {
    "a unit is missing": (
        "chains", lambda p: with_launch(p, 0, units=p.launches[0].units[:-1]), "exactly",
    ),
    "a unit in two launches": (
        "chains", lambda p: with_launch(p, 1, units=p.launches[0].units[:2]), "exactly once",
    ),
    "wrong order": ("chains", lambda p: p._replace(launches=p.launches[::-1]), "later launch"),
    "dependent units": ("chains", with_joined, "later launch"),
    "two signatures": ("by_agenda", with_joined, "mixes signatures"),
    "number of rows": (
        "chains", lambda p: with_launch(p, 0, parts=p.launches[0].parts[:1] * 2), "a part",
    ),
    "results overlap": ("chains", lambda p: shifted(p, -1), "written exactly once"),
    "rows that nobody writes": (
        "chains", lambda p: p._replace(sizes=(p.sizes[0] + 1, *p.sizes[1:])), "written exactly",
    ),
    "a fill is missing": ("chains", lambda p: p._replace(fills=()), "written exactly once"),
    "operand of a later launch": ("chains", too_early, "."),
    "operand of another member": ("chains", other_row, "."),
    **{f"pieces {c}": ("trees", lambda p, c=c: with_pieces(p, c), ".") for c in range(1, 5)},
}  # fmt: skip


@pytest.mark.parametrize("case, change, match", REFUSED.values(), ids=REFUSED)
def test_refuses(case, change, match):
    plan = plan_of(case)
    check_plan(plan)
    with pytest.raises(AssertionError, match=match):
        check_plan(change(plan))


# Transposed plans ------------------------------------------------------------------------------


def test_a_transposed_plan_reads_like_a_plan():
    """Trees: the last launch goes first, and each result gets what its readers wrote."""
    plan = plan_of("trees")
    roots = plan.launches[-1]
    heads = heads_of(plan, plan.graph.slot0[roots.units].tolist())
    backward = transpose(plan, heads)
    check_transposed(plan, heads, backward)
    assert str(backward).splitlines() == [
        "arena 0: 19 rows of 4 float32 on cpu(0)",
        "fill    arena 0[0:2] <- 2 arrays from outside",
        "2       arena 0[8:10], arena 0[17:19] <- join x2(arena 0[0:8])",
        "1       arena 0[2:5], arena 0[5:8] <- join x3(3 rows of 2 pieces)",
        "0       arena 0[10:17] <- leaf x7(7 rows of 2 pieces)",
        "fill 0  <- 2 rows of 6 pieces",
    ]


def other_gradient(launch):
    operand = launch.operands[0]
    return launch._replace(operands=(Slice(0, 0, operand.rows, WIDTH),))


#: Of launches backward from the ends of chains, what is wrong with them and what is said.
REFUSED_BACKWARD = {
    "forward order": (lambda a, b, c: {"launches": (c, b, a)}, "reverse"),
    "no gradient": (
        lambda a, b, c: {"launches": (a, b._replace(operands=(None,)), c)}, "no gradient",
    ),
    "no gradient of a fill": (lambda a, b, c: {"results": (None,)}, "other rows"),
    "too few gradients": (
        lambda a, b, c: {"launches": (a, b._replace(operands=()), c)}, "gradients of results",
    ),
    "another row": (lambda a, b, c: {"launches": (a, other_gradient(b), c)}, "other rows"),
    "no rows for it": (lambda a, b, c: {"launches": (a, b, c._replace(outputs=(None,)))}, "."),
}  # fmt: skip


@pytest.mark.parametrize("change, match", REFUSED_BACKWARD.values(), ids=REFUSED_BACKWARD)
def test_refuses_to_go_backward(change, match):
    plan = plan_of("chains")
    ends = [int(plan.graph.slot0[launch.units[-1]]) for launch in plan.launches]
    heads = heads_of(plan, ends)
    backward = transpose(plan, heads)
    check_transposed(plan, heads, backward)
    with pytest.raises(AssertionError, match=match):
        check_transposed(plan, heads, backward._replace(**change(*backward.launches)))


# Reading rows ----------------------------------------------------------------------------------


def brute_force(rows, row_size, reads, arenas):
    wanted = [np.zeros(n * size) for n, size in zip(rows, row_size)]
    for operand, _, target, length, arena, element in zip(*(x.tolist() for x in reads)):
        wanted[operand][target : target + length] += arenas[arena][element : element + length]
    return wanted


@st.composite
def some_reads(draw):
    """Operands with any number of reads per row, aligned or not, of arenas of several row sizes."""
    number = st.integers
    sizes = draw(st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3))
    row_sizes = draw(st.lists(st.sampled_from([2, 4, 6, 12]), min_size=1, max_size=3))
    rows = draw(st.lists(number(1, 6), min_size=len(row_sizes), max_size=len(row_sizes)))
    step = draw(st.sampled_from([1, 2, 2, 2]))
    reads = []
    for _ in range(draw(number(1, 30))):
        operand = draw(number(0, len(rows) - 1))
        total = rows[operand] * row_sizes[operand]
        length = draw(st.sampled_from([row_sizes[operand], step]))
        target = draw(number(0, (total - length) // step)) * step
        if draw(st.booleans()):
            target = target // row_sizes[operand] * row_sizes[operand]
        arena = draw(number(0, len(sizes) - 1))
        element = sizes[arena] + draw(number(0, 10)) * step
        reads.append((operand, 0, target, length, arena, element))
    columns = (np.array(column, dtype=np.int64) for column in zip(*reads))
    return np.array(rows), np.array(row_sizes), Reads(*columns), sizes


@given(some_reads())
def test_operands_are_the_sums_of_their_reads(reading):
    rows, row_sizes, reads, sizes = reading
    operands, pieces = resolve(rows, row_sizes, reads)
    rng = np.random.RandomState(0)
    memory = [rng.randint(1, 1000, 60).astype(float) for _ in sizes]
    for operand, wanted in zip(operands, brute_force(rows, row_sizes, reads, memory)):
        if operand is None:
            assert not wanted.any()
        else:
            found = evaluate(operand, memory, pieces)
            np.testing.assert_array_equal(found.reshape(-1), wanted)


@pytest.mark.parametrize("column", ["operand", "target"])
def test_reads_without_a_target_are_an_error(column):
    one = np.ones(1, dtype=np.int64)
    reads = Reads(0 * one, 0 * one, 0 * one, 4 * one, 0 * one, 4 * one)
    for number in (-1, 1):
        with pytest.raises(ValueError, match="target"):
            resolve(one, 4 * one, reads._replace(**{column: number * one}))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(str(plan_of(case)) + "\n", "utf-8")
