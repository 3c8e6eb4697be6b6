"""Gradients equal those of the loop, in whatever way the backward pass is started."""

import contextlib
import gc

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.run.gradient import forget
from gluon_dynbatch.testing import check_against_loop
from tests.cells import (
    SQUARING,
    attached,
    cell,
    dense,
    equal,
    gradients,
    inputs,
    make_cells,
    tree_losses,
)
from tests.common import ALL, FIXED, SCOPES, arrays, loop_and_scope, prepared, same_as_loop
from tests.depth import rotate
from tests.inside import nodes_of_mxnets_tape

HEADS = {
    "sum": lambda losses: sum(losses).backward(),
    "concat": lambda losses: mx.nd.concat(*losses, dim=0).mean().backward(),
    "add_n": lambda losses: mx.nd.add_n(*losses).backward(),
    "list": lambda losses: autograd.backward(losses),
    "one by one": lambda losses: [loss.backward(retain_graph=True) for loss in losses],
    "twice": lambda losses: [autograd.backward(losses, retain_graph=True) for _ in range(2)],
    "twice, added": lambda losses: [
        autograd.backward(losses, retain_graph=again) for again in (True, False)
    ],
    "weighted": lambda losses: autograd.backward(
        losses, [mx.nd.array([i + 0.5]) for i, _ in enumerate(losses)]
    ),
    "some": lambda losses: losses[2].backward(),
}
#: Heads that are computed from the losses, which autograd has to record.
JOINED = ("sum", "concat", "add_n")
#: Several backward passes, whose gradients add up.
ADDED = ("one by one", "twice, added")


HOW = [(name, how) for name in HEADS for how in ("inside", "after", "recorded inside")]


@pytest.mark.parametrize("case, granularity", rotate(HOW, GRANULARITIES))
def test_all_ways_to_go_backward_give_the_gradients_of_the_loop(case, granularity):
    """The backward pass starts in or after the scope; autograd records around or in the scope."""
    name, how = case
    net = make_cells()
    net.collect_params().setattr("grad_req", "add" if name in ADDED else "write")

    def run(scope):
        net.collect_params().zero_grad()
        recording = autograd.record()
        outer, inner = (scope, recording) if how == "recorded inside" else (recording, scope)
        with outer:
            with inner:
                losses = tree_losses(net)
                if how != "after":
                    HEADS[name](losses)
            if how == "after" and name in JOINED:
                HEADS[name](losses)
        if how == "after" and name not in JOINED:
            HEADS[name](losses)
        return gradients(net)

    wanted, _ = loop_and_scope(run, granularity=granularity)
    assert any(np.abs(g).max() > 0 for g in wanted)


@ALL
def test_autograd_grad_on_inputs(granularity):
    net = make_cells()
    xs = inputs(4)

    def run(scope):
        attached(xs)
        with autograd.record(), scope:
            states = [net.child_sum(net.linear(x), [x], [x])[i % 2] for i, x in enumerate(xs)]
            total = sum(s.sum() for s in states)
        return autograd.grad(total, [*xs, net.child_sum.hidden.weight.data()])

    loop_and_scope(run, granularity=granularity)


def test_no_gradient_is_computed_for_arrays_in_no_graph():
    """The inputs of the first layer get no gradient; the second layer passes its gradient on.

    x -> linear -> head -> loss     no x is a variable     head passes on, linear does not
                                    some x are variables   both do, for the rows of all x
    """
    net, xs = make_cells(), inputs(3)

    def backward_plan(variables):
        attached(variables)
        with autograd.record(), gdb.batching(granularity="block", policy="depth") as batch:
            losses = [net.head(net.linear(x)) for x in xs]
        autograd.backward(losses)
        plan = batch.backward_plan
        assert [launch.number for launch in plan.launches] == [1, 0]
        return [launch.outputs[0] is not None for launch in plan.launches], plan.results

    passing, (result,) = backward_plan([])
    assert passing == [True, False] and result is None
    passing, (result,) = backward_plan(xs[1:])
    assert passing == [True, True] and result is not None


class Signs(gdb.DynamicHybridBlock):
    """No gradient flows through it, although its inputs are in the graph."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = self.params.get("w", shape=(1, 3))

    def hybrid_forward(self, F, x, w):
        return F.broadcast_add(F.sign(x), F.sign(w))


#: Losses of a cell, samples, an array `b` that was computed before the scope, and a variable `a`.
WITHOUT_GRADIENT = {
    "operators alone": lambda net, xs, b, a: [mx.nd.sign(2 * mx.nd.sign(x)).sum() for x in xs],
    "cells alone": lambda net, xs, b, a: [net(x).sum() for x in xs],
    "computed before": lambda net, xs, b, a: [net(b).sum() for _ in xs],
    "beside a gradient": lambda net, xs, b, a: [(net(x) * a).sum() for x in xs],
    "dropped": lambda net, xs, b, a: [(net(x) * a).sum() for x in xs][1:],
    "behind a gradient": lambda net, xs, b, a: [net(mx.nd.tanh(x * a)).sum() for x in xs],
    "an index": lambda net, xs, b, a: [mx.nd.pick(net(b) * a, x[:, 0]).sum() for x in xs],
}


@ALL
@pytest.mark.parametrize("way", WITHOUT_GRADIENT)
def test_arrays_that_no_gradient_reaches_get_zeros(way, granularity):
    """As in the loop, zeros overwrite the gradients that were there before."""

    def run(scope):
        net = Signs()
        net.initialize(mx.init.One())
        net.hybridize()
        samples = [mx.nd.array([[1, -2, 3.0]]) * k for k in (1, 2, 3)]
        source, factor = mx.nd.ones((1, 3)), mx.nd.ones((1, 3))
        grads = [x.grad for x in attached([*samples, source, factor])] + [net.w.grad()]
        for grad in grads:
            grad[:] = 5
        with autograd.record():
            computed = 2 * source
            with scope:
                losses = WITHOUT_GRADIENT[way](net, samples, computed, factor)
        autograd.backward(losses)
        return grads

    wanted, _ = loop_and_scope(run, 1e-7, 0, granularity=granularity)
    assert any((gradient == 0).all() for gradient in wanted)


@ALL
def test_a_parameter_that_is_frozen_and_thawed(granularity):
    """The tapes are equal, so the plan is cached, but the backward passes differ."""
    embedding = prepared(nn.Embedding(5, 3))
    (scale,) = attached([mx.nd.ones((1, 3))])
    trained = []

    def fn(word):
        return embedding(mx.nd.array([word])) * scale

    for grad_req in ("null", "write", "null", "write", "add"):
        embedding.weight.grad_req = grad_req
        weights = [] if grad_req == "null" else [embedding.weight]
        options = {"granularity": granularity, "policy": "depth"}
        batch = check_against_loop(fn, (1, 2, 1), weights, **options)
        trained.append(bool(weights and np.abs(weights[0].grad().asnumpy()).sum()))
    assert batch.report.flushes[-1].cached
    assert trained == [False, True, False, True, True]


@ALL
def test_other_results_are_held_after_the_same_calls(granularity):
    """The plan is cached, but other results get gradients.

    x0 -> y0 -> z0      held: z0, z1 and first y0, then y1, at which a gradient arrives beside
    x1 -> y1 -> z1      that of its reader
    """
    net = make_cells().linear
    samples = attached(inputs(2))

    def fn(xs, kept):
        first = [net(x) for x in xs]
        return [net(y) for y in first] + [first[kept]]

    for kept in (0, 1):
        batch = check_against_loop(fn, [(samples, kept)], granularity=granularity, policy="depth")
    assert batch.report.flushes[-1].cached


@ALL
def test_a_table_that_is_also_a_weight(granularity):
    """The gradient of the lookup needs only its shape, that of the product also its values."""
    embedding = gdb.convert(nn.Embedding(5, 3))
    scores = gdb.convert(nn.Dense(5, in_units=3, params=embedding.params))
    for layer in (embedding, scores):
        layer.initialize(mx.init.Uniform(1), force_reinit=True)
        layer.hybridize()
    check_against_loop(
        lambda word: mx.nd.tanh(scores(embedding(word))),
        [mx.nd.array([k]) for k in (1, 2, 1)],
        [embedding.weight, scores.bias],
        granularity=granularity,
    )


@pytest.mark.parametrize("in_a_cell", [True, False])
def test_custom_operators_have_the_gradients_of_the_loop(in_a_cell):
    """MXNet may never finish a custom operator's backward pass within another backward pass."""
    layer = dense()
    squared = cell(lambda F, x: F.Custom(x, **SQUARING)) if in_a_cell else mx.nd.Custom
    more = {} if in_a_cell else SQUARING
    for _ in range(4):
        batch = check_against_loop(
            lambda x: squared(layer(x) ** 2, **more), inputs(5), [layer.weight], policy="depth"
        )
    (alone,) = batch.report.alone
    assert alone.calls == 5 and "may never finish its backward pass" in alone.reason


def test_arrays_that_only_a_cycle_holds_get_no_gradient():
    """An inner function that calls itself is in a reference cycle, which holds its arrays."""
    net, count = dense(), 200

    def loss(x):
        states = [x]

        def read(depth):
            states.append(net(states[0]))
            return read(depth - 1) if depth else states[-1].sum()

        return read(3)

    before = gc.get_threshold()
    gc.set_threshold(1_000_000)  # a collection during the loop would keep what is alive then
    try:
        with autograd.record(), gdb.batching() as batch:
            losses = [loss(x) for x in inputs(count)]
    finally:
        gc.set_threshold(*before)
    autograd.backward(losses)
    assert sum(len(fill.externals) for fill in batch.backward_plan.fills) == count


@pytest.mark.parametrize("retain", [False, True])
def test_the_backward_pass_frees_the_graph_unless_it_is_retained(retain):
    """MXNet alone would keep it as long as anything, even garbage, holds one of its arrays."""
    gc.collect()  # results that no backward pass has reached keep their graphs
    net, earlier = dense(), nodes_of_mxnets_tape()
    with autograd.record(), gdb.batching():
        losses = [net(x).sum() for x in inputs(3)]
        losses[0].wait_to_read()  # MXNet has to know of the graph
    (number,) = nodes_of_mxnets_tape() - earlier
    weight_grads = []
    for again in [True, False] if retain else [False]:
        autograd.backward(losses, retain_graph=again)
        weight_grads.append(net.weight.grad().asnumpy())
        forget(0)
        assert (number in nodes_of_mxnets_tape()) == retain
    np.testing.assert_array_equal(weight_grads[0], weight_grads[-1])


def test_head_gradients_that_are_too_large():
    """Of a larger gradient, MXNet uses the first elements."""

    def program():
        x, y = arrays((3, 2), (3, 2))
        with autograd.record():
            one = mx.nd.ones((3, 2))
            results = [one * x, one * y]
        large = mx.nd.arange(8).reshape((4, 2))
        autograd.backward(results, [large, mx.nd.array([[7, 6], [5, 4], [3, 2]])])
        return lambda: [x.grad.asnumpy(), y.grad.asnumpy()]

    same_as_loop(program)


def test_an_array_that_is_shared_by_some_calls_and_one_of_many_for_others():
    def program():
        shared, *own = arrays(*[(2,)] * 4)
        with autograd.record():
            scaled = [2 * mx.nd.ones((2,)) * x for x in own]
            one = shared - scaled[0]
            many = [a * b for a, b in zip([shared, *own], [*scaled, one])]
            loss = mx.nd.add_n(*many, one).sum()
        loss.backward()
        return lambda: [x.grad.asnumpy() for x in (shared, *own)]

    same_as_loop(program, SCOPES)


@pytest.mark.parametrize("context", [mx.cpu(), mx.cpu(1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_heads_without_gradients_have_gradients_of_ones(dtype, context):
    """Heads of several shapes, some of them the same array; ones are never written to."""
    w = mx.nd.array([[2.0, 3.0]], dtype=dtype, ctx=context)
    w.attach_grad()
    computed = []
    for given in (False, True, False):
        with autograd.record(), gdb.batching():
            heads = [(w * i).sum() for i in range(1, 7)] + [w * w] * 3 + [w.reshape((2, 1)) + w]
        ones = [mx.nd.ones_like(head) for head in heads] if given else None
        autograd.backward(heads, ones)
        computed.append(w.grad.asnumpy())
    equal(computed[0], computed[1], 0, 0)
    equal(computed[2], computed[1], 0, 0)


VIEWS_OF_ALL = {
    "a slice": lambda y: y[0:2],
    "a row of one": lambda y: y.reshape((1, 2, 3))[0],
    "a shape": lambda y: y.reshape((2, 3)),
    "flat and back": lambda y: y.reshape((6,)).reshape((2, 3)),
    "a gradient's end": lambda y: mx.nd.BlockGrad(y),
    "itself": lambda y: y,
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", VIEWS_OF_ALL)
def test_an_array_and_a_view_of_all_of_it_are_heads(name, kept):
    """Each gives its own gradient, as in the loop, also after a later flush of the scope."""
    net, see = cell(lambda F, x: x * x), VIEWS_OF_ALL[name]
    (x,) = attached([mx.nd.array([[1, 2, 3], [4, 5, 6]])])

    def run(scope, flush):
        with autograd.record(), scope:
            y = net(x)
            z = see(y)
            if kept:
                flush()
                z = z * 2
            other = see(y)
        autograd.backward([z, y, other], [mx.nd.full((2, 3), k) for k in (1, 3, 5)])
        return x.grad.copy()

    batch = gdb.batching(policy="depth")
    wanted = run(contextlib.nullcontext(), lambda: None)
    equal([run(batch, batch.flush)], [wanted])


#: Results of a sample: a head from which its own backward pass starts, and others that are held.
OWN_HEADS = {
    "one result": lambda y: [y],
    "a sum without axes": lambda y: [y.sum()],
    "another shape": lambda y: [y.reshape((3, -1)), y],
    "the first rows": lambda y: [y[:1]],
    "rows that overlap": lambda y: [y[1:], y[:2]],
    "a row": lambda y: [y[0]],
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", OWN_HEADS)
def test_each_sample_has_a_backward_pass_of_its_own(name, front, inside):
    """MXNet frees the node of all results with the first pass; the others are recorded anew."""
    net, make = prepared(nn.Dense(3, in_units=4, flatten=False)), getattr(mx, front).array
    net.weight.grad_req = "add"
    samples = [make(np.random.RandomState(k).rand(2 + k % 2, 4), dtype="float32") for k in range(5)]

    def run(scope):
        def go_backward():
            for k in (3, 0, 4, 1, 2):
                results[k][0].backward()

        net.weight.grad()[:] = 0
        with autograd.record(), scope():
            results = [OWN_HEADS[name](net(x)) for x in samples]
            if inside:
                go_backward()
        if not inside:
            go_backward()
        return [x.asnumpy() for some in results for x in some] + [net.weight.grad().asnumpy()]

    equal(run(gdb.batching), run(contextlib.nullcontext))


@pytest.mark.parametrize("size", [1, 3])
def test_parts_without_axes(size):
    """MXNet computes them of a vector, and takes their shape for an unknown one."""
    split = cell(lambda F, x: F.split(F.tanh(x), num_outputs=size, axis=0, squeeze_axis=True))

    def run(scope):
        vectors = attached([mx.nd.arange(1, size + 1) * k for k in (1, 2, 3)])
        with autograd.record(), scope:
            parts = [split(vectors[0]), split(vectors[1]), mx.nd.split(vectors[2], size, 0, True)]
        heads = [n for part in parts for n in (part if isinstance(part, (list, tuple)) else [part])]
        autograd.backward(heads)
        return [*heads, *(x.grad for x in vectors)]

    loop_and_scope(run, **FIXED)
