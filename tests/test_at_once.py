"""Calls that "auto" runs at once: native code passes the arrays of known graphs to MXNet."""

import gc
import sys
import weakref

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.util import is_np_array

import gluon_dynbatch as gdb
from tests.cells import array, attached, equal
from tests.common import in_thread, semantics


class Parts(gluon.HybridBlock):
    """Two results of two arguments, or nested ones."""

    def __init__(self, deep=False):
        super().__init__()
        self.deep, self.dense = deep, nn.Dense(3, in_units=3)
        self.scale = self.params.get_constant("scale", array(1, 3))

    def hybrid_forward(self, F, x, y, scale):
        z = self.dense(x + y)
        parts = z * scale if is_np_array() else F.broadcast_mul(z, scale), z - y
        return (parts[0], [*parts]) if self.deep else parts


class Step(gluon.HybridBlock):
    """A step whose states are nested."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=3)

    def hybrid_forward(self, F, x, states):
        z = self.dense(x + states[0])
        return z, [z - states[1][0]]


class Chain(nn.HybridSequential):
    def __init__(self):
        super().__init__()
        self.add(nn.Dense(3, activation="tanh"), nn.LayerNorm(), nn.Dense(3, use_bias=False))


def dense(**options):
    return nn.Dense(3, in_units=3, **options)


def ready(block, converted=False):
    if converted:
        gdb.convert(block)
    block.initialize(mx.init.Normal(1))
    block.hybridize()
    return block


def scope(program, *arrays):
    """Run a program in a scope; all scopes of a test are opened at this line."""
    with gdb.batching() as batch:
        result = program(*arrays)
    return result, batch.report


def at_once(program, *arrays):
    """Return the result of a program in a scope whose calls run at once, and its report.

    It is the second such scope: the first one finds out what its calls run.
    """
    runs = []
    for _ in range(8):
        result, report = scope(program, *arrays)
        runs.append(report.at_once and not report.flushes)
        if sum(runs) == 2:
            return result, report
    pytest.fail("the calls are recorded")


def calls_of_gluon(function, *args):
    """Call a function, and return its result, and how many graphs Gluon's code has run within."""
    calls = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_call_cached_op":
            calls.append(frame)

    sys.setprofile(note)
    try:
        return function(*args), len(calls)
    finally:
        sys.setprofile(None)


def leaves(result):
    if not isinstance(result, (list, tuple)):
        return [result]
    return [leaf for each in result for leaf in leaves(each)]


def shape_of(result):
    """Return the nesting of a result."""
    if not isinstance(result, (list, tuple)):
        return type(result)
    return type(result), *map(shape_of, result)


def outcome(program, arrays, parameters, runs, recording):
    """Return the results of a program as NumPy's arrays, and the gradients of all it reads."""
    variables = [*arrays, *(p.data() for p in parameters if p.grad_req != "null")]
    for each in arrays:
        each.attach_grad()
    with autograd.record() if recording else autograd.pause():
        result = runs(program, *arrays)
        heads = [leaf.sum() for leaf in leaves(result)]
    if recording:
        autograd.backward(heads)
    gradients = [each.grad for each in variables] if recording else []
    return shape_of(result), [leaf.asnumpy() for leaf in leaves(result) + gradients]


def parameters_of(block):
    return list(block.collect_params().values())


BLOCKS = {
    "dense": (dense, 1),
    "deferred": (lambda: nn.Dense(3), 1),
    "several results": (Parts, 2),
    "nested results": (lambda: Parts(deep=True), 2),
    "statistics": (nn.BatchNorm, 1),
    "layers": (Chain, 1),
}


@pytest.mark.parametrize("recording", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("front", ["nd", "np"])
@pytest.mark.parametrize("converted", [False, True], ids=["gluon", "dynamic"])
def test_arguments_may_be_nested(converted, front, recording):
    with semantics(front):
        block = ready(Step(), converted)
        arrays = [array(2, 3, seed=i) for i in range(3)]

        def program(x, y, z):
            first, states = block(x, [y, [z]])
            first.wait_to_read()
            return block(first, [states[0], [z]])

        program(*arrays)
        parameters = parameters_of(block)
        ours = outcome(program, arrays, parameters, lambda *a: at_once(*a)[0], recording)
        loops = outcome(program, arrays, parameters, lambda program, *a: program(*a), recording)
        assert ours[0] == loops[0]
        equal(ours[1], loops[1])
        if not recording:
            assert calls_of_gluon(scope, program, *arrays)[1] == 0, "no call is Gluon's"
            (got, _), calls = calls_of_gluon(scope, lambda x: block(x, (x, [x])), arrays[0])
            assert calls, "a tuple is no list"
            equal(leaves(got), leaves(block(arrays[0], (arrays[0], [arrays[0]]))))


@pytest.mark.parametrize("recording", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("converted", [False, True], ids=["gluon", "dynamic"])
@pytest.mark.parametrize("front", ["nd", "np"])
@pytest.mark.parametrize("make, count", BLOCKS.values(), ids=list(BLOCKS))
def test_values_and_gradients_are_those_of_the_loop(make, count, front, converted, recording):
    with semantics(front):
        block = ready(make(), converted)
        arrays = [array(2, 3, seed=i) for i in range(count)]

        def program(*arrays):
            first = block(*arrays)
            for leaf in leaves(first):
                leaf.wait_to_read()  # so it does not pay to record the calls
            return first, block(leaves(first)[0], *arrays[1:])

        block(*arrays)  # infers shapes
        parameters = parameters_of(block)
        ours = outcome(program, arrays, parameters, lambda *a: at_once(*a)[0], recording)
        loops = outcome(program, arrays, parameters, lambda program, *a: program(*a), recording)
        assert ours[0] == loops[0]
        equal(ours[1], loops[1])
        if not recording:
            assert calls_of_gluon(scope, program, *arrays)[1] == 0, "no call is Gluon's"


def test_calls_are_counted_alike_by_either_way():
    block, x = ready(dense()), array(2, 3)
    (_, report), calls = calls_of_gluon(at_once, lambda x: block(block(block(x))), x)
    assert report.at_once == 3 and calls, "the first calls are Gluon's"
    (_, report), calls = calls_of_gluon(scope, lambda x: block(block(block(x))), x)
    assert report.at_once == 3 and not calls


def changed(block):
    """Yield names of changes of a block, each made before it is yielded, and undone after."""
    hook = block.register_forward_hook(lambda block, args, result: result.__iadd__(1))
    yield "hook"
    hook.detach()
    block.weight.set_data(array(3, 3, seed=7))
    yield "values"
    block.weight.data()[:] = 2
    yield "values in place"
    block.initialize(mx.init.One(), force_reinit=True)
    yield "other arrays"
    block.cast("float64")
    yield "dtype"
    block.cast("float32")
    yield "dtype again"
    block.hybridize(static_alloc=True)
    yield "flags"
    block.hybridize(False)
    yield "not hybridized"
    block.hybridize()
    block.act = nn.Activation("relu")
    yield "a child"


@pytest.mark.parametrize("converted", [False, True], ids=["gluon", "dynamic"])
def test_a_change_of_a_block_is_seen_by_its_next_call(converted):
    block, x, steps = ready(dense(), converted), array(2, 3), []
    at_once(block, x)
    for name in changed(block):
        for _ in range(3):
            given = x.astype(block.weight.dtype)
            got, _ = scope(block, given)
            equal([got], [block(given)])
        steps.append(name)
    assert len(steps) == 9


def test_arguments_of_other_kinds_are_gluons():
    """It accepts them, or says what is wrong, as without a scope."""
    block, x = ready(dense()), array(2, 3)
    at_once(block, x)
    sparse = x.tostype("csr")
    with pytest.raises(ValueError, match="HybridBlock"):
        scope(block, 3)
    with pytest.raises(ValueError, match="structure"):
        scope(lambda x: block(x, x), x)
    with pytest.raises(mx.MXNetError):
        scope(lambda x: block(x).asnumpy(), array(2, 4))
    for given in (sparse, attached(x), x[0:1], scope(block, x)[0]):
        got, _ = scope(block, given)
        equal([got], [block(given)])


def test_parameters_on_several_devices_are_gluons():
    block, x = ready(dense()), array(2, 3)
    at_once(block, x)
    block.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    for device in (mx.cpu(0), mx.cpu(1)):
        given = x.as_in_context(device)
        got, _ = scope(block, given)
        assert got.context == device
        equal([got], [block(given)])


def test_a_copy_of_a_block_runs_its_own_graph():
    block, x = ready(dense()), array(2, 3)
    at_once(block, x)
    other = ready(dense())
    for each in (block, other, block):
        equal([at_once(each, x)[0]], [each(x)])


def test_threads_run_a_graph_at_the_same_time():
    block, x = ready(dense(), converted=True), array(2, 3)
    at_once(block, x)
    wanted = block(x).asnumpy()

    def work():
        return [at_once(block, x)[0].asnumpy() for _ in range(20)]

    for got in in_thread(work), work():
        equal(got, [wanted] * 20)


def test_a_block_is_freed_with_its_graph():
    block, x = ready(dense()), array(2, 3)
    at_once(block, x)
    alive = weakref.ref(block)
    del block
    gc.collect()
    assert alive() is None
