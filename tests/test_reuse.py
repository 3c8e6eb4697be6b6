"""Flushes reuse compiled operators, plans and buffers, and free everything else."""

import gc
import weakref
from collections import OrderedDict

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch import flush
from gluon_dynbatch.cache import SizedCache
from gluon_dynbatch.record.tape import Tape
from gluon_dynbatch.run import chain as run_chain
from gluon_dynbatch.run import pool
from gluon_dynbatch.run.pool import address_of
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.testing import check_against_loop
from gluon_dynbatch.trace import entry
from tests.cells import WIDTH, array, binary, cell, chain, complete, inputs, ready, tree, unary
from tests.common import FIXED, output_of
from tests.strategies import examples

A, JOIN = ready(unary(prefix="reuse_a_")), ready(binary(prefix="reuse_join_"))


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_nothing_is_compiled_for_new_widths_and_shapes(granularity):
    """CachedOps belong to segments of cells: neither the minibatch nor the trees matter."""
    leaf, join = ready(unary()), ready(binary())

    def run(samples):
        with autograd.record(), gdb.batching(granularity=granularity) as batch:
            outputs = [tree(leaf, join, s) for s in samples]
        autograd.backward(outputs)
        return batch

    x, y = inputs(2)
    before = RUNTIME.dispatcher.built
    run([complete(2, x)])
    built = RUNTIME.dispatcher.built
    assert built - before == 2
    run([complete(2, x)] * 9)
    run([(x, ((x, y), y)), complete(3, y), x, (x, y)])
    run([complete(height, x) for height in (4, 1, 0)])
    assert RUNTIME.dispatcher.built == built


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_calls_are_analysed_once_whatever_the_number_of_rows(granularity, monkeypatch):
    """Once for one row, and once for several; values and gradients equal the loop."""
    embedding, norm = gluon.nn.Embedding(9, 6), gluon.nn.LayerNorm(in_channels=6)
    dense, loss = gluon.nn.Dense(4, flatten=False, in_units=3), gluon.loss.SoftmaxCrossEntropyLoss()

    def run(F, words):
        return F.sum(dense(F.reshape(norm(embedding(words)), (-1, 2, 3))), axis=1)

    net = ready(cell(run, embedding, norm, dense))
    loss.hybridize()
    infer, calls = entry.infer, []
    monkeypatch.setattr(entry, "infer", lambda *args: calls.append(args) or infer(*args))
    check_against_loop(
        lambda n: loss(net(mx.nd.arange(n)), mx.nd.ones((n,))), (4, 1, 7, 3), net.collect_params(),
        granularity=granularity,
    )  # fmt: skip
    assert {types[0].shape[0] for _, types, *_ in calls} == {4, 1}


def cached(fn, samples, **options):
    """Compare with the loop, and return whether the plan came from the cache."""
    return check_against_loop(fn, samples, **{**FIXED, **options}).report.flushes[-1].cached


def test_plans_are_reused_for_equal_graphs():
    """Other arrays of equal structure are a cache hit; another order or structure is not."""
    RUNTIME.plans.clear()
    x, y, z = inputs(3)

    def run(*samples):
        return cached(lambda s: tree(A, JOIN, s), samples, policy="agenda")

    assert not run((x, y), x)
    assert run((x, y), x)
    assert run((y, z), y), "other arrays in the same places"
    assert not run(x, (x, y)), "the samples in another order"
    assert not run((x, x), x), "one array where there were two"
    assert not run((x, y), x, x)
    assert run((x, y), x, x)
    RUNTIME.plans.clear()
    assert not run((x, y), x)


def test_options_and_offsets_of_reads_are_part_of_the_key_of_a_plan():
    RUNTIME.plans.clear()

    def run(**options):
        return cached(lambda x: chain([A, A], x), inputs(4), **options)

    hits = [run(), run(), run(max_rows=2), run(granularity="operator"), run()]
    assert hits == [False, True, False, False, True]
    table = array(3, WIDTH)
    hits = [cached(lambda k: A(A(table)[k : k + 1]), [k]) for k in (1, 2, 1)]
    assert hits == [False, False, True], "the calls read other rows of an equal result"


STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0, 20, 30, 40, 90, 101])))


@given(STEPS, st.booleans())
def test_the_plan_cache_is_an_ordered_dictionary_with_a_limit_in_bytes(steps, again):
    """A plan that is kept twice counts once; one of no size or beyond the limit is not kept."""
    cache, model = SizedCache(capacity=100), OrderedDict()
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


#: Eighths of the smallest size that is kept, a dtype, and whether a view of the array is held.
TAKES = st.tuples(
    st.sampled_from([7, 8, 9, 13, 33, 144]), st.sampled_from(["float32", "float64"]), st.booleans()
)


@given(st.lists(TAKES, max_size=20))
@examples(80)
def test_the_pool_reuses_buffers_within_its_limits(takes):
    """The last free buffer that fits is reused; buffers that are idle for long are freed."""
    buffers, model, held, most, taken = pool.Pool(), OrderedDict(), {}, 1 << 22, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "MOST_BYTES", most)
        patch.setattr(pool, "MOST_IDLE", 4)
        for number, (eighths, dtype, holds) in enumerate(takes):
            array = buffers.take((eighths, pool.LARGE // 8), dtype, mx.cpu())
            address = address_of(array)
            assert array.shape == (eighths, pool.LARGE // 8) and address not in held
            if eighths > 7:
                sizes = {a: size for a, (t, size, *_) in model.items() if t == dtype}
                fit = [a for a in sizes if a not in held and eighths <= sizes[a] <= 2 * eighths]
                assert address == fit[-1] if fit else address not in model
                # The size of a new buffer is rounded up to four significant bits.
                size, taken = sizes[address] if fit else {33: 36}.get(eighths, eighths), taken + 1
                model[address] = dtype, size, size * array[0].size * np.dtype(dtype).itemsize, taken
                model.move_to_end(address)
            if holds:
                held[address] = array[1:3], number
                array[:] = number
            del array
            while sum(nbytes for _, _, nbytes, _ in model.values()) > most or taken - 4 > min(
                (last_taken for *_, last_taken in model.values()), default=taken
            ):
                model.popitem(last=False)
            assert [address_of(buffer.array) for buffer in buffers._buffers] == [*model][::-1]
        assert all((view.asnumpy() == number).all() for view, number in held.values())
    buffers.clear()
    assert not buffers._buffers


#: Each backward pass starts after the next minibatch has been pushed to the engine.
LATE = """
    import threading
    from mxnet import gluon
    from gluon_dynbatch.run.backward import BackwardPass

    turns, pull = threading.Semaphore(0), BackwardPass.pull

    def late(tape, *args):
        turns.acquire()
        return pull(tape, *args)

    BackwardPass.pull = late

    dense = gluon.nn.Dense(256, in_units=512, activation="tanh")
    join = ready(cell(lambda F, x, y: dense(F.concat(x, y, dim=1)), dense))
    trainer = gluon.Trainer(join.collect_params(), "sgd", {"learning_rate": 0.1})
    xs = [mx.nd.ones((1, 256)) for _ in range(128)]
    for number in range(6):
        with autograd.record(), gdb.batching():
            rows = list(xs)
            for step in (3, 5, 7):
                rows = [join(x, rows[i * step % 128]) for i, x in enumerate(rows)]
        assert rows[0].handle  # from here on, MXNet runs the backward pass
        if number:
            turns.release()
        autograd.backward(rows)
        trainer.step(1)
    turns.release()
    mx.nd.waitall()
    print("done")
"""


def test_a_late_backward_pass_does_not_wait_for_a_later_flush():
    """The flush waits for the optimizer, and that for gradients: the two must share no buffer."""
    assert output_of(LATE) == "done\n"


def tapes():
    gc.collect()
    return sum(isinstance(item, Tape) for item in gc.get_objects())


def test_a_tape_is_freed_with_its_arrays():
    x = array(4, WIDTH)

    def flush():
        with gdb.batching(granularity="block", policy="depth"):
            rows = A(x)
            return [A(rows[i : i + 1]) for i in range(4)] + [rows[1], rows[-1], rows[0:2]]

    flush()
    before = tapes()
    held = [flush() for _ in range(3)]
    watched = [weakref.ref(result) for results in held for result in results]
    with pytest.raises(KeyError), gdb.batching(granularity="block", policy="depth"):
        held.append([A(x[0:1])])
        watched.append(weakref.ref(held[-1][0]))
        raise KeyError
    assert all(reference() is not None for reference in watched)
    del held
    assert tapes() == before
    assert all(reference() is None for reference in watched)


def test_segments_are_freed_with_the_block():
    net = ready(unary())
    with gdb.batching(granularity="block", policy="depth") as batch:
        results = [net(array(1, WIDTH))]
    (segment,) = batch.plan.graph.segments
    assert RUNTIME.dispatcher.executable(segment) is RUNTIME.dispatcher.executable(segment)
    watched = weakref.ref(segment)
    del net, batch, results, segment
    RUNTIME.plans.clear()
    gc.collect()
    assert watched() is None


def test_the_collector_does_not_track_the_objects_of_a_flush():
    """Otherwise it would search the whole heap every few minibatches."""
    x = array(100, WIDTH)

    def tracked():
        with gdb.batching(granularity="block", policy="depth") as batch:
            results = [A(row) for row in [x[i : i + 1] for i in range(100)]]
        return {type(item).__name__ for item in gc.get_objects(0)}, results, batch

    tracked()
    gc.collect()
    types, results, _ = tracked()
    assert len(results) == 100 and not types & {"NDArray", "LazyNDArray", "Region", "Slot"}


@pytest.mark.parametrize("native", [True, False])
def test_each_stage_of_a_flush_runs_once_after_the_one_before_it(native, monkeypatch):
    """A flush with a known plan and known heads only executes; MXNet's tape learns of none."""
    calls = []

    def watch(module, name):
        stage = getattr(module, name)

        def run(*args):
            calls.append(f"{name} begins")
            result = stage(*args)
            calls.append(f"{name} ends")
            return result

        monkeypatch.setattr(module, name, run)

    def stages(count):
        calls.clear()
        with autograd.record(), gdb.batching(**FIXED):
            results = [A(array(1, WIDTH, seed=k)) for k in range(4)]
            held = results[:count]
            del results
        autograd.backward(held)
        return calls[:]

    monkeypatch.setattr(RUNTIME.dispatcher.kernels, "native", native)
    RUNTIME.plans.clear()
    for name in ("find_plan", "prepare", "execute", "complete", "BackwardPass"):
        watch(flush, name)
    watch(run_chain, "link")

    def in_turn(*names):
        return [f"{name} {when}" for name in names for when in ("begins", "ends")]

    every = in_turn("find_plan", "prepare", "execute", "complete", "BackwardPass")
    known = in_turn("find_plan", "execute", "BackwardPass")
    assert [stages(count) for count in (4, 4, 2, 2)] == [every, known, every, known]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_disabled_during_a_flush(enabled, monkeypatch):
    RUNTIME.plans.clear()
    states, make = [], flush.make_plan
    monkeypatch.setattr(flush, "make_plan", lambda *a: states.append(gc.isenabled()) or make(*a))
    (gc.enable if enabled else gc.disable)()
    try:
        gdb.map(A, [array(1, WIDTH)], granularity="block", policy="depth")
        assert states == [False] and gc.isenabled() == enabled
    finally:
        gc.enable()
