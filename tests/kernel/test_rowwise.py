"""Steps in which each row reads by indices of its own equal the loop."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import array, attached, cell, ready
from tests.common import loop_and_scope

WILD = [-np.inf, -7, -1, -0.5, 0, 0.9, 1, 2.5, 4, 5, 9, np.nan]


def check(net, samples, params=(), tolerance=(1e-12, 1e-12)):
    """Compare with the loop, and check that MXNet's operators run no launch."""
    plan = check_against_loop(lambda s: net(*s), samples, params, tolerance).plan
    assert "by MXNet" not in str(plan), plan
    return plan


def with_heads(net, samples, heads):
    """Compare with the loop; return results, and gradients of the first argument of each sample."""

    def run(scope):
        arrays = attached([x for x, *_ in samples])
        with autograd.record(), scope:
            results = [net(*sample) for sample in samples]
        autograd.backward(results, heads)
        return [*results, *(x.grad for x in arrays)]

    return loop_and_scope(run, 1e-12, 1e-12)[1]


@pytest.mark.parametrize("index_dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_indices_of_rows_are_clipped(index_dtype, dtype):
    """NaN selects the first row, as negative numbers do."""
    indices = [i for i in WILD if np.isfinite(i) or index_dtype.startswith("float")]
    net = ready(gdb.convert(nn.Embedding(5, 3, dtype=dtype)))
    samples = [(mx.nd.array(np.array(indices[k:]), dtype=index_dtype),) for k in (0, 2, 7, 7)]
    check(net, samples, [net.weight], (1e-12 if dtype == "float64" else 1e-6,) * 2)


def test_sums_of_rows_of_tables_are_one_product():
    def embed(F, words, positions, table):
        options = {"input_dim": 4, "output_dim": 3, "dtype": "float64"}
        return F.Embedding(words, table, **options) + F.Embedding(positions, table, **options)

    (table,) = attached([array(4, 3, dtype="float64")])
    samples = [(mx.nd.array(np.arange(n) % 2), mx.nd.arange(n), table) for n in (1, 3, 2)]
    plan = check(cell(embed), samples)
    assert "out0 = in1[in0]\n    out0 += in1[in2]" in str(plan), plan


def test_only_picked_elements_and_all_equal_maxima_get_gradients():
    net = cell(lambda F, x, index: F.pick(x, index))
    samples = [(array(1, 4, seed=k, dtype="float64"), mx.nd.array([k])) for k in (0, 3)]
    heads = [mx.nd.array([g], dtype="float64") for g in (np.inf, np.nan)]
    *_, first, second = with_heads(net, samples, heads)
    np.testing.assert_array_equal([first[0], second[0]], [[np.inf, 0, 0, 0], [0, 0, 0, np.nan]])
    net = cell(lambda F, x: F.max(F.concat(x, x * 1, dim=1), axis=1) + F.min(x, axis=1))
    rows = [[1, 2, 2], [3, 3, 3], [0, np.nan, 1]]
    samples = [(mx.nd.array([row], dtype="float64"),) for row in rows]
    *grads, last = with_heads(net, samples, [mx.nd.ones(1, dtype="float64")] * 3)
    np.testing.assert_array_equal([grads[-2][0], grads[-1][0]], [[1, 2, 2], [3, 3, 3]])
    np.testing.assert_array_equal(last, [[0, 0, 0]])
