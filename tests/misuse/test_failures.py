"""A failure at any stage, or an interrupt, leaves nothing behind; the next scope is right."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.

import contextlib
import resource
import sys
from functools import partial
from itertools import count
from traceback import format_exc

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch import auto, flush, scope
from gluon_dynbatch.kernel import kernels
from gluon_dynbatch.native import assembling
from gluon_dynbatch.record import (
    hazards,
    hooks,
    intercept,
    lazy,
    lazy_base,
    nd_functions,
    recorder,
    tape,
)
from gluon_dynbatch.run import (
    backward,
    buffers,
    chain,
    execute,
    gradient,
    keep,
    operators,
    pool,
    prepare,
    tape_node,
)
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.testing import check_against_loop
from tests.cells import SQUARING, attached, cell, dense, equal, inputs
from tests.common import FIXED, alive, assert_nothing_is_left, none_left, refused, state_of, works
from tests.misuse.test_generators import batched

SAMPLES = inputs(5)
#: Where a failure is injected: an owner, and the name of a function in it.
STAGES = {
    "tracing": (RUNTIME.library, "entry"),
    "cutting": (flush, "expand"),
    "analysis": (flush, "analyze"),
    "planning": (flush, "make_plan"),
    "planning the gradient": (prepare, "transpose"),
    "making kernels": (kernels, "kernels_of"),
    "assembling": (assembling, "Forward"),
    "memory": (pool.POOL, "take"),
    "finding arrays": (execute.Pass, "array_at"),
    "pushing": (execute.Pass, "push"),
    "operands": (execute.Execution, "operands"),
    "compiling": (RUNTIME.dispatcher, "executable"),
    "assembling backward": (assembling, "Backward"),
    "linking": (flush, "BackwardPass"),
    "handing out": (keep, "copy_out"),
    "connecting": (chain, "record_function"),
}
FAILURES = (mx.MXNetError, MemoryError, KeyboardInterrupt)


def fails(error, real=None, after=0):
    """Return a function that raises, after `after` calls that do what the real one does."""
    calls = count()

    def fail(*args, **kwargs):
        if next(calls) >= after:
            raise error("on purpose")
        return real(*args, **kwargs)

    return fail


@pytest.fixture
def unharmed(net):
    """Return a model with gradients; check afterwards all that a failure could have harmed."""
    for p in net.collect_params().values():
        p.grad()[:] = 7
    works(dense())  # as first runs may keep references to classes
    before, arrays = state_of(net), alive()
    yield net
    assert_nothing_is_left()
    equal(state_of(net), before, 0, 0)
    assert none_left(arrays), "arrays are left"
    works(net)


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.__name__)
@pytest.mark.parametrize("stage", STAGES)
def test_the_failure_of_a_stage_leaves_nothing_behind(unharmed, monkeypatch, stage, error):
    owner, name = STAGES[stage]
    samples = attached(inputs(5))
    with pytest.raises((error, gdb.LaunchError)) as caught, monkeypatch.context() as patch:
        patch.setattr(owner, name, fails(error))
        with autograd.record(), gdb.batching(**FIXED):
            # A new scale has to be traced; two orders need a gather.  Cumulative sums run
            # in MXNet, the rest in native steps.
            scale = len(stage) + FAILURES.index(error) / 4
            first = [mx.nd.cumsum(unharmed(x) * scale, axis=1) for x in samples]
            outputs = [a * b for a, b in zip(first, [first[i] for i in (2, 0, 2, 4, 1)])]
        outputs[0].wait_to_read()  # only now does MXNet have to know of them
    assert "on purpose" in str(caught.value)
    if stage in ("handing out", "connecting"):
        assert all(not y.pending for y in outputs)
    elif stage != "tracing":
        with pytest.raises(gdb.StaleArrayError, match=type(caught.value).__name__):
            outputs[0].asnumpy()
    assert all((x.grad.asnumpy() == 0).all() for x in samples)


@pytest.mark.parametrize("stage", [(assembling, "Backward"), (prepare, "find_reach")])
def test_a_plan_is_reused_after_the_planning_of_its_backward_pass_failed(monkeypatch, stage):
    layer, samples = dense(), attached(inputs(5))
    RUNTIME.plans.clear()
    with pytest.raises(MemoryError), monkeypatch.context() as patch:
        patch.setattr(*stage, fails(MemoryError))
        with autograd.record(), gdb.batching(**FIXED):
            losses = [layer(x) for x in samples]
    del losses
    for _ in range(2):
        batch = check_against_loop(layer, samples, **FIXED)
        assert batch.report.flushes[-1].cached


@pytest.mark.parametrize("stage", ["planning", "the third launch"])
def test_the_failure_of_a_flush_in_mid_scope_loses_only_its_values(unharmed, monkeypatch, stage):
    """Earlier values stay, those of the flush are refused, and the scope goes on.

    Launches before the one that fails have written to arenas only.
    """
    wanted = [unharmed(x) for x in SAMPLES]
    third = execute.Execution, "_launch", fails(mx.MXNetError, execute.Execution._launch, 2)
    failing = third if "launch" in stage else (*STAGES[stage], fails(MemoryError))
    with autograd.train_mode(), gdb.batching(**FIXED) as batch:
        before = unharmed(SAMPLES[0])
        batch.flush()
        lost = unharmed(SAMPLES[1])
        with monkeypatch.context() as patch, pytest.raises((MemoryError, gdb.LaunchError)):
            patch.setattr(*failing)
            for _ in range(4):
                lost = mx.nd.cumsum(mx.nd.arccosh(lost), axis=1)
            lost.asnumpy()
        assert autograd.is_training() and not autograd.is_recording()
        after = unharmed(SAMPLES[2])
    equal([before, after], [wanted[0], wanted[2]])
    with pytest.raises(gdb.StaleArrayError, match="MemoryError|LaunchError"):
        lost.asnumpy()


def test_an_argument_that_could_not_be_computed_raises_its_own_error(unharmed):
    failed = mx.nd.linalg.potrf(-mx.nd.eye(2).reshape((1, 2, 2)))
    with pytest.raises(mx.MXNetError, match="potrf"), gdb.batching(**FIXED):
        cell(lambda F, x: x * 2)(failed)


@pytest.mark.parametrize("stage", ["users", "tracing", "analysis", "memory"])
def test_a_failure_before_anything_has_run_draws_no_random_numbers(unharmed, monkeypatch, stage):
    mx.random.seed(3)
    wanted = mx.nd.random.uniform(shape=(4,)).asnumpy()
    mx.random.seed(3)
    with pytest.raises((KeyError, gdb.LaunchError)), monkeypatch.context() as patch:
        if stage != "users":
            patch.setattr(*STAGES[stage], fails(KeyError))
        with autograd.record(), gdb.batching(**FIXED):
            for x in SAMPLES:
                mx.nd.Dropout(mx.nd.arcsinh(unharmed(x)), p=0.5 + len(stage) / 100)
            raise KeyError
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=(4,)).asnumpy(), wanted)


@pytest.mark.parametrize(
    "recording, operator, text",
    [
        (False, mx.nd.linalg.potrf, "positive definite"),
        (True, mx.nd.linalg.potrf, "positive definite"),
        (False, partial(mx.nd.Custom, **SQUARING), "block: Custom"),
    ],
)
def test_a_launch_that_fails_on_a_value_raises_at_each_read(unharmed, recording, operator, text):
    """MXNet raises at the first read only; later reads would give garbage, and are refused."""
    good = mx.nd.array(4 * np.eye(3)[None])
    with autograd.record() if recording else autograd.pause():
        with refused(gdb.LaunchError, text, late=True), gdb.batching(**FIXED):
            results = [mx.nd.zeros((1, 3, 3)) + x for x in (good, -good, good)]
            results = [operator(x) for x in results]  # wrong
    for result in results:
        with pytest.raises(gdb.StaleArrayError, match="LaunchError"):
            result.asnumpy()
    with gdb.batching(**FIXED):
        results = [operator(mx.nd.zeros((1, 3, 3)) + good) for _ in range(3)]
    equal(results, [good / 2] * 3)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.__name__)
@pytest.mark.parametrize(
    "owner, name",
    [
        (backward.Pull, "_add_up"),
        (operators.OperatorTape, "_go_backward"),
        (buffers.Arenas, "operand"),
        (backward.Pull, "_input_gradients"),
    ],
)
def test_an_error_in_the_backward_pass_is_raised(net, monkeypatch, owner, name, error, direct):
    """It is raised by a pass without MXNet's tape; the rest goes on as before.

    Of others, MXNet raises at the first read of a gradient; the log has the original traceback.
    """
    for p in net.collect_params().values():
        p.grad()[:] = 7
    mx.nd.waitall()
    arrays = alive()
    logged = []
    with monkeypatch.context() as patch:
        patch.setattr(RUNTIME.dispatcher.kernels, "native", False)
        patch.setattr(gradient.LOGGER, "exception", lambda text: logged.append(format_exc()))
        with autograd.record(), gdb.batching(**FIXED):
            losses = [net(x).sum() for x in SAMPLES]
        if not direct:
            mx.nd.add_n(*losses).wait_to_read()
        patch.setattr(owner, name, fails(error))
        with pytest.raises(error if direct else mx.MXNetError) as caught:
            autograd.backward(losses)
            mx.nd.waitall()
    assert ("on purpose" if direct else "CustomFunction") in str(caught.value)
    assert len(logged) == (not direct)
    assert direct or f"{error.__name__}: on purpose" in logged[0]
    del losses, caught
    for p in net.collect_params().values():
        np.testing.assert_array_equal(p.grad().asnumpy(), 7)
    mx.nd.waitall()
    assert none_left(arrays), "arrays are left"
    works(net)


def test_running_out_of_memory_leaves_nothing_behind(unharmed):
    wide = cell(lambda F, x: F.broadcast_to(x, shape=(1 << 22, 4)) * 2)
    samples = inputs(64)
    # Let the process allocate two more gigabytes, whatever the machine has.
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30), limits[1]))
    try:
        for mode in (autograd.pause, autograd.record):
            with mode(), pytest.raises(gdb.LaunchError, match="smaller minibatches"):
                with gdb.batching(**FIXED):
                    for x in samples:
                        wide(x)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


#: The number of instructions from one interrupt to the next.
EVERY = 5


class Interrupt:
    """Counts instructions of some modules; raises an exception at one, unless it is 0."""

    def __init__(self, instruction, modules, kind=KeyboardInterrupt):
        self._instruction, self._kind = instruction, kind
        self._files = {module.__file__ for module in modules}
        self.seen = 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _call(self, frame, event, argument):
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame, event, argument):
        if event == "opcode":
            self.seen += 1
            if self.seen == self._instruction:
                sys.settrace(None)
                raise self._kind
        return self._step


def automatic(net):
    with gdb.batching():
        for x in SAMPLES[:3]:
            net(x)


def training(net):
    mode = autograd.record()
    mode.__enter__()
    try:
        with gdb.batching(**FIXED):
            losses = [net(x) for x in SAMPLES[:3]]
    finally:
        # MXNet's `record` does not do this if its `__enter__` or `__exit__` is interrupted.
        autograd.set_recording(False)
        autograd.set_training(False)
    autograd.backward(losses)


def nested(net):
    batch = gdb.batching(**FIXED)
    with batch:
        net(SAMPLES[0])
        with gdb.batching(), batch:
            net(SAMPLES[1])


def managed(net):
    with batched(**FIXED):
        net(SAMPLES[0])
        gdb.map(net, SAMPLES[1:3])


PROGRAMS = [automatic, training, nested, managed]


def interrupted(program, net, instruction, modules):
    try:
        with Interrupt(instruction, modules):
            program(net)
    except KeyboardInterrupt as error:
        # Its traceback keeps the frames alive, and the scopes in them.
        return error
    return None


#: Modules, and the instructions from one interrupt to the next: 1 if `EVERY` is 1.  Modules
#: with locks are missing, as Python handles no interrupt at which ``with lock`` would not free it.
PARTS = {
    "ends": ((scope, intercept, nd_functions, hooks), EVERY),
    "middle": (
        (auto, chain, flush, hazards, keep, lazy, lazy_base, recorder, tape, tape_node),
        2 * EVERY - 1,
    ),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_interrupts_leave_nothing_behind(net, program, part):
    """Wherever a program is interrupted, nothing is left, and the next scope works."""
    modules, every = PARTS[part]
    program(net)
    with Interrupt(0, modules) as counter:
        program(net)
    raised = 0
    for instruction in range(1 + PROGRAMS.index(program) % EVERY, counter.seen + 1, every):
        error = interrupted(program, net, instruction, modules)
        raised += error is not None
        assert_nothing_is_left()
        if not raised % 4:
            works(net)
        del error
    works(net)
    # "auto" may change to a setting that takes fewer instructions.
    assert raised > 0.8 * (counter.seen // every) > 30 or program is automatic and raised > 10


def making_arrays(net):
    with gdb.batching(**FIXED):
        for k in range(3):
            net(mx.nd.array([[k] * 4]) + SAMPLES[0])


@pytest.mark.parametrize("program", [training, making_arrays])
def test_exceptions_of_signal_handlers_arrive_as_they_are(net, program):
    """A handler that limits the time, for example, is run by Python wherever the program is."""
    modules = pool, mx.context
    program(net)
    with Interrupt(0, modules) as counter:
        program(net)
    assert counter.seen > 50
    for instruction in range(1, counter.seen + 1):
        # Buffers that are used again take fewer instructions.
        with contextlib.suppress(TimeoutError), Interrupt(instruction, modules, TimeoutError) as it:
            program(net)
            assert it.seen < instruction
    works(net)
