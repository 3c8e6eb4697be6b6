"""Requests of another process, over a socket, with the values of the loop."""

import asyncio
import contextlib
import os
import pickle
import socket
import threading
import time

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from tests.cells import equal
from tests.common import PATIENCE
from tests.continuous.walking import LENGTHS, serving, settled
from tests.forks import output_of
from tests.inside import break_connection, limit


@pytest.fixture
def path(tmp_path):
    return tmp_path / "socket"


@contextlib.asynccontextmanager
async def connected(path):
    batcher = await gdb.RemoteBatcher.connect(path)
    try:
        yield batcher
    finally:
        batcher.close()


def run(path, use):
    """Run a coroutine function of a remote batcher in an event loop of its own."""

    async def main():
        async with connected(path) as batcher:
            return await asyncio.wait_for(use(batcher), PATIENCE)

    return asyncio.run(main())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def read(stream):
    return [value async for value in stream]


@pytest.mark.parametrize("interval", [0, 0.003])
def test_requests_get_the_results_of_the_loop(walk, oracle, path, interval):
    wanted = [oracle(number, steps) for number, steps in enumerate(LENGTHS)]

    async def ask(batcher):
        samples = list(enumerate(LENGTHS))
        streams = [read(batcher.stream(sample)) for sample in samples]
        return await asyncio.gather(*streams, *map(batcher, samples)), await batcher.stats()

    options = {"stream_buffer": 3, "stream_interval_s": interval}
    with serving(walk.yielding, 7, 0, **options) as batcher:
        batcher.listen(path)
        for _ in range(2):  # connections
            got, stats = run(path, ask)
            for values, states in zip(got, wanted * 2):
                equal(values, states, 1e-5, 1e-6)
        assert stats == batcher.stats()
        assert stats.completed == 4 * len(LENGTHS) and max(stats.batch_sizes) <= 7
    assert not path.exists()


def test_clients_of_several_connections_and_of_this_process_share_flushes(walk, oracle, path):
    async def use():
        async with connected(path) as one, connected(path) as other:
            long = batcher.stream((0, None))
            await long.__anext__()
            streams = [one.stream((1, None)), other.stream((2, None))]
            for stream in streams:
                await stream.__anext__()
            assert len(await one((3, 2))) == len(await other((4, 2))) == 2
            walk.released.set()
            return await asyncio.gather(*map(read, streams))

    with serving(walk.yielding, 8, 0, stream_buffer=10_000) as batcher:  # none is blocked
        batcher.listen(path)
        for number, states in enumerate(asyncio.run(use()), 1):
            equal(states, oracle(number, len(states) + 1)[1:], 1e-4, 1e-5)
        assert max(batcher.stats().batch_sizes) >= 4


@pytest.mark.parametrize("buffer", [1, 2, 3, 8])
def test_a_slow_client_delays_only_itself(walk, oracle, path, buffer):
    """The batcher counts the values that the client has not taken, wherever they are."""

    async def use(remote):
        stream = remote.stream((0, 40))
        await until(lambda: batcher.stats().blocked == 1)
        assert len(walk.steps) == buffer
        assert len(await remote((1, 10))) == 10
        values = [await stream.__anext__()]
        await asyncio.sleep(0.02)
        assert len(walk.steps) == buffer + 10 or buffer < 3
        values += stream.available()
        await until(lambda: len(walk.steps) >= 2 * buffer - buffer // 2 + 10)
        return values + await read(stream)

    with serving(walk.yielding, 8, 0, stream_buffer=buffer) as batcher:
        batcher.listen(path)
        equal(run(path, use), oracle(0, 40), 1e-5, 1e-6)
        assert settled(lambda: batcher.stats().running == batcher.stats().blocked == 0)


@pytest.mark.parametrize("way", ["close", "break", "cancel", "timeout", "end"])
def test_a_client_that_leaves_ends_its_request(walk, path, way):
    async def use(remote):
        stream = remote.stream((0, None))
        await stream.__anext__()
        if way == "close":
            stream.close()
        elif way == "break":
            del stream
        elif way == "cancel":
            task = asyncio.ensure_future(remote((1, None)))
            await until(lambda: 1 in walk.begun)
            task.cancel()
            await until(lambda: 1 in walk.ended)
        elif way == "timeout":
            with pytest.raises(gdb.RequestTimeoutError, match=r"within 0\.05 seconds"):
                await remote((1, None), timeout_s=0.05)
            with pytest.raises(gdb.RequestTimeoutError):
                await read(remote.stream((2, None), timeout_s=0.05))
        if way in ("close", "break"):
            await until(lambda: 0 in walk.ended)

    with serving(walk.yielding, 8, 0, stream_buffer=8) as batcher:
        batcher.listen(path)
        run(path, use)
        assert settled(lambda: batcher.stats().running == 0 and 0 in walk.ended)
        stats = batcher.stats()
        assert stats.cancelled == (2 if way == "cancel" else 1)
        assert stats.timed_out == (2 if way == "timeout" else 0)
        assert len(batcher.submit((5, 2)).result(PATIENCE)) == 2


class Odd(Exception):
    """An exception that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("no")


def fails(kind):
    if kind == "odd":
        raise Odd("text")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "key":
        raise KeyError(kind)
    yield 1
    if kind == "value":
        yield lambda: 0
    yield 2


@pytest.mark.parametrize(
    "kind, error, text",
    [
        ("odd", gdb.RequestError, "raised Odd: text"),
        ("exit", gdb.RequestError, "raised SystemExit"),
        ("key", KeyError, "key"),
        ("value", Exception, "pickle"),
    ],
)
def test_errors_reach_their_clients_alone(path, kind, error, text):
    async def use(remote):
        good, bad = remote.stream("good"), remote.stream(kind)
        with pytest.raises(error, match=text):
            await read(bad)
        with pytest.raises(error, match=text):
            await remote(kind)
        assert await read(good) == [1, 2] == await remote("good")

    with serving(fails, 8, 0) as batcher:
        batcher.listen(path)
        run(path, use)


def test_what_is_refused_says_why(walk, path):
    async def use(remote):
        long = remote.stream((0, None))
        await until(lambda: batcher.stats().blocked == 1)
        with pytest.raises(gdb.QueueFullError, match="1 requests wait"):
            await remote((1, 1))
        with pytest.raises(gdb.QueueFullError):
            await read(remote.stream((1, 1)))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            await remote(lambda: 0)
        for wrong in (-1, "1"):
            with pytest.raises(gdb.OptionError, match="timeout_s"):
                remote.stream((1, 1), timeout_s=wrong)
        await long.aclose()
        await asyncio.get_running_loop().run_in_executor(None, in_another_loop, remote)
        remote.close()
        assert remote.closed
        with pytest.raises(gdb.ClosedError):
            remote.stream((1, 1))

    def in_another_loop(remote):
        async def ask():
            with pytest.raises(gdb.ArgumentError, match="another event loop"):
                await remote((1, 1))

        asyncio.run(ask())

    with serving(walk.yielding, 8, 0, max_queue=1, stream_buffer=2) as batcher:
        batcher.listen(path)
        with pytest.raises(OSError):
            batcher.listen(path)
        run(path, use)
        assert oct(os.stat(path).st_mode)[-3:] == "600"
    with pytest.raises(gdb.ClosedError):
        batcher.listen(path)
    with pytest.raises(FileNotFoundError):
        run(path, use)


def test_close_sends_all_to_clients_that_come_late(walk, oracle, path):
    async def use():
        async with connected(path) as remote:
            streams = [remote.stream((n, 30)) for n in range(5)]
            answer = asyncio.ensure_future(remote((9, 3)))
            await until(lambda: batcher.stats().queued + batcher.stats().running == 6)
            await asyncio.get_running_loop().run_in_executor(None, batcher.close)
            await until(lambda: remote.closed)
            for number, stream in enumerate(streams):
                equal(await read(stream), oracle(number, 30), 1e-5, 1e-6)
            equal(await answer, oracle(9, 3), 1e-5, 1e-6)

    batcher = gdb.RequestBatcher(walk.yielding, 2, 0, stream_buffer=1)
    batcher.listen(path)
    asyncio.run(use())


def test_wrong_paths(walk, path):
    """Errors of the system name the path."""
    listened = path.parent / "missing" / "socket"
    with serving(walk.yielding, 2, 0) as batcher:
        for wrong in (None, 7, object()):
            with pytest.raises(gdb.ArgumentError, match=type(wrong).__name__) as caught:
                batcher.listen(wrong)
            assert isinstance(caught.value, TypeError)
            with pytest.raises(gdb.ArgumentError, match="pass a string or a pathlib.Path"):
                asyncio.run(gdb.RemoteBatcher.connect(wrong))
        with pytest.raises(FileNotFoundError, match=str(listened)):
            batcher.listen(listened)
        with pytest.raises(FileNotFoundError, match=str(listened)):
            asyncio.run(gdb.RemoteBatcher.connect(listened))
        with pytest.raises(OSError, match="too long"):
            batcher.listen(path.parent / ("x" * 200))
        batcher.listen(path)
        with pytest.raises(OSError, match=str(path)):
            batcher.listen(path)


def test_garbage_and_lost_connections_end_only_their_requests(walk, path):
    with serving(walk.yielding, 8, 0, stream_buffer=4) as batcher:
        batcher.listen(path)
        for data in (b"", b"x" * 3, b"\0" * 8 + b"\1" + b"\0" * 8):
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(path))
                other.sendall(data)

        async def lose(remote):
            stream = remote.stream((0, None))
            await stream.__anext__()
            break_connection(remote)
            with pytest.raises(gdb.ClosedError, match="ended the connection"):
                await read(stream)

        run(path, lose)
        assert settled(lambda: walk.ended == [0])
        assert len(run(path, lambda remote: remote((1, 3)))) == 3


def test_a_batcher_that_waits_for_slow_readers_answers_others(path, monkeypatch):
    """It closes, and the event loops of two connections read nothing meanwhile."""

    async def use():
        async with connected(path) as one, connected(path) as other:
            answers = [asyncio.ensure_future(each(2)) for each in (one, other)]
            await until(lambda: sum(batcher.stats()[:2]) + batcher.stats().completed == 2)
            while batcher.stats().completed < 2:
                time.sleep(0.001)
            closing = threading.Thread(target=batcher.close)
            closing.start()
            while path.exists():
                time.sleep(0.001)
            assert batcher.stats().completed == 2 and closing.is_alive()
            results = await asyncio.gather(*answers)
            await asyncio.get_running_loop().run_in_executor(None, closing.join)
            return [float(result.sum()) for result in results]

    limit(monkeypatch, "seconds for slow readers", PATIENCE)
    batcher = gdb.RequestBatcher(lambda number: mx.nd.full((3_000_000,), number), 2, 0)
    batcher.listen(path)
    assert asyncio.run(use()) == [6e6, 6e6]


def test_large_results_are_sent_in_parts(path):
    size = 3_000_000

    def fn(number):
        for i in range(4):
            yield mx.nd.full((size,), number + i)

    async def use(remote):
        parts = await asyncio.gather(*(read(remote.stream(n)) for n in range(3)))
        return [[(x.shape, x.min(), x.max()) for x in part] for part in parts]

    with serving(fn, 8, 0, stream_buffer=2) as batcher:
        batcher.listen(path)
        got = run(path, use)
    assert got == [[((size,), n + i, n + i) for i in range(4)] for n in range(3)]


PROCESSES = """
import asyncio, os, tempfile, time
path = tempfile.mkdtemp() + "/socket"
ready = os.pipe()
child = os.fork()
if not child:
    batcher = gdb.RequestBatcher(lambda x: (x * 2).sum(), 4, 0.001)
    batcher.listen(path)
    os.write(ready[1], b"1")
    time.sleep(1000)

async def main():
    batcher = await gdb.RemoteBatcher.connect(path)
    answers = [batcher(np.full((2,), i, "float32")) for i in range(3)]
    print([float(answer) for answer in await asyncio.gather(*answers)])
    os.kill(child, 9)
    try:
        while True:
            await batcher(np.ones(2))
    except gdb.ClosedError:
        print("closed", batcher.closed)

os.read(ready[0], 1)
asyncio.run(main())
os.waitpid(child, 0)
"""


def test_the_process_of_the_batcher_ends():
    assert output_of(PROCESSES) == "[0.0, 4.0, 8.0]\nclosed True\n"
