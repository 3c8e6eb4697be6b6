"""What scopes ask of MXNet's engine: separate memories, a bounded queue, any size of memory."""

import _thread
import ctypes
import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing, planning
from gluon_dynbatch.run.buffers import bases_of, write_pieces
from gluon_dynbatch.run.engine import MOST_EARLIER, Flight, push_notice
from gluon_dynbatch.run.execute import Pass
from gluon_dynbatch.run.gradient import record_function
from gluon_dynbatch.run.pool import MOST_ELEMENTS, Pool
from tests.cells import array, dense, equal
from tests.common import FIXED, PATIENCE, SAMPLES, SCOPES, many_parts
from tests.forks import output_of
from tests.gates import GATE, gated
from tests.inside import unfinished_flushes


def memory_of(array):
    """Return the address of MXNet's record of an array's memory."""
    return ctypes.c_size_t.from_address(array.handle.value).value


@pytest.mark.parametrize("options", SCOPES)
def test_arrays_have_memories_of_their_own(options):
    """MXNet's engine queues operations by memory, so arrays that share one wait for each other."""
    net = dense(4, 4)
    with gdb.batching(**options) as batch:
        arrays = [net(sample) for sample in SAMPLES]
        arrays += [mx.nd.sum(array) for array in arrays]
        for array in list(arrays):
            array.attach_grad()
            arrays.append(array.grad)
        batch.flush()
        arrays += [array * 2 for array in arrays]
    assert len(set(map(memory_of, arrays))) == len(arrays)


WAITING = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
from tests.cells import SQUARING

net = dense(3, 3)

class Times(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, d):
        return 2 * d * self.saved_tensors[0].asnumpy().sum()

def with_function():
    x = net(mx.nd.ones((1, 3)))
    x.attach_grad()
    with autograd.record():
        y = Times()(x)
    y.backward()
    return x.grad

def with_given_gradient():
    x, gradient = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    autograd.mark_variables([x], [gradient])
    with autograd.record():
        y = Times()(x)
    y.backward()
    return gradient

def after_a_decision():
    x = net(mx.nd.ones((1, 3)))
    x.attach_grad()
    with autograd.record():
        best = int(x.argmax(axis=1).asscalar())
        loss = mx.nd.log_softmax(x)[0, best]
    loss.backward()
    return x.grad

def with_an_update_in_place():
    x, target = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    target.wait_to_read()
    x.attach_grad()
    with autograd.record():
        y = Times()(x)
    y.backward()
    target -= x.grad
    return target

def with_an_operator_in_python():
    x, y = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    mx.nd.Custom(mx.nd.relu(x), out=y, **SQUARING)
    return x + y

for program in list(vars().values()):
    if getattr(program, "__module__", None) == "__main__" and program is not Times:
        wanted = program()
        with gdb.batching(granularity="block", policy="depth"):
            got = program()
        equal([got], [wanted])
        print(program.__name__)
"""


def test_functions_in_python_read_arrays_beside_those_that_they_write():
    """Of arrays of one flush, a backward pass in Python reads some and writes others."""
    assert len(output_of(WAITING).split()) == 5


def calls(net):
    with gdb.batching(**FIXED) as batch:
        kept = [net(sample) for sample in SAMPLES]
    return batch, kept


def flushes(net):
    """Most flushes of a scope that reads no value are not its last."""
    with gdb.batching(**FIXED) as batch:
        for _ in range(TURNS):
            kept = [net(sample) for sample in SAMPLES]
            batch.flush()
    return batch, kept


def records(net):
    with autograd.record(), gdb.batching(**FIXED) as batch:
        losses = [net(sample).sum() for sample in SAMPLES]
    return batch, losses


def trains(net):
    batch, losses = records(net)
    autograd.backward(losses)
    return batch, losses


def finds_gradients(net):
    batch, losses = records(net)
    return batch, autograd.grad(losses, [net.weight.data()])


def trains_outside(net):
    """Only the backward pass waits for the gate."""
    batch, losses = records(net)
    with autograd.record():
        total = gated(mx.nd.add_n(*losses), backward=1)
    total.backward()
    return batch, total


TURNS = 3 * (MOST_EARLIER + 1)


def waits_for_room(thread):
    """Return whether a thread waits until it may start a flush."""
    return sys._current_frames()[thread].f_code is Flight.make_room.__code__


@pytest.mark.parametrize("turn", [calls, flushes, trains, finds_gradients, trains_outside])
def test_few_flushes_are_unfinished(turn):
    """A thread that reads no value waits for earlier flushes, and says so in the report."""
    net, counts, workers = dense(4, 4), [], []
    GATE.clear()
    if turn is not trains_outside:
        weight = net.weight.data()
        weight[:] = gated(weight)

    def work():
        workers.append(threading.get_ident())
        for _ in range(TURNS):
            batch, _ = turn(net)
            counts.append(len(batch.report.flushes))
            if turn is flushes:
                break
        return batch.report

    try:
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(work)
            while turn is flushes and not (workers and waits_for_room(workers[0])):
                assert not result.done()
                time.sleep(0.01)
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                assert len(counts) <= MOST_EARLIER + 1 and not result.done()
                time.sleep(0.01)
            GATE.set()
            report = result.result(PATIENCE)
    finally:
        GATE.set()
    assert sum(counts) == TURNS
    if turn is flushes:
        assert report.flushes[MOST_EARLIER + 1].queue_ms > 100
        assert "waiting for earlier flushes " in str(report)
        assert json.loads(report.to_json())["flushes"][MOST_EARLIER + 1]["queue_ms"] > 100


def test_parts_of_a_scope_with_gradients_count_as_one():
    """They are in memory until the backward pass, so waiting in the scope would gain nothing."""
    net = dense(4, 4)
    weight = net.weight.data()
    GATE.clear()
    try:
        weight[:] = gated(weight)
        with many_parts(1):
            reports = [trains(net)[0].report for _ in range(MOST_EARLIER)]
            with autograd.record(), gdb.batching(**FIXED) as batch:
                losses = [net(sample).sum() for sample in SAMPLES]
    finally:
        GATE.set()
    assert all(len(report.flushes) > MOST_EARLIER + 1 for report in (*reports, batch.report))
    equal(losses, [net(sample).sum() for sample in SAMPLES])


def test_errors_surface_where_values_are_read():
    """A flush that waits for failed ones neither raises their errors nor hides them."""
    net = dense(4, 4)
    right = net.weight.data().copy()
    net.weight.data()[:] = mx.nd.linalg.potrf(-mx.nd.ones((4, 4)))
    kept = [calls(net) for _ in range(TURNS)]
    with pytest.raises(mx.MXNetError, match="potrf"):
        kept[-1][1][0].asnumpy()
    net.weight.set_data(right)
    equal(calls(net)[1], [net(sample) for sample in SAMPLES])


def test_an_interrupt_ends_the_wait():
    """The engine goes on, and later scopes work."""
    net = dense(4, 4)
    weight = net.weight.data()
    GATE.clear()
    weight[:] = gated(weight)
    main = threading.get_ident()
    # A process that a shell starts in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt():
        while not waits_for_room(main):
            time.sleep(0.01)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(TURNS):
                calls(net)
    finally:
        GATE.set()
        thread.join(PATIENCE)
        signal.signal(signal.SIGINT, before)
    equal(calls(net)[1], [net(sample) for sample in SAMPLES])


def test_a_forked_process_waits_for_nothing():
    assert output_of(FORKED).split() == ["7"]


FORKED = """
net = dense(4, 4)
def turn():
    with autograd.record(), gdb.batching(granularity="block", policy="depth"):
        losses = [net(mx.nd.ones((1, 4))).sum() for _ in range(9)]
    autograd.backward(losses)
for _ in range(3):
    turn()
child = os.fork()
for _ in range(9):
    turn()
mx.nd.waitall()
if not child:
    os._exit(7)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("elements", [2_050_000_000, MOST_ELEMENTS])
def test_buffers_are_as_large_as_those_of_mxnet(elements):
    """The pool rounds sizes up, but not beyond what MXNet can allocate."""
    assert Pool().take((elements,), "uint8", mx.cpu()).size == elements


@pytest.mark.parametrize("size", [0, 1, 9, 3 << 30])
def test_memory_of_programs_may_exceed_2_gb(size):
    """It is counted in bytes, but allocated in larger elements.  No page of it is touched."""
    assembled, arenas = SimpleNamespace(sizes={"saved": size}), SimpleNamespace(pool=Pool())
    fake = SimpleNamespace(_assembled=assembled, arenas=arenas)
    memory = Pass.array_at(fake, "saved")
    assert memory.size * np.dtype(memory.dtype).itemsize >= size


@pytest.mark.parametrize("retained", [False, True])
def test_backward_passes_after_the_last_flush_need_no_memory(retained):
    """A program may use a scope once, and then train without."""
    net, x = dense(4, 3), mx.nd.ones((1, 3))
    with autograd.record(), gdb.batching(**FIXED):
        losses = [net(x) for _ in range(4)]
    autograd.backward(losses, retain_graph=retained)
    for _ in range(50):
        if not retained:
            with autograd.record():
                losses = [net(x)]
        autograd.backward(losses, retain_graph=retained)
        mx.nd.waitall()
    assert max(unfinished_flushes(), default=0) <= 3


class Reader:
    """A function of MXNet's tape that reads an array of its backward pass once the gate is open."""

    def __init__(self, x, reads_target, fails):
        self.inputs, self._reads_target, self._fails = [x], reads_target, fails
        self.has_run, self.read = threading.Event(), gated(mx.nd.zeros(x.shape))

    def starts(self, heads):
        return False

    def reached(self):
        return None

    def backward(self, head_gradients, requests, training):
        target, (gradient,) = requests.targets[0], head_gradients
        target[:] = 7
        piece = [[planning.COPY, 0, 0, 0, gradient.size]]
        write_pieces(self.read, [target if self._reads_target else gradient], np.array(piece))
        self.has_run.set()
        assert not self._fails, "on purpose"
        return [target]


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("reads_target", [False, True], ids=["gradient of result", "of input"])
def test_mxnet_keeps_what_a_backward_pass_reads(reads_target, fails, caplog):
    """It lends arrays to a node of its tape, and alone would wait for what writes them only."""
    x = mx.nd.array([1, 2])
    x.attach_grad()
    got = x.grad
    GATE.clear()
    try:
        reader, y = Reader(x, reads_target, fails), x * 1
        record_function([x], [y], reader)
        with autograd.record():
            z = y * mx.nd.array([3, 5])
        z.backward()
        done = push_notice([got.handle.value])
        assert reader.has_run.wait(PATIENCE)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            assert not done.given
            time.sleep(0.01)
    finally:
        GATE.set()
        done.wait()
    if fails:  # MXNet gives the error to the first operator in Python that ends
        with pytest.raises(mx.MXNetError, match="CustomFunction"):
            reader.read.asnumpy()
    else:
        equal([reader.read], [np.float32([7, 7] if reads_target else [3, 5])])
        equal([got], [np.float32([7, 7])])
    assert len(caplog.records) == fails


def test_a_backward_pass_does_not_wait_for_a_later_flush():
    """The buffers of the later flush are free to be reused, but it has not run.

    x -> first -+-> second -+-> loss   backward, the gradient of `first` is put together in a
                +-----------+          buffer as large as the arena of `later`
    x -> later                         waits for its weight
    """
    first, second, later = (dense(512, 512) for _ in range(3))
    samples = [array(64, 512, seed=k) for k in range(4)]
    mx.nd.waitall()
    with autograd.record(), gdb.batching(**FIXED):
        losses = [y + second(y) for y in map(first, samples)]
    weight = later.weight.data()
    GATE.clear()
    try:
        weight[:] = gated(weight)
        with gdb.batching(**FIXED):
            results = list(map(later, samples))
        del results
        autograd.backward(losses)
        gradient = first.weight.grad()
        done, deadline = push_notice([gradient.handle.value]), time.monotonic() + PATIENCE / 2
        while not done.given and time.monotonic() < deadline:
            time.sleep(0.01)
        assert done.given and not GATE.is_set()
    finally:
        GATE.set()
        mx.nd.waitall()


COPIES = """
from mxnet import profiler
net = dense()
arrays = [mx.nd.arange(4 * n).reshape((n, 4)) for n in range(1, 6)]
mx.nd.waitall()
profiler.set_config(filename=sys.argv[1], profile_all=True)
profiler.set_state("run")
with gdb.batching(granularity="block", policy="depth"):
    results = [net(array) for array in arrays]
print(len({result.handle.value for result in results}))
mx.nd.waitall()
profiler.set_state("stop")
profiler.dump()
equal(results, [net(array) for array in arrays])
"""


def test_results_of_many_shapes_leave_their_arena_by_one_push(tmp_path):
    """As the trace of the engine's operations shows."""
    path = tmp_path / "trace.json"
    assert output_of(COPIES, str(path)) == "5\n"
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    pushed = [event["name"] for event in events if event.get("ph") == "B"]
    assert pushed.count("gluon_dynbatch") == 1 and pushed.count("gluon_dynbatch copies") == 1


READS = """
from mxnet import profiler
net = dense()
arrays = [mx.nd.arange(4 * n).reshape((n, 4)) for n in range(1, 6)]
wanted = [net(array).asnumpy() for array in arrays]

def run():
    with gdb.batching(granularity="block", policy="depth"):
        return [net(array).asnumpy() for array in arrays]

run()
mx.nd.waitall()
profiler.set_config(filename=sys.argv[1], profile_all=True)
profiler.set_state("run")
got = run()
profiler.set_state("stop")
profiler.dump()
equal(got, wanted)
"""


def test_to_read_a_value_takes_one_operation_of_the_engine(tmp_path):
    """The program of a flush tells when it is done, so no notice is queued.

    MXNet queues a wait of its own if the engine has yet to note that the program is done.
    """
    path = tmp_path / "trace.json"
    output_of(READS, str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    pushed = [event["name"] for event in events if event.get("ph") == "B"]
    own = [name for name in pushed if name not in ("DeleteVariable", "WaitForVar")]
    assert own == ["gluon_dynbatch"] * 5


def test_a_program_that_is_dropped_unrun_gives_its_notice():
    """Nobody waits for it forever."""
    notice = executing.Notice()
    assert not notice.given
    program = executing.Program(np.zeros(0, np.int64))
    array = mx.nd.zeros((2,))
    assert not program.push(bases_of([array], b"w"), b"test", notice=notice)
    notice.wait()
    assert notice.given
    program.push(bases_of([array], b"w"), b"test", notice=notice)  # it has none to give any more
    mx.nd.waitall()
    del notice, program
