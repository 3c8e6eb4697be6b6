"""Streams deliver values in time, to threads and to tasks, and wait for their clients."""

import asyncio
import contextlib
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.serve import clients
from tests import cells
from tests.cells import equal
from tests.common import PATIENCE
from tests.continuous.walking import LENGTHS, serving, settled, vector


def test_streams_of_threads_and_tasks_have_the_values_of_the_loop(walk, oracle):
    samples = list(enumerate(LENGTHS))

    async def collect(sample):
        return [value async for value in batcher.stream(sample)]

    async def tasks():
        return await asyncio.gather(*map(collect, samples))

    with serving(walk.yielding, 9, 0, stream_buffer=2) as batcher:
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda sample: list(batcher.stream(sample)), samples))
        answers = asyncio.run(tasks())
        (lists,) = [[batcher.submit(sample).result(PATIENCE) for sample in samples]]
        stats = batcher.stats()
    for sample, *results in zip(samples, got, answers, lists):
        for values in results:
            equal(values, oracle(*sample), 1e-5, 1e-6)
            assert all(type(y) is np.ndarray and y.flags.owndata for y in values)
    assert stats.values == 2 * sum(LENGTHS) and stats.completed == 3 * len(samples)


def test_arrays_of_mx_np(walk, front):
    cell = cells.dense(4, 4, prefix="front_", activation="tanh")

    def fn(x, steps):
        for _ in range(steps):
            x = cell(x)
            if float(x.sum()) if front == "np" else x.sum().asscalar():
                yield x

    ours = mx.np.array if front == "np" else mx.nd.array
    samples = [(vector(number), steps) for number, steps in enumerate(LENGTHS)]
    wanted = [[y.asnumpy() for y in fn(ours(x), steps)] for x, steps in samples]
    with serving(fn, 8, 0) as batcher:
        streams = [batcher.stream(sample) for sample in samples]
        for stream, values in zip(streams, wanted):
            equal(list(stream), values, 1e-5, 1e-6)


@pytest.mark.parametrize("loop", [False, True])
def test_values_that_come_soon_are_delivered_together(walk, oracle, loop):
    """The first value and the end come at once, others when the buffer is half full."""
    sample = (0, 30)
    woken, wake = [], clients.Mailbox.wake

    def count(mailbox):
        woken.append(len(mailbox.values))
        wake(mailbox)

    async def read(batcher):
        return [value async for value in batcher.stream(sample)]

    options = {"stream_buffer": 8, "stream_interval_s": 1000}
    with patch.object(clients.Mailbox, "wake", count), serving(walk.yielding, 4, 0, **options) as b:
        values = asyncio.run(read(b)) if loop else list(b.stream(sample))
    equal(values, oracle(*sample), 1e-5, 1e-6)
    assert len(woken) < 30


def test_values_that_are_held_are_delivered_when_their_time_has_come():
    outbox, told = clients.Outbox(pytest.fail, 10), []
    mailbox = clients.Mailbox(8, None)
    mailbox.wake = lambda: told.append(list(mailbox.values))

    def put(value, **send):
        outbox.put(mailbox, value)
        outbox.send(**send)

    with patch.object(clients.time, "monotonic", lambda: now):
        now = 100
        put(1)  # the first
        put(2)
        now = 109
        put(3)
        assert told == [[1]]
        now = 110
        outbox.send()
        assert told == [[1], [1, 2, 3]]
        put(4)
        put(5, everything=True)  # no request can go on
        assert told[2:] == [[1, 2, 3, 4, 5]]
        mailbox.values.clear()
        for value in range(5):  # more than half of the buffer
            put(value)
        assert told[3:] == [[0, 1, 2, 3, 4]]
        mailbox.values.clear()
        put(6)
        outbox.answer(clients.Request(mailbox, None, 0, 0), None)  # the end
        outbox.send()
        assert told[4:] == [[6]]


def test_a_client_that_does_not_look_is_not_told_again_before_its_time():
    """Not even if its buffer is more than half full; one that looks is told again in time."""
    outbox, told = clients.Outbox(pytest.fail, 10), []
    quick, slow = (clients.Mailbox(8, None) for _ in range(2))
    for name, mailbox in (("quick", quick), ("slow", slow)):
        mailbox.wake = lambda name=name: told.append((now, name))
    with patch.object(clients.time, "monotonic", lambda: now):
        for now in range(100, 132, 2):
            for mailbox in (quick, slow):
                outbox.put(mailbox, now)
            outbox.send()
            if told[-2:].count((now, "quick")):
                quick.values.clear()
    times = {name: [at for at, whose in told if whose == name] for name in ("quick", "slow")}
    assert times["quick"] == [100, 110, 120, 130]
    assert times["slow"] == [100, 108, 118, 128]


def test_the_outbox_keeps_nothing_of_a_stream_that_has_ended():
    """Its client has been told of a value, and is not to be told again for a long time."""
    outbox, mailbox = clients.Outbox(pytest.fail, 1000), clients.Mailbox(8, None)
    outbox.put(mailbox, 1)
    outbox.send()
    outbox.answer(clients.Request(mailbox, None, 0, 0), None)
    outbox.send()
    outbox.send(everything=True)  # no request can go on
    reference = weakref.ref(mailbox)
    del mailbox
    assert reference() is None


def test_first_values_are_delivered_before_others():
    outbox, told = clients.Outbox(pytest.fail), []
    mailboxes = [clients.Mailbox(8, None) for _ in range(3)]
    for number, mailbox in enumerate(mailboxes):
        mailbox.wake = lambda number=number: told.append(number)
    for begun in ([0], [0, 1], [0, 1, 2]):
        for number in begun:
            outbox.put(mailboxes[number], None)
        outbox.send()
    assert told == [0, 1, 0, 2, 0, 1]


@pytest.mark.parametrize("runs", [True, False])
def test_the_worker_waits_until_a_loop_has_passed_a_first_value_on(runs):
    """But not for long: here not at all if the loop does not run."""
    loop = asyncio.new_event_loop()
    mailbox, outbox, passed = clients.Mailbox(8, loop), clients.Outbox(pytest.fail), []

    async def pass_on():
        await mailbox.news()
        passed.append(mailbox.values.popleft())

    async def serve():
        task = asyncio.ensure_future(pass_on())
        await asyncio.sleep(0)
        await loop.run_in_executor(None, send)
        await task

    def send():
        outbox.put(mailbox, 1)
        outbox.send()
        passed.append("sent")

    with contextlib.closing(loop), patch.object(clients, "LOOK_S", PATIENCE if runs else 0):
        loop.run_until_complete(serve()) if runs else send()
    assert passed == ([1, "sent"] if runs else ["sent"])


def test_values_arrive_before_the_request_ends(walk, oracle):
    with serving(walk.yielding, 8, 0, stream_buffer=2) as batcher:
        stream = batcher.stream((0, None))
        values = [next(stream) for _ in range(5)]
        assert batcher.stats().running == 1
        walk.released.set()
        values += stream
        equal(values, oracle(0, len(values)), 1e-5, 1e-6)

        async def task():
            walk.released.clear()
            stream = batcher.stream((1, None))
            values = [await stream.__anext__() for _ in range(5)]
            walk.released.set()
            return values + [value async for value in stream]

        values = asyncio.run(task())
        equal(values, oracle(1, len(values)), 1e-5, 1e-6)


def test_a_client_may_take_all_values_that_are_here(walk, oracle):
    with serving(walk.yielding, 8, 0, stream_buffer=4) as batcher:
        stream = batcher.stream((0, 9))
        assert settled(lambda: batcher.stats().blocked == 1) and len(walk.steps) == 4
        values = [next(stream)]
        assert not settled(lambda: len(walk.steps) > 4, 0.1)  # it waits for room for two
        values += stream.available()
        assert settled(lambda: len(walk.steps) == 8) and len(values) == 4
        while len(values) < 9:
            values += [next(stream), *stream.available()]
        equal(values, oracle(0, 9), 1e-5, 1e-6)
        assert stream.available() == list(stream) == []

        async def read():
            stream = batcher.stream((1, 20))
            return [y async for x in stream for y in (x, *stream.available())]

        equal(asyncio.run(read()), oracle(1, 20), 1e-5, 1e-6)


@pytest.mark.parametrize("size", [1, 4])
def test_a_slow_client_delays_only_itself(walk, oracle, size):
    """With a size of 1, requests that wait for their clients leave room for others."""
    with serving(walk.yielding, size, 0, max_queue=3, stream_buffer=3) as batcher:
        slow = [batcher.stream((n, 20)) for n in range(2)]
        assert settled(lambda: batcher.stats().blocked == 2)
        assert len(walk.steps) == 6
        for n in range(2, 6):
            assert len(batcher.submit((n, 10)).result(PATIENCE)) == 10
        assert len(walk.steps) == 46 and batcher.stats().blocked == 2
        third = batcher.stream((6, 20))  # the queue may have three
        assert settled(lambda: batcher.stats().blocked == 3)
        with pytest.raises(gdb.QueueFullError, match="3 requests wait"):
            batcher.submit((7, 1))
        for n, stream in ((0, slow[0]), (1, slow[1]), (6, third)):
            equal(list(stream), oracle(n, 20), 1e-5, 1e-6)
        assert batcher.stats().blocked == 0


def test_an_exception_in_a_generator_comes_after_its_values(walk, oracle):
    def ends(number):
        yield number
        next(iter(()))

    async def task(values):
        async for value in batcher.stream((0, 9, 4)):
            values.append(value)

    with serving(walk.yielding, 8, 0) as batcher:
        for read in (lambda x: x.extend(batcher.stream((0, 9, 4))), lambda x: asyncio.run(task(x))):
            values = []
            with pytest.raises(KeyError):
                read(values)
            equal(values, oracle(0, 3), 1e-5, 1e-6)
        assert isinstance(batcher.submit((0, 9, 1)).exception(PATIENCE), KeyError)
    with serving(ends, 8, 0) as batcher:
        stream = batcher.stream(3)
        assert next(stream) == 3
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(stream)


def test_the_stream_of_a_function_has_its_result(walk, oracle):
    with serving(walk.last, 8, 0) as batcher:
        equal(list(batcher.stream((0, 3))), oracle(0, 3)[-1:], 1e-5, 1e-6)
        stops = batcher.stream((0, 3, *[2]))
        with pytest.raises(KeyError):
            next(stops)


def test_a_stream_is_read_by_the_kind_of_client_that_made_it(walk):
    async def task():
        with pytest.raises(gdb.ArgumentError, match="a thread"):
            await stream.__anext__()
        with pytest.raises(gdb.ArgumentError, match="a task"):
            list(batcher.stream((1, 1)))

    with serving(walk.yielding, 8, 0) as batcher:
        stream = batcher.stream((0, 2))
        asyncio.run(task())
        assert len(list(stream)) == 2
    with pytest.raises(gdb.ClosedError):
        batcher.stream((0, 1))


def test_several_threads_may_read_one_stream(walk):
    with serving(walk.yielding, 8, 0) as batcher, ThreadPoolExecutor(4) as pool:
        stream = batcher.stream((0, 40))
        parts = list(pool.map(list, [stream] * 4))
    assert sum(map(len, parts)) == 40
