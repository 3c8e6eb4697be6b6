"""Scopes in generators, and generators in scopes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from tests.cells import equal
from tests.common import FIXED, SAMPLES, assert_nothing_is_left, in_thread, originals_are_back


def test_closing_a_generator_keeps_what_it_yielded(net):
    """Dropping it closes its scope as well."""

    def outputs():
        with gdb.batching():
            for x in SAMPLES:
                yield net(x)

    wanted = [net(x) for x in SAMPLES]
    equal(list(outputs()), wanted)
    got = []
    generator = outputs()
    for y in generator:
        got.append(y)
        if len(got) == 2:
            break
    generator.close()
    assert_nothing_is_left()
    equal(got, wanted[:2])
    generator = outputs()
    next(generator)
    del generator
    assert_nothing_is_left()


# Scopes that a context manager holds open


@contextlib.contextmanager
def batched(**options):
    with gdb.batching(**options) as batch:
        yield batch


@contextlib.contextmanager
def batched_twice():
    with batched(**FIXED) as batch, gdb.batching():
        yield batch


def delegating():
    with gdb.batching(**FIXED) as batch:
        yield batch


@contextlib.contextmanager
def batched_by_another():
    yield from delegating()


@contextlib.contextmanager
def batched_on_a_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(batched(**FIXED))
        yield stack.enter_context(gdb.batching())


class Batched:
    def __init__(self):
        self.batch = gdb.batching(**FIXED)

    def __enter__(self):
        return self.batch.__enter__()

    def __exit__(self, *error):
        return self.batch.__exit__(*error)


class BatchedByGenerator(Batched):
    def __enter__(self):
        self.generator = delegating()
        return next(self.generator)

    def __exit__(self, *error):
        self.generator.close()


MANAGERS = [
    lambda: batched(**FIXED),
    batched_twice,
    batched_by_another,
    batched_on_a_stack,
    Batched,
    BatchedByGenerator,
]


@pytest.mark.parametrize("manager", MANAGERS)
def test_scopes_within_a_context_manager_join_its_scope(net, manager):
    wanted = [net(x) for x in SAMPLES]
    with manager() as batch:
        got = [net(SAMPLES[0]), *gdb.map(net, SAMPLES[1:3])]
        with gdb.batching() as inner:
            got.append(net(SAMPLES[3]))
        assert inner is batch and all(y.pending for y in got)
        with batched() as inner:
            got.append(net(SAMPLES[4]))
    assert_nothing_is_left()
    assert inner is batch and batch.report.launches == 1
    equal(got, wanted)


@pytest.mark.parametrize("manager", MANAGERS[:5])
def test_context_manager_whose_body_raises(net, manager):
    with pytest.raises(KeyError), manager():
        lost = gdb.map(net, SAMPLES)
        raise KeyError("on purpose")
    assert_nothing_is_left()
    with pytest.raises(gdb.StaleArrayError, match="on purpose"):
        lost[0].asnumpy()


def test_asynchronous_context_manager(net):
    @contextlib.asynccontextmanager
    async def batched():
        with gdb.batching(**FIXED) as batch:
            yield batch

    class ByHand(Batched):
        async def __aenter__(self):
            return self.batch.__enter__()

        async def __aexit__(self, *error):
            return self.batch.__exit__(*error)

    async def use(manager):
        async with manager as batch:
            got = [*gdb.map(net, SAMPLES[:2])]
            await asyncio.sleep(0)
            got += gdb.map(net, SAMPLES[2:])
            assert all(y.pending for y in got)
        assert batch.report.launches == 1
        return got

    for manager in batched(), ByHand():
        equal(asyncio.run(use(manager)), [net(x) for x in SAMPLES])


# Scopes whose statements do not end in the order in which they began


def two_scopes(net, first, second, wait):
    """Calls of two tasks that take turns, each in a scope of its own."""
    got = [], []

    async def task(number, turns, fails):
        with contextlib.suppress(KeyError), gdb.batching():
            for x in SAMPLES[:turns]:
                got[number].append(net(x))
                await wait()
            if fails:
                raise KeyError
        if not fails:
            assert not any(y.pending for y in got[number])

    async def both():
        await asyncio.gather(task(0, *first), task(1, *second))

    asyncio.run(both())
    return got


@pytest.mark.parametrize("fails", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("turns", [(2, 5), (5, 2), (3, 3)])
def test_tasks_that_take_turns_in_their_scopes(net, turns, fails):
    """They share one; neither's end nor failure takes values from the other."""
    got = two_scopes(net, (turns[0], fails[0]), (turns[1], fails[1]), lambda: asyncio.sleep(0))
    assert_nothing_is_left()
    for outputs, failed in zip(got, fails):
        if not failed:
            equal(outputs, [net(x) for x in SAMPLES[: len(outputs)]])


@pytest.mark.parametrize("order", ["abab", "abba", "aabb", "abbbaa"])
def test_generators_that_take_turns_in_their_scopes(net, order):
    def outputs():
        with gdb.batching(granularity="block", policy="depth"):
            for x in SAMPLES[: order.count("a") - 1]:
                yield net(x)

    generators = {"a": outputs(), "b": outputs()}
    got = {"a": [], "b": []}
    for name in order:
        got[name] += [y for y in [next(generators[name], None)] if y is not None]
    for generator in generators.values():
        generator.close()
    assert_nothing_is_left()
    for outputs_ in got.values():
        assert not any(y.pending for y in outputs_)
        equal(outputs_, [net(x) for x in SAMPLES[: len(outputs_)]])


def test_generator_that_is_left_waiting(net):
    """Scopes that come later join its scope, and keep their own promises."""

    def leak():
        with gdb.batching():
            yield net(SAMPLES[0])

    generator = leak()
    first = next(generator)
    for _ in range(2):
        with gdb.batching():
            got = [net(x) for x in SAMPLES]
        assert not any(y.pending for y in got)
        equal(got, [net(x) for x in SAMPLES])
        assert not any(y.pending for y in gdb.map(net, (x for x in SAMPLES)))
    with contextlib.suppress(KeyError), gdb.batching():
        beside = net(SAMPLES[1])
        raise KeyError
    with pytest.raises(gdb.ScopeError, match="max_rows"), gdb.batching(max_rows=3):
        pass
    del generator
    assert_nothing_is_left()
    equal([first, beside], [net(x) for x in SAMPLES[:2]])


def test_generator_that_another_thread_ends(net):
    def outputs():
        with gdb.batching():
            yield net(SAMPLES[0])

    generator = outputs()
    first = next(generator)
    in_thread(generator.close)
    assert_nothing_is_left()
    equal([first], [net(SAMPLES[0])])


def test_one_scope_in_two_threads(net):
    def enter():
        with batch:
            raise AssertionError

    batch = gdb.batching(**FIXED)
    with batch:
        first = net(SAMPLES[0])
        with pytest.raises(gdb.ScopeError, match="another thread") as refused:
            in_thread(enter)
        second = net(SAMPLES[1])
    assert __file__ in str(refused.value)
    assert batch.report.launches == 1
    equal([first, second], [net(x) for x in SAMPLES[:2]])


def test_scope_entered_by_hand(net):
    """What is forgotten ends with its scope."""
    with gdb.batching():
        gdb.batching().__enter__()
        net(SAMPLES[0])
    assert_nothing_is_left()
    batch, inner = gdb.batching(**FIXED), gdb.batching()
    batch.__exit__(None, None, None)
    assert batch.__enter__() is batch and STATE.batch is batch
    assert inner.__enter__() is batch
    with gdb.batching():
        first = net(SAMPLES[0])
    batch.__exit__(None, None, None)
    assert not first.pending
    second = net(SAMPLES[1])
    inner.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert not second.pending and STATE.batch is None and originals_are_back()
    equal([first, second], [net(x) for x in SAMPLES[:2]])
