"""Requests join and leave at every flush, with the values of the loop."""

import asyncio
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.serve import rounds
from tests.cells import equal
from tests.continuous.walking import LENGTHS, as_array, serving, settled, vector
from tests.inside import clock_of_batchers
from tests.test_serving import FOREVER, PATIENCE


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
    # On a busy machine, requests of threads may come one by one; those of tasks come together.
    assert stats.flushes < 1.5 * sum(LENGTHS) and stats.plan_hits > 0


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


def test_requests_that_take_too_long_end(walk, monkeypatch):
    ahead = clock_of_batchers(monkeypatch)
    with serving(walk.yielding, 2, FOREVER) as batcher:
        waiting = batcher.submit((0, 1), timeout_s=0.01)  # for others
        assert isinstance(waiting.exception(PATIENCE), gdb.RequestTimeoutError)
        assert not walk.begun
        future = batcher.submit((1, None), timeout_s=PATIENCE)
        stream = batcher.stream((2, None), timeout_s=PATIENCE)
        queued = batcher.submit((3, 1), timeout_s=0.01)
        assert settled(lambda: len(walk.begun) == 2)
        ahead[0] = PATIENCE
        with pytest.raises(TimeoutError, match=f"within {PATIENCE} seconds"):
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
