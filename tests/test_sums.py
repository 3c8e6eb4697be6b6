"""Sums in cells are operands: random cells full of them equal the loop, and how they merge."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.lower.cut import MOST_TERMS
from gluon_dynbatch.scope import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.strategies import check_invariants
from tests.test_oracle import examples

WIDTH = 4
#: Arguments of a cell before its children: an early one, the state, an array that samples share.
GIVEN = 3


class Line(NamedTuple):
    """An operator of a cell; what it reads are numbers of values, modulo those there are."""

    op: str
    reads: Tuple[int, ...]


class Sums(gdb.DynamicHybridBlock):
    """A cell that runs `lines` over its arguments, and returns the values that are `kept`."""

    def __init__(self, lines: Sequence[Line], kept: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.lines, self.kept = lines, kept
        with self.name_scope():
            self.dense = nn.Dense(WIDTH, in_units=WIDTH)

    def hybrid_forward(self, F: Any, early: Any, state: Any, shared: Any, children: Any) -> Any:
        values = [early, state, shared, *children]
        for op, reads in self.lines:
            read = [values[k % len(values)] for k in reads]
            if op == "children":
                made = F.add_n(*children)
            elif op == "sum":
                made = F.add_n(*read)
            elif op == "dense":
                made = self.dense(read[0])
            elif op == "view":
                made = F.reshape(F.reshape(read[0], shape=(2, -1)), shape=(1, -1))
            elif op == "alone":
                made = F.reshape(F.LRN(F.reshape(read[0], (1, -1, 1, 1)), nsize=3), (1, -1))
            else:
                made = {"+": read[0] + read[-1], "tanh": F.tanh(read[0])}[op]
            values.append(made)
        return [F.tanh(values[-1])] + [values[k % len(values)] for k in self.kept]


class Minibatch(NamedTuple):
    """Two cells, and per sample the steps: cell, and how many children it gets."""

    cells: Tuple[Tuple[List[Line], List[int]], ...]
    samples: List[List[Tuple[int, int]]]
    #: Whether results besides the state are results of the sample, or nobody reads them.
    returned: bool


def imperatively(cell: Sums, *arguments: Any) -> Any:
    """Call a cell as if it were not hybridized: MXNet fails on some whose results nobody reads."""
    return cell.hybrid_forward(mx.nd, *arguments)


def run(call: Any, cells: List[Sums], shared: Any, sample: Any, returned: bool) -> Any:
    rows, steps = sample
    state, results = rows[0], []
    for i, (cell, children) in enumerate(steps):
        made = call(cells[cell], rows[i % 4], state, shared, [rows[k] for k in range(children)])
        state = made[0]
        results += made[1:]
        mx.nd.LRN(state.reshape((1, -1, 1, 1)), nsize=3)
    return [state, results] if returned else state


def check(minibatch: Minibatch) -> None:
    random = np.random.RandomState(3)

    def variable() -> mx.nd.NDArray:
        array = mx.nd.array(random.uniform(-1, 1, (1, WIDTH)))
        array.attach_grad()
        return array

    cells = [Sums(lines, kept) for lines, kept in minibatch.cells]
    shared = variable()
    samples = [([variable() for _ in range(4)], steps) for steps in minibatch.samples]
    parameters = []
    for cell in cells:
        cell.initialize(mx.init.Uniform(0.5))
        cell.hybridize()
        parameters += cell.collect_params().values()
    for granularity in GRANULARITIES:
        calls = iter([imperatively] * len(samples) + [Sums.__call__] * len(samples))
        batch = check_against_loop(
            lambda sample: run(next(calls), cells, shared, sample, minibatch.returned),  # noqa: B023
            samples,
            parameters,
            (1e-3, 1e-4),
            granularity=granularity,
            policy="depth",
        )
        check_invariants(batch)


OPS = ["sum", "sum", "sum", "children", "tanh", "dense", "+", "view", "alone"]
READS = st.lists(st.integers(0, 11), min_size=1, max_size=3).map(tuple)
LINES = st.lists(st.builds(Line, st.sampled_from(OPS), READS), min_size=1, max_size=8)
CELLS = st.tuples(LINES, st.lists(st.integers(0, 11), max_size=2))
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=4)
MINIBATCHES = st.builds(
    Minibatch, st.tuples(CELLS, CELLS), st.lists(STEPS, min_size=1, max_size=3), st.booleans()
)
#: Sums three deep, with a term that comes twice and one that samples share.
NESTED = [Line("children", (0,)), Line("sum", (4, 0)), Line("sum", (5, 5, 2))]
TWICE = Minibatch(((NESTED, []), ([Line("tanh", (0,))], [0])), [[(0, 1), (0, 1)], [(1, 1)]], True)


@examples(30)
@given(MINIBATCHES)
@example(TWICE)
def test_random_cells(minibatch: Minibatch) -> None:
    check(minibatch)


class Nested(gdb.DynamicHybridBlock):
    """``tanh`` of sums in sums of what is computed per child."""

    def hybrid_forward(self, F: Any, x: Any, children: Any) -> Any:
        total = F.add_n(*[F.sigmoid(child) for child in children])
        for _ in range(len(children)):
            total = F.add_n(total, x)
        return F.tanh(total)


def inputs(count: int) -> List[mx.nd.NDArray]:
    random = np.random.RandomState(7)
    arrays = [mx.nd.array(random.uniform(-1, 1, (1, WIDTH))) for _ in range(count)]
    for array in arrays:
        array.attach_grad()
    return arrays


def test_nested_sums_merge_whatever_their_depth() -> None:
    """One launch for the sigmoids of all children, and one for ``tanh`` of all sums.

    With 1 child the sum is nested once, with 3 children three times.
    """
    net = Nested()
    net.hybridize()
    samples = [(inputs(1)[0], inputs(count)) for count in (1, 2, 3)]
    batch = check_against_loop(
        lambda sample: net(*sample), samples, granularity="operator", policy="depth"
    )
    assert batch.report.launches == 2


class Doubled(gdb.DynamicHybridBlock):
    """Written out as one sum, the last one would have 2 ** 40 terms."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        total = x
        for _ in range(40):
            total = F.add_n(total, total)
        return F.tanh(total * 2.0**-40)


def test_sums_that_repeat_sums_stay_short() -> None:
    net = Doubled()
    net.hybridize()
    batch = check_against_loop(net, inputs(3), granularity="operator", policy="depth")
    assert batch.plan is not None
    assert np.diff(batch.plan.graph.term0).max() <= MOST_TERMS


class Wide(gdb.DynamicHybridBlock):
    """A sum of very many terms that only another sum reads."""

    def hybrid_forward(self, F: Any, x: Any, children: Any) -> Any:
        return F.tanh(F.add_n(F.add_n(*children), x))


def test_a_long_sum_in_another_one_is_the_same_sum() -> None:
    net = Wide()
    net.hybridize()
    samples = [(inputs(1)[0], inputs(count)) for count in (2, MOST_TERMS + 2)]
    batch = check_against_loop(
        lambda sample: net(*sample), samples, granularity="operator", policy="depth"
    )
    assert batch.report.launches == 1
