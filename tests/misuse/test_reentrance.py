"""Python code that runs in the middle of a call: the collector may free an object at any time."""

import contextlib
import gc
import sys
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.scope import RUNTIME
from tests.cells import WIDTH, array, dense, inputs
from tests.common import FIXED
from tests.test_trace_once import FunctionBlock, chain, traced

NET = dense(WIDTH)
#: The number of objects that the collector waits for: it runs in the middle of most calls.
COUNTDOWNS = range(1, 25)


@pytest.fixture(autouse=True)
def quick_collections():
    """Let the collector leave alone all objects that exist before a test, and run when it says."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000)
    yield
    gc.set_threshold(*before)


class Garbage:
    """An object that is in a cycle; it calls a function when the collector frees it."""

    def __init__(self, act):
        self.act, self.me = act, self

    def __del__(self):
        self.act()


@contextlib.contextmanager
def collecting(countdown):
    """Let the collector run once so many objects have been created; yield a list of its runs.

    Known calls create few objects besides lazy arrays, and these only if there are no spare ones.
    """
    before, runs = gc.get_threshold(), []
    recording.free_spares()

    def note(phase, info):
        runs.append(phase)

    gc.callbacks.append(note)
    gc.set_threshold(gc.get_count()[0] + countdown, 1000, 1000)
    try:
        yield runs
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


def read(batch, pending, x):
    assert pending.asnumpy().shape == (1, WIDTH)


def flush(batch, pending, x):
    batch.flush()


def record(batch, pending, x):
    NET(pending)


def forget(batch, pending, x):
    """Drop the entries of a block, as the library does with those that were not used for long."""
    RUNTIME.library.callee(NET).entries.clear()


def write(batch, pending, x):
    with autograd.pause():
        x[:] = x * 1  # pending calls read it


TRACED = traced(lambda block, x: (chain(block, x, 2), block.net(x)))
CALLS = {
    "block": lambda x, y: [NET(y) for _ in range(6)],
    "block of a plain array": lambda x, y: [NET(x) for _ in range(6)],
    "operators": lambda x, y: [y * x, mx.nd.concat(y, x, dim=0), mx.nd.split(y, 2, axis=1)[0]],
    "numbers": lambda x, y: [y * number for number in range(2, 8)],
    "traced": lambda x, y: [*TRACED(y), *TRACED(x)],
    "views": lambda x, y: [NET(y[0:1]), NET(y.reshape((1, -1)).detach())],
    "constants": lambda x, y: [y + mx.nd.zeros((1, WIDTH)), NET(mx.nd.ones((1, WIDTH)))],
}


@pytest.mark.parametrize("act", [read, flush, record, forget, write])
@pytest.mark.parametrize("name", CALLS)
def test_code_that_the_collector_runs_during_a_call(name, act):
    """It computes pending calls, or records others: the results are right, and none is lost."""
    call, x, ran = CALLS[name], array(1, WIDTH), 0
    wanted = [y.asnumpy() for y in call(x, NET(x))]
    for countdown in COUNTDOWNS:
        with gdb.batching(**FIXED) as batch:
            call(x, NET(x))  # from here on, everything is known
            pending, y = NET(x), NET(x)
            gc.collect()
            Garbage(lambda batch=batch, pending=pending: act(batch, pending, x))
            with collecting(countdown) as runs:
                got = call(x, y)
                ran += bool(runs)
            gc.collect()
        for result, right in zip(got, wanted):
            np.testing.assert_allclose(result.asnumpy(), right, 1e-5, 1e-6)
    assert ran > 3, "the collector ran in few calls"


def bare(block, *arrays):
    """Make views that are in no graph, so that the arguments of later calls must not be, either."""
    with autograd.pause():
        rows = [x[0:1] for x in arrays]
    return [block.net(row) for row in rows]


#: What a traced block does, and the number of its arguments.
TRACES = {"calls": (lambda block, x: [chain(block, x, 2), block.net(x)], 1), "views": (bare, 4)}


@pytest.mark.parametrize("act", [read, flush, record, write])
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("name", TRACES)
def test_code_that_the_collector_runs_while_a_block_is_traced(name, known, act):
    """While a piece of its calls is made or appended, the calls before it are computed."""
    forward, count = TRACES[name]
    xs, net, ran = [array(1, WIDTH, seed=k) for k in range(count)], dense(WIDTH), 0
    wanted = forward(FunctionBlock(forward, net), *xs)
    for countdown in COUNTDOWNS if known else range(1, 250, 6):
        block = FunctionBlock(forward, net)
        with autograd.record(), gdb.batching(**FIXED) as batch:
            if known:
                block(*xs)
            pending = NET(xs[0])
            arguments = [x * 1 for x in xs] if name == "calls" else [x.copy() for x in xs]
            gc.collect()
            Garbage(lambda batch=batch, pending=pending: act(batch, pending, xs[0]))
            with collecting(countdown) as runs:
                got = block(*arguments)
                ran += bool(runs)
            gc.collect()
        for result, right in zip(got, wanted):
            np.testing.assert_allclose(result.asnumpy(), right.asnumpy(), 1e-5, 1e-6)
    assert ran > 3, "the collector ran in few calls"


def test_code_that_a_profiler_runs_while_gradients_are_checked():
    """MXNet returns the shape of an array in memory that its next such call writes to."""
    x, gradient, others = array(3, WIDTH), mx.nd.ones((3, WIDTH)), inputs(99)

    def profile(frame, event, called):
        file = frame.f_back.f_code.co_filename
        if frame.f_code.co_name == "check_call" and "gluon_dynbatch" in file:
            with autograd.pause(), gdb.batching(**FIXED):
                NET(others.pop())

    def run(profile):
        with autograd.record(), gdb.batching(**FIXED):
            y = NET(x)
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            y.backward(gradient)
        finally:
            sys.setprofile(before)
        return NET.weight.grad().asnumpy()

    np.testing.assert_array_equal(run(profile), run(None))
    assert len(others) < 99, "no code of the profiler ran"


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_code_that_the_collector_runs_while_a_scope_ends(granularity):
    """What it records then is computed, too."""
    x, ran = array(1, WIDTH), 0
    wanted = NET(x).asnumpy()
    for countdown in range(1, 80):
        got, values = [], []

        def act(got=got, values=values):
            got.append(NET(x))
            values.append(NET(x).asnumpy())

        scope = gdb.batching(policy="depth", granularity=granularity)
        with scope:
            got.append(NET(x))
            Garbage(act)
            with collecting(countdown) as runs:
                scope.__exit__(None, None, None)
                ran += bool(runs)
        gc.collect()
        assert len(got) == 2 and len(values) == 1
        for result in [*values, *(y.asnumpy() for y in got)]:
            np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    assert ran > 3, "the collector never ran"


@pytest.mark.parametrize("trained", [False, True], ids=["", "trained"])
def test_code_that_the_collector_runs_while_a_block_runs_without_a_scope(trained):
    """A thread that runs a compiled graph may run it again before it has finished."""
    x, ran = array(1, WIDTH), 0
    wanted = NET(x).asnumpy()
    for countdown in range(1, 80):
        values = []
        Garbage(lambda values=values: values.append(NET(x).asnumpy()))
        with collecting(countdown) as runs:
            with autograd.record() if trained else autograd.pause():
                values.append(NET(x))
            if trained:
                values[-1].backward()
            ran += bool(runs)
        gc.collect()
        assert len(values) == 2
        for result in values:
            np.testing.assert_allclose(mx.nd.array(result).asnumpy(), wanted, 1e-5, 1e-6)
    assert ran > 3, "the collector never ran"


class CallsBlock(mx.operator.CustomOp):
    """MXNet runs its Python code in a thread of its own."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], NET(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("calls_block")
class CallsBlockProp(mx.operator.CustomOpProp):
    def __init__(self, **_):
        super().__init__()

    def create_operator(self, context, shapes, dtypes):
        return CallsBlock()


class Branches(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        y = F.Custom(x, op_type="calls_block")
        return F.contrib.cond(F.sum(y) > F.sum(y) - 1, lambda: y * 2, lambda: y * 3)


class Loops(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        def goes_on(i, y):
            return F.sum(F.Custom(y, op_type="calls_block")) * 0 + F.sum(i) < 2

        states = [F.zeros((1,)), x]
        return F.contrib.while_loop(
            goes_on, lambda i, y: ([y], [i + 1, y * 2]), states, max_iterations=3
        )[1][1]


@pytest.mark.parametrize("options", [{}, FIXED], ids=["default", "fixed"])
@pytest.mark.parametrize("class_", [Branches, Loops])
def test_a_compiled_graph_waits_for_an_operator_that_runs_another_one(class_, options):
    """Control flow waits for a value within MXNet; the operator that computes it calls a block."""
    stock, block = class_(), gdb.convert(class_())
    for net in (stock, block):
        net.hybridize()
    xs = [array(1, WIDTH) for _ in range(2)]
    with gdb.batching(**options):
        got = [block(x) for x in xs]
    for result, x in zip(got, xs):
        np.testing.assert_allclose(result.asnumpy(), stock(x).asnumpy(), 1e-5, 1e-6)
    np.testing.assert_allclose(block(x).asnumpy(), result.asnumpy(), 1e-5, 1e-6)


def hold_a_scope():
    with gdb.batching(**FIXED):
        yield


@pytest.mark.parametrize("name", ["new block", "block", "traced"])
def test_the_collector_ends_the_scope_during_a_call(name):
    """The scope is in a generator that nothing references any more: the call runs as without it."""
    x, ran = array(1, WIDTH), 0
    for countdown in range(1, 60):
        block = TRACED if name == "traced" else dense(WIDTH) if name == "new block" else NET
        first = block(x)
        wanted = first[0] if name == "traced" else first
        generator = hold_a_scope()
        next(generator)
        if name != "new block":
            block(x)
        gc.collect()
        Garbage(generator.close)
        del generator
        with collecting(countdown) as runs:
            got = block(x)
            ran += bool(runs)
        gc.collect()
        assert STATE.batch is None
        got = got[0] if name == "traced" else got
        if not isinstance(got, LazyNDArray):
            np.testing.assert_allclose(got.asnumpy(), wanted.asnumpy(), 1e-5, 1e-6)
        else:
            # The call was recorded before the scope ended.
            with contextlib.suppress(gdb.StaleArrayError):
                got.asnumpy()
    assert ran, "the collector never ran"


def test_a_callback_of_a_lazy_array_records_and_computes():
    """It runs when the array is freed: while a flush decides which arrays are still needed."""
    x, recorded, computed = array(1, WIDTH), [], []

    def note(reference):
        recorded.append(NET(x))
        computed.append(recorded[-1].asnumpy())

    with gdb.batching(**FIXED) as batch:
        references = [weakref.ref(NET(x), note) for _ in range(9)]
        recorded.append(NET(x))
        batch.flush()
    assert len(computed) == len(references)
    for values in (*computed, *(result.asnumpy() for result in recorded)):
        np.testing.assert_allclose(values, NET(x).asnumpy(), 1e-5, 1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # by `__del__`
@pytest.mark.parametrize("class_", [mx.nd.NDArray, LazyNDArray])
def test_arrays_without_memory(class_):
    """``__new__`` alone makes an array without a handle: MXNet raises AttributeError."""
    empty = class_.__new__(class_)
    with pytest.raises(AttributeError), gdb.batching(**FIXED):
        NET(empty)
    with gdb.batching(**FIXED):
        y = NET(array(1, WIDTH))
        with pytest.raises(AttributeError):
            mx.nd.concat(y, empty, dim=0)


def open_a_scope(x):
    with gdb.batching(**FIXED):
        NET(x)


@pytest.mark.parametrize("act", [open_a_scope, lambda x: NET(x).asnumpy()], ids=["scope", "value"])
def test_code_that_the_collector_runs_while_a_scope_gets_a_node_in_the_tape_of_mxnet(act):
    """It runs at one of all collections; the results are those of the scope, and in a graph."""
    net, x, y = dense(WIDTH), array(1, WIDTH), array(1, WIDTH)
    losses, ran, number, runs = [], 0, 0, []

    def note(phase, info):
        runs.append(phase)
        if runs.count("stop") == number and phase == "stop":
            act(y)

    def gradient(scope):
        with autograd.record():
            with scope:
                losses[:] = [net(net(x * k)) for k in range(1, 4)]
            total = mx.nd.add_n(*losses)
        total.backward()
        return net.weight.grad().asnumpy()

    wanted, before = gradient(contextlib.nullcontext()), gc.get_threshold()
    gc.callbacks.append(note)
    try:
        while not number or ran:
            number, ran = number + 3, 0
            runs.clear()
            gc.set_threshold(1, 100_000, 100_000)
            got = gradient(gdb.batching(**FIXED))
            gc.set_threshold(*before)
            ran = runs.count("stop") >= number
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert number > 30
