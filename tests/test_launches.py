"""Exact numbers of launches: what is merged, at which granularity, by which policy.

Every test draws its minibatch, says how many launches it needs and why, and compares the values
with the plain loop.  In the drawings a letter is a call of that cell, an arrow a dependence.
"""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.schedule import POLICIES, lower_bound
from gluon_dynbatch.scope import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import (
    WIDTH,
    Binary,
    ChildSum,
    Output,
    TreeNet,
    Unary,
    chain,
    complete,
    inputs,
    launches,
    ready,
    tree,
    widths,
)


@pytest.fixture(scope="module")
def a():
    return ready(Unary(prefix="a_"))


@pytest.fixture(scope="module")
def b():
    return ready(Unary(prefix="b_"))


@pytest.fixture(scope="module")
def c():
    return ready(Unary(prefix="c_"))


@pytest.fixture(scope="module")
def join():
    return ready(Binary(prefix="join_"))


@pytest.fixture(scope="module")
def child_sum():
    return ready(ChildSum(prefix="child_sum_"))


@pytest.mark.parametrize("policy", POLICIES)
def test_chains_of_different_lengths(a, policy):
    """As many launches as the longest chain has calls: every launch holds whoever still goes on.

        a
        a -> a                launches  {a a a} {a a} {a} {a}
        a -> a -> a -> a

    Whole graphs are merged with their like; a sample without any keeps its calls.
    """
    samples = list(zip((1, 2, 4), inputs(3)))
    for granularity, wanted in {"block": 4, "operator": 4, "graph": 4}.items():
        assert launches(lambda s: chain([a] * s[0], s[1]), samples, granularity, policy) == wanted
    for granularity, wanted in {"block": 4, "operator": 4, "graph": 3}.items():
        assert (
            launches(lambda s: chain([a] * s[0], s[1]), samples * 2, granularity, policy) == wanted
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_samples_of_one_shape(a, b, policy):
    """Whole graphs in one launch; else one launch per call of a sample, whatever their number.

    a -> b -> a       five times
    """
    for granularity, wanted in {"graph": 1, "block": 3, "operator": 3}.items():
        assert launches(lambda x: chain([a, b, a], x), inputs(5), granularity, policy) == wanted
    assert launches(lambda x: chain([a, b, a], x), inputs(1), "block") == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_complete_binary_trees(a, join, policy):
    """One launch for all leaves, then one per level: subtrees are leafward-aligned.

        j           j               height 1, 2 and 3 beside each other:
       / \\        /   \\            leaves, j over leaves, j over those, j on top
      a   a       j     j
                 / \\   / \\
    """
    samples = [complete(height, x) for height, x in zip((1, 2, 3, 1, 2, 3), inputs(6))]
    for granularity, wanted in {"block": 4, "operator": 4, "graph": 3}.items():
        assert launches(lambda s: tree(a, join, s), samples, granularity, policy) == wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_tree_with_a_long_arm(a, join, policy):
    """All leaves are ready at once, wherever they hang; the arm costs one launch per joint.

            j              leaves {a x 9}, then j at heights 1, 2, 3, 4; the balanced tree
           / \\            (height 2) finds company in the first two of them
          j   a
         / \\
        j   a              9 leaves = 5 of the arm, 4 of the balanced tree
       / \\
      j   a
     / \\
    a   a
    """
    x, y = inputs(2)
    arm = x
    for _ in range(4):
        arm = (arm, x)
    batch = check_against_loop(
        lambda s: tree(a, join, s),
        [arm, complete(2, y)],
        granularity="block",
        policy=policy,
        analysis_budget=None,
    )
    assert sorted(widths(batch)) == [1, 1, 2, 3, 9]


def test_two_cells_interleaved(a, b):
    """At equal depth the two never meet; shifted by one call, all but the first and the last do.

    a -> b -> a -> b       by depth    {a}{b} {b}{a} {a}{b} {b}{a}
    b -> a -> b -> a       joined      {a} {b b} {a a} {b b} {a}
    """
    samples = list(zip(([a, b, a, b], [b, a, b, a]), inputs(2)))
    for granularity in ("block", "operator"):
        run = {
            policy: launches(lambda s: chain(*s), samples, granularity, policy)
            for policy in POLICIES
        }
        assert run == {"depth": 5, "agenda": 5, "search": 5}


def test_three_rotations_of_three_cells(a, b, c):
    """At equal depth no two calls meet; the best order needs two passes of every cell but one.

    a -> b -> c       c -> a -> b       b -> c -> a
    """
    samples = list(zip(([a, b, c], [c, a, b], [b, c, a]), inputs(3)))
    counts, bounds = {}, set()
    for policy in POLICIES:
        batch = check_against_loop(
            lambda s: chain(*s), samples, granularity="block", policy=policy, analysis_budget=None
        )
        counts[policy] = batch.report.launches
        bounds.add(lower_bound(batch.plan.graph.dependencies))
    # {a} {b b} {c c c} {a a} {b}: every cell but one has to run twice.
    assert counts["depth"] < 9 and counts["search"] == 5
    assert max(bounds) <= counts["search"] <= counts["agenda"] <= counts["depth"]


@pytest.mark.parametrize("samples", [1, 6])
def test_diamond(a, b, c, join, samples):
    """Two arms of unlike cells are two launches, of like cells one; samples never add any.

            b                     b
          /   \\                 /   \\
        a       j      4      a       j      3
          \\   /                 \\   /
            c                     b
    """

    def unlike(x):
        middle = a(x)
        return join(b(middle), c(middle))

    def like(x):
        middle = a(x)
        return join(b(middle), b(middle))

    for policy in POLICIES:
        assert launches(unlike, inputs(samples), "block", policy) == 4
        assert launches(like, inputs(samples), "block", policy) == 3


def test_child_sum_tree_of_one_arity(child_sum):
    """Both granularities need a launch per height; at operator granularity the inputs go first.

        n(n(. .) n(. .))   and   n(. .)

    block:     {leaves x 6}, {n x 3}, {n}.
    operator:  {leaves}, {W x for the inner nodes}, then per height {per child: f c}, {sum, gates}.
    """
    net = TreeNet(child_sum)
    net.hybridize()
    samples = [([[[], []], [[], []]], inputs(2)[0]), ([[], []], inputs(2)[1])]

    def run(granularity):
        return check_against_loop(
            lambda s: net(*s), samples, granularity=granularity, analysis_budget=None
        )

    batch = run("block")
    assert widths(batch) == [6, 3, 1]
    batch = run("operator")
    assert sorted(widths(batch), reverse=True) == [6, 6, 4, 3, 2, 1]


def test_child_sum_trees_merge_across_child_counts(child_sum):
    """Per-child work merges whatever the number of children, which block granularity cannot do.

        n(n(.))     n(n(. .) n(. .))     n(n(. . .) n(. . .) n(. . .))

    block:     leaves, then per height one launch for each number of children: 1 + 3 + 3.
    operator:  leaves, inputs of all inner nodes, and per height two: the forget gates of all
               children of all nodes, and the rest, which gathers sums: 2 + 2 * 2.
    """
    net = TreeNet(child_sum)
    net.hybridize()
    shapes = [[[[]] * n] * n for n in (1, 2, 3)]
    samples = list(zip(shapes, inputs(3)))

    def run(granularity):
        return check_against_loop(
            lambda s: net(*s), samples, granularity=granularity, analysis_budget=None
        )

    assert run("block").report.launches == 7
    batch = run("operator")
    assert batch.report.launches == 6
    # 1 + 4 + 9 leaves, 2 + 3 + 4 inner nodes; children of the lower height, then of the upper one.
    assert widths(batch) == [14, 9, 14, 6, 6, 3]


def test_input_projection_of_an_lstm_is_hoisted():
    """At operator granularity ``W x`` of all steps of all sequences is one launch.

    x x x         block:     {3} {3} {2} {1} {1}: five steps, the longest sequence
    x x x x x     operator:  {9} W x of every step, then the five steps
    x
    """
    cell = gdb.convert(rnn.LSTMCell(WIDTH, input_size=WIDTH, prefix="lstm_"))
    ready(cell)
    start = [mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH))]

    def fn(steps):
        states = start
        for x in steps:
            out, states = cell(x, states)
        return out

    xs = inputs(9)
    samples = [xs[:3], xs[3:8], xs[8:]]
    options = {"params": cell.collect_params().values(), "analysis_budget": None}
    assert widths(check_against_loop(fn, samples, granularity="block", **options)) == [
        3,
        2,
        2,
        1,
        1,
    ]
    assert widths(check_against_loop(fn, samples, granularity="operator", **options)) == [
        9,
        3,
        2,
        2,
        1,
        1,
    ]


# Budgets and limits


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_analysis_is_one_launch_per_call(a, granularity):
    assert launches(lambda x: chain([a, a], x), inputs(4), granularity, analysis_budget=0) == 8


def test_more_visits_never_make_more_launches(a, b):
    samples = list(zip(([a, b, a, b], [b, a, b, a], [a, a, b], [b]), inputs(4)))
    for policy in POLICIES:
        counts = [
            launches(
                lambda s: chain(*s),
                samples,
                "block",
                policy,
                analysis_budget=gdb.Budget(visits=visits),
            )
            for visits in (0, 1, 3, 6, 12, 50, 5000)
        ]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] == 12 and counts[-1] < 12


def test_max_rows_cuts_launches(a):
    for rows, wanted in {1: 10, 3: 4, 5: 2, 9: 2, 10: 1}.items():
        assert launches(a, inputs(10), "block", max_rows=rows) == wanted


# What runs alone


def test_what_ran_alone_is_named_with_the_reason(a):
    """Three launches of one call; `a` in front of it still merges."""
    net = ready(Output(prefix="output_"))
    with gdb.batching(granularity="block", policy="depth", analysis_budget=None) as batch:
        outputs = []
        for x in inputs(3):
            outputs.append(net(a(x)))
    assert widths(batch) == [3, 1, 1, 1]
    (one,) = batch.report.alone
    assert one.calls == 3 and one.name == "output" and "SoftmaxOutput" in one.reason
    assert one.where.filename == __file__
    line = Path(__file__).read_text("utf-8").splitlines()[one.where.line - 1]
    assert line.strip() == "outputs.append(net(a(x)))"
    assert "ran alone   3 x output: Operator SoftmaxOutput" in str(batch.report)
    for x, y in zip(inputs(3), outputs):
        np.testing.assert_allclose(y.asnumpy(), net(a(x)).asnumpy(), 1e-5)


def test_at_operator_granularity_only_the_operator_runs_alone(a):
    """{a x 3} {tanh, argmax x 3} {output} {output} {output}: what surrounds it merges."""
    net = ready(Output())
    batch = check_against_loop(
        lambda x: net(a(x)), inputs(3), granularity="operator", analysis_budget=None
    )
    assert sum(one.calls for one in batch.report.alone) == 3
    assert sorted(widths(batch)) == [1, 1, 1, 3, 3]
