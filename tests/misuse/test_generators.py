"""Scopes in generators, and generators in scopes."""

import asyncio
import contextlib
import gc

import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from tests.cells import equal
from tests.common import FIXED, SAMPLES, assert_nothing_is_left, in_thread, originals_are_back


@pytest.mark.parametrize(
    "end",
    [
        lambda generators: generators.pop().close(), lambda generators: generators.clear(),
        lambda generators: in_thread(generators.pop().close),
    ],
    ids=["closed", "dropped", "closed in another thread"],
)  # fmt: skip
def test_a_generator_that_ends_keeps_what_it_yielded(net, end):
    def outputs():
        with gdb.batching(**FIXED):
            for x in SAMPLES:
                yield net(x)

    wanted = [net(x) for x in SAMPLES]
    equal(list(outputs()), wanted)
    generators = [outputs()]
    got = [next(generators[0]) for _ in range(2)]
    end(generators)
    assert_nothing_is_left()
    equal(got, wanted[:2])


def delegating(**options):
    with gdb.batching(**options) as batch:
        yield batch


batched = contextlib.contextmanager(delegating)


@contextlib.contextmanager
def batched_on_a_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.contextmanager(lambda: (yield from delegating(**FIXED)))())
        yield stack.enter_context(gdb.batching())


class BatchedByGenerator:
    def __enter__(self):
        self.generator = delegating(**FIXED)
        return next(self.generator)

    def __exit__(self, *error):
        self.generator.close()


@contextlib.asynccontextmanager
async def batched_asynchronously():
    with gdb.batching(**FIXED) as batch:
        yield batch


MANAGERS = [lambda: batched(**FIXED), batched_on_a_stack, BatchedByGenerator]


@pytest.mark.parametrize("manager", MANAGERS)
def test_scopes_in_the_body_of_a_context_manager_join_its_scope(net, manager):
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
    if manager is not BatchedByGenerator:
        with pytest.raises(KeyError), manager():
            lost = gdb.map(net, SAMPLES)
            raise KeyError("on purpose")
        assert_nothing_is_left()
        with pytest.raises(gdb.StaleArrayError, match="on purpose"):
            lost[0].asnumpy()


def test_scopes_in_an_asynchronous_context_manager_join_its_scope(net):
    async def use():
        async with batched_asynchronously() as batch:
            got = gdb.map(net, SAMPLES[:2])
            await asyncio.sleep(0)
            got += gdb.map(net, SAMPLES[2:])
            assert all(y.pending for y in got)
        assert batch.report.launches == 1
        return got

    equal(asyncio.run(use()), [net(x) for x in SAMPLES])


@pytest.mark.parametrize("fails", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("calls", [(2, 5), (5, 2), (3, 3)])
def test_tasks_that_alternate_in_their_scopes_share_one(net, calls, fails):
    """They share one scope; the end or failure of one task takes no values from the other."""
    got = [], []

    async def task(number):
        with contextlib.suppress(KeyError), gdb.batching():
            for x in SAMPLES[: calls[number]]:
                got[number].append(net(x))
                await asyncio.sleep(0)
            if fails[number]:
                raise KeyError
        assert fails[number] or not any(y.pending for y in got[number])

    async def both():
        await asyncio.gather(task(0), task(1))

    asyncio.run(both())
    assert_nothing_is_left()
    for outputs, failed in zip(got, fails):
        if not failed:
            equal(outputs, [net(x) for x in SAMPLES[: len(outputs)]])


def test_scope_of_a_suspended_generator(net):
    """Later scopes join it; nevertheless, their arrays are computed when they end."""

    def leak():
        with gdb.batching():
            yield net(SAMPLES[0])

    generator = leak()
    first = next(generator)
    for _ in range(2):
        with gdb.batching():
            got = [net(x) for x in SAMPLES]
        got += gdb.map(net, iter(SAMPLES))
        assert not any(y.pending for y in got)
        equal(got, 2 * [net(x) for x in SAMPLES])
    with contextlib.suppress(KeyError), gdb.batching():
        second = net(SAMPLES[1])
        raise KeyError
    with pytest.raises(gdb.ScopeError, match="max_rows"), gdb.batching(max_rows=3):
        pass
    del generator
    assert_nothing_is_left()
    equal([first, second], [net(x) for x in SAMPLES[:2]])


@pytest.mark.parametrize("generators", [1, 2])
@pytest.mark.parametrize("joins", [False, True], ids=["opens", "joins"])
@pytest.mark.parametrize("collect", [gc.collect, lambda: in_thread(gc.collect)], ids=["", "thread"])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_scope_of_a_generator_in_a_cycle(net, generators, joins, collect):
    """Python's collector clears weak references to the scope's statements before it ends them."""

    def outputs(holder):
        with gdb.batching(**FIXED):
            yield net(SAMPLES[0])

    def leak():
        holder = []
        holder += [outputs(holder) for _ in range(generators)]
        return list(map(next, holder))

    with gdb.batching(**FIXED) if joins else contextlib.nullcontext():
        got = leak()
    got.append(net(SAMPLES[1]))
    assert got[-1].pending
    collect()
    assert_nothing_is_left()
    equal(got, [net(x) for x in [SAMPLES[0]] * generators + [SAMPLES[1]]])


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_generator_in_a_cycle_ends_in_the_scope_that_it_joined(net):
    def outputs(holder):
        with gdb.batching():
            yield net(SAMPLES[0])

    def leak():
        holder = []
        holder.append(outputs(holder))
        return next(holder[0])

    with gdb.batching(**FIXED):
        got = [leak()]
        gc.collect()
        got.append(net(SAMPLES[1]))
        assert got[-1].pending
    assert_nothing_is_left()
    equal(got, [net(x) for x in SAMPLES[:2]])


def test_one_handle_cannot_be_open_in_two_threads(net):
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


def test_a_scope_entered_without_a_with_statement_can_be_closed_by_hand(net):
    """An inner scope that is not closed ends with the outer one."""
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
