"""Exact numbers of launches: which calls merge, and which must not, per granularity and policy.

The comment of a case draws its minibatch, and says how many launches it needs and why; values and
gradients are compared with the loop.  A letter is a call of that cell, an arrow a dependence.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.lower import expand
from gluon_dynbatch.lower.cut import MOST_TERMS
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import (
    WIDTH,
    Attention,
    ChildSum,
    TreeNet,
    array,
    attached,
    binary,
    cell,
    chain,
    complete,
    inputs,
    launches,
    ready,
    tree,
    unary,
)
from tests.common import ALL

A, B, C = (ready(unary(prefix=f"{name}_")) for name in "abc")
JOIN, CHILD_SUM = ready(binary(prefix="join_")), ChildSum(prefix="child_sum_")
WIDE = ready(gdb.convert(nn.Dense(2 * WIDTH, in_units=WIDTH, prefix="wide_")))
FOREST = ready(TreeNet(CHILD_SUM))
#: It never merges: its gradient ignores the head gradient, so unused samples would get one too.
OUTPUT = cell(lambda F, x: F.SoftmaxOutput(F.tanh(x), F.argmax(x, axis=1)), prefix="output_")
EVERY = tuple(POLICIES)
X, Y = inputs(2)
LOOKUP, OTHER = (ready(Attention(prefix=prefix)) for prefix in ("lookup_", "other_"))
MEMORIES, TRAINED = ([array(5, WIDTH, seed=k) for k in (0, 1)] for _ in range(2))
(TRAINED_ROW,) = attached(inputs(1))
LARGE = [array(900, WIDTH, seed=k) for k in (0, 1)]
attached(TRAINED + LARGE)
#: Arrays of several rows, and variables, one for each of four samples.
ROWS, OWN = ([array(3, WIDTH, seed=4 * k + i) for i in range(4)] for k in (1, 2))
attached(OWN)
WEIGHTS = attached([array(WIDTH, WIDTH, seed=k) for k in (2, 3)])
STEPS = [inputs(6)[:3], inputs(6)[3:]]
#: A tree with a long arm of five leaves, which needs a launch per joint.
ARM = ((((X, X), X), X), X)


class Leaky(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, WIDTH))

    def hybrid_forward(self, F, x, scale):
        return F.broadcast_mul(x, F.LeakyReLU(scale, slope=0.1))


def unpacked(net):
    return lambda sample: net(*sample)


def run_tree(shape):
    return tree(A, JOIN, shape)


def chains(*cells):
    return list(zip(cells, inputs(len(cells))))


def nested(F, x, children):
    """Return ``tanh`` of nested sums of sigmoids of children, as deep as there are children."""
    total = F.add_n(*[F.sigmoid(child) for child in children])
    for _ in range(len(children)):
        total = F.add_n(total, x)
    return F.tanh(total)


def views(h):
    return [h[i : i + 1] for i in range(len(h))] + [h[1].reshape((1, -1)), h.reshape((-1, WIDTH))]


def two_views(rows):
    memory = A(rows)
    top = [LOOKUP(x, memory[0:2]) for x in inputs(2)]
    return top + [OTHER(x, memory[2:4]) for x in inputs(2)]


def shared_and_own(x):
    state = A(x)
    return LOOKUP(state, MEMORIES[0]) + OTHER(state, mx.nd.concat(x, A(x), dim=0))


def halves(sample):
    half, x = sample
    return A(WIDE(x).reshape((2, WIDTH))[1:2] if half else A(x))


def two(F, x, h, left, right):
    """Add the products of two arguments with weights; either argument may be recurrent."""
    x = F.FullyConnected(x, left, no_bias=True, num_hidden=WIDTH)
    h = F.FullyConnected(h, right, no_bias=True, num_hidden=WIDTH)
    return F.tanh(x + h)


def recurrent(position):
    """Run `two` over steps: its last result is no argument (0), the second (1) or the first (2)."""
    net = cell(two)

    def run(xs):
        states = xs[:1]
        for x in xs:
            arguments = [(x, x), (x, states[-1]), (states[-1], x)][position]
            states.append(net(*arguments, *WEIGHTS))
        return states

    return run


#: A step of a state with two parts, the second of which depends on itself alone.
PARTS = cell(lambda F, a, b: [F.tanh(a * b), F.sigmoid(b)])
SUMMED = cell(lambda F, x, children: F.add_n(x, *[F.sigmoid(child) for child in children]))
MIXED = cell(lambda F, h, children: [F.tanh(F.add_n(F.sigmoid(h), *[F.relu(x) for x in children]))])


def steps_of(net, state, extra_arguments):
    """Run a cell over its own results, with extra arguments in each step."""
    for extra in extra_arguments:
        state = net(*state, *extra)
        state = state if isinstance(state, list) else [state]
    return state[0]


def each(launches):
    return dict.fromkeys(GRANULARITIES, launches)


def with_children(*counts):
    return [(attached(inputs(1))[0], attached(inputs(count))) for count in counts]


#: By name: the program of a sample, samples, policies, and per granularity the number of launches
#: or their widths.
CASES = {
    # a
    # a -> a -> a      a launch per step of the longest chain: {a a a} {a a} {a}
    # a -> a           at "graph", samples with equal calls merge, or else single calls
    "chains": (
        chain, chains([A], [A] * 3, [A] * 2), EVERY, {"block": 3, "operator": 3, "graph": 3},
    ),
    "chains twice": (
        chain, chains([A], [A] * 3, [A] * 2) * 2, EVERY,
        {"block": 3, "operator": 3, "graph": 1 + 3 + 2},
    ),
    #     j           j               heights 1, 2 and 3 in one minibatch:
    #    / \        /   \             a launch of all leaves, then one per height
    #   a   a      j     j
    #             / \   / \
    "complete trees": (
        run_tree, [complete(h, x) for h, x in zip((1, 2, 3, 1, 2, 3), inputs(6))], EVERY,
        {"block": 4, "operator": 4, "graph": 3 + 7 + 15},
    ),
    # The arm needs one launch per joint; the balanced tree shares the first two of them.
    "a long arm": (run_tree, [ARM, complete(2, Y)], EVERY, {"block": [9, 3, 2, 1, 1]}),
    # a -> b -> a -> b       joined      {a} {b b} {a a} {b b} {a}
    # b -> a -> b -> a
    "interleaved": (
        chain, chains([A, B, A, B], [B, A, B, A]), EVERY, {"block": 5, "operator": 5},
    ),
    # b -> c -> a -> c       {b} {c} {a a} {c c c} {b b}       grouped from the sinks
    # a -> c -> b
    # c -> b
    "late beginnings": (
        chain, chains([B, C, A, C], [A, C, B], [C, B]), ("search",), {"block": [3, 2, 2, 1, 1]},
    ),
    # c -> b -> a -> b -> a       {c} {b} {a a} {b} {a a} {c}       grouped toward the lower bound
    # a -> a -> c
    "late ends": (
        chain, chains([C, B, A, B, A], [A, A, C]), ("search",), {"block": [2, 2, 1, 1, 1, 1]},
    ),
    # n(n(. .) n(. .))   and   n(. .)
    # block:     {leaves x 6}, {n x 3}, {n}.
    # operator:  {leaves}, {W x for the inner nodes}, then a launch per height: as all nodes have
    #            equally many children, the work per child is not split off.
    "child sums of one arity": (
        FOREST, [([[[], []], [[], []]], X), ([[], []], Y)], ("depth",),
        {"block": [6, 3, 1], "operator": [6, 4, 3, 1]},
    ),
    # n(n(.))     n(n(. .))
    # operator:  {leaves}, {W x for the inner nodes}, then per height a launch for each number of
    #            children, as in "block": splitting off the work per child would save none.
    "child sums of two arities": (
        FOREST, [([[[]]], X), ([[[], []]], Y)], ("depth",),
        {"block": [3, 2, 1, 1], "operator": [4, 3, 2, 1, 1]},
    ),
    # n(n(.))     n(n(. .) n(. .))     n(n(. . .) n(. . .) n(. . .))
    # block:     leaves, then per height one launch for each number of children: 1 + 3 + 3.
    # operator:  per-child work merges whatever the number of children: 1 + 4 + 9 leaves,
    #            2 + 3 + 4 inner nodes; children of the lower height, then of the upper one.
    "child sums of several arities": (
        FOREST, list(zip([[[[]] * n] * n for n in (1, 2, 3)], inputs(3))), ("depth",),
        {"block": 7, "operator": [14, 14, 9, 6, 6, 3]},
    ),
    # One result of a step reads both results of the last step, the other one of them: one launch.
    "a result that reads less": (
        lambda x: steps_of(PARTS, [x, x], [()] * 3), inputs(2), ("depth",), {"operator": [2, 2, 2]},
    ),
    # The terms of children run in one launch for all steps; the term of the state runs in its step.
    "a term that every step has": (
        lambda x: steps_of(MIXED, [x], [([x],), ([x, x],), ([x],)]), inputs(2), ("depth",),
        {"operator": [8, 2, 2, 2]},
    ),
    # {a x 3} {tanh, argmax x 3} {output} {output} {output}: the calls around it merge.
    "an operator alone": (
        lambda x: OUTPUT(A(x)), inputs(3), ("depth",),
        {"block": [3, 1, 1, 1], "operator": [3, 3, 1, 1, 1]},
    ),
    # Operators on lazy arrays: *, +, concat and sum between cells are a launch each.
    "operators": (
        lambda x: (lambda h: mx.nd.concat(h * 2, h + x, dim=1).sum(axis=1))(A(x)), inputs(7),
        ("depth",), {"block": 5, "graph": 5},
    ),
    # The sigmoids of all children, and tanh of all sums.
    "nested sums": (
        unpacked(cell(nested)), with_children(1, 2, 3), ("depth",),
        {"operator": 2},
    ),
    # A long sum within another sum needs no launch of its own.
    "long sums": (
        unpacked(cell(lambda F, x, c: F.tanh(F.add_n(F.add_n(*c), x)))),
        with_children(2, MOST_TERMS + 2), ("depth",), {"operator": 1},
    ),
    # The sigmoids of all children, {a x 6}, and the sums, in the cell or not, in one launch.
    "sums that are results": (
        lambda sample: [SUMMED(*sample), mx.nd.add_n(*map(A, sample[1]))], with_children(1, 2, 3),
        ("depth",), {"operator": [6, 6, 6]},
    ),

    # Differences that prevent merging, and differences that do not
    "two cells with equal weights are two cells": (
        lambda cell, x: cell(x), list(zip([A, B, A, B], inputs(4))), ("depth",), each(2),
    ),
    # Only another dtype needs another launch; another number or length of rows does not.
    "types": (
        cell(lambda F, x: F.LeakyReLU(x, slope=0.1)),
        [*map(mx.nd.ones, [(1, 3), (2, 3), (5, 3), (1, 4)]), mx.nd.ones((1, 3), dtype="float64")],
        ("depth",), {"block": 2, "operator": 2},
    ),
    # It draws nothing, so one result serves all calls.
    "LeakyReLU of a parameter": (ready(Leaky()), inputs(6), ("depth",), {"block": [6]}),
    # Queries are concatenated along rows; the shared memory is passed unchanged.
    "a memory that all samples read": (
        unpacked(LOOKUP), [(x, MEMORIES[0]) for x in inputs(6)], ("depth",), each(1),
    ),
    # Memories of the samples are stacked; large trained ones are two shared weights.
    "two memories": (
        unpacked(LOOKUP), list(zip(inputs(6), MEMORIES * 3)), ("depth",), {"block": 1},
    ),
    "two small trained memories": (
        unpacked(LOOKUP), list(zip(inputs(6), TRAINED * 3)), ("depth",), {"block": 1},
    ),
    "two large trained memories": (
        unpacked(LOOKUP), list(zip(inputs(6), LARGE * 3)), ("depth",), {"block": 2},
    ),
    # A variable that only one call of a launch would read is not a weight.
    "own variables as second operands": (
        unpacked(lambda x, own: own - A(x) * own), list(zip(ROWS, OWN)),
        ("depth",), {"block": [4, 4, 4], "operator": [4, 4, 4]},
    ),
    "an own weight in each of three steps": (
        unpacked(lambda x, own: chain([lambda y: LOOKUP(y, own)] * 3, x)),
        list(zip(inputs(4), OWN)),
        ("depth",), {"block": [4, 4, 4]},
    ),
    # {a} {lookup x 2: rows 0 and 1} {other lookup x 2: rows 2 and 3}
    "two views of one array are two shared arrays": (
        two_views, [mx.nd.concat(*inputs(4), dim=0)], ("depth",), {"block": [2, 2, 1]},
    ),
    # {a x 6} {concat x 3} {lookup x 3} {other lookup x 3} {+ x 3}
    "a shared matrix and own ones": (shared_and_own, inputs(3), ("depth",), {"block": 5}),
    # {wide x 2} {a} {a x 3}
    "rows of two arenas": (
        halves, list(zip((True, False, True), inputs(3))), ("depth",), {"block": [3, 2, 1]},
    ),
    # Initial states made inside the scope take no launch per sample.
    "equal zeros": (
        lambda _: A(mx.nd.zeros((1, WIDTH))), range(5), ("depth",), {"block": [5]},
    ),
    # A shared initial state is a row of each call, even if it is a variable.
    "a row that some samples share": (
        unpacked(JOIN), list(zip(inputs(8), [*[Y] * 3, *[TRAINED_ROW] * 3, *inputs(2)])),
        ("depth",), {"block": 1, "operator": 1},
    ),
    # Rows, slices and reshapes of a lazy array are not calls.
    "views": (
        lambda x: [A(y) for y in views(A(x))], [mx.nd.ones((n, WIDTH)) for n in (3, 5)],
        ("depth",), {"block": [12, 2]},
    ),
    # Three steps of two samples: products of arguments that are not recurrent share a launch.
    "no argument is recurrent": (
        recurrent(0), STEPS, ("depth",), {"operator": [6]},
    ),
    "one argument is recurrent": (
        recurrent(1), STEPS, ("depth",), {"operator": [6, 2, 2, 2]},
    ),
    "the other is recurrent": (
        recurrent(2), STEPS, ("depth",), {"operator": [6, 2, 2, 2]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_programs_need_exactly_these_launches(name):
    fn, samples, policies, wanted = CASES[name]
    params = [p for net in (A, B, C, JOIN, CHILD_SUM) for p in net.collect_params().values()]
    for granularity, number in wanted.items():
        for policy in policies:
            widths = launches(fn, samples, granularity, policy, params=params)
            assert (widths if isinstance(number, list) else len(widths)) == number, granularity


def test_three_rotations_of_three_cells_need_the_best_order():
    """At equal depth no two calls meet; the best order needs two passes of every cell but one.

    a -> b -> c       c -> a -> b       b -> c -> a       {a} {b b} {c c c} {a a} {b}
    """
    samples = chains([A, B, C], [C, A, B], [B, C, A])
    counts = [len(launches(chain, samples, "block", policy)) for policy in POLICIES]
    assert 9 > counts[0] >= counts[1] >= counts[2] == 5


def test_weights_are_not_copied_where_calls_would_not_merge_anyway():
    batch = check_against_loop(
        lambda x: chain([lambda y, w=w: mx.nd.dot(y, w) for w in WEIGHTS * 2], A(x)), inputs(1),
        granularity="block", policy="depth",
    )  # fmt: skip
    assert [launch.segment.shared for launch in batch.plan.launches] == [(), *[(1,)] * 4]


def doubled(F, x, _):
    """As a single sum, the last one would have 2 ** 40 terms."""
    total = x
    for _ in range(40):
        total = F.add_n(total, total)
    return F.tanh(total * 2.0**-40)


def test_sums_that_repeat_sums_stay_short():
    options = {"granularity": "operator", "policy": "depth"}
    batch = check_against_loop(unpacked(cell(doubled)), with_children(0, 0, 0), **options)
    assert np.diff(batch.plan.graph.term0).max() <= MOST_TERMS


@ALL
@pytest.mark.parametrize("product", [False, True])
def test_different_halves_of_one_product(product, granularity):
    """The calls differ only in the half that they return, and must not count as equal."""

    def half(index):
        def take(F, x, weight):
            if product:
                x = F.FullyConnected(x, weight, num_hidden=WIDTH, no_bias=True)
            return F.split(x, num_outputs=2, axis=1)[index]

        return cell(take)

    first, second = half(0), half(1)
    xs = inputs(2) if product else [mx.nd.arange(4).reshape((1, 4)).astype("int32")]
    check_against_loop(
        lambda x: [first(x, WEIGHTS[0]), second(x, WEIGHTS[0]), first(x + 1, WEIGHTS[0])], xs,
        granularity=granularity, policy="depth",
    )  # fmt: skip


def test_with_very_many_callees_nothing_is_recurrent(monkeypatch):
    """The plan is right but not the best; the table of edges between callees would be too large."""
    monkeypatch.setattr(expand, "MOST_EDGES", 0)
    check_against_loop(lambda x: JOIN(x, JOIN(x, Y)), inputs(2), granularity="operator")
