"""Plans as text.

The golden plans in ``tests/golden`` are meant to be read.  After an intended change, run
``python -m tests.test_plan`` to write them again, and review the difference.
"""

from pathlib import Path

from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.plan.check import check_plan, check_transposed
from gluon_dynbatch.plan.launch import Rows, Slice, Whole
from gluon_dynbatch.plan.transpose import transpose
from tests.cells import heads_of
from tests.common import by_mxnets_operators
from tests.test_launches import CASES

GOLDEN = Path(__file__).parent / "golden"
BLOCK, OPERATOR, GRAPH = ({"granularity": name} for name in ("block", "operator", "graph"))
#: Golden plans: the case of `tests/test_launches.py`, and options of the scope.
PLANS = {
    "chains": ("chains", BLOCK),
    "trees": ("a long arm", BLOCK),
    "sums": ("child sums of several arities", OPERATOR),
    "hoisted": ("one argument is recurrent", OPERATOR),
    "shared": ("a shared matrix and own ones", BLOCK),
    "mixed": ("rows of two arenas", BLOCK),
    "alone": ("an operator alone", BLOCK),
    "limited": ("chains", {**BLOCK, "max_rows": 2}),
    "graphs": ("chains twice", GRAPH),
    "by_agenda": ("interleaved", {**BLOCK, "policy": "agenda"}),
}


def plan_of(name):
    case, options = PLANS[name]
    fn, samples, *_ = CASES[case]
    options = {"policy": "depth", "analysis_budget": None, **options}
    with autograd.record(), gdb.batching(**options) as batch:
        results = batch.map(fn, samples)
    del results
    return batch.plan


def test_golden_plans_are_unchanged_and_show_every_kind_of_operand():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(PLANS)
    launches = []
    for name in PLANS:
        plan = plan_of(name)
        assert str(plan) + "\n" == (GOLDEN / f"{name}.txt").read_text("utf-8")
        check_plan(plan)
        heads = heads_of(plan)
        check_transposed(plan, heads, transpose(plan, heads))
        assert (plan.rows_gathered == 0) == (len(plan.pieces) == 0)
        sizes = [n * arena.row_size for n, arena in zip(plan.sizes, plan.arenas)]
        assert plan.arena_bytes >= 4 * sum(sizes)
        launches += plan.launches
    assert {type(read) for launch in launches for read in launch.operands} == {Whole, Slice, Rows}
    layouts = {launch.segment.layout for launch in launches}
    assert layouts == {"rows", "stack", "concat", "unbatched"}


def test_the_text_of_a_plan_depends_on_the_plan_alone():
    """Kernels that another plan gets for the same segments change nothing."""
    with by_mxnets_operators():
        by_mxnet = plan_of("trees")
    text = str(by_mxnet)
    assert text.count("by MXNet: native steps are switched off") == 1
    native = plan_of("trees")
    assert set(native.graph.segments) & set(by_mxnet.graph.segments)
    assert str(by_mxnet) == text != str(native)


def test_a_transposed_plan_reads_like_a_plan():
    """The launches of trees run in reverse; a result gets the gradients of all its readers.

    j(j(a a) j(a a))    forward     {a x 9} {j x 3} {j x 2} {j} {j}: leaves, then by height
    and a long arm      backward    {j} {j} {j x 2} {j x 3} {a x 9}: a join gives both of its
                                    arguments a gradient; pieces are put together where
                                    several launches have written rows of one
    """
    plan = plan_of("trees")
    roots = plan.launches[-1]
    heads = heads_of(plan, plan.graph.slot0[roots.units].tolist())
    backward = transpose(plan, heads)
    check_transposed(plan, heads, backward)
    assert str(backward).splitlines() == [
        "arena 0: 24 rows of 4 float32 on cpu(0)",
        "fill    arena 0[0:1] <- 1 external array",
        "4       arena 0[12:13], arena 0[8:9] <- join x1(arena 0[0:4])",
        "3       arena 0[11:12], arena 0[7:8] <- join x1(arena 0[48:52])",
        "2       arena 0[9:11], arena 0[22:24] <- join x2(2 rows of 2 pieces)",
        "1       arena 0[1:4], arena 0[4:7] <- join x3(3 rows of 2 pieces)",
        "0       arena 0[13:22] <- a x9(9 rows of 3 pieces)",
        "fill 0  <- 2 rows of 7 pieces",
    ]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in PLANS:
        (GOLDEN / f"{case}.txt").write_text(str(plan_of(case)) + "\n", "utf-8")
