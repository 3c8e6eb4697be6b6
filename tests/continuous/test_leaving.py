"""Requests end with their clients and with the batcher; nothing is kept of those that ended."""

import asyncio
import gc
import threading
import weakref
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import OpenScope
from gluon_dynbatch.serve import rounds
from tests import soak
from tests.cells import equal
from tests.common import PATIENCE, alive
from tests.continuous.walking import serving, settled, vector
from tests.forks import output_of
from tests.test_serving import factor


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
        # The worker may need a moment to drop the last ones.
        assert settled(lambda: sum(sample() is not None for sample in samples) <= 2)
        assert settled(lambda: len(scopes) <= 2) and len(batcher._queue._active) == 1
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
