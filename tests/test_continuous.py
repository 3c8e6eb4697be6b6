"""Requests that join and leave at every flush, and streams: the values of the loop, in time."""

import asyncio
import collections
import contextlib
import functools
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch import clients, rounds, worker
from gluon_dynbatch.record.hooks import REPLACES
from gluon_dynbatch.samples import applier
from gluon_dynbatch.scope import OpenScope
from gluon_dynbatch.turns import Guard
from tests import cells, soak
from tests.cells import equal
from tests.common import alive, output_of
from tests.test_serving import FOREVER, PATIENCE, factor, no_thread_is_left  # noqa: F401


@pytest.fixture(scope="module")
def cell():
    return cells.dense(4, 4, prefix="step_", activation="tanh")


def vector(number):
    return np.random.RandomState(number).uniform(-1, 1, (1, 4)).astype("float32")


def as_array(x):
    return x if isinstance(x, mx.nd.NDArray) else mx.nd.array(x)


class Walk:
    """Applies a cell again and again, and reads a value each time; it yields some values.

    Its functions do not refer to it: requests would wait for others that change its attributes.
    """

    def __init__(self, cell):
        #: Samples in the order in which they begin, take steps, and end, whatever ends them.
        self.begun, self.steps, self.ended = begun, taken, ended = [], [], []
        self.released = released = threading.Event()

        def yielding(number, steps, *bad):
            """Yield the state after each step; with no number of steps, walk until released."""
            begun.append(number)
            h, step = as_array(vector(number)), 0
            try:
                while not released.is_set() if steps is None else step < steps:
                    h, step = cell(h), step + 1
                    taken.append((number, step))
                    h = h * (1 + (h.sum().asscalar() > 0))
                    if step in bad:
                        raise KeyError(number)
                    if -step in bad:
                        h = h + factor(-1).sum()
                    yield h
            finally:
                ended.append(number)

        def last(number, steps, *bad):
            """Return the last state."""
            return list(yielding(number, steps, *bad))[-1]

        def loop(number, steps):
            """Return the states of a sample without a scope."""
            return [h.asnumpy() for h in yielding(number, steps)]

        self.yielding, self.last, self.loop = yielding, last, loop


@pytest.fixture
def walk(cell):
    return Walk(cell)


@pytest.fixture
def oracle(cell):
    """Return the states of a sample without a scope."""
    return Walk(cell).loop


@contextlib.contextmanager
def serving(*args, **options):
    """Yield a batcher; if the test fails, end requests that would never end."""
    batcher = gdb.RequestBatcher(*args, **options)
    try:
        yield batcher
    except BaseException:
        batcher.close(timeout_s=0)
        raise
    batcher.close()


def settled(condition, times=10 * 200):
    """Return whether a condition becomes true while another thread works."""
    for _ in range(times):
        if condition():
            return True
        time.sleep(0.005)
    return False


LENGTHS = [5, 1, 9, 2, 30, 1, 3, 12, 7, 4] * 4


@pytest.mark.parametrize("options", [{}, {"granularity": "block"}, {"debug": True}], ids=str)
def test_requests_of_mixed_lengths_get_the_results_of_the_loop(walk, oracle, options):
    wanted = [oracle(number, steps) for number, steps in enumerate(LENGTHS)]

    async def tasks():
        return await asyncio.gather(*map(batcher, enumerate(LENGTHS)))

    with serving(walk.last, 7, 0, **options) as batcher, ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda sample: batcher.submit(sample).result(), enumerate(LENGTHS)))
        answers = asyncio.run(tasks())
        stats = batcher.stats()
    for results in (got, answers):
        equal(results, [states[-1] for states in wanted], 1e-5, 1e-6)
    assert stats.completed == 2 * len(LENGTHS) and max(stats.batch_sizes) <= 7
    assert stats.queued == stats.running == stats.failed == 0
    assert sum(n * times for n, times in stats.batch_sizes.items()) == 2 * sum(LENGTHS)
    assert stats.flushes < sum(LENGTHS) and stats.plan_hits > 0


def test_values_stay_when_a_scope_is_closed(walk, oracle):
    with patch.object(rounds, "MOST_ROUNDS", 3), serving(walk.yielding, 6, 0) as batcher:
        futures = [batcher.submit(sample) for sample in enumerate(LENGTHS)]
        for number, future in enumerate(futures):
            equal(future.result(PATIENCE), oracle(number, LENGTHS[number]), 1e-5, 1e-6)


def test_short_requests_join_a_long_one_and_leave_before_it_ends(walk, oracle):
    with serving(walk.last, 8, FOREVER) as batcher:
        long = batcher.submit((0, None))
        batcher._queue.enough = 1
        batcher._queue.notify()
        assert settled(lambda: walk.steps)
        for number, steps in enumerate(LENGTHS[:12], 1):
            result = batcher.submit((number, steps)).result(PATIENCE)
            equal([result], oracle(number, steps)[-1:], 1e-5, 1e-6)
        assert not long.done() and batcher.stats().running == 1
        walk.released.set()
        assert long.result(PATIENCE).shape == (1, 4)
    assert max(batcher.stats().batch_sizes) == 2


def test_requests_under_way_take_turns(walk):
    """Whoever joins or leaves, each round has one step of each request, in the same order."""
    with serving(walk.last, 64, FOREVER) as batcher:
        futures = [batcher.submit(sample) for sample in enumerate(LENGTHS)]
        batcher._queue.enough = len(futures)
        batcher._queue.notify()
        wait(futures, PATIENCE)
    rounds_of = [[number for number, taken in walk.steps if taken == step] for step in range(1, 31)]
    assert walk.steps == [(n, i) for i, numbers in enumerate(rounds_of, 1) for n in numbers]
    assert all(numbers == sorted(numbers) for numbers in rounds_of)


def test_without_joining_each_minibatch_runs_to_its_end(walk):
    ends = []
    with serving(walk.last, 8, 0, continuous=False) as batcher:
        long = batcher.submit((0, None))
        assert settled(lambda: walk.steps)
        futures = [long, *(batcher.submit((n, 1)) for n in (1, 2))]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: ends.append(number))
        taken = len(walk.steps)
        assert settled(lambda: len(walk.steps) > taken + 5) and walk.begun == [0]
        walk.released.set()
        wait(futures, PATIENCE)
    assert ends == [0, 1, 2]


def test_with_joining_more_requests_than_fit_wait_their_turn(walk):
    with serving(walk.last, 2, 0) as batcher:
        futures = [batcher.submit((n, None)) for n in range(2)]
        assert settled(lambda: len(walk.begun) == 2)
        last = batcher.submit((2, 1))
        taken = len(walk.steps)
        assert settled(lambda: len(walk.steps) > taken + 6)
        assert walk.begun == [0, 1] and batcher.stats().queued == 1
        assert futures[1].cancel()
        assert last.result(PATIENCE).shape == (1, 4) and not futures[0].done()
        walk.released.set()


def test_an_exception_reaches_its_client_alone(walk, oracle):
    samples = [(n, steps, *([2] if n % 4 == 1 else [])) for n, steps in enumerate(LENGTHS)]
    with serving(walk.last, 64, 0) as batcher:
        futures = [batcher.submit(sample) for sample in samples]
        for (number, steps, *bad), future in zip(samples, futures):
            if bad and steps > 1:
                assert type(future.exception(PATIENCE)) is KeyError
            else:
                equal([future.result(PATIENCE)], oracle(number, steps)[-1:], 1e-5, 1e-6)
    assert sorted(walk.begun) == list(range(len(samples)))  # nothing ran twice


@pytest.mark.parametrize("bad", [(3,), (0, 8, 9)], ids=str)
def test_a_flush_that_fails_fails_only_the_request_at_fault(walk, oracle, bad):
    """Values of streams are not repeated, although their requests begin again."""
    samples = [(n, 4, *([-2] if n in bad else [])) for n in range(10)]
    with serving(walk.yielding, 64, FOREVER, stream_buffer=99) as batcher:
        other = batcher.stream((99, None))
        batcher._queue.enough = 1
        batcher._queue.notify()
        streams = [batcher.stream(sample) for sample in samples]
        for number, stream in enumerate(streams):
            values = [next(stream)]
            if number in bad:
                with pytest.raises((gdb.LaunchError, mx.MXNetError)):
                    values += stream
                assert len(values) <= 2
            else:
                values += stream
                equal(values, oracle(number, 4), 1e-5, 1e-6)
        walk.released.set()
        states = list(other)
        equal(states, oracle(99, len(states)), 1e-4, 1e-5)
        stats = batcher.stats()
    assert (stats.failed, stats.completed) == (len(bad), 11 - len(bad))


def test_a_request_that_is_cancelled_under_way_takes_part_in_no_later_flush(walk):
    with serving(walk.last, 8, 0) as batcher:
        futures = [batcher.submit((n, None)) for n in range(3)]
        assert settled(lambda: len(walk.begun) == 3)
        assert futures[1].cancel()
        assert wait([futures[1]], PATIENCE).done
        with pytest.raises(CancelledError):
            futures[1].result()
        assert settled(lambda: walk.ended == [1])

        async def leave():
            task = asyncio.ensure_future(batcher((3, None)))
            while 3 not in walk.begun:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(batcher((4, None)), 0.01)

        asyncio.run(leave())
        assert settled(lambda: set(walk.ended) >= {1, 3} and batcher.stats().running == 2)
        assert batcher.stats().cancelled == 3
        walk.released.set()
        assert all(futures[n].result(PATIENCE).shape == (1, 4) for n in (0, 2))


def test_requests_that_take_too_long_end(walk):
    with serving(walk.yielding, 2, FOREVER) as batcher:
        waiting = batcher.submit((0, 1), timeout_s=0.01)  # for others
        assert isinstance(waiting.exception(PATIENCE), gdb.RequestTimeoutError)
        assert not walk.begun
        future = batcher.submit((1, None), timeout_s=0.05)
        stream = batcher.stream((2, None), timeout_s=0.05)
        queued = batcher.submit((3, 1), timeout_s=0.01)
        with pytest.raises(TimeoutError, match=r"within 0\.05 seconds"):
            list(stream)
        assert list(stream) == []
        for late in (future, queued):
            assert isinstance(late.exception(PATIENCE), gdb.RequestTimeoutError)

        async def task():
            with pytest.raises(gdb.RequestTimeoutError):
                await batcher((4, 1), timeout_s=0.01)

        asyncio.run(task())
        assert settled(lambda: sorted(walk.ended) == [1, 2])
        assert batcher.stats().timed_out == 5
        good = [batcher.submit((n, 2), timeout_s=1e6) for n in (5, 6)]
        assert all(len(future.result(PATIENCE)) == 2 for future in good)
    for wrong in (-1, "1", float("nan")):
        with pytest.raises(gdb.OptionError, match="timeout_s"):
            batcher.submit((0, 1), timeout_s=wrong)


def test_a_time_limit_that_passes_after_the_answer_ends_nothing(walk, oracle):
    with serving(walk.last) as batcher:
        for number in range(3):
            wait([batcher.submit((number, 1), timeout_s=0.1)], PATIENCE)
            time.sleep(0.15)
            assert not batcher.closed
            equal(batcher.submit((number, 1)).result(PATIENCE), oracle(number, 1)[-1])


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


@pytest.mark.parametrize("runs", [True, False])
def test_the_worker_waits_until_a_loop_has_passed_a_first_value_on(runs):
    """But not for long: here not at all if the loop does not run."""
    loop = asyncio.new_event_loop()
    mailbox, outbox, passed = clients.Mailbox(8, loop), clients.Outbox(pytest.fail), []

    async def pass_on():
        await mailbox.wait_in_task()
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


def attend(rows, steps):
    """Return a sample of `soak.decoder` whose memory has so many rows."""
    return np.full((rows, 4), 0.5, "float32"), steps, False


def new_plans(batcher):
    stats = batcher.stats()
    return stats.flushes - stats.plan_hits


def test_plans_do_not_depend_on_the_order_in_which_requests_began():
    with serving(soak.decoder(), 8, 0, policy="depth", stream_buffer=10**6) as batcher:

        def run(rows):
            streams = []
            for number in rows:
                streams.append(batcher.stream(attend(number, 10**6)))
                next(streams[-1]), next(streams[-1])
            known = new_plans(batcher)
            for stream in streams:
                stream.close()
            assert settled(lambda: not batcher.stats().running)
            return known

        assert 0 < run([2, 3]) == run([3, 2])


def test_requests_that_begin_need_no_plan_together_with_those_under_way():
    with serving(soak.decoder(), 8, 0, policy="depth", stream_buffer=10**6) as batcher:
        first = batcher.stream(attend(2, 10**6))
        next(first)
        batcher.submit(attend(3, 1)).result(PATIENCE)
        second = batcher.stream(attend(4, 10**6))
        for _ in range(8):  # by then, both have taken steps together
            next(second)
        known = new_plans(batcher)
        batcher.submit(attend(3, 1)).result(PATIENCE)
        assert new_plans(batcher) == known
        first.close()
        second.close()


def test_requests_that_begin_together_need_no_plan_for_their_combination():
    """While others are under way, those of different shapes begin in flushes of their own."""
    with serving(soak.decoder(), 8, 0, policy="depth", stream_buffer=10**6) as batcher:
        first = batcher.stream(attend(2, 10**6))
        next(first)
        for rows in (3, 4, 5):
            batcher.submit(attend(rows, 1)).result(PATIENCE)
        known = new_plans(batcher)
        for together in ((3, 4), (5, 4, 3), (3, 5)):
            with batcher._queue.changed:  # the worker sees all at once
                futures = [batcher.submit(attend(rows, 1)) for rows in together]
            assert all(len(future.result(PATIENCE)) == 1 for future in futures)
        assert new_plans(batcher) == known
        first.close()


class Desk:
    """Requests for `Rounds` without a queue, and how many took part in each round."""

    def __init__(self, requests):
        self.requests, self.widths = list(requests), []

    def begin(self, room):
        begun, self.requests = self.requests[:room], self.requests[room:]
        return begun

    def ran(self, requests, flushes, plan_hits, values):
        self.widths += [requests] if requests else []
        self.flushes, self.plans = flushes, flushes - plan_hits

    def answer(self, answers):
        assert not any(isinstance(outcome, BaseException) for _, outcome in answers)


@pytest.mark.parametrize("size", [4, 12])
def test_clients_that_are_slower_than_the_model_do_not_split_its_rounds(size):
    """In turns, each takes a value after a round: requests go on together, once there is room."""
    mailboxes, steps = [clients.Mailbox(8, None) for _ in range(12)], 40
    samples = [(mx.nd.full((2 + n % 3, 4), 0.5), steps, False) for n in range(12)]
    requests = [
        clients.Request(mailbox, sample, 0, 1e9) for mailbox, sample in zip(mailboxes, samples)
    ]
    desk, decode = Desk(requests), soak.decoder()
    outbox = clients.Outbox(pytest.fail)
    batch, apply = gdb.batching(policy="depth"), applier(decode, generators=True)
    under_test = rounds.Rounds(batch, decode, apply, size, outbox, desk)
    got = [[] for _ in mailboxes]
    for turn in range(12 * steps * 2):
        if desk.requests or (under_test.under_way and not under_test.idle):
            under_test.advance()
        if mailboxes[turn % 12].values:
            got[turn % 12].append(mailboxes[turn % 12].values.popleft())
    under_test.rest()
    assert [len(values) for values in got] == [steps] * 12 and not under_test.under_way
    equal = [[got[n] for n in range(first, 12, 3)] for first in range(3)]
    assert all(values == each[0] for each in equal for values in each)
    assert len(desk.widths) < 12 * steps / 2  # one by one, there would be a round per value


def test_a_stream_gets_its_first_value_in_the_round_in_which_it_begins():
    """It makes the calls of its next step there, which are computed with those of all others."""
    mailboxes = [clients.Mailbox(99, None) for _ in range(3)]
    early, late = [], []
    for number, mailbox in enumerate(mailboxes):
        sample = (mx.nd.full((3, 4), 0.5), 4 + number, False)
        (late if number == 2 else early).append(clients.Request(mailbox, sample, 0, 1e9))
    desk, decode = Desk(early), soak.decoder()
    outbox = clients.Outbox(pytest.fail)
    batch, apply = gdb.batching(policy="depth"), applier(decode, generators=True)
    under_test, seen = rounds.Rounds(batch, decode, apply, 8, outbox, desk), []
    while under_test.under_way or not seen:
        desk.requests += late if len(seen) == 2 else []
        before = getattr(desk, "flushes", 0)
        under_test.advance()
        seen.append([desk.flushes - before, *(len(mailbox.values) for mailbox in mailboxes)])
    under_test.rest()
    begun = [[1, 1, 1, 0], [1, 1, 1, 0], [2, 2, 2, 1], [1, 3, 3, 1]]
    ended = [[1, 4, 4, 2], [1, 4, 5, 3], [1, 4, 5, 4], [1, 4, 5, 5], [0, 4, 5, 6]]
    assert seen == begun + ended
    first, second, third = (list(mailbox.values) for mailbox in mailboxes)
    assert first == second[:4] and second == third[:5]


class Waiting(NamedTuple):
    """What `Rounds` knows of a fiber that waits."""

    calls: bytes
    ready: bool


def test_if_more_requests_are_under_way_than_fit_the_oldest_take_part_in_the_order_of_calls():
    parked = [Waiting(b"1", False), Waiting(b"5", True), Waiting(b"3", True), Waiting(b"0", True)]
    under_test = SimpleNamespace(_can_go_on=lambda fiber: fiber.ready)
    ordered = rounds.Rounds._in_order(under_test, collections.deque(parked), 2)
    assert [fiber.calls for fiber in ordered] == [b"3", b"5", b"1", b"0"]


def test_a_client_may_take_all_values_that_are_here(walk, oracle):
    with serving(walk.yielding, 8, 0, stream_buffer=4) as batcher:
        stream = batcher.stream((0, 9))
        assert settled(lambda: batcher.stats().blocked == 1) and len(walk.steps) == 4
        values = [next(stream)]
        assert not settled(lambda: len(walk.steps) > 4, 20)  # it waits for room for two
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


def read_one(stream):
    next(stream)


def drop(stream):
    for _ in stream:
        break


def close(stream):
    next(stream)
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("leave", [read_one, drop, close])
@pytest.mark.parametrize("buffer", [1, 10_000])
def test_a_client_that_leaves_ends_its_request(walk, leave, buffer):
    with serving(walk.yielding, 8, 0, stream_buffer=buffer) as batcher:
        other = batcher.submit((99, None))
        for number in range(3):
            leave(batcher.stream((number, None)))
            assert settled(lambda number=number: number in walk.ended)
        assert settled(lambda: batcher.stats().running == 1)
        assert batcher.stats().cancelled == 3 and walk.ended == [0, 1, 2]
        walk.released.set()
        assert len(other.result(PATIENCE)) > 0


@pytest.mark.parametrize("way", ["break", "aclose", "cancel", "end of the loop"])
def test_a_task_that_leaves_ends_its_request(walk, way):
    kept = []

    async def read(stream):
        async for _ in stream:
            if way == "break":
                break
            if way == "aclose":
                await stream.aclose()
            if way == "cancel":
                asyncio.current_task().cancel()

    async def leave():
        if way == "end of the loop":
            kept.append(batcher.stream((0, None)))
            await kept[0].__anext__()
        else:
            await asyncio.gather(read(batcher.stream((0, None))), return_exceptions=True)
            while 0 not in walk.ended:
                await asyncio.sleep(0.001)

    with serving(walk.yielding, 8, 0, stream_buffer=4) as batcher:
        asyncio.run(leave())
        batcher.submit((1, 1)).result(PATIENCE)
        assert settled(lambda: batcher.submit((2, 1)).result(PATIENCE) and 0 in walk.ended)
        assert batcher.stats().cancelled == 1
    if kept:
        kept[0].close()


def test_finally_clauses_of_a_request_that_ended_get_no_values(cell):
    seen, begun = [], threading.Event()

    def fn(x):
        h = cell(x)
        try:
            while True:
                h = cell(h)
                yield h.asnumpy()
                begun.set()
        finally:
            seen.append(type(cell(h)).__name__)
            cell(h).asnumpy()
            seen.append("a value")

    with serving(fn, 8, 0, stream_buffer=1) as batcher:
        stream = batcher.stream(vector(0))
        next(stream), next(stream)
        stream.close()
        assert settled(lambda: len(seen) == 1)
        assert batcher.submit(vector(1)).cancel()


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


def test_close_runs_streams_to_their_end(walk, oracle):
    """Their clients find all values later, also if there are more than the buffer holds."""
    batcher = gdb.RequestBatcher(walk.yielding, 2, 0, stream_buffer=1)
    streams = [batcher.stream((n, 6)) for n in range(5)]
    assert not batcher.closed
    batcher.close()
    assert batcher.closed and batcher.stats().completed == 5
    for number, stream in enumerate(streams):
        equal(list(stream), oracle(number, 6), 1e-5, 1e-6)


def test_close_ends_what_takes_too_long(walk):
    batcher = gdb.RequestBatcher(walk.yielding, 2, 0, stream_buffer=1)
    stream, futures = batcher.stream((0, None)), [batcher.submit((n, None)) for n in (1, 2, 3)]
    assert settled(lambda: len(walk.begun) == 3)  # the stream waits for its client
    batcher.close(timeout_s=0.05)
    assert sorted(walk.ended) == [0, 1, 2]
    for future in futures:
        assert isinstance(future.exception(0), gdb.ClosedError)
    with pytest.raises(gdb.ClosedError, match="before the request ended"):
        list(stream)


def test_a_stream_keeps_its_batcher_open(walk, oracle):
    stream = gdb.RequestBatcher(walk.yielding, 2, 0, stream_buffer=1).stream((0, 9))
    gc.collect()
    equal(list(stream), oracle(0, 9), 1e-5, 1e-6)


ENDS = """
def endless(x):
    while True:
        x = x + x.asscalar()
        yield x

batcher = gdb.RequestBatcher(endless, stream_buffer=2)
stream = batcher.stream(mx.nd.ones((1,)))
print(next(stream))
child = os.fork()
if not child:
    try:
        while True:
            next(stream)
    except gdb.ClosedError:
        os._exit(7 * batcher.closed)
assert os.waitpid(child, 0)[1] == 7 << 8
left = batcher.stream(mx.nd.ones((1,)))
print(next(left))
"""


def test_the_end_of_the_process_ends_streams():
    assert output_of(ENDS) == "[2.]\n[2.]\n"


def test_a_request_may_map_and_open_scopes(cell):
    def fn(number, steps):
        total = 0
        for step in range(steps):
            with gdb.batching():
                h = cell(as_array(vector(number + step)))
                total += h.sum().asscalar()
            total += sum(gdb.map(lambda x: cell(x).sum().asscalar(), [h, h + 1]))
        return total

    samples = list(enumerate(LENGTHS[:20]))
    wanted = [fn(*sample) for sample in samples]
    with patch.object(rounds, "MOST_ROUNDS", 2), serving(fn, 6, 0) as batcher:
        got = [future.result(PATIENCE) for future in map(batcher.submit, samples)]
    np.testing.assert_allclose(got, wanted, 1e-4)


def test_nothing_is_kept_of_requests_that_ended(walk):
    """A long request is under way all the time; scopes of others are closed and freed."""
    scopes, samples = weakref.WeakSet(), []

    class Sample:
        def __init__(self, steps):
            self.steps = steps
            samples.append(weakref.ref(self))

    def fn(sample):
        return walk.last(0, sample.steps)

    def opened(scope, *args):
        scopes.add(scope)
        return init(scope, *args)

    init = OpenScope.__init__
    renewing = patch.object(rounds, "MOST_ROUNDS", 8)
    watching = patch.object(OpenScope, "__init__", opened)
    with renewing, watching, serving(fn, 4, 0) as batcher:
        long = batcher.submit(Sample(None))
        for _ in range(10):
            for future in [batcher.submit(Sample(1 + n % 3)) for n in range(8)]:
                future.result(PATIENCE)
            del future
        gc.collect()
        assert sum(sample() is not None for sample in samples) <= 2
        assert len(scopes) <= 2 and len(batcher._queue._active) == 1
        walk.released.set()
        long.result(PATIENCE)


def test_memory_is_level_over_many_requests():
    """`tests/soak.py` by itself runs 100,000 requests."""
    first = []

    def measure():
        first.append(alive())
        # The worker may need a moment to drop the last ones.
        return settled(lambda: alive() <= first[0] + 4)

    levels, stats = soak.soak(600, 4, measure)
    assert all(levels)
    assert stats.queued == stats.running == stats.blocked == stats.timed_out == 0
    assert min(stats.failed, stats.cancelled, stats.values) > 0


def test_callbacks_of_clients_are_no_part_of_the_scope(walk):
    """The worker runs them while others are under way; any thread may use their arrays."""
    made = []
    with serving(walk.last, 8, 0) as batcher:
        long = batcher.submit((0, None))
        assert settled(lambda: walk.steps)
        future = batcher.submit((1, 2))
        future.add_done_callback(lambda done: made.append(mx.nd.array(done.result()) * 2))
        assert settled(lambda: made) and not long.done()
        equal(made, [2 * future.result()], 0, 0)
        walk.released.set()


def test_requests_that_wait_for_an_earlier_one_do_not_keep_the_worker_busy(cell):
    class Counter:
        count = 0

    def fn(counter, number):
        h = cell(as_array(vector(number)))
        for _ in range(4):
            yield h.sum().asscalar()
            h = cell(h)
        counter.count += 1
        yield counter.count

    counter, advanced, advance = Counter(), [], rounds.Rounds.advance

    def counted(self):
        advanced.append(0)
        advance(self)

    counting = patch.object(rounds.Rounds, "advance", counted)
    apply = functools.partial(fn, counter)
    with counting, serving(apply, 8, 0, stream_buffer=2) as batcher:
        slow = batcher.stream(0)
        assert settled(lambda: batcher.stats().blocked)
        others = [batcher.submit(n) for n in (1, 2)]
        assert settled(lambda: batcher.stats().flushes > 5)
        before = len(advanced)
        assert not wait(others, 0.1).done and len(advanced) < before + 9
        assert list(slow)[-1] == 1
        assert sorted(future.result(PATIENCE)[-1] for future in others) == [2, 3]


@pytest.mark.parametrize("seconds", [1e6, 0.01])
def test_guards_and_replacements_stay_between_requests_until_none_has_come_for_a_while(
    cell, seconds
):
    class Counter:
        count = 0

        def __call__(self, number):
            self.total = cell(mx.nd.array(vector(number))).sum().asscalar()
            self.count += 1
            return self.count

    def changed():
        is_replaced = hasattr(mx.nd.NDArray.__getitem__, REPLACES)
        return isinstance(vars(Counter)["count"], Guard), is_replaced

    with patch.object(worker, "REST_S", seconds), serving(Counter(), 1) as batcher:
        assert [batcher.submit(n).result(PATIENCE) for n in range(3)] == [1, 2, 3]
        assert settled(lambda: changed() == (seconds > 1,) * 2)
    assert settled(lambda: changed() == (False, False))


def test_a_scope_that_cannot_be_opened_fails_its_requests_only(walk, monkeypatch):
    with serving(walk.last, 8, 0) as batcher:
        monkeypatch.setenv("GLUON_DYNBATCH_ANALYSIS_BUDGET", "fast")
        assert isinstance(batcher.submit((0, 1)).exception(PATIENCE), gdb.BudgetError)
        monkeypatch.delenv("GLUON_DYNBATCH_ANALYSIS_BUDGET")
        long = batcher.submit((1, None))
        assert settled(lambda: len(walk.steps) > 3)
        monkeypatch.setenv("GLUON_DYNBATCH_ANALYSIS_BUDGET", "fast")
        with patch.object(rounds, "MOST_ROUNDS", 1):  # the next round needs another scope
            assert isinstance(long.exception(PATIENCE), gdb.BudgetError)
        assert walk.ended == [1]
        monkeypatch.delenv("GLUON_DYNBATCH_ANALYSIS_BUDGET")
        assert batcher.submit((2, 1)).result(PATIENCE).shape == (1, 4)


def test_calls_of_a_request_that_ended_harm_nobody(walk):
    def fn(x):
        try:
            while True:
                x = x + x.asscalar()
                yield x
        finally:
            factor(-1)

    with serving(fn, 8, 0) as batcher:
        for _ in range(3):
            stream = batcher.stream(np.ones(1, "float32"))
            assert next(stream).tolist() == [2]
            stream.close()
        assert settled(lambda: not batcher.stats().running)
        assert next(batcher.stream(np.ones(1, "float32"))).tolist() == [2]
