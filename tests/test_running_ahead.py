"""A scope that runs ahead gives the values and gradients of the loop, in any number of parts.

The forward pass of what is recorded runs while the rest is recorded; all parts of a scope are one
node of MXNet's tape.  `tests/test_auto.py` checks when a scope runs ahead.

    recorded    x0 x1 | x2 x3 | x4       a part is a flush; it ends after so many calls, and runs
    computed            x0 x1 | x2 x3    while the next one is recorded
    backward    x4 | x2 x3 | x0 x1       from the last part to the first
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import array, attached, cell, check_invariants, dense, equal
from tests.common import ALL, by_mxnets_operators, many_parts
from tests.depth import examples
from tests.fuzz.harness import ExcusedError
from tests.fuzz.programs import programs
from tests.strategies import tree_batches

PARTS = st.sampled_from([1, 2, 3, 7])


@pytest.mark.parametrize("operators", [nullcontext, by_mxnets_operators])
@ALL
def test_random_trees(granularity, operators):
    @examples(4)
    @given(tree_batches(), PARTS)
    def run(program, calls):
        with operators(), many_parts(calls):
            options = {"granularity": granularity}
            batch = check_against_loop(program.fn, program.samples, program.params, **options)
        check_invariants(batch)
        assert batch.report.nodes <= calls or len(batch.report.flushes) > 1

    run()


@examples(4)
@given(programs(tame=True), st.sampled_from(GRANULARITIES), PARTS)
def test_random_programs(program, granularity, calls):
    with many_parts(calls):
        try:
            program.compare({"granularity": granularity})
        except ExcusedError:
            return


@pytest.fixture
def net():
    return dense(4, 4, activation="tanh")


def samples():
    return attached([array(1, 4, seed=i) for i in range(6)])


def total(net, x):
    return (net(net(x)) * x).sum()


def each(losses):
    for loss in losses:
        loss.backward(retain_graph=True)


def twice(losses):
    autograd.backward(losses[:4], retain_graph=True)
    autograd.backward(losses[2:])


def heads(losses):
    autograd.backward(losses, [mx.nd.array([i]) for i in range(len(losses))])


BACKWARD = {"once": autograd.backward, "each": each, "twice": twice, "heads": heads,
            "some left out": lambda losses: autograd.backward(losses[::2]),
            "a sum": lambda losses: mx.nd.add_n(*losses).backward()}  # fmt: skip


@pytest.mark.parametrize("operators", [nullcontext, by_mxnets_operators])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
def test_backward_passes(net, backward, grad_req, inside, operators):
    """They end a node; what is recorded after one inside of the scope belongs to the next."""
    inputs, weight = samples(), net.weight.data()
    net.weight.grad_req = grad_req
    for x in inputs:
        x.attach_grad(grad_req)
    outcomes = []
    for way in (nullcontext(), gdb.batching()):
        for x in (*inputs, weight):
            x.grad[:] = 0
        with operators(), many_parts(2), autograd.record(), way:
            losses = [total(net, x) for x in inputs]
            if inside:
                backward(losses)
                losses = [total(net, x * 2) for x in inputs]
        with autograd.record():
            backward(losses)
        outcomes.append([x.grad.asnumpy() for x in (*inputs, weight)])
    assert len(way.report.flushes) > 2
    # The loop leaves the gradient of an input that no loss of a pass depends on, see limits.md.
    all_written = backward not in (each, twice) or grad_req == "add"
    for gradients in outcomes:
        del gradients[: 0 if all_written else len(inputs)]
    equal(outcomes[1], outcomes[0], 1e-4)


def test_gradients_as_results(net):
    inputs, weight = samples(), net.weight.data()
    found = []
    for way in (nullcontext(), gdb.batching()):
        with many_parts(2), autograd.record(), way:
            losses = [total(net, x) for x in inputs]
        found.append(autograd.grad(losses, [weight, *inputs]))
    equal(found[1], found[0], 1e-4)


def test_an_exception_between_parts_loses_only_what_is_pending(net):
    inputs, kept = samples(), []
    with many_parts(3), autograd.record(), pytest.raises(ZeroDivisionError), gdb.batching():
        for x in inputs:
            kept.append(net(net(x)))
            if len(kept) == 5:
                1 / 0  # noqa: B018
    equal(kept[:4], [net(net(x)) for x in inputs[:4]])
    with pytest.raises(gdb.StaleArrayError):
        kept[4].asnumpy()
    with autograd.record(), gdb.batching():
        losses = [total(net, x) for x in inputs]
    equal(losses, [total(net, x) for x in inputs], 1e-5)


def test_a_part_that_fails_leaves_the_others(net):
    """Its error is raised at the call that runs it ahead."""
    inputs, kept = samples(), []
    lone = cell(lambda F, x: F.LinearRegressionOutput(x, x))  # has no rule for merging
    scope = gdb.batching(strict=True)
    with many_parts(2), autograd.record(), pytest.raises(gdb.NotMergedError), scope:
        kept.extend(map(net, inputs[:2]))
        kept.append(lone(inputs[2]))
        for x in inputs[3:]:
            kept.append(net(x))
    assert len(kept) == 4
    equal(kept[:2], list(map(net, inputs[:2])))
    with pytest.raises(gdb.StaleArrayError):
        kept[2].asnumpy()


@pytest.mark.parametrize("options", [{}, {"debug": True}])
def test_samples_that_read_values(net, options):
    """Parts run ahead between the flushes for samples that wait."""

    def read(x):
        y = net(x)
        return net(y) if float(y.sum().asscalar()) > 0 else net(net(y * 2))

    inputs = samples()
    outcomes = []
    for run in (lambda: list(map(read, inputs)), lambda: gdb.map(read, inputs, **options)):
        with many_parts(2), autograd.record():
            results = run()
        autograd.backward(results)
        outcomes.append([*results, *[x.grad.asnumpy() for x in inputs], net.weight.grad().copy()])
    equal(outcomes[1], outcomes[0], 1e-4)


def test_parts_in_several_threads(net):
    """Each scope has the parts of its thread."""

    def gradients(number):
        inputs = attached([array(1, 4, seed=10 * number + i) for i in range(20)])
        with autograd.record(), gdb.batching():
            losses = [total(net, x) for x in inputs]
        return autograd.grad(losses, inputs)

    wanted = [gradients(number) for number in range(4)]
    with many_parts(3), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(gradients, range(4)))
    for a, b in zip(found, wanted):
        equal(a, b, 1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_between_parts(net):
    inputs = samples()
    with many_parts(2), autograd.record(), gdb.batching() as batch:
        losses = [total(net, x) for x in inputs[:3]]
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        losses += [total(net, x) for x in inputs[3:]]
    autograd.backward(losses)
    found = [x.grad.asnumpy() for x in inputs]
    with autograd.record():
        losses = [total(net, x) for x in inputs]
    autograd.backward(losses)
    assert len(batch.report.flushes) > 2
    equal(found, [x.grad.asnumpy() for x in inputs], 1e-4)


def test_parts_read_results_of_earlier_ones_in_cells_with_dropout(net):
    """Masks differ, but zeros of results are zeros of gradients."""
    drop = cell(lambda F, x: F.Dropout(x, 0.5))
    inputs = samples()
    with many_parts(2), autograd.record(), gdb.batching() as batch:
        results = [drop(x) * 2 for x in inputs]
    autograd.backward(results)
    assert len(batch.report.flushes) > 2
    for x, y in zip(inputs, results):
        np.testing.assert_allclose(y.asnumpy(), (x * x.grad).asnumpy(), rtol=1e-5)
