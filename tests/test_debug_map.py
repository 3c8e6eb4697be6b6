"""With ``debug=True``, samples of `map` are compared with the plain loop, from the same state."""

import functools
import random
import threading
import types
from unittest import mock

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH, attached, equal, inputs, ready
from tests.common import FIXED, refused
from tests.test_shared_state import WAYS, outcomes
from tests.test_turns import assert_close

DEBUG = {**FIXED, "debug": True}
TOTAL, LOG, GENERATOR = 0, [], np.random.default_rng(1)


def begin():
    """Set the state outside of networks that the programs below change; return a new network."""
    random.seed(1)
    np.random.seed(1)
    GENERATOR.bit_generator.state = np.random.default_rng(1).bit_generator.state
    LOG.clear()
    globals()["TOTAL"] = Net.total = 0
    return ready(gdb.convert(Net()), 1)


def state():
    """Return this state as an array."""
    drawn = random.getstate()[1], np.random.get_state()[1], [GENERATOR.uniform()]
    return np.concatenate([[TOTAL, len(LOG), Net.total], *drawn])


class Net(mx.gluon.Block):
    total = 0

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
        self.n, self.kept = 0, []

    def read(self, x):
        y = self.dense(x)
        return y, float(y.sum().asscalar())


def enclosing_variable(net):
    total = 0

    def fn(x):
        nonlocal total
        y, value = net.read(x)
        total += value
        return net.read(y)[0] * total

    return fn


def list_of_a_closure(net):
    seen = []

    def fn(x):
        y, value = net.read(x)
        seen.append(value)
        return net.read(y)[0] * len(seen)

    return fn


def module_variable(net):
    def fn(x):
        global TOTAL
        y, value = net.read(x)
        TOTAL += value
        return net.read(y)[0] * TOTAL

    return fn


def list_of_a_module(net):
    def fn(x):
        y, value = net.read(x)
        LOG.append(value)
        return net.read(y)[0] * sum(LOG)

    return fn


def vars_of_an_object(net):
    def fn(x):
        y, value = net.read(x)
        vars(net)["n"] = vars(net)["n"] + value
        return net.read(y)[0] * vars(net)["n"]

    return fn


def class_attribute(net):
    def fn(x):
        y, value = net.read(x)
        Net.total += value
        return net.read(y)[0] * Net.total

    return fn


def class_method(net):
    class Counter:
        n = 0

        @classmethod
        def count(cls, value):
            cls.n += value
            return cls.n

    def fn(x):
        y, value = net.read(x)
        number = Counter.count(value)
        return net.read(y * number)[0] * Counter.n

    return fn


def default_value(net):
    def fn(x, seen=[]):  # noqa: B006
        y, value = net.read(x)
        seen.append(value)
        return net.read(y)[0] * len(seen)

    return functools.partial(fn)


def attribute_of_a_function(net):
    def fn(x):
        y, value = net.read(x)
        fn.total = getattr(fn, "total", 0) + value
        return net.read(y)[0] * fn.total

    return fn


def object_setattr(net):
    def fn(x):
        y, value = net.read(x)
        object.__setattr__(net, "n", object.__getattribute__(net, "n") + value)
        return net.read(y)[0] * object.__getattribute__(net, "n")

    return fn


def array_of_a_closure(net):
    table = np.zeros(1)

    def fn(x):
        y, value = net.read(x)
        table[0] += value
        return net.read(y)[0] * float(table[0])

    return fn


def random_numbers(draw):
    def make(net):
        def fn(x):
            y, value = net.read(x)
            noise = draw() * value
            return net.read(y + noise)[0] * draw()

        return fn

    return make


KINDS = {
    function.__name__: function
    for function in (
        enclosing_variable, list_of_a_closure, module_variable, list_of_a_module,
        vars_of_an_object, class_attribute, class_method, default_value, attribute_of_a_function,
        object_setattr, array_of_a_closure,
    )
}  # fmt: skip
KINDS["random of Python"] = random_numbers(random.random)
KINDS["random of NumPy"] = random_numbers(np.random.uniform)
KINDS["a generator of NumPy"] = random_numbers(GENERATOR.uniform)


@pytest.mark.parametrize("kind", KINDS)
def test_state_that_no_turn_protects(kind):
    """Samples that run together give other results; one after another, those of the loop."""
    net = begin()
    fn = KINDS[kind](net)
    with refused(gdb.MismatchError, "sample ", "in the map and", "in the loop", "concurrency=1"):
        gdb.map(fn, inputs(4), **DEBUG)  # wrong
    gdb.map(fn, inputs(4), concurrency=1, **DEBUG)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_changed_once(kind):
    """A second run, from the same state, gives what the first one gave, with and without debug."""
    found = []
    for debug in (False, True):
        net = begin()
        fn = KINDS[kind](net)
        for _ in range(2):
            found.append([y.asnumpy() for y in gdb.map(fn, inputs(3), concurrency=1, debug=debug)])
        found.append([state(), np.array(net.n)])
    for without, with_debug in zip(found[:3], found[3:]):
        equal(with_debug, without)


@pytest.mark.parametrize("way", WAYS)
def test_state_that_turns_protect(way):
    """It raises no false alarm, and is left as by the loop."""
    wanted = outcomes(way, lambda fn, samples: list(map(fn, samples)))
    got = outcomes(way, lambda fn, samples: gdb.map(fn, samples, **DEBUG))
    equal(got[0], wanted[0], 1e-4, 1e-5)
    assert_close(got[1], wanted[1])


#: What may be among the results, and is not compared: each run makes another one.
OTHERS = {
    "function": lambda: lambda: 1,
    "method": lambda: [].append,
    "method of an object": lambda: types.SimpleNamespace(n=1).__repr__,
    "generator": lambda: (i for i in range(3)),
    "block": lambda: nn.Dense(2),
    "parameter": lambda: nn.Dense(2, in_units=3).weight,
    "object": object,
    "lock": threading.Lock,
    "not a number": lambda: float("nan"),
    "sparse": lambda: mx.nd.ones((2, 2)).tostype("csr"),
    "array of NumPy": lambda: mx.np.ones(2),
    "random": lambda: mx.nd.random.uniform(shape=(2,)),
    "draw in a decision": lambda: int(mx.nd.random.uniform(shape=(1,)).asscalar() * 100),
    "dropout": lambda: mx.nd.Dropout(mx.nd.ones((4, 4)), mode="always"),
    "an exception": lambda: KeyError(1),
}


#: With one of these, nothing is compared: the scope draws other numbers than the loop.
DRAWS = {"random", "draw in a decision", "dropout"}


@pytest.mark.parametrize("kind", OTHERS)
def test_results_that_cannot_be_compared(kind):
    """They are left out; what is beside them is compared."""
    net = ready(gdb.convert(Net()), 1)
    fn = lambda x: {"rest": [OTHERS[kind](), net.read(x)[1]], "y": net.read(x)[0]}  # noqa: E731
    for apply in (gdb.map, lambda *args, **options: list(gdb.imap(*args, **options))):
        got = [result["y"] for result in apply(fn, inputs(3), **DEBUG)]
        equal(got, [fn(x)["y"] for x in inputs(3)], 1e-4, 1e-5)
    counts = enclosing_variable(net)
    fn = lambda x: {"rest": OTHERS[kind](), "y": [counts(x)]}  # noqa: E731
    if kind in DRAWS:
        gdb.map(fn, inputs(3), **DEBUG)
    else:
        with pytest.raises(gdb.MismatchError, match=r"its result\['y'\]\[0\]\[0, \d\] is "):
            gdb.map(fn, inputs(3), **DEBUG)


def test_an_iterator_cannot_be_run_again():
    net, numbers = ready(gdb.convert(Net()), 1), iter(range(10))
    counts = enclosing_variable(net)
    got = gdb.map(lambda x: (next(numbers), counts(x))[0], inputs(3), **DEBUG)
    assert got == [0, 1, 2] and next(numbers) == 3
    samples = [iter([x]) for x in inputs(3)]
    assert len(gdb.map(lambda sample: net.read(next(sample)), samples, **DEBUG)) == 3


def test_samples_are_passed_as_they_were():
    """From any iterable; they may be changed by the program, and refer to the network."""
    net = ready(gdb.convert(Net()), 1)

    def run(apply, debug):
        nodes = [types.SimpleNamespace(x=x, seen=[], net=net, table=np.zeros(1)) for x in inputs(4)]

        def fn(node):
            node.x, value = net.read(node.x)
            node.seen.append(value)
            node.table += value
            return net.read(node.x)[0] * len(node.seen) + float(node.table[0]), node.seen

        results = apply(fn, (node for node in nodes), **debug)
        return [np.append(y.asnumpy(), [*x, *n.table]) for (y, x), n in zip(results, nodes)]

    wanted = run(lambda fn, samples: list(map(fn, samples)), {})
    for got in run(gdb.map, DEBUG), run(gdb.imap, DEBUG):
        equal(got, wanted, 1e-4, 1e-5)


def test_gradients_and_steps_within_samples():
    """Backward passes, sums of gradients and updates of parameters happen once."""

    def run(apply, options, grad_req):
        net = ready(gdb.convert(Net()), 1)
        net.collect_params().setattr("grad_req", grad_req)
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})

        def fn(x):
            with autograd.record():
                loss = (net.read(x)[0] ** 2).sum()
            loss.backward()
            if grad_req == "write":
                trainer.step(1)
            return loss.asscalar()

        losses = apply(fn, inputs(3), **options)
        arrays = [p.list_data() + p.list_grad() for p in net.collect_params().values()]
        return losses, [a.asnumpy() for pair in arrays for a in pair]

    for grad_req in ("write", "add"):
        once = {**FIXED, "concurrency": 1}
        wanted = run(gdb.map, once, grad_req)
        got = run(gdb.map, {**once, "debug": True}, grad_req)
        equal(got[1], wanted[1])
        np.testing.assert_allclose(got[0], wanted[0], 1e-5)


def test_training_goes_on():
    """The graph of the map is as without debug; it also reads values from before the map."""

    def run(debug):
        net = ready(gdb.convert(Net()), 1)
        samples = attached(inputs(3))
        with autograd.record(), gdb.batching(**FIXED, debug=debug) as batch:
            net.kept = [net.dense(samples[0])]
            results = batch.map(lambda x: net.read(x)[0] + net.read(net.kept[0])[0], samples)
            losses = [(net.dense(y) ** 2).sum() for y in results]
        autograd.backward(losses)
        parameters = [p.grad() for p in net.collect_params().values()]
        return [x.asnumpy() for x in [*losses, *parameters, *(x.grad for x in samples)]]

    equal(run(True), run(False), 1e-5, 1e-6)


def test_exceptions():
    net = ready(gdb.convert(Net()), 1)
    queue = []

    def takes(x):
        queue.append(net.read(x)[1])
        net.read(x)
        if len(queue) > 1:
            raise KeyError("two at a time")
        return queue.pop()

    with refused(gdb.MismatchError, "the map raised KeyError('two at a time')", "raises nothing"):
        gdb.map(takes, inputs(3), **DEBUG)  # wrong
    queue.clear()
    with refused(gdb.MismatchError, "sample 0: its result is a KeyError", "float in the loop"):
        gdb.map(takes, inputs(3), on_error="return", **DEBUG)  # wrong
    queue.clear()

    def fails(x):
        raise KeyError(round(net.read(x)[1], 2))

    found = gdb.map(fails, inputs(2), on_error="return", **DEBUG)
    assert [type(error) for error in found] == [KeyError, KeyError]
    with pytest.raises(KeyError):
        gdb.map(fails, inputs(2), **DEBUG)
    found = gdb.map(lambda x: net.dense(x[:, :2]), inputs(2), on_error="return", **DEBUG)
    assert [type(error) for error in found] == [gdb.ShapeError] * 2


def test_maps_in_maps_are_compared_once():
    net, runs = ready(gdb.convert(Net()), 1), []

    def inner(x):
        runs.append(1)
        return net.read(x)[0]

    outer = lambda x: gdb.map(inner, [x, net.read(x)[0]])[1]  # noqa: E731
    got = gdb.map(outer, inputs(3), **DEBUG)
    assert len(runs) == 6  # as the second run begins with the same state
    equal(got, [outer(x) for x in inputs(3)], 1e-4, 1e-5)


def test_only_debug_runs_samples_again():
    net, calls = ready(gdb.convert(Net()), 1), mock.Mock(side_effect=lambda x: net.read(x)[0])
    fn = lambda x: calls(x)  # noqa: E731
    gdb.map(fn, inputs(3), **FIXED)
    assert calls.call_count == 3
