"""Random programs equal the plain loop under every option; then, one by one, what users do.

The loop is in :func:`gluon_dynbatch.testing.check_against_loop`.  Every plan made on the way is
checked as well: graph, grouping, plan, and the lower bound.
"""

from __future__ import annotations

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.analysis import POLICIES, check_groups, lower_bound
from gluon_dynbatch.batch import GRANULARITIES
from gluon_dynbatch.graph import check_graph
from gluon_dynbatch.plan_check import check_plan
from gluon_dynbatch.testing import check_against_loop
from tests import strategies
from tests.strategies import (
    WIDTH,
    Cells,
    Gate,
    cells,
    dags,
    run_sequence,
    run_tree,
    sequence_batches,
    tree_batches,
)

SMALL = gdb.Budget(visits=12)


def examples(count):
    """Run `count` programs, the same ones each time; what fails is shrunk."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def groups_of(plan):
    groups = np.full(plan.units.graph.size, -1, np.int32)
    for number, launch in enumerate(plan.launches):
        groups[launch.units] = number
    return groups


def check(program, **options):
    """Compare with the loop, check all invariants, and return the number of launches."""
    batch = check_against_loop(program.fn, program.samples, program.params, **options)
    if batch.plan is None:
        assert batch.report.launches == 0
        return 0
    graph = batch.plan.units.graph
    check_graph(graph)
    check_groups(graph, groups_of(batch.plan))
    check_plan(batch.plan)
    launches = len(batch.plan.launches)
    assert lower_bound(graph) <= launches <= graph.size
    return launches


KINDS = {
    "dags": (dags(), 60),
    "trees": (tree_batches(), 30),
    "sequences": (sequence_batches(), 24),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_random_programs(granularity, policy, kind):
    strategy, count = KINDS[kind]

    @examples(count)
    @given(strategy)
    def run(program):
        options = {"granularity": granularity, "policy": policy}
        small = check(program, analysis_budget=SMALL, **options)
        full = check(program, analysis_budget=None, **options)
        assert full <= small, "more analysis made more launches"

    run()


@examples(25)
@given(strategies.PROGRAMS)
def test_without_analysis_every_call_runs_by_itself(program):
    batch = check_against_loop(program.fn, program.samples, program.params, analysis_budget=0)
    assert batch.report.launches == batch.report.nodes


@examples(25)
@given(strategies.PROGRAMS)
def test_with_all_options_automatic(program):
    check(program)
    check(program)


@examples(12)
@given(
    st.one_of(
        dags(dtypes=("float64",)),
        tree_batches(dtypes=("float64",)),
        sequence_batches(dtypes=("float64",)),
    )
)
def test_double_precision(program):
    for granularity in GRANULARITIES:
        check(program, granularity=granularity)


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(strategies.GRAD_REQS), st.sampled_from(GRANULARITIES))
def test_parameters_that_add_up_or_stay(program, grad_req, granularity):
    block = program.block
    try:
        block.embedding.collect_params().setattr("grad_req", grad_req)
        block.other.collect_params().setattr("grad_req", grad_req)
        block.child_sum.hidden.collect_params().setattr("grad_req", grad_req)
        check(program, granularity=granularity)
    finally:
        block.collect_params().setattr("grad_req", "write")


@examples(10)
@given(
    strategies.PROGRAMS,
    st.sets(st.sampled_from(["linear", "gate", "child_sum", "rows", "pool", "embedding"])),
)
def test_cells_that_are_not_hybridized(program, plain):
    """Their operators are recorded one by one, or run at once if nothing lazy reaches them."""
    block = program.block
    try:
        for name in plain:
            getattr(block, name).hybridize(False)
        check(program)
    finally:
        block.hybridize()


def test_nothing_is_recorded_of_a_block_that_is_not_hybridized():
    net = Cells()
    net.initialize()
    batch = check_against_loop(
        lambda tree: run_tree(net, tree)[0], [[1, [2]], 3], net.collect_params().values()
    )
    assert batch.report.nodes == 0


@pytest.mark.parametrize("max_rows", [1, 2, 5, 100])
@examples(4)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_max_rows_limits_every_launch(max_rows, program, granularity):
    batch = check_against_loop(
        program.fn, program.samples, program.params, max_rows=max_rows, granularity=granularity
    )
    for launch in batch.plan.launches if batch.plan else ():
        assert launch.rows <= max_rows or len(launch.units) == 1


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_debug_agrees(program, granularity):
    check_against_loop(
        program.fn, program.samples, program.params, granularity=granularity, debug=True
    )


@examples(10)
@given(strategies.PROGRAMS, st.sampled_from(GRANULARITIES))
def test_reading_values_on_the_way(program, granularity):
    """A value that is asked for splits the work into flushes and changes nothing else."""

    def fn(sample):
        result = program.fn(sample)
        for leaf in gdb.record.FLATTENER.flatten(result)[0][:1]:
            leaf.asnumpy()
        return result

    batch = check_against_loop(fn, program.samples, program.params, granularity=granularity)
    assert len(batch.report.flushes) >= len(batch.report.forced)


@examples(10)
@given(dags(dtypes=("float32",)))
def test_inference(program):
    """Without record(), nothing but values."""
    wanted = [program.fn(sample) for sample in program.samples]
    got = gdb.map(program.fn, program.samples)
    leaves, spec = gdb.record.FLATTENER.flatten(wanted)
    found, same = gdb.record.FLATTENER.flatten(got)
    assert spec == same
    for a, b in zip(leaves, found):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), 1e-4, 1e-5)


class Half(gdb.DynamicHybridBlock):
    """What of a cell runs on a CPU in half precision: neither FullyConnected nor dot."""

    def hybrid_forward(self, F, x, rows):
        scores = F.softmax(F.broadcast_mul(x, rows), axis=-1)
        return F.tanh(scores), F.mean(rows, axis=0, keepdims=True) * x


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_half_precision(granularity):
    cell = Half()
    cell.initialize()
    cell.hybridize()
    random = np.random.RandomState(0)
    samples = []
    for rows in (1, 3, 3, 2):
        samples.append(
            [mx.nd.array(random.uniform(-1, 1, (n, 4)), dtype="float16") for n in (1, rows)]
        )
        for array in samples[-1]:
            array.attach_grad()

    def fn(sample):
        scores, mean = cell(*sample)
        return [scores.max(axis=0), mean + sample[0]]

    check_against_loop(fn, samples, granularity=granularity)


# What users do ---------------------------------------------------------------------------------


def make_cells(**options):
    mx.random.seed(3)
    net = Cells()
    net.initialize(mx.init.Uniform(0.8))
    net.hybridize(**options)
    return net


TREE_BATCH = [[1, [2, 3]], 4, [[5], 6, 0], [1, [2, 3]]]


def tree_losses(net, trees=TREE_BATCH):
    return [(run_tree(net, tree)[0] ** 2).sum() for tree in trees]


def gradients(net):
    return {
        name: p.grad().asnumpy().copy()
        for name, p in net.collect_params().items()
        if p.grad_req != "null"
    }


def assert_close(wanted, got, tolerance=1e-4):
    assert wanted.keys() == got.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], tolerance, 1e-5, err_msg=name)


def zero_gradients(net):
    net.collect_params().zero_grad()


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


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_samples_on_two_contexts_in_one_scope(granularity):
    contexts = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(3)
    net = Cells()
    net.initialize(mx.init.Uniform(0.8), ctx=contexts)
    net.hybridize()
    samples = []
    for i in range(6):
        x = mx.nd.random.uniform(-1, 1, (1, WIDTH)).as_in_context(contexts[i % 2])
        x.attach_grad()
        samples.append(x)

    def fn(x):
        made, state = net.gate(net.linear(x), x)
        return [made, net.norm(state * 2)]

    batch = check_against_loop(fn, samples, net.collect_params().values(), granularity=granularity)
    assert {launch.segment.context for launch in batch.plan.launches} == set(contexts)
    assert fn(samples[1])[0].context == mx.cpu(1)


def test_scopes_may_be_nested():
    net = make_cells()
    program = strategies.Program(lambda tree: run_tree(net, tree), TREE_BATCH, net)

    def fn(tree):
        with gdb.batching():
            return gdb.map(lambda t: run_tree(net, t)[0], [tree])[0]

    batch = check_against_loop(fn, program.samples, program.params)
    assert len(batch.report.flushes) == 1, "only the outer scope computes"


def test_map_returns_computed_values_in_order():
    net = make_cells()
    got = gdb.map(lambda tree: {"tree": tree, "h": run_tree(net, tree)[0]}, iter(TREE_BATCH))
    assert [one["tree"] for one in got] == TREE_BATCH
    for one in got:
        assert not getattr(one["h"], "pending", False)
        np.testing.assert_allclose(
            one["h"].asnumpy(), run_tree(net, one["tree"])[0].asnumpy(), 1e-4, 1e-5
        )


def test_samples_with_nothing_to_do():
    net = make_cells()
    x = mx.nd.ones((1, WIDTH))
    x.attach_grad()
    samples = [[], [x], [], [x, x]]
    batch = check_against_loop(
        lambda s: [net.linear(a) for a in s] + s, samples, net.collect_params().values()
    )
    assert batch.report.nodes == 3
    with gdb.batching() as batch:
        pass
    assert batch.report.flushes == [] and batch.plan is None


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_one_array_in_every_place(granularity):
    """The same array as every argument of every cell, and as result."""
    net = make_cells()
    x = mx.nd.random.uniform(-1, 1, (1, WIDTH))
    x.attach_grad()

    def fn(sample):
        made, state = net.gate(x, x)
        h, c = net.child_sum(x, [x, x, x], [x, made, x])
        return [made, h, net.lookup(x, x), net.gate(made, made)[1], x]

    check_against_loop(fn, [0, 1, 2], net.collect_params().values(), granularity=granularity)
    check_against_loop(fn, [x, x], net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("readers", [1, 2, 3, 12, 13, 40])
def test_a_value_with_many_readers(readers, granularity):
    """Its gradient is a sum over readers, level by level or scattered by index."""
    net = make_cells()
    samples = [mx.nd.random.uniform(-1, 1, (1, WIDTH)) for _ in range(3)]
    for x in samples:
        x.attach_grad()

    def fn(x):
        h = net.linear(x)
        return [net.gate(h, x)[0] * (1 + k) for k in range(readers)]

    check_against_loop(fn, samples, net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_long_chains_and_wide_sums(granularity):
    net = make_cells()

    def fn(length):
        state = mx.nd.ones((1, WIDTH)) / length
        states = []
        for _ in range(length):
            made, state = net.gate(state, net.norm(state))
            states.append(made)
        return [mx.nd.add_n(*states), net.child_sum(state, states, states)[0]]

    check_against_loop(fn, [1, 7, 30, 7], net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_only_some_results_are_held(granularity):
    """What nobody holds is computed if it is needed, and no more is handed out."""
    net = make_cells()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        with autograd.record(), scope:
            kept = []
            for i in range(6):
                made, state = net.gate(mx.nd.ones((1, WIDTH)) * i, mx.nd.ones((1, WIDTH)))
                made, state = net.gate(state, made)
                kept.append(made if i % 2 else state[0:1])
            del made, state
        autograd.backward(kept[1:])
        found.append(({str(i): x.asnumpy() for i, x in enumerate(kept)}, gradients(net)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


def test_sequences_that_share_a_start():
    net = make_cells()
    start = mx.nd.zeros((1, WIDTH))
    start.attach_grad()
    samples = [
        {"words": mx.nd.array(range(n), dtype="int32"), "scale": mx.nd.ones((n, 1)), "start": start}
        for n in (2, 5, 3)
    ]
    for granularity in GRANULARITIES:
        check_against_loop(
            lambda s: run_sequence(net, s),
            samples,
            net.collect_params().values(),
            granularity=granularity,
        )


def test_the_strategies_reach_every_operation():
    """A random program that never calls a cell would prove nothing about it."""
    seen = set()

    @settings(examples(300), phases=[Phase.generate])
    @given(dags())
    def collect(program):
        seen.update(step.op for sample in program.samples for step in sample.steps)

    collect()
    assert seen == set(strategies.OPERATIONS)
    assert isinstance(cells().gate, Gate)
