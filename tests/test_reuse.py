"""What is kept between flushes: compiled operators, plans and buffers; and what is not."""

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
from gluon_dynbatch.run import pool
from gluon_dynbatch.run.buffers import address_of
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.testing import check_against_loop
from gluon_dynbatch.trace import entry
from tests.cells import WIDTH, array, binary, cell, chain, complete, inputs, ready, tree, unary
from tests.common import FIXED, output_of
from tests.strategies import examples

A, JOIN = ready(unary(prefix="reuse_a_")), ready(binary(prefix="reuse_join_"))


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_nothing_is_compiled_for_new_widths_and_shapes(granularity):
    """CachedOps are per piece of a cell: neither the minibatch nor the trees matter."""
    one, join = ready(unary()), ready(binary())

    def run(samples):
        with autograd.record(), gdb.batching(granularity=granularity) as batch:
            outputs = [tree(one, join, s) for s in samples]
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
    """Once for one row, and once for several: values and gradients are those of the loop."""
    embedding, norm = gluon.nn.Embedding(9, 6), gluon.nn.LayerNorm(in_channels=6)
    dense, loss = gluon.nn.Dense(4, flatten=False, in_units=3), gluon.loss.SoftmaxCrossEntropyLoss()

    def run(F, words):
        return F.sum(dense(F.reshape(norm(embedding(words)), (-1, 2, 3))), axis=1)

    net = ready(cell(run, embedding, norm, dense))
    loss.hybridize()
    infer, asked = entry.infer, []
    monkeypatch.setattr(entry, "infer", lambda *args: asked.append(args) or infer(*args))
    check_against_loop(
        lambda n: loss(net(mx.nd.arange(n)), mx.nd.ones((n,))), (4, 1, 7, 3), net.collect_params(),
        granularity=granularity,
    )  # fmt: skip
    assert {types[0].shape[0] for _, types, *_ in asked} == {4, 1}


def cached(fn, samples, **options):
    """Whether the plan of a scope was known, after comparing with the loop."""
    return check_against_loop(fn, samples, **{**FIXED, **options}).report.flushes[-1].cached


def test_plans_are_reused_for_equal_graphs():
    """By structure: other values hit, another order or another shape does not."""
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


def test_options_and_what_is_read_of_an_array_are_part_of_what_a_plan_is_for():
    RUNTIME.plans.clear()

    def run(**options):
        return cached(lambda x: chain([A, A], x), inputs(4), **options)

    found = [run(), run(), run(max_rows=2), run(granularity="operator"), run()]
    assert found == [False, True, False, False, True]
    table = array(3, WIDTH)
    found = [cached(lambda k: A(A(table)[k : k + 1]), [k]) for k in (1, 2, 1)]
    assert found == [False, False, True], "of other rows of an equal result"


STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0, 20, 30, 40, 90, 101])))


@given(STEPS, st.booleans())
def test_the_plan_cache_is_an_ordered_dictionary_of_so_many_bytes(steps, again):
    """What is made twice counts once; what is not worth it or too large is not kept."""
    cache, model = SizedCache(capacity=100), OrderedDict()
    for number, (key, size) in enumerate(steps):
        known = cache.find(key)
        assert known == (model[key][0] if key in model else None)
        if key in model:
            model.move_to_end(key)
        if known is None or again:
            cache.keep(key, f"made {number}", size)
            if 0 < size <= 100:
                model.pop(key, None)
                model[key] = f"made {number}", size
        while sum(size for _, size in model.values()) > 100:
            model.popitem(last=False)
        assert len(cache) == len(model)
        assert cache.bytes == sum(size for _, size in model.values())
    cache.clear()
    assert len(cache) == cache.bytes == 0 and cache.find("a") is None


#: Eighths of the least size that is kept, a type, and whether somebody holds a part of the array.
TAKES = st.tuples(
    st.sampled_from([7, 8, 9, 13, 33, 144]), st.sampled_from(["float32", "float64"]), st.booleans()
)


@given(st.lists(TAKES, max_size=20))
@examples(80)
def test_the_pool_has_buffers_of_so_many_bytes(takes):
    """What fits is used again, the last one first; what was not taken for long is let go of."""
    buffers, model, held, most, taken = pool.Pool(), OrderedDict(), {}, 1 << 22, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "MOST_BYTES", most)
        patch.setattr(pool, "MOST_IDLE", 4)
        for number, (eighths, dtype, holds) in enumerate(takes):
            array = buffers.take((eighths, pool.LARGE // 8), dtype, mx.cpu())
            place = address_of(array)
            assert array.shape == (eighths, pool.LARGE // 8) and place not in held
            if eighths > 7:
                alike = {p: own for p, (t, own, *_) in model.items() if t == dtype}
                fit = [p for p in alike if p not in held and eighths <= alike[p] <= 2 * eighths]
                assert place == fit[-1] if fit else place not in model
                # In steps of an eighth.
                own, taken = alike[place] if fit else {33: 36}.get(eighths, eighths), taken + 1
                model[place] = dtype, own, own * array[0].size * np.dtype(dtype).itemsize, taken
                model.move_to_end(place)
            if holds:
                held[place] = array[1:3], number
                array[:] = number
            del array
            while sum(one[2] for one in model.values()) > most or taken - 4 > min(
                (one[3] for one in model.values()), default=taken
            ):
                model.popitem(last=False)
            assert [address_of(one.array) for one in buffers._buffers] == [*model][::-1]
        assert all((one.asnumpy() == number).all() for one, number in held.values())
    buffers.clear()
    assert not buffers._buffers


#: Backward passes begin when the next minibatch is with the engine.
LATE = """
    import threading
    from mxnet import gluon
    from gluon_dynbatch.run.backward import GradientTape

    turns, pull = threading.Semaphore(0), GradientTape.pull

    def late(tape, *args):
        turns.acquire()
        return pull(tape, *args)

    GradientTape.pull = late

    dense = gluon.nn.Dense(256, in_units=512, activation="tanh")
    join = ready(cell(lambda F, x, y: dense(F.concat(x, y, dim=1)), dense))
    trainer = gluon.Trainer(join.collect_params(), "sgd", {"learning_rate": 0.1})
    xs = [mx.nd.ones((1, 256)) for _ in range(128)]
    for number in range(6):
        with autograd.record(), gdb.batching():
            rows = list(xs)
            for step in (3, 5, 7):
                rows = [join(x, rows[i * step % 128]) for i, x in enumerate(rows)]
        if number:
            turns.release()
        autograd.backward(rows)
        trainer.step(1)
    turns.release()
    mx.nd.waitall()
    print("done")
"""


def test_a_late_backward_pass_does_not_wait_for_a_later_flush():
    """That waits for the optimizer, and this for gradients: they share no buffer."""
    assert output_of(LATE) == "done\n"


def recordings():
    gc.collect()
    return sum(isinstance(one, Tape) for one in gc.get_objects())


def test_a_recording_is_freed_with_its_arrays():
    x = array(4, WIDTH)

    def flush():
        with gdb.batching(granularity="block", policy="depth"):
            rows = A(x)
            return [A(rows[i : i + 1]) for i in range(4)] + [rows[1], rows[-1], rows[0:2]]

    flush()
    before = recordings()
    held = [flush() for _ in range(3)]
    watched = [weakref.ref(one) for arrays in held for one in arrays]
    with pytest.raises(KeyError), gdb.batching(granularity="block", policy="depth"):
        held.append([A(x[0:1])])
        watched.append(weakref.ref(held[-1][0]))
        raise KeyError
    assert all(reference() is not None for reference in watched)
    del held
    assert recordings() == before
    assert all(reference() is None for reference in watched)


def test_what_is_compiled_goes_with_the_calls():
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


def test_the_collector_does_not_look_at_what_a_flush_makes():
    """Else it would look through the whole heap every few minibatches."""
    x = array(100, WIDTH)

    def seen():
        with gdb.batching(granularity="block", policy="depth") as batch:
            results = [A(row) for row in [x[i : i + 1] for i in range(100)]]
        return {type(one).__name__ for one in gc.get_objects(0)}, results, batch

    seen()
    gc.collect()
    found, results, _ = seen()
    assert len(results) == 100 and not found & {"NDArray", "LazyNDArray", "Region", "Slot"}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_during_a_flush(enabled, monkeypatch):
    RUNTIME.plans.clear()
    during, real = [], flush.make_plan
    monkeypatch.setattr(
        flush, "make_plan", lambda *args: during.append(gc.isenabled()) or real(*args)
    )
    (gc.enable if enabled else gc.disable)()
    try:
        gdb.map(A, [array(1, WIDTH)], granularity="block", policy="depth")
        assert during == [False] and gc.isenabled() == enabled
    finally:
        gc.enable()
