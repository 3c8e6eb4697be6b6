"""Requests of threads and tasks: each gets its own answer, even if others fail."""

import asyncio
import gc
import sys
import threading
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.samples.arguments import CONVERTIBLE
from tests.cells import dense, equal
from tests.common import PATIENCE, named_lines
from tests.forks import output_of

#: A minibatch waits until it is full, or the batcher is closed: tests decide when.
FOREVER = 1e5
Pair = namedtuple("Pair", "score label")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def rows(count):
    return [mx.nd.random.uniform(-1, 1, (1 + i % 3, 4)) for i in range(count)]


def factor(scale):
    """Fail in the flush if `scale` is negative, together with all calls of the launch."""
    return mx.nd.linalg.potrf(mx.nd.eye(2).reshape((1, 2, 2)) * mx.nd.full((1, 2, 2), scale))


class Gate:
    """A function that waits until it is opened, and lists its calls."""

    def __init__(self):
        self.calls, self.entered, self.opened = [], threading.Event(), threading.Event()

    def __call__(self, sample):
        self.calls.append(sample)
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return sample


@pytest.fixture
def gate():
    closed_gate = Gate()
    yield closed_gate
    closed_gate.opened.set()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_threads_and_tasks_get_their_own_answers(net, size):
    samples = rows(60)
    wanted = [net(x).asnumpy() for x in samples]

    async def tasks():
        return await asyncio.gather(*map(batcher, samples))

    with gdb.RequestBatcher(net, size, 0.002) as batcher, ThreadPoolExecutor(4) as pool:
        got = [pool.submit(lambda x: batcher.submit(x).result(PATIENCE), x) for x in samples]
        answers = [[future.result(PATIENCE) for future in got], asyncio.run(tasks())]
        stats = batcher.stats()
    for answer in answers:
        equal(answer, wanted)
    assert stats.completed == 120 == sum(n * times for n, times in stats.batch_sizes.items())
    assert max(stats.batch_sizes) <= size and stats.queued == stats.running == 0


def test_requests_run_in_one_scope_and_do_not_record_gradients(net):
    seen = []

    def fn(x):
        seen.append((STATE.batch, autograd.is_recording(), mx.context.current_context()))
        return net(x)

    with mx.cpu(1), autograd.record():
        batcher = gdb.RequestBatcher(fn, 20, FOREVER, granularity="block", policy="depth")
    for _ in range(3):
        for future in [batcher.submit(x) for x in rows(20)]:  # full, so it starts
            future.result(PATIENCE)
    batcher.close()
    assert set(seen) == {(seen[0][0], False, mx.cpu(1))} and seen[0][0] is not None
    assert batcher.stats().batch_sizes == {20: 3}


def test_a_minibatch_waits_for_no_more_requests_than_there_were(gate):
    with gdb.RequestBatcher(gate, 64, 0) as batcher:
        first = batcher.submit(0)
        assert gate.entered.wait(PATIENCE)
        batcher._queue._wait_s = FOREVER
        futures = [batcher.submit(1), batcher.submit(2)]
        gate.opened.set()
        assert first.result(PATIENCE) == 0
        futures.append(batcher.submit(3))  # the client that was answered
        assert [future.result(PATIENCE) for future in futures] == [1, 2, 3]
    assert batcher.stats().batch_sizes == {1: 1, 3: 1}


#: Errors of a launch of several calls, and of one call.
REFUSED = (gdb.LaunchError, mx.MXNetError)
BAD = {
    "a wrong shape": (lambda net: net(mx.nd.ones((1, 5))), gdb.ShapeError),
    "an exception": (lambda net: {}["no"], KeyError),
    "a refused value": (lambda net: factor(-1), REFUSED),
    "a refused value that is read": (lambda net: factor(-1).asnumpy(), REFUSED),
    "an exit": (lambda net: sys.exit("no"), gdb.RequestError),
    "an end of an iterator": (lambda net: next(iter(())), gdb.RequestError),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("places", [(5,), (0, 1, 8)], ids=str)
def test_bad_requests_fail_alone(net, bad, places):
    samples, (fail, kind) = rows(9), BAD[bad]

    def fn(number):
        if number in places:
            return fail(net)
        y = net(samples[number])
        return y, factor(1 + number), float(y.sum().asscalar()) if number % 3 == 1 else None

    async def tasks():
        return await asyncio.gather(*map(batcher, range(9)), return_exceptions=True)

    wanted = [fn(n) if n not in places else None for n in range(9)]
    with gdb.RequestBatcher(fn, 9, FOREVER) as batcher:
        answers = asyncio.run(tasks())
    errors = [answers[n] for n in places]
    assert all(isinstance(error, kind) for error in errors)
    assert len(set(map(id, errors))) == len(places)
    for n in set(range(9)) - set(places):
        equal(answers[n][:2], wanted[n][:2])
    assert batcher.stats().failed == len(places)


def test_values_and_failing_requests_of_both_fronts(front):
    create = mx.np.array if front == "np" else mx.nd.array
    ours = dense(4, 4, prefix="served_")

    def read(x):
        return x.item() if front == "np" else x.asscalar()

    samples = [np.full((1, 4 + (n == 2)), n, "float32") for n in range(6)]

    def fn(x):
        assert isinstance(x, mx.np.ndarray) == (front == "np") == mx.util.is_np_array()
        y = ours(x)
        return y, read(y.sum()) if read(x[0, 0]) == 3 else None

    with gdb.RequestBatcher(fn, 6, FOREVER) as batcher:
        futures = [batcher.submit(x) for x in samples]
    assert isinstance(futures.pop(2).exception(PATIENCE), gdb.ShapeError)
    for x, future in zip(samples[:2] + samples[3:], futures):
        got, wanted = future.result(PATIENCE), ours(create(x)).asnumpy()
        equal(got[0], wanted)
        assert got[1] == (pytest.approx(wanted.sum()) if x[0, 0] == 3 else None)
    assert batcher.stats().failed == 1


def test_a_bad_request_by_itself_does_not_fail_the_next(net):
    """MXNet keeps the error of an operator until the next call of waitall."""
    with gdb.RequestBatcher(lambda scale: (net(mx.nd.ones((1, 4))), factor(scale)), 1) as batcher:
        for _ in range(6):
            bad, good = batcher.submit(-1), batcher.submit(4)
            assert isinstance(bad.exception(PATIENCE), REFUSED)
            equal(good.result(PATIENCE)[1:], [2 * np.eye(2, dtype="float32")[None]])


@pytest.mark.parametrize("way", ["submit", "stream", "task"])
@pytest.mark.parametrize("bad", [(1, 5), (2, 2, 5), None], ids=str)
def test_what_no_line_of_the_user_calls_belongs_to_the_line_that_made_the_batcher(net, way, bad):
    """The worker calls a block itself; the line of a function that calls it is nearer."""
    sample = np.zeros((1, 4)) if bad is None else np.zeros(bad, "float32")
    pair = bad is None

    def both(x, y):
        return net(x) + net(y)

    async def asked(batcher):
        return await batcher(sample)

    def ask(batcher):
        with batcher, pytest.raises(gdb.DynBatchError) as caught:
            if way == "task":
                asyncio.run(asked(batcher))
            elif way == "stream":
                list(batcher.stream(sample))
            else:
                batcher.submit(sample).result(PATIENCE)
        return named_lines(str(caught.value))

    (line,) = ask(gdb.RequestBatcher(both if pair else net))  # the first batcher
    assert line.endswith("# the first batcher")
    (line,) = ask(gdb.RequestBatcher(both if pair else net))  # another one
    assert line.endswith("# another one")
    if not pair:
        (line,) = ask(gdb.RequestBatcher(lambda x: net(x)))  # the function
        assert line.endswith("# the function")


def test_results_keep_their_structure_with_numpy_arrays_that_own_their_memory(net):
    label = object()

    def fn(x):
        y = net(x)
        return {"pair": Pair(y, "no"), "list": [y[0:1], 2, None], "label": label}

    samples = rows(8)
    with gdb.RequestBatcher(fn, 8, FOREVER) as batcher:
        futures = [batcher.submit(x) for x in samples]
    for x, future in zip(samples, futures):
        got, y = future.result(), net(x).asnumpy()
        assert list(got) == ["pair", "list", "label"] and got["label"] is label
        assert type(got["pair"]) is Pair and got["pair"].label == "no"
        assert got["list"][1:] == [2, None]
        arrays = [got["pair"].score, got["list"][0]]
        assert all(type(a) is np.ndarray and a.flags.owndata for a in arrays)
        equal(arrays, [y, y[:1]])


def test_numpy_arguments_become_mxnet_arrays():
    random, context = np.random.RandomState(0), mx.cpu(1)
    shapes = [(1,), (5,), (2, 3), (4, 1, 2)]
    numbers = [(random.rand(*s) * 9).astype(t) for t in CONVERTIBLE for s in shapes]
    samples = [(x, "text", [x], numbers[i - 1].T) for i, x in enumerate(numbers)]
    others = [np.array(["text"]), np.float32(2), np.ones(()), np.ones((0, 2)), [numbers[0]]]

    def fn(x, text, listed, other):
        assert text == "text" and type(listed[0]) is np.ndarray
        assert x.context == other.context == context
        return x, other

    with context, gdb.RequestBatcher(fn, len(samples), FOREVER) as batcher:
        answers = [batcher.submit(sample) for sample in samples]
    for i, answer in enumerate(answers):
        equal(answer.result(), [numbers[i], numbers[i - 1].T], 0, 0)
    with gdb.RequestBatcher(lambda x: type(x), len(others), FOREVER) as batcher:
        answers = [batcher.submit(x) for x in others]
    assert [answer.result() for answer in answers] == list(map(type, others))


def test_an_error_keeps_no_other_request_alive():
    class Sample:
        wrong = False

    samples = [Sample() for _ in range(5)]
    samples[2].wrong = True
    others = [weakref.ref(sample) for sample in samples if not sample.wrong]
    with gdb.RequestBatcher(lambda s: {}["no"] if s.wrong else s, 5, FOREVER) as batcher:
        futures = list(map(batcher.submit, samples))
    error = futures[2].exception()
    del futures, samples
    gc.collect()
    assert type(error) is KeyError and [ref() for ref in others] == [None] * 4


def test_a_full_queue_refuses(gate):
    with gdb.RequestBatcher(gate, 1, 0, max_queue=2) as batcher:
        first = batcher.submit(0)
        assert gate.entered.wait(PATIENCE)
        waiting = [batcher.submit(n) for n in (1, 2)]
        with pytest.raises(gdb.QueueFullError, match="2 requests wait"):
            batcher.submit(3)
        with pytest.raises(gdb.QueueFullError):
            asyncio.run(batcher(3))
        assert waiting[0].cancel() and batcher.stats().queued == 1
        waiting.append(batcher.submit(4))
        gate.opened.set()
        assert [future.result(PATIENCE) for future in (first, *waiting[1:])] == [0, 2, 4]
        stats = batcher.stats()
    assert gate.calls == [0, 2, 4]
    assert (stats.rejected, stats.cancelled, stats.completed) == (2, 1, 3)


def test_submit_waits_while_the_queue_is_full(gate):
    with gdb.RequestBatcher(gate, 1, 0, max_queue=1, on_full="wait") as batcher:
        batcher.submit(0)
        assert gate.entered.wait(PATIENCE)
        batcher.submit(1)
        inside, got = threading.Event(), []

        def late():
            inside.set()
            got.append(batcher.submit(2).result(PATIENCE))

        thread = threading.Thread(target=late)
        thread.start()
        assert inside.wait(PATIENCE) and gate.calls == [0] and not got

        async def tasks():
            running = [asyncio.ensure_future(batcher(n)) for n in (3, 4)]
            await asyncio.sleep(0)  # both wait, without blocking the loop
            running[0].cancel()
            while not batcher.stats().cancelled:
                await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(*running, return_exceptions=True)

        cancelled, answer = asyncio.run(tasks())
        thread.join(PATIENCE)
    assert isinstance(cancelled, asyncio.CancelledError) and (answer, got) == (4, [2])
    assert sorted(gate.calls) == [0, 1, 2, 4]


def test_a_closed_event_loop_does_not_prevent_other_answers(gate):
    async def leave():
        task = asyncio.ensure_future(batcher(0))
        await asyncio.get_running_loop().run_in_executor(None, gate.entered.wait, PATIENCE)
        task.cancel()

    with gdb.RequestBatcher(gate, 1, 0) as batcher:
        asyncio.run(leave())
        future = batcher.submit(1)
        gate.opened.set()
        assert future.result(PATIENCE) == 1
    stats = batcher.stats()
    assert gate.calls == [0, 1] and (stats.completed, stats.cancelled) == (1, 1)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_the_end_of_a_batcher_runs_waiting_requests_and_ends_its_thread(net, closed):
    """The fixture checks that the thread ends."""
    batcher = gdb.RequestBatcher(net, 64, FOREVER)
    futures, seen = [batcher.submit(x) for x in rows(10)], weakref.ref(batcher)
    assert futures[3].cancel()
    if closed:
        batcher.close()
        batcher.close()
        assert all(future.done() for future in futures) and batcher.stats().completed == 9
        with pytest.raises(gdb.ClosedError):
            batcher.submit(rows(1)[0])
    del batcher
    gc.collect()
    assert seen() is None and futures.pop(3).cancelled()
    assert {future.result(PATIENCE).shape[1] for future in futures} == {3}


ENDS = """
batcher = gdb.RequestBatcher(dense(), 64, 1e5)
child = os.fork()
if not child:
    try:
        batcher.submit(mx.nd.ones((1, 4)))
    except gdb.ClosedError:
        batcher.close()
        os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
batcher.submit(mx.nd.ones((1, 4))).add_done_callback(lambda future: print(future.result().shape))
"""


def test_the_end_of_the_process_runs_waiting_requests():
    assert output_of(ENDS) == "(1, 3)\n"


def test_latency_percentiles():
    stats = gdb.BatcherStats(0, 0, 4, 0, 0, 0, 1.0, 1.0, (0.4, 0.1, 0.3, 0.2), {4: 1})
    percentiles = [stats.latency_percentile(p) for p in (0, 25, 50, 51, 100)]
    assert percentiles == [0.1, 0.1, 0.2, 0.3, 0.4]
    assert np.isnan(stats._replace(latencies_s=()).latency_percentile(50))


@pytest.mark.parametrize("way", ["result", "exception", "stream", "room", "task", "task stream"])
@pytest.mark.parametrize("reads", [False, True])
def test_a_request_that_waits_for_its_own_batcher_is_an_error(net, way, reads):
    """The worker would wait for itself, forever; what is there already can be taken."""

    async def in_task(x):
        if way == "task":
            return await batcher(x)
        return [value async for value in batcher.stream(x)]

    def ask(x):
        if reads:
            x.sum().asscalar()
        if x.shape[0] == 3:
            if way == "stream":
                next(batcher.stream(x[:1]))
            elif way.startswith("task"):
                asyncio.run(in_task(x[:1]))
            elif way == "room":
                for _ in range(3):
                    batcher.submit(x[:1])
            else:
                getattr(batcher.submit(x[:1]), way)()
        return net(x)

    with gdb.RequestBatcher(ask, max_queue=2, on_full="wait", batch_wait_timeout_s=0) as batcher:
        with pytest.raises(gdb.errors.RequestError, match="its own batcher"):
            batcher.submit(rows(3)[2]).result(PATIENCE)
        assert batcher.submit(rows(1)[0]).result(PATIENCE).shape == net(rows(1)[0]).shape
