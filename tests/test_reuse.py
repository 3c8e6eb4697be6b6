"""What is done once, and what again.

```text
a minibatch of         shapes, cells     kernels            a plan    runs
new cells              inferred, traced  compiled           made      yes
other rows or widths                                        made      yes
equal structure                                             known     yes
```
"""

import contextlib

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, array, binary, cell, chain, complete, inputs, ready, tree, unary
from tests.common import FIXED, by_mxnets_operators
from tests.walks import walk

#: Modules that compile a segment, that group, and that plan either direction.
COMPILE = {"kernel/compile", "kernel/express", "kernel/derivative"}
GROUP, PLAN = {"schedule/policies"}, {"plan/make"}


def trained(fn, samples, **options):
    """Run a minibatch forward and backward; return its scope, and the modules that it entered."""

    def run():
        with autograd.record(), gdb.batching(**{**FIXED, **options}) as batch:
            outputs = [fn(sample) for sample in samples]
        autograd.backward(outputs)
        return batch

    batch, modules = walk(run)
    mx.nd.waitall()
    return batch, {*modules}


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_nothing_is_compiled_for_new_widths_and_shapes(granularity):
    """Kernels belong to segments of cells: neither the minibatch nor the trees matter."""
    leaf, join = ready(unary()), ready(binary())
    x, y = inputs(2)

    def compiled(*samples):
        _, modules = trained(lambda s: tree(leaf, join, s), samples, granularity=granularity)
        assert modules >= GROUP | PLAN, "each of these minibatches is new"
        return modules & COMPILE

    assert compiled(complete(2, x)), "cells are new"
    assert not compiled(*[complete(2, x)] * 9)
    assert not compiled((x, ((x, y), y)), complete(3, y), x, (x, y))
    assert not compiled(*[complete(height, x) for height in (4, 1, 0)])


def counted(monkeypatch, owner, name):
    """Return a list that grows with each call of a method of MXNet's."""
    calls, original = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **kw: calls.append(name) or original(*a, **kw))
    return calls


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_mxnet_compiles_nothing_for_new_widths(granularity, monkeypatch):
    """The same of operators that MXNet runs: it makes one ``CachedOp`` for each segment."""
    leaf, join = ready(unary()), ready(binary())
    x, y = inputs(2)
    made = counted(monkeypatch, mx.nd.CachedOp, "__init__")

    def compiled(*samples):
        made.clear()
        trained(lambda s: tree(leaf, join, s), samples, granularity=granularity)
        return len(made)

    with by_mxnets_operators():
        assert compiled(complete(2, x))
        assert not compiled(*[complete(2, x)] * 9)
        assert not compiled((x, ((x, y), y)), complete(3, y), x)


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_shapes_are_inferred_once_whatever_the_number_of_rows(granularity, monkeypatch):
    """Once for one row, and once for several; values and gradients equal the loop."""
    embedding, norm = gluon.nn.Embedding(9, 6), gluon.nn.LayerNorm(in_channels=6)
    dense, loss = gluon.nn.Dense(4, flatten=False, in_units=3), gluon.loss.SoftmaxCrossEntropyLoss()

    def run(F, words):
        return F.sum(dense(F.reshape(norm(embedding(words)), (-1, 2, 3))), axis=1)

    net = ready(cell(run, embedding, norm, dense))
    loss.hybridize()
    asked = counted(monkeypatch, mx.sym.Symbol, "_infer_shape_impl")

    def fn(rows):
        return loss(net(mx.nd.arange(rows)), mx.nd.ones((rows,)))

    def inferred(*samples):
        asked.clear()
        trained(fn, samples, granularity=granularity)
        return len(asked)

    assert inferred(4) and inferred(1)
    assert not inferred(7, 3) and not inferred(1, 2, 8)
    check_against_loop(fn, (4, 1, 7, 3), net.collect_params(), granularity=granularity)


def cached(fn, samples, **options):
    """Compare with the loop, and return whether the plan came from the cache."""
    return check_against_loop(fn, samples, **{**FIXED, **options}).report.flushes[-1].cached


def test_plans_are_reused_for_equal_graphs():
    """Other arrays of equal structure are a cache hit; another order or structure is not."""
    leaf, join = ready(unary()), ready(binary())
    x, y, z = inputs(3)

    def run(*samples):
        return cached(lambda s: tree(leaf, join, s), samples, policy="agenda")

    assert not run((x, y), x)
    assert run((x, y), x)
    assert run((y, z), y), "other arrays in the same places"
    assert not run(x, (x, y)), "the samples in another order"
    assert not run((x, x), x), "one array where there were two"
    assert not run((x, y), x, x)
    assert run((x, y), x, x)


def test_options_and_offsets_of_reads_are_part_of_the_key_of_a_plan():
    net = ready(unary())

    def run(**options):
        return cached(lambda x: chain([net, net], x), inputs(4), **options)

    hits = [run(), run(), run(max_rows=2), run(granularity="operator"), run()]
    assert hits == [False, True, False, False, True]
    table = array(3, WIDTH)
    hits = [cached(lambda k: net(net(table)[k : k + 1]), [k]) for k in (1, 2, 1)]
    assert hits == [False, False, True], "the calls read other rows of an equal result"


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("native", [True, False])
def test_a_known_plan_only_runs(native, granularity):
    """If other results get gradients than before, only its backward pass is planned again."""
    net = ready(unary())
    samples = [array(1, WIDTH, seed=k) for k in range(4)]

    def planned(count):
        def run():
            with autograd.record(), gdb.batching(**{**FIXED, "granularity": granularity}) as batch:
                held = [net(x) for x in samples][:count]
            autograd.backward(held)
            return batch.report.flushes[-1].cached

        is_known, modules = walk(run)
        mx.nd.waitall()
        return is_known, (GROUP | PLAN) & {*modules}

    with contextlib.nullcontext() if native else by_mxnets_operators():
        first, again, fewer, fewer_again = map(planned, (4, 4, 2, 2))
    assert first == (False, GROUP | PLAN)
    assert fewer == (True, PLAN)
    assert again == fewer_again == (True, set())


@pytest.mark.parametrize("width", [3, 300])  # what is small is copied together, at once
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_known_plan_reads_arrays_that_the_engine_has_still_to_compute(width, dtype):
    """Real arrays, then results of an earlier flush, then a mixture of both have one plan."""
    block = gluon.nn.HybridLambda(lambda F, x: x * 2 + 1)
    block.hybridize()
    real = [array(1, width, seed=k).astype(dtype) for k in range(6)]
    mx.nd.waitall()

    def compute(xs):
        with gdb.batching(**FIXED) as batch:
            results = [block(x) for x in xs]
        return results, batch.report.flushes[-1].cached

    wanted = [block(x).asnumpy() for x in real]
    first, is_known = compute(real)
    twice, known_too = compute(first)  # nothing has read `first`
    mixed, always_known = compute([*first[:2], *real[2:]])
    assert (is_known, known_too, always_known) == (False, True, True)
    for k in range(len(real)):
        assert (first[k].asnumpy() == wanted[k]).all()
        assert (twice[k].asnumpy() == block(first[k]).asnumpy()).all()
        assert (mixed[k].asnumpy() == (twice if k < 2 else first)[k].asnumpy()).all()


def test_small_arrays_are_read_when_the_flush_begins():
    """What the user writes to them afterwards is too late, although nothing has been computed."""
    block = gluon.nn.HybridLambda(lambda F, x: x * 2 + 1)
    block.hybridize()
    xs = [mx.nd.full((1, 2), k) for k in range(5)]
    with gdb.batching(**FIXED):
        results = [block(x) for x in xs]
    for x in xs:
        x[:] = -1
    assert [float(y[0, 1].asscalar()) for y in results] == [2 * k + 1 for k in range(5)]


def test_an_array_that_failed_raises_its_own_error():
    """The flush waits for small arrays: it raises what MXNet raises where one is read."""
    block = gluon.nn.HybridLambda(lambda F, x: F.exp(x))
    block.hybridize()
    wrong = mx.nd.random.normal(loc=0, scale=-1, shape=(1, 2))
    with pytest.raises(mx.base.MXNetError, match="scale"):
        with gdb.batching(**FIXED):
            results = [block(x) for x in (array(1, 2), wrong)]
        results[0].asnumpy()
    with contextlib.suppress(mx.base.MXNetError):
        mx.nd.waitall()
