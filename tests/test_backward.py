"""Gradients by every way there is to ask for them, in every mode, equal those of the loop."""

from __future__ import annotations

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import GRANULARITIES
from tests.strategies import (
    TREE_BATCH,
    WIDTH,
    assert_close,
    gradients,
    make_cells,
    tree_losses,
    zero_gradients,
)

HEADS = {
    "sum": lambda losses: sum(losses).backward(),
    "concat": lambda losses: mx.nd.concat(*losses, dim=0).mean().backward(),
    "add_n": lambda losses: mx.nd.add_n(*losses).backward(),
    "stack": lambda losses: mx.nd.stack(*losses).sum().backward(),
    "list": lambda losses: autograd.backward(losses),
    "one by one": lambda losses: [loss.backward(retain_graph=True) for loss in losses],
    "weighted": lambda losses: autograd.backward(
        losses, [mx.nd.array([i + 0.5]) for i, _ in enumerate(losses)]
    ),
    "some": lambda losses: losses[2].backward(),
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "after"])
@pytest.mark.parametrize("name", HEADS)
def test_ways_to_go_backward(name, inside, granularity):
    net = make_cells()
    net.collect_params().setattr("grad_req", "add" if name == "one by one" else "write")
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        with autograd.record():
            with scope:
                losses = tree_losses(net)
                if inside:
                    HEADS[name](losses)
            if not inside and name in ("sum", "concat", "add_n", "stack"):
                HEADS[name](losses)
        if not inside and name not in ("sum", "concat", "add_n", "stack"):
            HEADS[name](losses)
        found.append(gradients(net))
    assert any(np.abs(g).max() > 0 for g in found[0].values())
    assert_close(*found)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_record_may_be_entered_before_or_inside_the_scope(granularity):
    net = make_cells()
    found = []
    for order in ("loop", "record first", "scope first"):
        zero_gradients(net)
        scope = gdb.batching(granularity=granularity) if order != "loop" else nullcontext()
        if order == "scope first":
            with scope, autograd.record():
                loss = sum(tree_losses(net))
        else:
            with autograd.record(), scope:
                loss = sum(tree_losses(net))
        loss.backward()
        found.append(gradients(net))
    assert_close(found[0], found[1])
    assert_close(found[0], found[2])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_backward_twice_with_retain_graph(grad_req, granularity):
    net = make_cells()
    net.collect_params().setattr("grad_req", grad_req)
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        with autograd.record(), scope:
            loss = sum(tree_losses(net))
        loss.backward(retain_graph=True)
        once = gradients(net)
        loss.backward(retain_graph=True)
        loss.backward()
        found.append((once, gradients(net)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])
    factor = 3 if grad_req == "add" else 1
    assert_close({k: factor * v for k, v in found[1][0].items()}, found[1][1])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradients_that_add_up_over_minibatches(granularity):
    net = make_cells()
    net.collect_params().setattr("grad_req", "add")
    found = []
    for scope in (nullcontext, lambda: gdb.batching(granularity=granularity)):
        zero_gradients(net)
        for trees in (TREE_BATCH, TREE_BATCH[:1], [2, [3, [4]]]):
            with autograd.record(), scope():
                losses = tree_losses(net, trees)
            autograd.backward(losses)
        found.append(gradients(net))
    assert_close(*found)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_autograd_grad_on_inputs(granularity):
    net = make_cells()
    inputs = [mx.nd.random.uniform(-1, 1, (1, WIDTH)) for _ in range(4)]
    weight = net.gate.weight_x.data()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        for x in inputs:
            x.attach_grad()
        with autograd.record(), scope:
            states = [net.gate(net.linear(x), x)[i % 2] for i, x in enumerate(inputs)]
            total = sum(s.sum() for s in states)
        found.append([g.asnumpy() for g in autograd.grad(total, [*inputs, weight])])
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_input_gradient_requests(granularity):
    """One input writes, one adds to what is there, one has none; one is shared by all samples."""
    net = make_cells()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        mx.random.seed(1)
        inputs = [mx.nd.random.uniform(-1, 1, (1, WIDTH)) for _ in range(4)]
        for x, request in zip(inputs, ["write", "add", "null", "add"]):
            x.attach_grad(request)
        inputs[1].grad[:] = 5
        with autograd.record(), scope:
            outputs = [net.gate(x, inputs[3])[0] for x in inputs[:3]]
        autograd.backward(outputs)
        found.append([inputs[i].grad.asnumpy() for i in (0, 1, 3)])
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


class Sine(gdb.DynamicHybridBlock):
    """An operator that MXNet itself can differentiate twice."""

    def hybrid_forward(self, F, x):
        return F.sin(x)


def test_second_order_gradients_are_refused_in_words():
    """A first gradient that is silently cut from the graph would drop a gradient penalty."""
    cell = Sine()
    cell.initialize()
    cell.hybridize()
    x = mx.nd.ones((1, WIDTH))
    x.attach_grad()
    with autograd.record():
        with gdb.batching():
            y = cell(x)
        with pytest.raises(gdb.GradientError, match="gradients of gradients"):
            autograd.grad(y, [x], create_graph=True, retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), np.cos(x.asnumpy()), 1e-4)


class Passing(gdb.DynamicHybridBlock):
    """The gradient of `h` is the head gradient itself."""

    def hybrid_forward(self, F, x, h):
        made = F.sigmoid(x) * F.tanh(x * x)
        return made, made + h


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("used", [(0, 1), (1,), (0,)])
def test_a_gradient_that_passes_through_unchanged(used, granularity):
    """MXNet lets it alias the head gradient and leaves the buffer it was given unwritten.

    The loop is imperative here: hybridized, MXNet 1.9.1 fails where both results are used.
    """
    cell = Passing()
    cell.initialize()
    mx.random.seed(1)
    samples = [[mx.nd.random.uniform(-1, 1, (1 + i // 2, 4)) for _ in range(2)] for i in range(3)]
    found = []
    for scope in (None, gdb.batching(granularity=granularity)):
        cell.hybridize(scope is not None)
        for sample in samples:
            for x in sample:
                x.attach_grad()
        with autograd.record(), scope or nullcontext():
            outputs = [y for s in samples for i, y in enumerate(cell(*s)) if i in used]
        autograd.backward(outputs, [mx.nd.arange(y.size).reshape(y.shape) for y in outputs])
        found.append({str(i): x.grad.asnumpy() for i, x in enumerate(sum(samples, []))})
    assert_close(*found)


class Scaled(gdb.DynamicHybridBlock):
    """Dropout and batch normalization: what training changes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(WIDTH, in_units=WIDTH)
            self.drop = nn.Dropout(0.5)

    def hybrid_forward(self, F, x):
        return self.drop(self.dense(x))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_modes_may_change_from_call_to_call(granularity):
    """pause() cuts the gradient, predict_mode() switches dropout off, while they last."""
    net = make_cells()
    dropping = Scaled()
    dropping.initialize(mx.init.Uniform(0.8))
    dropping.hybridize()
    x = mx.nd.random.uniform(-1, 1, (1, WIDTH))
    x.attach_grad()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        dropping.collect_params().zero_grad()
        with autograd.record(), scope:
            outputs = []
            for _ in range(3):
                h = net.linear(x)
                with autograd.pause():
                    constant = net.linear(h)
                with autograd.predict_mode():
                    outputs.append(dropping(h) * constant)
                with autograd.pause(), autograd.train_mode():
                    outputs.append(net.other(h))
                outputs.append(net.other(h))
        autograd.backward([y for i, y in enumerate(outputs) if i % 3 != 1])
        found.append(
            ([y.asnumpy() for y in outputs], x.grad.asnumpy(), gradients(net), gradients(dropping))
        )
    for wanted, got in zip(found[0][0], found[1][0]):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], 1e-4, 1e-5)
    assert_close(found[0][2], found[1][2])
    assert_close(found[0][3], found[1][3])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_dropout_in_training_draws_for_every_sample(granularity):
    """The draws cannot equal the loop: kept values are scaled, the rate is right."""
    cell = Scaled()
    cell.initialize(mx.init.One())
    cell.hybridize()
    x = mx.nd.ones((1, WIDTH))
    with autograd.record(train_mode=True), gdb.batching(granularity=granularity) as batch:
        outputs = [cell(x) for _ in range(200)]
    values = np.concatenate([y.asnumpy() for y in outputs])
    assert set(np.unique(values)) == {0, 2 * WIDTH}
    assert 0.4 < (values == 0).mean() < 0.6
    assert len(np.unique(values, axis=0)) == 2**WIDTH, "samples share their draws"
    assert batch.report.launches <= 2


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.01},
    "adagrad": {"learning_rate": 0.05},
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_takes_the_same_way(optimizer, granularity):
    """Several steps with a Trainer, without waiting anywhere, end at the loop's parameters."""
    ends = []
    for batched in (False, True):
        net = make_cells()
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
        losses = []
        for step in range(6):
            trees = [[1, [step % 7, 3]], step % 5, [[5], 6, 0]]
            scope = gdb.batching(granularity=granularity) if batched else nullcontext()
            with autograd.record(), scope:
                loss = sum(tree_losses(net, trees))
            loss.backward()
            trainer.step(len(trees), ignore_stale_grad=True)
            losses.append(loss)
        values = {
            p.name.split("_", 1)[1]: p.data().asnumpy() for p in net.collect_params().values()
        }
        ends.append(({"losses": np.concatenate([x.asnumpy() for x in losses])}, values))
    assert_close(ends[0][0], ends[1][0])
    assert_close(ends[0][1], ends[1][1], 1e-3)
    assert ends[0][0]["losses"][0] != ends[0][0]["losses"][-1]


class Signs(gdb.DynamicHybridBlock):
    """No gradient flows through it, but what it reads is in the graph."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.w = self.params.get("w", shape=(1, 3))

    def hybrid_forward(self, F, x, w):
        return F.broadcast_add(F.sign(x), F.sign(w))


STALE = 5


def gradients_from_stale_ones(way, scope):
    """Return the gradients of three samples, two other arrays and a parameter after `way`."""
    net = Signs()
    net.initialize(mx.init.One())
    net.hybridize()
    samples = [mx.nd.array([[1, -2, 3.0]]) * k for k in (1, 2, 3)]
    before, after = mx.nd.ones((1, 3)), mx.nd.ones((1, 3))
    variables = [*samples, before, after]
    for x in variables:
        x.attach_grad()
    gradients = [x.grad for x in variables] + [net.w.grad()]
    for gradient in gradients:
        gradient[:] = STALE
    with autograd.record():
        computed = 2 * before
        with scope:
            losses = way(net, samples, computed, after)
    autograd.backward(losses)
    return [gradient.asnumpy() for gradient in gradients]


WITHOUT_GRADIENT = {
    "operators alone": lambda net, xs, b, a: [mx.nd.sign(2 * mx.nd.sign(x)).sum() for x in xs],
    "cells alone": lambda net, xs, b, a: [net(x).sum() for x in xs],
    "computed before": lambda net, xs, b, a: [net(b).sum() for _ in xs],
    "beside a gradient": lambda net, xs, b, a: [(net(x) * a).sum() for x in xs],
    "dropped": lambda net, xs, b, a: [(net(x) * a).sum() for x in xs][1:],
    "behind a gradient": lambda net, xs, b, a: [net(mx.nd.tanh(x * a)).sum() for x in xs],
    "an index": lambda net, xs, b, a: [mx.nd.pick(net(b) * a, x[:, 0]).sum() for x in xs],
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("way", WITHOUT_GRADIENT)
def test_what_no_gradient_flows_into_gets_zeros(way, granularity):
    """As in the loop; what was there before would stay otherwise."""
    wanted = gradients_from_stale_ones(WITHOUT_GRADIENT[way], nullcontext())
    scope = gdb.batching(granularity=granularity)
    got = gradients_from_stale_ones(WITHOUT_GRADIENT[way], scope)
    assert any((gradient == 0).all() for gradient in wanted)
    for a, b in zip(wanted, got):
        np.testing.assert_allclose(b, a)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_parameter_that_is_frozen_and_thawed(granularity):
    """The recordings are equal, so the plan is the same; what goes backward is not."""
    embedding = gdb.convert(nn.Embedding(5, 3))
    embedding.initialize(mx.init.Uniform(1))
    embedding.hybridize()
    words = [mx.nd.array([k]) for k in (1, 2, 1)]
    scale = mx.nd.ones((1, 3))
    scale.attach_grad()
    found = []
    for grad_req in ("write", "null", "write", "null", "add"):
        embedding.weight.grad_req = grad_req
        weights = [] if grad_req == "null" else [embedding.weight]
        batch = gdb.testing.check_against_loop(
            lambda word: embedding(word) * scale,
            words,
            weights,
            granularity=granularity,
            policy="depth",
        )
        found.append(np.abs(weights[0].grad().asnumpy()).sum() if weights else 0)
    assert batch.report.flushes[-1].cached
    assert [bool(total) for total in found] == [True, False, True, False, True]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_other_results_are_held_after_the_same_calls(granularity):
    """The plan is the same, but gradients arrive elsewhere."""
    net = make_cells().linear
    samples = [mx.nd.ones((1, WIDTH)) * k for k in (1, 2)]
    for x in samples:
        x.attach_grad()
    for scope in (nullcontext, lambda: gdb.batching(granularity=granularity, policy="depth")):
        found = []
        for kept in (0, 1):
            with autograd.record(), scope():
                first = [net(x) for x in samples]
                losses = [net(y) for y in first] + [first[kept]]
                del first
            autograd.backward(losses)
            found.append([x.grad.asnumpy() for x in samples])
        if scope is nullcontext:
            wanted = found
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-6)
    assert not np.allclose(wanted[0], wanted[1])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_table_that_is_also_a_weight(granularity):
    """It is looked up first, of which only its shape is needed later, and then multiplied with."""
    embedding = gdb.convert(nn.Embedding(5, 3))
    scores = gdb.convert(nn.Dense(5, in_units=3, params=embedding.params))
    for layer in (embedding, scores):
        layer.initialize(mx.init.Uniform(1), force_reinit=True)
        layer.hybridize()
    gdb.testing.check_against_loop(
        lambda word: mx.nd.tanh(scores(embedding(word))),
        [mx.nd.array([k]) for k in (1, 2, 1)],
        [embedding.weight, scores.bias],
        granularity=granularity,
    )


class Cubing(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 3 * in_data[0] * in_data[0] * out_grad[0])


@mx.operator.register("dynbatch_backward_cubing")
class CubingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Cubing()


class Cubed(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return F.Custom(self.dense(x), op_type="dynbatch_backward_cubing")


@pytest.mark.parametrize("in_a_cell", [True, False])
def test_custom_operators_train(in_a_cell):
    """MXNet may never come to the end of a custom operator's backward pass within another."""
    net = Cubed()
    net.initialize(mx.init.Normal(1))
    net.hybridize()
    samples = [mx.nd.random.normal(shape=(1, 4)) for _ in range(5)]

    def run(x):
        if in_a_cell:
            return net(x)
        return mx.nd.Custom(net.dense(x), op_type="dynbatch_backward_cubing")

    gradients = []
    for scope in (nullcontext(), *[gdb.batching(policy="depth") for _ in range(4)]):
        with autograd.record(), scope:
            results = [run(x) for x in samples]
        autograd.backward(results)
        gradients.append(net.dense.weight.grad().asnumpy())
    for gradient in gradients[1:]:
        np.testing.assert_allclose(gradient, gradients[0], 1e-4, 1e-5)
    (told,) = scope.report.alone
    assert told.calls == 5 and "may never finish its backward pass" in told.reason
