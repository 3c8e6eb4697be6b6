"""Steps in which each row reads other numbers than the next, against the loop."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb

WILD = [-np.inf, -7, -1, -0.5, 0, 0.9, 1, 2.5, 4, 5, 9, np.nan]


class Function(gluon.HybridBlock):
    """Call a function with the operators' namespace and a table, if it has one."""

    def __init__(self, function, shape=None, **options):
        super().__init__()
        self._function = function
        if shape:
            self.table = self.params.get("table", shape=shape, **options)

    def hybrid_forward(self, F, *args, **parameters):
        return self._function(F, *args, *parameters.values())


def made(function, *shape, **options):
    block = gdb.convert(Function(function, *shape, **options))
    block.initialize(mx.init.Normal(1))
    block.hybridize()
    return block


def arrays_of(rng, *shapes, dtype="float64"):
    arrays = [mx.nd.array(rng.normal(size=shape), dtype=dtype) for shape in shapes]
    for array in arrays:
        array.attach_grad()
    return arrays


def outcome(block, samples, heads, batched):
    """Return results, and gradients of parameters and of arguments that have one."""
    with autograd.record():
        if batched:
            with gdb.batching() as batch:
                results = [block(*sample) for sample in samples]
            assert "by MXNet" not in str(batch.plan), batch.plan
        else:
            results = [block(*sample) for sample in samples]
    autograd.backward(results, heads)
    gradients = [a.grad for sample in samples for a in sample if a.grad is not None]
    gradients += [p.grad().tostype("default") for p in block.collect_params().values()]
    return [array.asnumpy() for array in (*results, *gradients)]


def check(block, samples, heads=None, rtol=1e-12, atol=1e-12):
    heads = heads or [mx.nd.ones_like(block(*sample)) for sample in samples]
    wanted = outcome(block, samples, heads, False)
    got = outcome(block, samples, heads, True)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol, atol)
    return got


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_of_rows_are_clipped(kind, dtype):
    """What is no number is the first row, and so is what is far below."""
    places = [p for p in WILD if np.isfinite(p) or kind.startswith("float")]
    block = made(
        lambda F, x, table: F.Embedding(x, table, input_dim=5, output_dim=3, dtype=dtype),
        (5, 3),
        dtype=dtype,
    )
    samples = [(mx.nd.array(np.array(places[k:]), dtype=kind),) for k in (0, 2, 7, 7)]
    got = check(block, samples)
    assert got[-1].sum() == 3 * sum(len(sample[0]) for sample in samples)


@pytest.mark.parametrize("computed", [False, True])
def test_tables_may_come_from_outside_or_be_computed(computed):
    block = made(lambda F, x, table: F.take(table, x))
    numbers = [mx.nd.array(n) for n in ([1, 4], [0], [4, 4, 2])]
    found = []
    for batched in (False, True):
        (table,) = arrays_of(np.random.default_rng(0), (5, 3))
        with autograd.record(), gdb.batching() if batched else nullcontext() as batch:
            rows = table * 2 if computed else table
            results = [block(x, rows) for x in numbers]
        autograd.backward(results)
        found.append([array.asnumpy() for array in (*results, table.grad)])
    assert "by MXNet" not in str(batch.plan)
    for got, wanted in zip(*found):
        np.testing.assert_array_equal(got, wanted)


def test_numbers_of_rows_wrap_around():
    block = made(lambda F, x, table: F.take(table, x, mode="wrap"), (5, 2, 2), dtype="float64")
    check(block, [(mx.nd.array([number, -6, 11]),) for number in range(4)])


def test_gradients_of_tables_may_be_sparse():
    block = gdb.convert(nn.Embedding(6, 3, sparse_grad=True))
    block.initialize(mx.init.Normal(1))
    block.hybridize()
    check(block, [(mx.nd.array([1, 4]),), (mx.nd.array([4]),)], rtol=1e-6)
    assert block.weight.grad().stype == "row_sparse"


def test_sums_of_rows_of_tables_are_one_product():
    def function(F, words, place, table):
        options = {"input_dim": 4, "output_dim": 3, "dtype": "float64"}
        return F.Embedding(words, table, **options) + F.Embedding(place, table, **options)

    block = made(function, (4, 3), dtype="float64")
    lengths = (1, 3, 2)
    samples = [(mx.nd.array(np.arange(n) % 2), mx.nd.arange(n)) for n in lengths]
    check(block, samples)
    with gdb.batching() as batch:
        results = [block(*sample) for sample in samples]
    assert len(results) == 3
    assert "out0 = param0[in0]\n    out0 += param0[in1]" in str(batch.plan), batch.plan


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_picked_elements(mode, kind):
    rng = np.random.default_rng(1)
    places = [p for p in WILD if np.isfinite(p)] + [np.nan] * (mode == "clip" and kind == "float32")
    block = made(lambda F, x, place: F.pick(x, place, mode=mode))
    check(block, [(*arrays_of(rng, (1, 5)), mx.nd.array([p], dtype=kind)) for p in places])


def test_what_is_not_picked_gets_no_gradient_whatever_there_is():
    block = made(lambda F, x, place: F.pick(x, place))
    samples = [(*arrays_of(np.random.default_rng(2), (1, 4)), mx.nd.array([k])) for k in (0, 3)]
    *_, first, second = check(
        block, samples, [mx.nd.array([g], dtype="float64") for g in (np.inf, np.nan)]
    )
    np.testing.assert_array_equal(first, [[np.inf, 0, 0, 0]])
    np.testing.assert_array_equal(second, [[0, 0, 0, np.nan]])


def test_the_gradient_of_a_maximum_goes_to_all_places():
    block = made(lambda F, x: F.max(F.concat(x, x * 1, dim=1), axis=1) + F.min(x, axis=1))
    arrays = [mx.nd.array([row], dtype="float64") for row in ([1, 2, 2], [3, 3, 3], [0, np.nan, 1])]
    for array in arrays:
        array.attach_grad()
    *_, one, other, last = check(block, [(array,) for array in arrays])
    np.testing.assert_array_equal([one[0], other[0]], [[1, 2, 2], [3, 3, 3]])
    np.testing.assert_array_equal(last, [[0, 0, 0]])


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(
    "count, m, k, n", [(1, 1, 3, 5), (2, 3, 2, 1), (3, 4, 7, 20), (1, 33, 1, 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_matrices_of_each_row(turned, count, m, k, n, dtype):
    left, right = [(count, m, k), (count, k, n)]
    left, right = ((c, b, a) if t else (c, a, b) for (c, a, b), t in zip((left, right), turned))
    block = made(
        lambda F, a, b: F.batch_dot(a, b, transpose_a=turned[0], transpose_b=turned[1]) * 2
    )
    rng = np.random.default_rng(3)
    samples = [arrays_of(rng, left, right, dtype=dtype) for _ in range(3)]
    heads = arrays_of(rng, *[(count, m, n)] * 3, dtype=dtype)
    check(block, samples, heads, *([1e-4, 1e-5] if dtype == "float32" else []))


def test_a_sample_whose_loss_is_left_out_adds_nothing():
    """Also if its values are infinite, and what is multiplied differs from row to row."""

    def attend(F, query, memory, table):
        weights = F.softmax(F.dot(F.dot(query, table), memory, transpose_b=True))
        return F.dot(weights, memory)

    block = made(attend, (3, 3), dtype="float64")
    samples = [arrays_of(np.random.default_rng(k), (1, 3), (4, 3)) for k in range(3)]
    samples[1][1][:] = np.inf
    with autograd.record():
        with gdb.batching() as batch:
            # What is computed is merged; what is from outside is not.
            results = [block(query, memory * 1) for query, memory in samples]
        kept = results[0] + results[2]
    assert "= work" in str(batch.plan) and " . " in str(batch.plan), batch.plan
    kept.backward()
    got = block.table.grad().asnumpy()
    with autograd.record():
        wanted = block(*samples[0]) + block(*samples[2])
    wanted.backward()
    np.testing.assert_allclose(got, block.table.grad().asnumpy(), 1e-12)
    assert (samples[1][1].grad.asnumpy() == 0).all()
