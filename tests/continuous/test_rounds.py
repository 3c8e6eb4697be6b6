"""Rounds: which requests share flushes, in which order, and with which plans."""

import collections
import functools
from concurrent.futures import wait
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.hooks import REPLACES
from gluon_dynbatch.samples.arguments import applier
from gluon_dynbatch.samples.turns import Guard
from gluon_dynbatch.serve import clients, rounds, worker
from tests import soak
from tests.cells import equal
from tests.common import PATIENCE
from tests.continuous.walking import LENGTHS, as_array, serving, settled, vector
from tests.test_serving import FOREVER


def test_values_stay_when_a_scope_is_closed(walk, oracle):
    with patch.object(rounds, "MOST_ROUNDS", 3), serving(walk.yielding, 6, 0) as batcher:
        futures = [batcher.submit(sample) for sample in enumerate(LENGTHS)]
        for number, future in enumerate(futures):
            equal(future.result(PATIENCE), oracle(number, LENGTHS[number]), 1e-5, 1e-6)


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

    def look(self):
        return bool(self.requests)

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
