"""Plans as text.

The golden plans in ``tests/golden`` are meant to be read.  After a change that is wanted, run
``python -m tests.test_plan`` to write them anew, and look at the difference.
"""

from pathlib import Path

from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.plan.check import check_plan, check_transposed
from gluon_dynbatch.plan.plan import Rows, Slice, Whole
from gluon_dynbatch.plan.transpose import transpose
from tests.cells import heads_of
from tests.golden.cases import CASES

GOLDEN = Path(__file__).parent / "golden"


def plan_of(name):
    fn, samples, options = CASES[name]()
    options = {"policy": "depth", "analysis_budget": None, **options}
    with autograd.record(), gdb.batching(**options) as batch:
        results = [fn(sample) for sample in samples]
    del results
    return batch.plan


def test_plans_read_as_they_did_and_show_every_kind_of_operand():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
    launches = []
    for name in CASES:
        plan = plan_of(name)
        assert str(plan) + "\n" == (GOLDEN / f"{name}.txt").read_text("utf-8")
        check_plan(plan)
        heads = heads_of(plan)
        check_transposed(plan, heads, transpose(plan, heads))
        assert (plan.rows_gathered == 0) == (len(plan.pieces) == 0)
        sizes = [n * arena.row_size for n, arena in zip(plan.sizes, plan.arenas)]
        assert plan.arena_bytes >= 4 * sum(sizes)
        launches += plan.launches
    assert {type(o) for launch in launches for o in launch.operands} == {Whole, Slice, Rows}
    layouts = {launch.segment.layout for launch in launches}
    assert layouts == {"rows", "stack", "concat", "unbatched"}


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


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(str(plan_of(case)) + "\n", "utf-8")
