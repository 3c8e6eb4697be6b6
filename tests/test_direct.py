"""A backward pass from results of a scope to variables goes around MXNet's tape.

Its gradients are those of the loop; whatever MXNet has to know of goes through its tape.
"""

import contextlib
import gc
import threading
import weakref
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording
from gluon_dynbatch.run.direct import free_ones
from tests.cells import attached, cell, dense, equal, inputs
from tests.common import FIXED
from tests.depth import examples
from tests.inside import kept_heads, limit, owner_of

NET = cell(lambda F, x, w: F.tanh(F.FullyConnected(x, w, num_hidden=4, no_bias=True)))


def losses_of(weights, samples, **options):
    with autograd.record(), gdb.batching(**{**FIXED, **options}) as batch:
        losses = []
        for k, x in enumerate(samples):
            for w in weights[: 1 + k % len(weights)]:
                x = NET(x, w)
            losses.append((x * x).sum())
            if k % 3 == 2:
                batch.flush()  # the next samples read the same weights in another flush
    return losses


def in_a_loop(weights, samples):
    with autograd.record():
        return [
            (x * x).sum()
            for x in (_through(weights[: 1 + k % len(weights)], x) for k, x in enumerate(samples))
        ]


def _through(weights, x):
    for w in weights:
        x = NET(x, w)
    return x


double = partial(mx.nd.array, dtype="float64")
GRAD_REQS = st.sampled_from(["write", "add", "null"])
STARTS = {
    "all": lambda losses: autograd.backward(losses),
    "one": lambda losses: losses[-1].backward(),
    "a tuple": lambda losses: autograd.backward(tuple(losses)),
    "weighted": lambda losses: autograd.backward(
        losses, [None if k % 2 else double([k + 0.5]) for k in range(len(losses))]
    ),
    "twice": lambda losses: [losses[0].backward(retain_graph=True), autograd.backward(losses)],
    "with a gradient": lambda losses: losses[0].backward(double([3])),
}


@pytest.mark.parametrize("through_mxnet", [False, True])
@examples(20)
@given(
    st.lists(GRAD_REQS, min_size=1, max_size=3).filter(lambda reqs: reqs[0] != "null"),
    st.lists(st.sampled_from(["none", "write", "add", "null"]), min_size=1, max_size=6),
    st.sampled_from(sorted(STARTS)),
    st.integers(0, 99),
)
def test_gradients_of_variables_are_those_of_the_loop(through_mxnet, grad_reqs, kinds, start, seed):
    """Weights are read in several flushes; gradients are written, added or not wanted.

        weights -+--------+--------+      forward     flush 1, 2, ... of three samples each
                 v        v        v      backward    from the last flush to the first: each adds
              flush 1  flush 2  flush 3               to the gradients of the weights it has read
                 v        v        v
              losses   losses   losses

    Variables that a loss does not depend on keep the gradients they had.
    """
    rng = np.random.RandomState(seed)
    weights = [double(rng.normal(size=(4, 4))) for _ in grad_reqs]
    samples = [double(rng.normal(size=(1, 4))) for _ in kinds]
    outcomes = []
    for run in (in_a_loop, losses_of):
        for array, grad_req in zip([*weights, *samples], [*grad_reqs, *kinds]):
            if grad_req != "none":
                array.attach_grad(grad_req)
                array.grad[:] = 5
        losses = run(weights, samples)
        if through_mxnet:
            losses[0].wait_to_read()
        STARTS[start](losses)
        gradients = [
            array.grad
            for array, grad_req in zip([*weights, *samples], [*grad_reqs, *kinds])
            if grad_req in ("write", "add")
        ]
        outcomes.append([x.asnumpy() for x in (*losses, *gradients)])
    equal(outcomes[1], outcomes[0])


def test_training_adds_no_node_to_the_tape_of_mxnet(nodes):
    net, samples = dense(), inputs(4)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(3):
        with autograd.record(), gdb.batching(**FIXED):
            losses = [net(x).sum() for x in samples]
        autograd.backward(losses)
        trainer.step(1)  # raises if a gradient is stale
        total = sum(loss.asscalar() for loss in losses)
    assert np.isfinite(total) and not nodes


def _computed(weights, samples):
    with autograd.record():
        weights = [w * 1 for w in weights]
    return losses_of(weights, samples)


def _after(weights, samples):
    losses = losses_of(weights, samples)
    with autograd.record():
        return [loss * 1 for loss in losses]


def _of_two_scopes(weights, samples):
    return [*losses_of(weights, samples[:2]), *losses_of(weights, samples[2:])]


def _used_by_the_next_scope(weights, samples):
    first = losses_of(weights, samples)
    with autograd.record(), gdb.batching(**FIXED):
        return [cell(lambda F, x: x + 0)(loss) for loss in first]


def _twice(weights, samples):
    losses = losses_of(weights, samples)
    return [*losses, losses[0]]


THROUGH_MXNET = {
    "variables that are computed": _computed,
    "results that are used after the scope": _after,
    "results of two scopes": _of_two_scopes,
    "results that the next scope uses": _used_by_the_next_scope,
    "one array twice": _twice,
}


@pytest.mark.parametrize("name", THROUGH_MXNET)
def test_what_mxnet_has_to_know_of_goes_through_its_tape(nodes, name):
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    wanted = in_a_loop(weights, samples)
    autograd.backward([*wanted, *([wanted[0]] if name == "one array twice" else [])])
    gradient = weights[0].grad.copy()
    losses = THROUGH_MXNET[name](weights, samples)
    autograd.backward(losses)
    equal([*losses[:4], weights[0].grad], [*wanted, gradient])
    assert nodes


def test_a_gradient_within_an_open_scope_goes_through_the_tape_of_mxnet(nodes):
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    autograd.backward(in_a_loop(weights, samples))
    gradient = weights[0].grad.copy()
    with autograd.record(), gdb.batching(**FIXED):
        autograd.backward([(_through(weights, x) ** 2).sum() for x in samples])
    equal([weights[0].grad], [gradient])
    assert nodes


def test_a_graph_is_freed_after_its_backward_pass():
    weights, samples = attached([mx.nd.ones((4, 4))]), inputs(3)
    losses = losses_of(weights, samples)
    autograd.backward(losses)
    with pytest.raises(gdb.GradientError, match="retain_graph=True"):
        autograd.backward(losses)
    # As for MXNet's arrays, what is computed from them then has no gradient for what they
    # depend on.
    other = attached([mx.nd.ones((1,))])[0]
    weights[0].grad[:] = 7
    with autograd.record():
        after = losses[0] * other
    after.backward()
    equal([other.grad, weights[0].grad], [losses[0], mx.nd.full((4, 4), 7)])


@pytest.fixture
def no_arena_is_small(monkeypatch):
    limit(monkeypatch, "bytes of arenas of earlier scopes", 0)


@pytest.mark.usefixtures("no_arena_is_small")
def test_values_stay_in_arenas_until_the_next_scope_ends():
    """Then they are copied out, those that are left; and dropped results free the arenas."""
    weights, samples = attached([mx.nd.ones((4, 4))]), inputs(3)
    losses = losses_of(weights, samples)
    wanted = [loss.asscalar() for loss in losses]
    assert all(map(recording.is_unrealised, losses))
    arenas = weakref.ref(owner_of(losses[0]))
    autograd.backward(losses)
    weights[0][:] = 0
    del losses[1:]
    assert recording.is_unrealised(losses[0])
    others = losses_of(weights, samples)
    gc.collect()
    assert not recording.is_unrealised(losses[0]) and arenas() is None
    equal([losses[0], *others], np.array([wanted[:1], [0], [0], [0]], np.float32))
    arenas = weakref.ref(owner_of(others[0]))
    del others
    assert arenas() is None  # without a backward pass, and without Python's collector


def test_values_of_small_arenas_stay_there_for_some_scopes():
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(1)
    wanted, held = in_a_loop(weights, samples)[0].asnumpy(), []
    for _ in range(100):
        held += losses_of(weights, samples)
        autograd.backward(held[-1:])
    stay = [recording.is_unrealised(loss) for loss in held]
    assert 60 < sum(stay) < 70 and all(stay[-60:])
    equal(held, 100 * [wanted])
    with autograd.record(), gdb.batching(**FIXED):
        again = sum(loss + weights[0].sum() for loss in held)
    again.backward()
    equal([weights[0].grad], [np.full((4, 4), 100, np.float32)])


def test_two_threads_ask_for_arrays_of_a_closed_scope():
    """One node has them all, and each gets its gradient."""
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(6)
    wanted = in_a_loop(weights, samples)
    autograd.backward(wanted)
    gradient = weights[0].grad.copy()
    for _ in range(20):
        losses, start = losses_of(weights, samples), threading.Barrier(2)

        def ask(loss, start=start):
            start.wait()
            loss.wait_to_read()

        threads = [threading.Thread(target=ask, args=(loss,)) for loss in losses[:2]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        autograd.backward(losses)
        equal([*losses, weights[0].grad], [*wanted, gradient])


def test_another_thread_runs_the_backward_pass(nodes):
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    autograd.backward(in_a_loop(weights, samples))
    gradient = weights[0].grad.copy()
    losses = losses_of(weights, samples)
    thread = threading.Thread(target=autograd.backward, args=(losses,))
    thread.start()
    thread.join()
    equal([weights[0].grad], [gradient])
    assert not nodes


def test_a_gradient_that_is_too_small_raises_at_the_line_of_the_user():
    (weight,) = attached([mx.nd.ones((4, 4))])
    with autograd.record(), gdb.batching(**FIXED):
        results = [NET(x, weight) for x in inputs(2)]
    with pytest.raises(gdb.ShapeError, match=r"a gradient of shape \(3,\) for an array of 4"):
        autograd.backward(results, [None, mx.nd.ones((3,))])


def _marked_again(weights, losses):
    weights[0].attach_grad("add")
    autograd.backward(losses)


def _marked_with_another(weights, losses):
    other = mx.nd.ones((1,))
    autograd.mark_variables([other, weights[0]], [other.copy(), mx.nd.ones((4, 4))], "add")
    autograd.backward(losses)


def _viewed_without_recording(weights, losses):
    view = losses[0].reshape((1, 1))
    with autograd.record():
        autograd.backward([(view * loss).sum() for loss in losses[1:]])


def _given_a_result(weights, losses):
    autograd.backward(losses[:2], [losses[2], losses[0]])


LATER = [_marked_again, _marked_with_another, _viewed_without_recording, _given_a_result]


@pytest.mark.parametrize("later", LATER)
def test_what_comes_between_a_scope_and_its_backward_pass_counts_as_in_the_loop(later):
    outcomes = []
    for run in (in_a_loop, losses_of):
        weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
        gradient = weights[0].grad
        losses = run(weights, samples)
        later(weights, losses)
        outcomes.append([*losses, gradient, weights[0].grad])
    equal(outcomes[1], outcomes[0])


def test_an_array_that_the_scope_did_not_read_becomes_a_variable(nodes):
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    losses = losses_of(weights, samples)
    attached([mx.nd.ones((4, 4))])
    autograd.backward(losses)
    assert not nodes


@pytest.mark.parametrize("grad_req", [None, "null"])
def test_without_a_gradient_to_compute_backward_raises_as_in_the_loop(grad_req):
    weight, samples = mx.nd.ones((4, 4)) / 3, inputs(4)
    if grad_req is not None:
        weight.attach_grad(grad_req)
    errors = []
    for run in (in_a_loop, losses_of):
        losses = run([weight], samples)
        with pytest.raises((gdb.GradientError, mx.MXNetError)) as caught:
            autograd.backward(losses)
        errors.append(caught.type)
    assert errors[0] is errors[1]


def test_a_view_that_is_not_recorded_is_in_no_graph():
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    losses = losses_of(weights, samples)
    for view in (losses[0].reshape((1, 1)), losses[1][0:1]):
        with pytest.raises(gdb.GradientError, match="not in a graph"):
            view.backward()
    autograd.backward(losses)


def test_another_thread_runs_a_backward_pass_while_the_scope_is_open(nodes):
    """The scope may still add flushes, so this goes through MXNet's tape."""
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(4)
    autograd.backward(in_a_loop(weights, samples[:2]))
    gradient = weights[0].grad.copy()
    with autograd.record(), gdb.batching(**FIXED) as batch:
        losses = [(NET(x, weights[0]) ** 2).sum() for x in samples[:2]]
        batch.flush()
        thread = threading.Thread(target=autograd.backward, args=(losses,))
        thread.start()
        thread.join()
        later = (NET(samples[2], weights[0]) ** 2).sum()
    equal([weights[0].grad, later], [gradient, in_a_loop(weights, samples[2:3])[0]])
    assert nodes


def _with_batch_norm(scope, batch_norm, through_mxnet, **modes):
    net = batch_norm or cell(lambda F, x: F.Dropout(F.tanh(x), p=0.5))
    x = attached([mx.nd.array([[1, 2, 3, 4], [2, 5, 1, 0]])])[0]
    mx.random.seed(3)
    with autograd.record(), scope:
        y = net(x)
    if through_mxnet:
        y.wait_to_read()
    y.backward(mx.nd.array([[1, 2, 0, 1], [1, 1, 3, 1]]), **modes)
    mx.nd.waitall()
    return [y, x.grad]


@pytest.mark.parametrize("through_mxnet", [False, True])
def test_backward_in_prediction_mode_is_refused_where_it_matters(through_mxnet, caplog):
    """MXNet's gradient of what BatchNorm computed in training is then that of something else."""
    norm = gdb.convert(gluon.nn.BatchNorm(in_channels=4))
    norm.initialize()
    norm.hybridize()
    for mode in (True, False):
        y, gradient = _with_batch_norm(gdb.batching(**FIXED), None, through_mxnet, train_mode=mode)
        kept = y.asnumpy() != 0
        assert (gradient.asnumpy()[kept] != 0).sum() >= kept.sum() - 1
        assert not gradient.asnumpy()[~kept].any()
    with pytest.raises((gdb.GradientError, mx.MXNetError)):
        _with_batch_norm(gdb.batching(**FIXED), norm, through_mxnet, train_mode=False)
    assert through_mxnet == ("train_mode=False" in caplog.text)
    _with_batch_norm(gdb.batching(**FIXED), norm, through_mxnet, train_mode=True)


@pytest.mark.parametrize("kind", ["row_sparse", "csr"])
@pytest.mark.parametrize("after", ["nothing", "a copy", "grad"])
def test_a_gradient_that_is_given_may_be_sparse(kind, after, monkeypatch):
    monkeypatch.setenv("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")
    outcomes = []
    for run in (in_a_loop, losses_of):
        weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(2)
        with autograd.record(), contextlib.nullcontext() if run is in_a_loop else gdb.batching():
            y = NET(mx.nd.concat(*samples, dim=0), weights[0])
        if after == "a copy":
            with autograd.record():
                y = y * 2
        given = mx.nd.array([[1, 2, 3, 4], [0, 0, 0, 0]]).tostype(kind)
        if after == "grad":
            outcomes.append(autograd.grad([y], weights, [given]))
        else:
            y.backward(given)
            outcomes.append([weights[0].grad])
    equal(outcomes[1], outcomes[0])


@pytest.mark.usefixtures("no_arena_is_small")
def test_what_was_computed_before_an_exception_goes_backward_and_is_handed_out(nodes):
    weights, samples = attached([mx.nd.ones((4, 4)) / 3]), inputs(2)
    wanted = in_a_loop(weights, samples)
    autograd.backward(wanted)
    gradient = weights[0].grad.copy()
    with pytest.raises(KeyError), autograd.record(), gdb.batching(**FIXED) as batch:
        losses = [(NET(x, weights[0]) ** 2).sum() for x in samples]
        batch.flush()
        NET(samples[0], weights[0])
        raise KeyError
    autograd.backward(losses)
    assert not nodes
    equal([weights[0].grad], [gradient])
    arenas = weakref.ref(owner_of(losses[0]))
    losses_of(weights, samples)
    gc.collect()
    assert arenas() is None
    equal(losses, wanted)


def test_ones_for_large_results_are_not_kept():
    free_ones()
    x = attached([mx.nd.ones((300, 400))])[0]
    with autograd.record(), gdb.batching(**FIXED):
        y = cell(lambda F, x: x * 2)(x)
    y.backward()
    equal([x.grad], [mx.nd.full((300, 400), 2)])
    assert kept_heads() == 0


def _adversarial(scope, through_mxnet):
    """Train a discriminator on detached results, then their generator through the next scope."""
    weights = attached([mx.nd.ones((4, 4)) / k for k in (2, 3)])
    with autograd.record(), scope():
        made = [NET(x, weights[0]) for x in inputs(3)]
        losses = [NET(y.detach(), weights[1]).sum() for y in made]
    if through_mxnet:
        losses[0].wait_to_read()
    autograd.backward(losses)
    first = weights[1].grad.copy()
    with autograd.record(), scope():
        losses = [NET(y, weights[1]).sum() for y in made]
    autograd.backward(losses)
    return [first, *(w.grad for w in weights), *made]


def _one_by_one(scope, through_mxnet):
    """Go backward from losses one after another that share variables only, or more than these."""
    weights, order = attached([mx.nd.ones((4, 4)) / 3]), []
    weights[0].attach_grad("add")
    with autograd.record(), scope() as batch:
        losses = [NET(x, weights[0]).sum() for x in inputs(4)]
        if batch is not None:
            batch.flush()
        losses.append(NET(NET(inputs(1)[0] * 2, weights[0]), weights[0]).sum())
        shared = NET(inputs(1)[0], weights[0])
        losses += [shared[:, :2].sum(), NET(shared, weights[0]).sum()]
    if through_mxnet:
        losses[0].wait_to_read()
    for k in (2, 4, 0, 1, 5, 6, 2, 3):
        try:
            losses[k].backward()
            order.append(k)
        except mx.MXNetError:
            order.append(-1)
    return [np.array(order), weights[0].grad, *losses]


@pytest.mark.parametrize("run", [_adversarial, _one_by_one])
@pytest.mark.parametrize("through_mxnet", [False, True])
def test_a_backward_pass_frees_what_it_has_reached(run, through_mxnet):
    wanted = run(contextlib.nullcontext, through_mxnet)
    got = run(partial(gdb.batching, **FIXED), through_mxnet)
    equal(got, wanted)
