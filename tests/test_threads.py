"""Threads have scopes of their own, share models, and may run one launch together."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing, recording
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.run import gradient
from tests.cells import cell, equal, ready
from tests.common import FIXED, PATIENCE, assert_nothing_is_left, in_thread, interpreter_with
from tests.forks import output_of
from tests.fuzz.threads import TEAMS
from tests.inside import nodes_of_mxnets_tape

THREADS = 4


class Chain(gdb.DynamicHybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.step = gdb.convert(nn.Dense(8, in_units=16, activation="tanh"))

    def forward(self, rows):
        state = mx.nd.zeros((1, 8))
        for row in rows:
            state = self.step(mx.nd.concat(state, row, dim=1))
        return state


@pytest.fixture
def model():
    return ready(Chain(), 1)


def sequences(seed, count=12):
    random = np.random.RandomState(seed)
    return [
        [mx.nd.array(random.uniform(-1, 1, (1, 8))) for _ in range(random.randint(1, 6))]
        for _ in range(count)
    ]


def in_threads(work, count=THREADS):
    """Run ``work(number)`` in threads that start together; fail on an exception or a hang."""
    failures = []
    start = threading.Barrier(count)

    def run(number):
        try:
            start.wait(PATIENCE)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]
    assert_nothing_is_left()


@pytest.mark.parametrize("options", [FIXED, {"granularity": "operator", "policy": "depth"}, {}])
@pytest.mark.parametrize("known", [True, False], ids=["model traced", "model new"])
def test_threads_with_scopes_of_their_own(model, options, known):
    """With a new model, all threads trace and compile the same calls together; some fail."""
    work = [sequences(n) for n in range(THREADS)]
    reference = Chain(params=model.collect_params())
    wanted = [[reference(s) for s in samples] for samples in work]
    if known:
        gdb.map(model, work[0], **options)
    kept = []

    def serve(number):
        for _ in range(5):
            if number % 2:
                with pytest.raises(KeyError), gdb.batching(**options):
                    model(work[number][0])
                    raise KeyError
            with gdb.batching(**options) as batch:
                outputs = [model(s) for s in work[number]]
                assert STATE.batch is batch
            equal(outputs, wanted[number])
            assert batch.report.nodes + batch.report.at_once >= sum(map(len, work[number]))
            assert batch.report.launches <= 10, str(batch.report)
        kept.append((outputs, wanted[number]))

    in_threads(serve)
    for outputs, right in kept:
        equal(outputs, right)


def test_threads_examine_a_block_independently(model):
    """While one thread examines the block, the pieces of others stay valid."""
    samples = sequences(1)
    model.hybridize(trace_once=True)
    wanted = [model(s) for s in samples]

    def serve(number):
        for turn in range(40):
            model.turn = number, turn
            with gdb.batching(**FIXED) as batch:
                outputs = [model(s) for s in samples]
            equal(outputs, wanted)
            reasons = {refusal.reason for refusal in batch.report.traced.refused}
            assert reasons <= {"it changes an attribute of a block"}

    with interpreter_with("switchinterval", 1e-6):
        in_threads(serve)


def test_a_thread_without_a_scope_is_not_recorded(model):
    """Its blocks and operators run at once while another thread's scope is open."""
    samples = sequences(0)
    wanted = [model(s) for s in samples]

    def plain():
        assert STATE.batch is None
        with autograd.record():
            outputs = [model(s) for s in samples]
            total = outputs[0] + mx.nd.ones((1, 8))
            assert all(type(y) is mx.nd.NDArray for y in (*outputs, total))
        return outputs

    with gdb.batching() as batch:
        lazy = [model(s) for s in samples]
        equal(in_thread(plain), wanted)
        assert all(type(y) is LazyNDArray and y.pending for y in lazy)
        assert recording.current_mode() == 0, "the mode of the other thread is its own"
    equal(lazy, wanted)
    assert batch.report.nodes == 2 * sum(map(len, samples))


def test_mxnet_frees_a_graph_without_python(model):
    """One of its threads does, and a fork or the end of the process waits for that thread."""
    # From here on, this thread releases the global lock only where it waits.
    with interpreter_with("switchinterval", 1000):
        known = nodes_of_mxnets_tape()
        with autograd.record(), gdb.batching(**FIXED):
            losses = [model(rows).sum() for rows in sequences(1)]
        losses[0].wait_to_read()  # MXNet has to know of the graph
        (number,) = nodes_of_mxnets_tape() - known
        autograd.backward(losses, retain_graph=True)
        del losses
        mx.nd.waitall()
        deadline = time.monotonic() + PATIENCE
        while number in nodes_of_mxnets_tape() and time.monotonic() < deadline:
            gradient.forget()
    assert number not in nodes_of_mxnets_tape()


def test_threads_share_a_model():
    """They train it and call it, in scopes and without; a deadlock ends at the limit of time."""
    printed = output_of("from tests.fuzz.threads import main\nmain(3)")
    assert len(printed.splitlines()) == len(TEAMS)


ENDS = """
import atexit, os, sys, tempfile
import mxnet as mx
end = sys.argv[1]
atexit.register(lambda: end == "late" and turn())
import gluon_dynbatch as gdb
from tests.cells import SQUARING, dense
net = dense(8, 8)
trainer = mx.gluon.Trainer(net.collect_params(), "adam")
data = [mx.nd.ones((1, 8)) for _ in range(30)]
# At its end, MXNet calls Python once more, to free the operator.
gdb.map(lambda x: mx.nd.Custom(mx.nd.relu(net(x)), **SQUARING), data)
def turn():
    with mx.autograd.record(), gdb.batching(granularity="block", policy="depth"):
        losses = [net(net(net(x))).sum() for x in data]
    mx.autograd.backward(losses)
    return losses
for _ in range(3):
    kept = turn()
    trainer.step(30)
kept = [turn() for _ in range(3)]
if end == "profiled":
    name = os.path.join(tempfile.mkdtemp(), "profile.json")  # MXNet deletes an existing file
    mx.profiler.set_config(filename=name, profile_all=True)
    mx.profiler.set_state("run")
    kept.append(turn())
if end == "forked" and os.fork():
    os.wait()
if end == "freed":
    del kept, net, trainer
"""


def test_processes_end_with_backward_passes_pending():
    """They neither hang nor abort, whatever is still held and in whatever order they end."""
    with ThreadPoolExecutor(2) as pool:
        ends = ["kept", "late", "profiled", "forked", "freed"]
        assert list(pool.map(lambda end: output_of(ENDS, end, prelude=""), ends)) == [""] * 5


def step_and_samples():
    """Return a step that is wide enough for two threads from some 100 rows on, and samples."""
    up = nn.Dense(200, in_units=150, flatten=False)
    down = nn.Dense(150, in_units=200, flatten=False)

    def step(F, x, scale):
        inner = F.broadcast_mul(F.tanh(up(x)), F.sigmoid(scale))
        return x + F.softmax(down(inner))

    random = np.random.RandomState(3)
    rows = [mx.nd.array(random.randn(1, 150)) for _ in range(120)]
    return ready(cell(step, up, down), 0.3), [
        (row, mx.nd.array(random.randn(1, 1))) for row in rows
    ]


def results(block, samples, threads):
    executing.use_threads(threads, threads)
    first, _ = samples[0]
    first.attach_grad()
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        ends = []
        for i, (row, scale) in enumerate(samples):
            state = row
            for _ in range(1 + i % 3):
                state = block(state, scale)
            ends.append((state * state).sum())
    autograd.backward(ends)
    trained = [p.grad() for p in block.collect_params().values()]
    return [array.asnumpy() for array in (mx.nd.concat(*ends, dim=0), *trained, first.grad)]


@pytest.fixture(autouse=True)
def one_thread():
    """Leave one thread to the tests that follow."""
    yield
    executing.use_threads(1)


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_results_do_not_depend_on_threads(threads):
    block, samples = step_and_samples()
    wanted = results(block, samples, 1)
    assert np.isfinite(wanted[0]).all() and wanted[0].any()
    equal(results(block, samples, threads), wanted, 0, 0)
    with pytest.raises(ZeroDivisionError), gdb.batching():
        block(*samples[0])
        raise ZeroDivisionError
    equal(results(block, samples, threads), wanted, 0, 0)


def test_two_scopes_in_two_threads_have_values_of_their_own():
    pairs = [step_and_samples() for _ in range(2)]
    wanted, got = results(*pairs[0], 1), []
    in_threads(lambda i: got.append(results(*pairs[i], 3)), 2)
    for arrays in got:
        equal(arrays, wanted, 0, 0)


FORKED = """
from gluon_dynbatch.native import executing
from tests.test_threads import results, step_and_samples

block, samples = step_and_samples()
wanted = results(block, samples, 1)
equal(results(block, samples, 2), wanted, 0, 0)
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        equal(results(block, samples, 2), wanted, 0, 0)
        os._exit(11)
    print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
equal(results(block, samples, 3), wanted, 0, 0)
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_programs_are_shared_again_after_a_fork(engine):
    """The naive engine runs everything in the calling thread."""
    forks = engine != "NaiveEngine"
    mode = "fork" if forks else ""
    printed = output_of(FORKED, mode, OMP_NUM_THREADS="2", MXNET_ENGINE_TYPE=engine)
    assert not forks or printed.endswith("11\n")


def test_launches_at_the_same_time():
    """Experts of a few rows each run at the same time; threads do not change any bit."""
    experts = [nn.Dense(96, in_units=96, activation="tanh") for _ in range(40)]
    for expert in experts:
        expert.initialize()
        expert.hybridize()
    random = np.random.RandomState(0)
    inputs = [mx.nd.array(random.rand(1, 96)) for _ in range(150)]
    chosen = random.randint(0, len(experts), (150, 2))

    def compute():
        with autograd.record(), gdb.batching(**FIXED) as batch:
            both = [experts[j](experts[i](x)) for x, (i, j) in zip(inputs, chosen)]
        autograd.backward(both)
        arrays = [*both, *(p.grad() for e in experts for p in e.collect_params().values())]
        assert len(batch.plan.launches) > len(experts)
        return b"".join(array.asnumpy().tobytes() for array in arrays)

    executing.use_threads(1)
    wanted = compute()
    try:
        for threads in (2, 3, 8):
            executing.use_threads(threads, threads)
            assert compute() == wanted
    finally:
        executing.use_threads(1)
