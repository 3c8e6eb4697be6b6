"""What is held, and for how long: arrays with their last reference, buffers within limits."""

import contextlib
import gc
import tracemalloc
import weakref
from collections import OrderedDict

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.cache import SizedCache
from gluon_dynbatch.run.pool import LARGE, MOST_BYTES, MOST_IDLE, Pool, address_of
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, array, equal, ready, unary
from tests.common import FIXED, alive, none_left
from tests.depth import examples
from tests.inside import bytes_of_plans, forget_plans, known_operators, limit_entries

SIZES = [0, 20, 30, 40, 90, 101]
STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(SIZES)), max_size=30)


@given(STEPS, st.booleans())
def test_the_plan_cache_is_an_ordered_dictionary_with_a_limit_in_bytes(steps, again):
    """A plan that is kept twice counts once; one of no size or beyond the limit is not kept."""
    cache, model = SizedCache(limit=100), OrderedDict(a=("plan", 90))
    cache.keep("a", "plan", 90)
    assert cache.find("a") == "plan"  # so not all of the following is new
    for number, (key, size) in enumerate(steps):
        plan = cache.find(key)
        assert plan == (model[key][0] if key in model else None)
        if key in model:
            model.move_to_end(key)
        if plan is None or again:
            cache.keep(key, f"plan {number}", size)
            if 0 < size <= 100:
                model.pop(key, None)
                model[key] = f"plan {number}", size
        while sum(size for _, size in model.values()) > 100:
            model.popitem(last=False)
        assert len(cache) == len(model)
        assert cache.bytes == sum(size for _, size in model.values())
    cache.clear()
    assert len(cache) == cache.bytes == 0 and cache.find("a") is None


def turn(cache, sizes):
    """Look for each plan, and keep those that are not there; return how many were."""
    found = 0
    for key, size in enumerate(sizes):
        plan = cache.find(key)
        found += plan is not None
        if plan is None:
            cache.keep(key, f"plan {key}", size)
        assert cache.bytes <= cache.limit
    return found


@given(st.lists(st.integers(1, 120), min_size=1, max_size=12))
def test_plans_that_repeat_in_turns_are_found_from_the_third_turn_on(sizes):
    """The second turn shows which limit they need; it becomes no higher if each of them fits."""
    cache = SizedCache(limit=100, most=400)
    assert turn(cache, sizes) == 0 and cache.limit == 100
    again = turn(cache, sizes)
    if sum(sizes) <= 100:
        assert again == len(sizes) and cache.limit == 100
    elif sum(sizes) <= 400:
        assert turn(cache, sizes) == turn(cache, sizes) == len(sizes)
        # If so much is new that it is no longer kept, what is there instead counts, too.
        most = sum(sizes) + 100 * (sum(sizes) > 200)
        assert sum(sizes) <= cache.limit <= most or max(sizes) > 100
    else:
        turn(cache, sizes)
        assert cache.limit <= 400


@given(
    st.lists(st.integers(1, 90), max_size=40), st.lists(st.integers(1, 90), min_size=1, max_size=8)
)
def test_a_full_cache_keeps_no_plans_of_a_program_that_repeats_nothing_until_it_does(new, repeated):
    """As in minibatches of random trees; later, each epoch ends with the same ones."""
    cache = SizedCache(limit=100, most=10_000)
    for number, size in enumerate(new):
        full, asked = cache.bytes + size > 100, sum(new[: number + 1])
        assert cache.find(-1 - number) is None
        before = len(cache)
        cache.keep(-1 - number, "plan", size)
        if not full or asked > 200:
            assert len(cache) == before + (not full)
    found = [turn(cache, repeated) for _ in range(5)]
    assert found[0] == 0 and found[-1] == len(repeated)


@given(st.lists(st.integers(1, 10), min_size=4, max_size=40), st.integers(0, 2**32 - 1))
def test_plans_that_seldom_come_back_leave_the_limit_of_the_cache_as_it_is(sizes, seed):
    """As in a service, where most look-ups find something: no memory is spent on the rest."""
    cache, random = SizedCache(limit=100, most=10_000), np.random.RandomState(seed)
    for number in range(2000):
        often = number % 12 > 0
        key = int(random.randint(3)) if often else 3 + int(random.randint(len(sizes)))
        size = 10 if often else sizes[key - 3]
        if cache.find(key) is None:
            cache.keep(key, "plan", size)
    assert cache.limit == 100


@given(st.integers(0, 2**32 - 1))
def test_small_plans_that_come_back_among_new_ones_leave_the_limit_of_the_cache_as_it_is(seed):
    """As in minibatches of random trees, of which only those of one small tree are ever equal."""
    cache, random = SizedCache(limit=100, most=10_000), np.random.RandomState(seed)
    for number in range(2000):
        small = random.randint(20) == 0
        key, size = (int(random.randint(10)), 1) if small else (100 + number, 20)
        if cache.find(key) is None:
            cache.keep(key, "plan", size)
    assert cache.limit == 100


@given(st.integers(0, 2**32 - 1))
def test_plans_that_come_back_after_any_time_raise_the_limit_of_the_cache_a_little(seed):
    """As in a service with many shapes: each doubling would serve less than the one before."""
    cache, random = SizedCache(limit=1000, most=8000), np.random.RandomState(seed)
    for key in np.exp(random.rand(5000) * np.log(20_000)).astype(int).tolist():
        if cache.find(key) is None:
            cache.keep(key, "plan", 10)
    assert cache.limit < 4000


@given(st.lists(st.integers(1, 120), max_size=30))
def test_plans_that_never_repeat_leave_the_limit_of_the_cache_as_it_is(sizes):
    cache = SizedCache(limit=100, most=400)
    assert turn(cache, sizes) == 0 and cache.limit == 100


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("wide, deep", [(1, 0), (1, 1), (0, 1)])
def test_plans_are_as_large_as_the_cache_counts(trains, wide, deep):
    """The smallest ones, and those of many calls, beside each other or one after another."""
    net, x = ready(gdb.convert(mx.gluon.nn.Dense(WIDTH, in_units=WIDTH))), array(1, WIDTH)
    recording = autograd.record if trains else contextlib.nullcontext

    def run(size):
        with recording(), gdb.batching(**FIXED):
            results = [x] * (1 + wide * size)
            for _ in range(1 + deep * size):
                results = list(map(net, results))
        if trains:
            autograd.backward(results)
        mx.nd.waitall()

    for small in (True, False):
        sizes = [0] if small else range(1, 40, 3)
        list(map(run, sizes))  # what is kept besides plans
        forget_plans()
        gc.collect()
        tracemalloc.start()
        list(map(run, sizes))
        gc.collect()
        counted, before = bytes_of_plans(), tracemalloc.get_traced_memory()[0]
        forget_plans()
        gc.collect()
        freed = before - tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert counted / 2 < freed < 1.5 * counted


def test_operators_with_new_attributes_forever_are_forgotten(monkeypatch):
    """A bound that changes at each step: what was known of earlier bounds is dropped."""
    forget_plans()
    limit_entries(monkeypatch, 20)
    net, x, earlier = ready(unary()), array(1, WIDTH), known_operators()
    for step in range(100):
        with gdb.batching(**FIXED):
            y = mx.nd.clip(net(x), 0, step / 100)
    assert y.asnumpy().max() <= 0.99
    forget_plans()
    added = [now - before for now, before in zip(known_operators(), earlier)]
    assert max(added) <= 40


def test_operators_that_raise_are_forgotten():
    net, x = ready(unary()), array(1, WIDTH)
    with gdb.batching(**FIXED):
        y = net(x)
        earlier, _ = known_operators()
        for axis in range(10, 20):
            with pytest.raises(mx.MXNetError):
                mx.nd.sum(y, axis=axis)
    assert known_operators()[0] == earlier


@pytest.mark.parametrize("most", [1, 2, 5])
def test_calls_whose_entries_are_dropped_are_recorded_again(monkeypatch, most):
    limit_entries(monkeypatch, most)
    net = ready(unary())
    samples = [array(rows, WIDTH, seed=rows) for rows in (1, 2, 3, 1, 4, 2)]

    def program(x):
        return mx.nd.concat(net(x) * 2, net(net(x)), dim=1).sum(axis=1)

    for _ in range(3):
        check_against_loop(program, samples, **FIXED)


#: Eighths of the smallest size that is kept, a dtype, and whether a view of the array is held.
TAKES = st.tuples(
    st.sampled_from([7, 8, 9, 13, 33, 144]), st.sampled_from(["float32", "float64"]), st.booleans()
)


@given(st.lists(TAKES, max_size=20))
@examples(20)
def test_memory_is_reused_once_nothing_holds_it(takes):
    """A view holds it as well; memory of one size is reused for that size, or a smaller one."""
    pool, held, free = Pool(), {}, {}
    for number, (eighths, dtype, holds) in enumerate(takes):
        array = pool.take((eighths, LARGE // 8), dtype, mx.cpu())
        address, large = address_of(array), eighths >= 8
        assert array.shape == (eighths, LARGE // 8) and array.dtype == np.dtype(dtype)
        assert address not in held
        fit = [a for a, (t, n) in free.items() if (t, n) == (dtype, eighths)]
        assert not (large and fit) or address in free
        if address in free:
            assert large and free[address][0] == dtype
        elif large:
            free[address] = dtype, eighths
        if holds:
            held[address] = array[1:3], number
            array[:] = number
            free.pop(address, None)
        del array
    assert all((view.asnumpy() == number).all() for view, number in held.values())


def test_buffers_of_similar_sizes_are_one():
    """Sizes are rounded up to four significant bits, so minibatches of similar size share one."""
    pool = Pool()
    first = address_of(pool.take((33, LARGE // 8), "float32", mx.cpu()))
    assert address_of(pool.take((36, LARGE // 8), "float32", mx.cpu())) == first
    assert address_of(pool.take((18, LARGE // 8), "float32", mx.cpu())) == first
    assert address_of(pool.take((37, LARGE // 8), "float32", mx.cpu())) != first


def test_idle_buffers_are_freed():
    pool, before = Pool(), alive()
    for power in range(5):
        pool.take((LARGE << 2 * power,), "uint8", mx.cpu())
    assert alive() - before == 5
    for _ in range(MOST_IDLE + 1):
        pool.take((LARGE,), "uint8", mx.cpu())
    assert alive() - before == 1
    pool.clear()
    assert alive() == before


def test_the_pool_keeps_no_more_than_its_limit():
    """What exceeds it is freed with the last array that holds it.  No page of it is touched."""
    pool, before, size = Pool(), alive(), MOST_BYTES // 4
    held = [pool.take((size,), "uint8", mx.cpu()) for _ in range(9)]
    assert len(set(map(address_of, held))) == 9
    held.clear()
    assert alive() - before == 4


def test_results_are_freed_with_their_last_reference():
    """Those of a scope that fails as well, with all that the scope has recorded."""
    net, x = ready(unary()), array(4, WIDTH)

    def run():
        with gdb.batching(**FIXED):
            rows = net(x)
            return [net(rows[i : i + 1]) for i in range(4)] + [rows[1], rows[-1], rows[0:2]]

    run()
    before = alive()
    held = [run() for _ in range(3)]
    watched = [weakref.ref(result) for results in held for result in results]
    with pytest.raises(KeyError), gdb.batching(**FIXED):
        held.append([net(x[0:1])])
        watched.append(weakref.ref(held[-1][0]))
        raise KeyError
    assert all(reference() is not None for reference in watched)
    del held
    assert all(reference() is None for reference in watched)
    assert none_left(before)


def test_a_block_is_freed_at_once_and_its_parameters_with_its_plans():
    net = ready(unary())
    with gdb.batching(**FIXED):
        results = [net(array(1, WIDTH))]
    equal(results, [net(array(1, WIDTH))])
    block, parameter = weakref.ref(net), weakref.ref(next(iter(net.collect_params().values())))
    del net, results
    gc.collect()
    assert block() is None
    forget_plans()
    gc.collect()
    assert parameter() is None


# Python's collector, which would search the whole heap every few minibatches


def test_the_collector_has_nothing_to_search_after_a_flush():
    net, x = ready(unary()), array(400, WIDTH)

    def tracked():
        with gdb.batching(**FIXED) as batch:
            results = [net(row) for row in [x[i : i + 1] for i in range(400)]]
        return len(gc.get_objects(0)), results, batch

    tracked()
    gc.collect()
    count, results, _ = tracked()
    assert len(results) == 400 and count < 100


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_does_not_run_during_a_flush(enabled):
    """It is as before afterwards."""
    net, before = ready(unary()), gc.get_threshold()
    (gc.enable if enabled else gc.disable)()
    try:
        batch = gdb.batching(**FIXED)
        with contextlib.ExitStack() as stack:
            stack.enter_context(batch)
            held = [net(net(array(1, WIDTH))) for _ in range(100)]
            gc.set_threshold(1)
            runs = gc.get_stats()[0]["collections"]
        runs = gc.get_stats()[0]["collections"] - runs
        assert len(held) == 100 and runs < 50 and gc.isenabled() == enabled
    finally:
        gc.set_threshold(*before)
        gc.enable()
