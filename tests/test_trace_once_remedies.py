"""What a report says to do about calls that are not traced once: it leads to one that is."""

import random

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.ndarray import NDArray

import gluon_dynbatch as gdb
from gluon_dynbatch.report.advice import KEEPING
from tests.cells import WIDTH, dense, equal
from tests.common import FIXED
from tests.test_trace_once import chain, traced, x
from tests.test_trace_once_refused import flushing, grow

NET, FOREIGN, ELSEWHERE = dense(WIDTH), x(8), []


def writing(block, x):
    h = block.net(x)
    h += 1
    return h


def growing(block, x, items):
    return chain(block, x, len([*items, 1]))


#: By a part of the reason: a `forward` that is not kept, one that does what the advice says, and
#: what makes the second argument of each.
FOLLOWED = {
    "reads a value": (
        lambda b, x: b.net(x) * x[0, 0].asscalar(), lambda b, x: b.net(x) * x[0, 0]),
    "flushes the scope": (flushing, lambda b, x: b.net(b.net(x))),
    "which runs at once": (
        lambda b, x: b.net(x) + 0 * mx.nd.random.uniform(shape=(1, WIDTH)),
        lambda b, x, noise: b.net(x) + 0 * noise, None, lambda: FOREIGN),
    "needs the memory": (
        lambda b, x: [mx.nd.ones((1, 1)).handle, b.net(x)][1], lambda b, x, one: b.net(x) * one,
        None, lambda: FOREIGN),
    "makes a large or empty array": (
        lambda b, x: b.net(x) + mx.nd.array(x), lambda b, x: b.net(x) + x),
    "writes to an array": (writing, lambda b, x: b.net(x) + 1),
    "returns a part of an array": (
        lambda b, x: (b.net(x), mx.nd.zeros((2, WIDTH))[0:1]),
        lambda b, x: (b.net(x), mx.nd.zeros((1, WIDTH)))),
    "drawn in Python": (
        lambda b, x: chain(b, x, random.randint(1, 1)), chain, None, lambda: 1),
    "held elsewhere": (
        lambda b, x: [ELSEWHERE.append(b.net(x)), b.net(x)][1], lambda b, x: (b.net(x), b.net(x))),
    "changes an attribute": (
        lambda b, x: [setattr(b, "calls", vars(b).get("calls", 0) + 1), b.net(x)][1],
        lambda b, x: b.net(x)),
    "no attribute of the block": (lambda b, x: NET(x), lambda b, x: b.inner(x)),
    "neither an argument": (
        lambda b, x: b.net(x) * FOREIGN, lambda b, x, y: b.net(x) * y, None, lambda: FOREIGN),
    "no call recorded": (
        lambda b, x: (b.net(x), FOREIGN), lambda b, x, y: (b.net(x), y), None, lambda: FOREIGN),
    "cut from the gradient graph": (
        lambda b, x: (y := b.net(x), y.detach()), lambda b, x: (y := b.net(x), y)),
    "changes its arguments": (grow, growing, lambda: [1], lambda: [1]),
    "whose changes cannot be noticed": (
        lambda b, x, rng: b.net(x), lambda b, x, n: b.net(x), random.Random, lambda: 3),
    "returns an object of type": (lambda b, x: {b.net(x)}, lambda b, x: [b.net(x)]),
}  # fmt: skip
#: Other tests have these, or the advice is to do without.
OTHERS = {"of another sample", "an earlier sample may change", "nested too deeply", "it ends with"}
OTHERS |= {"has hooks"}


@pytest.mark.parametrize("because", FOLLOWED)
def test_the_remedy_for_a_call_that_is_not_kept_works(because):
    wrong, right, *more = FOLLOWED[because]
    makes = more or (None, None)
    for fn, make, keeps in ((wrong, makes[0], False), (right, makes[1], True)):
        block = traced(fn, inner=dense(WIDTH))
        for _ in range(2):
            with gdb.batching(**FIXED) as batch:
                result = block(x(1), *([] if make is None else [make()]))
        refused, text = batch.report.traced.refused, " ".join(str(batch.report).split())
        assert result is not None and (batch.report.traced.known == 1) == keeps
        assert bool(refused) != keeps
        assert keeps or because in refused[0].reason and f"-> {KEEPING[because]}" in text
    ELSEWHERE.clear()


def test_an_argument_that_is_detached():
    """The array that it returns is a new one for MXNet; an operator that stops gradients is not."""
    gradients = []
    for detached, keeps in (NDArray.detach, False), (mx.nd.BlockGrad, True):
        block = traced(lambda b, x, detached=detached: b.net(detached(x)) * x, inner=dense(WIDTH))
        data = x(1)
        data.attach_grad()
        for _ in range(2):
            with autograd.record(), gdb.batching(**FIXED) as batch:
                result = block(data)
        result.backward()
        assert (batch.report.traced.known == 1) == keeps
        assert keeps or "BlockGrad(x) instead of x.detach()" in " ".join(str(batch.report).split())
        gradients.append((data.grad, block.net(data)))
    equal(*gradients[0])
    equal(*gradients[1])


def test_each_reason_is_tested():
    assert FOLLOWED.keys() | OTHERS == KEEPING.keys()
