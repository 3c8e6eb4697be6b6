"""Memories of different lengths: calls that differ only in sizes share launches.

A program takes some steps; in each, a state attends to the memory of its sample.
"""

from functools import lru_cache

import gluonnlp as nlp
import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, Attention, attached, cell, check_invariants, launches, ready
from tests.common import arrays, semantics
from tests.depth import examples


def additive():
    return nlp.model.MLPAttentionCell(WIDTH)


def multi_head():
    """Its heads are slices of rows, moved in front of the axis of lengths."""
    inner = nlp.model.DotProductAttentionCell(scaled=True)
    return nlp.model.MultiHeadAttentionCell(inner, *[2 * WIDTH] * 3, num_heads=2)


def attention(kind):
    """Return a cell in which one row attends to the rows of a memory."""
    if kind is Attention:
        return Attention()
    inner, out = kind(), nn.Dense(WIDTH, flatten=False)

    def look(F, h, memory):
        memory = F.expand_dims(memory, 0)
        context, _ = inner(F.expand_dims(h, 1), memory, memory)
        return out(F.reshape(context, (0, -1)))

    return cell(look, inner, out, prefix=None)


class Reader(gdb.DynamicHybridBlock):
    """Attends to a memory in each step; an encoder computes its rows first, or they are given."""

    def __init__(self, kind, encoded, **kwargs):
        super().__init__(**kwargs)
        self._encoded = encoded
        self.encoder = rnn.GRUCell(WIDTH, input_size=WIDTH)
        self.attention = attention(kind)
        self.cell = rnn.GRUCell(WIDTH, input_size=WIDTH)

    def encode(self, rows):
        state, outputs = [mx.nd.zeros((1, WIDTH))], []
        for i in range(len(rows)):
            out, state = self.encoder(rows[i : i + 1], state)
            outputs.append(out)
        return mx.nd.concat(*outputs, dim=0), outputs[-1]

    def forward(self, rows, steps):
        memory, h = self.encode(rows) if self._encoded else (rows, rows[:1])
        for _ in range(steps):
            h, _ = self.cell(self.attention(h, memory), [h])
        return h, memory.mean(axis=0)


KINDS = Attention, additive, multi_head


@lru_cache(maxsize=None)
def reader(kind, encoded, **flags):
    net = Reader(kind, encoded, prefix=f"{kind.__name__.lower()}_{encoded:d}{len(flags)}_")
    ready(net, 0.8)(*samples_of([(2, 1)])[0])
    net.hybridize(**flags)
    return net


def samples_of(sizes):
    memories = arrays(*[(n, WIDTH) for n, _ in sizes])
    return [(rows, steps) for rows, (_, steps) in zip(memories, sizes)]


def compare(net, sizes, **options):
    batch = check_against_loop(net, samples_of(sizes), net.collect_params(), **options)
    check_invariants(batch)
    return batch


#: The length of each memory, and the number of steps.
SIZES = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=6)


@examples(20)
@given(
    st.sampled_from(KINDS), st.booleans(), SIZES, st.sampled_from(GRANULARITIES),
    st.sampled_from(list(POLICIES)), st.sampled_from([None, 3]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_values_and_gradients_equal_the_loop(
    kind, encoded, sizes, granularity, policy, max_rows, debug, trace_once
):
    net = reader(kind, encoded, **({"trace_once": True} if trace_once else {}))
    options = {"policy": policy, "max_rows": max_rows, "debug": debug}
    compare(net, sizes, granularity=granularity, analysis_budget=None, **options)


LENGTHS = (5, 1, 3, 7, 3, 2, 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_as_many_launches_as_with_equal_lengths(kind, encoded, granularity):
    """With "depth", samples that are encoded in fewer steps would not wait for the others."""
    net, options = reader(kind, encoded), {"granularity": granularity, "analysis_budget": None}
    for policy in set(POLICIES) - ({"depth"} if encoded else set()):
        ragged, padded = (
            compare(net, [(n, 4) for n in lengths], policy=policy, **options)
            for lengths in (LENGTHS, [max(LENGTHS)] * len(LENGTHS))
        )
        assert ragged.report.alone == []
        assert ragged.report.launches <= 1.1 * padded.report.launches, policy
        assert "x7 in 6 parts(" in str(ragged.plan)


OPERATORS = {"granularity": "operator", "policy": "depth"}
PRODUCTS = [
    lambda x: x.prod(axis=1),
    lambda x: x.prod(axis=0),
    lambda x: x.prod(),
    lambda x: x.prod(axis=-1, keepdims=True),
]


@pytest.mark.parametrize("fn", PRODUCTS)
@pytest.mark.parametrize("shapes", [
    [(2, 3), (2, 5), (2, 2)], [(2, 40), (2, 50), (2, 3)], [(40, 3), (3, 3), (50, 3)],
    [(2, 3, 4), (2, 40, 4), (2, 50, 4)],
])  # fmt: skip
def test_products_have_the_gradients_of_the_loop(front, fn, shapes):
    """Without a scope, that of a factor 0 is NaN."""
    copy = cell(lambda F, x: x * 1)
    make = mx.np.array if front == "np" else mx.nd.array
    samples = [make(x.asnumpy() * 0.5 + 1) for x in arrays(*shapes)]
    samples[0][0, 0], samples[1][1, 0] = 0, 0
    batch = check_against_loop(lambda x: fn(copy(x)), attached(samples), **OPERATORS)
    assert batch.report.launches == 2


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_triangles_of_matrices_of_all_sizes_take_one_launch(k):
    copy = cell(lambda F, x: x * 1)
    with semantics("np"):
        sizes = (3, 3), (5, 5), (2, 2), (7, 3)
        samples = attached([mx.np.random.normal(size=size) for size in sizes])
        batch = check_against_loop(lambda x: mx.np.tril(copy(x), k), samples, **OPERATORS)
        assert batch.report.launches == 2


def test_mxnets_operators_need_a_launch_for_each_length():
    net = cell(lambda F, memory: F.cumsum(memory, axis=0))
    samples = [rows for rows, _ in samples_of([(3, 0), (2, 0), (3, 0)])]
    batch = check_against_loop(net, samples, granularity="block", policy="depth")
    assert batch.report.launches == 2
    (split,) = batch.report.split
    assert (split.name, split.calls) == ("the_cell", 3)
    assert split.reason.endswith("own operators run it: operator cumsum has no native steps")
    assert f"split       3 x the_cell at {split.where}" in str(batch.report)


@pytest.mark.parametrize("join", [
    lambda rows: mx.nd.stack(*(row.reshape((WIDTH,)) for row in rows), axis=0),
    lambda rows: mx.nd.stack(*rows, axis=1),
    lambda rows: mx.nd.concat(*(row.expand_dims(0) for row in rows), dim=1),
])  # fmt: skip
def test_states_in_lists_of_any_length(join):
    """Stacked along either axis, or concatenated along the second, they become a memory."""
    net = reader(Attention, False)

    def read(sample):
        rows = [net.cell(row, [row])[0] for row in sample]
        return net.attention(rows[-1], join(rows).reshape((-1, WIDTH)))

    def count(*lengths):
        samples = [[mx.nd.ones((1, WIDTH)) * i for i in range(n)] for n in lengths]
        return len(launches(read, samples, "block", params=net.cell.collect_params()))

    assert count(2, 5, 3, 4) == count(5, 5, 5, 5)
