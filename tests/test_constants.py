"""Arrays that a program makes in a scope: those of MXNet, but their values wait for the calls."""

import contextlib
import gc
import pickle
import threading
import tracemalloc
import warnings

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.ndarray import array as imported_array

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, attached, cell, dense
from tests.common import FIXED, SCOPES, by_mxnets_operators, host, same
from tests.strategies import examples
from tests.test_lazy import REFUSED, SHAPE, USES, VALUES
from tests.test_pieces import x


def embedding(size=WIDTH):
    block = nn.Embedding(10, size)
    block.initialize()
    block.hybridize()
    return block


class Odd(np.ndarray):
    """A class of arrays of a user."""


READ_ONLY = np.arange(3.0)
READ_ONLY.flags.writeable = False
#: What arrays are made of.
SOURCES = {
    "number": 3, "bool": True, "float": 2.5, "NumPy number": np.float64(0.1), "None": None,
    "list": [3, 1, 2], "tuple": (1.5, 2), "nested": [[1, 2], [3, 4]], "with None": [None, 1],
    "mixed": [True, 2, 3.5], "NumPy numbers": [np.int64(3), np.float16(0.1)], "text": ["1", "2.5"],
    "range": range(4), "bytearray": bytearray(b"12"), "bytes": b"12",
    "memoryview": memoryview(b"12"),
    "float32": np.ones((2, 3), "float32"), "float64": np.array([0.1, 1e-50, -0.0]),
    "int64": np.array([[2**40, -1]]), "uint8": np.arange(3, dtype="uint8"),
    "int16": np.array([7], "int16"), "float16": np.array([0.1], "float16"),
    "bools": np.array([True, False]), "big endian": np.array([1.5, 2], ">f4"),
    "no axes": np.array(2.5), "steps": np.arange(10.0)[::-3], "columns": VALUES[:, 1],
    "transposed": VALUES.T, "read-only": READ_ONLY, "objects": np.array([1, None], object),
    "dates": np.array(["2020-01-01"], "M8[D]"), "NaN": [float("nan"), float("inf")],
    "subclass": np.arange(3.0).view(Odd), "masked": np.ma.array([1, 2], mask=[0, 1]),
    "large": np.arange(70000), "lists of arrays": [np.ones(2), np.zeros(2)],
    "MXNet's array": mx.nd.ones((2,), dtype="int32"), "too large": [1e300, 300],
    "empty": [], "empty rows": np.zeros((0, 3)), "empty columns": [[]],
    "many axes": np.ones((1,) * 32), "arrays of MXNet": [mx.nd.ones((2,))],
    "complex": np.array([1 + 2j]), "ragged": [[1], [2, 3]], "word": "a", "words": ["a"],
    "generator": iter([1]), "set": {1}, "dict": {}, "mx.np": mx.np.array([1, 2]),
    "symbol": mx.sym.var("x"),
}  # fmt: skip
DTYPES = [
    None, "float64", np.float16, np.dtype("int32"), "int8", "uint8", "int64", bool, int, float,
    ">f4", "f4", "int16", "nonsense", [("a", "f4")],
]  # fmt: skip
CONTEXTS = [None, mx.cpu(1), mx.cpu_pinned(0), mx.Context("cpu_shared", 0), mx.gpu(0), "cpu"]


def outcome(make):
    """Return what a call gives: an array and its warnings, or an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = make()
        except Exception as error:
            return type(error), str(error).splitlines()[-1:], []
        values = host(made)
        result = made.shape, made.dtype, made.context, values.dtype, str(values.tolist())
        result = (*result, repr(values))  # which tells NaN from other numbers
    return result, [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_arrays_have_the_type_values_and_warnings_of_mxnet(source):
    for dtype in DTYPES:
        wanted = outcome(lambda dtype=dtype: mx.nd.array(source, dtype=dtype))
        with gdb.batching(**FIXED):
            got = outcome(lambda dtype=dtype: mx.nd.array(source, dtype=dtype))
        assert got == wanted, dtype


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_arrays_are_made_in_the_context_that_mxnet_uses(context):
    for current in mx.cpu(0), mx.cpu(1):
        with current:
            wanted = outcome(lambda: mx.nd.array([1, 2], context))
            with gdb.batching(**FIXED):
                got = outcome(lambda: mx.nd.array([1, 2], context, "float32"))
        assert got == wanted


CREATED = {
    "zeros": lambda: mx.nd.zeros((2, 3)), "ones": lambda: mx.nd.ones(3, dtype="int32"),
    "full": lambda: mx.nd.full((2, 3), 2), "full fraction": lambda: mx.nd.full(2, 0.1),
    "full fraction as integer": lambda: mx.nd.full(2, -3.7, dtype="int32"),
    "full of 8 bits": lambda: mx.nd.full((2,), 300, dtype="uint8"),
    "full truth": lambda: mx.nd.full((2,), True, dtype="float16"),
    "full double": lambda: mx.nd.full((1,), 0.1 + 1e-15, dtype="float64"),
    "full tiny": lambda: mx.nd.full((1,), 1e-42), "full huge": lambda: mx.nd.full((1,), 1e300),
    "full half": lambda: mx.nd.full((1,), 0.3333, dtype="float16"),
    "full -0": lambda: mx.nd.full((1,), -0.0), "full NaN": lambda: mx.nd.full((1,), float("nan")),
    "full None": lambda: mx.nd.full((2,), None), "full text": lambda: mx.nd.full((2,), "a"),
    "full array": lambda: mx.nd.full((2, 2), np.array([1, 2])),
    "full MXNet": lambda: mx.nd.full((2, 2), mx.nd.ones((2,))),
    "full list": lambda: mx.nd.full((2,), [1, 2]), "full empty": lambda: mx.nd.full((0, 2), 1),
    "full large": lambda: mx.nd.full((70000,), 2),
    "arange": lambda: mx.nd.arange(5), "arange to": lambda: mx.nd.arange(2, 9, 3, repeat=2),
    "arange down": lambda: mx.nd.arange(5, -3, -2, dtype="int64"),
    "arange fractions": lambda: mx.nd.arange(0, 1, 0.1),
    "arange float64": lambda: mx.nd.arange(0, 3, 0.7, dtype="float64"),
    "arange halves": lambda: mx.nd.arange(1, 7, 1.5),
    "arange 8 bits": lambda: mx.nd.arange(3, dtype="int8"),
    "arange large": lambda: mx.nd.arange(5000), "arange none": lambda: mx.nd.arange(0),
    "arange cpu(1)": lambda: mx.nd.arange(3, ctx=mx.cpu(1)),
    "arange text": lambda: mx.nd.arange("a"),
    "arange dtype": lambda: mx.nd.arange(3, dtype="nonsense"),
    "arange 0 steps": lambda: mx.nd.arange(0, 3, 0),
    "eye": lambda: mx.nd.eye(3), "eye of integers": lambda: mx.nd.eye(2, 4, k=-1, dtype="int32"),
    "linspace": lambda: mx.nd.linspace(0, 1, 7),
    "linspace open": lambda: mx.nd.linspace(0, 5, 5, False),
    "empty": lambda: mx.nd.empty((0, 2)), "zeros of none": lambda: mx.nd.zeros((0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("make", CREATED.values(), ids=CREATED)
def test_creation_functions_give_what_mxnet_gives(make):
    wanted = outcome(make)
    with gdb.batching(**FIXED):
        for _ in range(2):
            assert outcome(make) == wanted
        if len(wanted) == 2:  # no error
            first, second = make(), make()
            first[:] = 7
            assert repr(host(second)) == wanted[0][-1], "each call makes an array of its own"


def test_equal_calls_of_a_creation_function_are_one_value():
    with gdb.batching(**FIXED):
        made = [mx.nd.full((1, 2), number) for _ in range(3) for number in (3, 0.5, True)]
        assert len({id(array._owner) for array in made}) == 3
        assert len(set(map(id, made))) == 9


SOURCES_OF_USES = {
    "whole": lambda: mx.nd.array(VALUES + 1),
    "part": lambda: mx.nd.array(np.stack([VALUES, VALUES + 1]))[1],
    "reshaped": lambda: mx.nd.array((VALUES + 1).ravel()).reshape(SHAPE),
    "detached": lambda: mx.nd.array(VALUES + 1).detach(),
}


@pytest.mark.parametrize("make", SOURCES_OF_USES.values(), ids=SOURCES_OF_USES)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_uses(use, make):
    wanted = use(mx.nd.array(VALUES + 1))
    with gdb.batching(policy="depth"):
        made, later = make(), make()
        assert type(made) is LazyNDArray and not made.pending
        in_scope = host(use(made))
    same(in_scope, wanted)
    same(use(later), wanted)


@pytest.mark.parametrize("use", REFUSED)
def test_uses_that_an_array_refuses(use):
    with pytest.raises(Exception) as wanted:
        host(use(mx.nd.array(VALUES + 1)))
    with gdb.batching(policy="depth"), pytest.raises(wanted.type) as got:
        host(use(mx.nd.array(VALUES + 1)))
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("use", [
    lambda a: a.reshape((1,)), lambda a: a.asscalar(), lambda a: a[()], lambda a: a.shape,
    lambda a: a.copy(), lambda a: a + 1, lambda a: a.expand_dims(0), len, float,
])  # fmt: skip
def test_an_array_without_axes(use):
    try:
        wanted = use(mx.nd.array(3))
    except Exception as error:
        with gdb.batching(**FIXED), pytest.raises(type(error)):
            use(mx.nd.array(3))
    else:
        with gdb.batching(**FIXED):
            got = use(mx.nd.array(3))
        assert repr(got).replace("Lazy", "") == repr(wanted)


def test_by_whatever_name_the_function_was_imported():
    with gdb.batching(**FIXED):
        assert type(imported_array([1])) is type(mx.ndarray.utils.array([1])) is LazyNDArray
    assert type(imported_array([1])) is mx.nd.NDArray


# In programs


def lookups(net, numbers):
    """Make an array per number, and a matrix; read each of them twice."""
    total, matrix = 0, mx.nd.array(np.eye(WIDTH) + 1)
    for number in numbers:
        word = mx.nd.array([number], dtype="int32")
        row = net(word) + mx.nd.array([[number] * WIDTH])
        total = mx.nd.dot(row, matrix) * mx.nd.full((1, WIDTH), number) + total
        total = total + net(word) * mx.nd.arange(WIDTH).reshape((1, -1))
    return total


@pytest.mark.parametrize("options", [*SCOPES, {}])
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5))
@examples(8)
def test_programs_equal_the_loop(options, samples):
    net = embedding()
    params = net.collect_params()
    check_against_loop(lambda numbers: lookups(net, numbers), samples, params, **options)


def test_launches_do_not_depend_on_the_number_of_arrays():
    net = embedding()
    for _ in range(2):
        numbers = [n % 10 for n in range(64)]
        batch = check_against_loop(lambda n: net(mx.nd.array([n])), numbers, **FIXED)
        assert batch.report.launches == 1 and len(batch.report.flushes) == 1
    assert batch.report.flushes[0].cached, "the plan does not depend on the values"


@pytest.mark.parametrize("options", SCOPES)
@pytest.mark.parametrize("apply", [
    lambda h, w: mx.nd.dot(h, w),
    lambda h, w: mx.nd.FullyConnected(h, w, num_hidden=WIDTH, no_bias=True),
    lambda h, w: mx.nd.linalg.gemm2(h, w), lambda h, w: mx.nd.concat(h, w, dim=0),
    lambda h, w: mx.nd.take(w, mx.nd.BlockGrad(3 * h[0])) + h,
    lambda h, w: mx.nd.Embedding(mx.nd.BlockGrad(3 * h[0] ** 2), w, WIDTH, WIDTH),
])  # fmt: skip
@pytest.mark.parametrize("runs", [by_mxnets_operators, contextlib.nullcontext])
def test_one_array_that_all_calls_share(apply, options, runs):
    """It lies between others in the buffer of the scope."""
    net = cell(lambda F, x: F.tanh(x))
    matrix = np.random.normal(size=(WIDTH, WIDTH))

    def fn(samples):
        first, shared = mx.nd.array([[1] * WIDTH]), mx.nd.array(matrix)
        return [apply(net(sample) * first, shared) for sample in samples]

    samples = [attached([x(i) for i in range(5)])]
    with runs():
        check_against_loop(fn, samples, **options)


def test_arrays_of_many_sizes_and_types(monkeypatch):
    monkeypatch.setattr(recording, "SMALLEST_CHUNK", 8)
    monkeypatch.setattr(recording, "LARGEST_CHUNK", 32)
    net = cell(lambda F, x: F.tanh(x))

    def fn(seed):
        random, results = np.random.RandomState(seed), []
        for dtype in ("float32", "float64", "int32", "uint8") * 3:
            values = random.randint(0, 9, size=(random.randint(1, 9), random.randint(1, 9)))
            for context in (mx.cpu(), mx.cpu(1)):
                made = mx.nd.array(values, context, dtype)
                results.append(net(made) if dtype.startswith("float") else made + made)
                results.append(made[-1])
        return results

    for options in (FIXED, {**FIXED, "debug": True}):
        check_against_loop(fn, range(6), **options)


def test_large_arrays_and_large_constants():
    net = cell(lambda F, x: F.tanh(x))
    many = recording.MOST_VALUES // 4

    def fn(number):
        small, large = (mx.nd.array(np.full((many + more,), number)) for more in (0, 1))
        zeros = mx.nd.zeros((2, many))
        part = net(zeros[1]) + net(mx.nd.full((2, many), number)[0])
        return net(small)[-3:], net(large)[-3:], part[:3]

    check_against_loop(fn, range(3), **FIXED)


# Memory, gradients


WHAT = ["make", "zeros", "part", "flat", "detach", "write", "write row", "add", "call", "read"]
NUMBERS = st.integers(0, 99)
OPERATIONS = st.lists(st.tuples(st.sampled_from(WHAT), NUMBERS, NUMBERS), min_size=2, max_size=25)


def run(operations, net):
    """Run operations on arrays of shape (2, WIDTH) or parts of them; return all values."""
    arrays, results = [mx.nd.array(np.ones((2, WIDTH)))], []
    for what, number, which in operations:
        array = arrays[which % len(arrays)]
        if what == "make":
            arrays.append(mx.nd.array([[number] * WIDTH, [which] * WIDTH]))
        elif what == "zeros":
            arrays.append(mx.nd.zeros((2, WIDTH)))
        elif what == "part":
            arrays.append(array[number % array.shape[0] :])
        elif what == "flat":
            arrays.append(array.reshape((-1,)).reshape(array.shape))
        elif what == "detach":
            arrays.append(array.detach())
        elif what == "write":
            array[:] = number
        elif what == "write row":
            array[number % array.shape[0]] = mx.nd.array([which] * WIDTH)
        elif what == "add":
            array += number
        elif what == "call":
            results.append(net(array))
        else:
            results.append(array.asnumpy())
    return [host(array) for array in (*arrays, *results)]


@given(operations=OPERATIONS)
@examples(60)
def test_arrays_share_memory_as_without_a_scope(operations):
    net = dense(WIDTH)
    wanted = run(operations, net)
    with gdb.batching(**FIXED):
        got = run(operations, net)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_write_computes_nothing():
    """The calls before it have the old values, those after it the new ones."""
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        made = mx.nd.array([[1.0]])
        before, part = net(made), made[0]
        made[:] = 5
        part += 1
        after = net(made), net(part)
        assert not batch.report.flushes and made.asnumpy() == 6
    assert (before.asscalar(), *(a.asscalar() for a in after)) == (2, 12, 12)


def test_reading_computes_nothing_and_gives_a_copy():
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        made = mx.nd.array(VALUES)
        pending = net(made)
        values, row = made.asnumpy(), made[1][2].asnumpy()
        assert made[3, 2, 1].asscalar() == VALUES[3, 2, 1] and pending.pending
        np.testing.assert_array_equal(row, VALUES[1, 2])
        values[:] = 0
        np.testing.assert_array_equal(made.asnumpy(), VALUES)
        assert not batch.report.flushes
    same(pending, 2 * VALUES)


CASTS = [[-1.5, 200.7, 0], [3, -4, 300], [True, False], [1e-8, 3e9], [float("nan")], [0.1]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", np.int32, "int64", "uint8"])
@pytest.mark.parametrize("values", CASTS, ids=str)
def test_casts(values, dtype):
    """Whole numbers that fit, and fractions, are those of MXNet, without a flush."""
    for source in ("float32", "float64", "int32"):
        values = [0] if source == "int32" and values != values else values
        with np.errstate(invalid="ignore"):
            given = np.array(values).astype(source)
        plain = mx.nd.array(given, dtype=source)
        wanted = outcome(lambda plain=plain: plain.astype(dtype))
        with gdb.batching(**FIXED) as batch:
            pending = cell(lambda F, x: x * 2)(mx.nd.ones((1,)))
            made = mx.nd.array(given, dtype=source)
            got = outcome(lambda made=made: made.astype(dtype))
            assert made.astype(source, copy=False) is made
            copied = made.copy()
            copied[:] = 5
            assert not batch.report.flushes and pending.pending
        assert got == wanted and repr(made.asnumpy()) == repr(given)


def test_the_source_is_copied():
    values = np.ones((1, WIDTH), "float32")
    with gdb.batching(**FIXED):
        made = mx.nd.array(values)
        values[:] = 3
        doubled = cell(lambda F, x: x * 2)(made)
    assert (doubled.asnumpy() == 2).all() and (made.asnumpy() == 1).all()


@pytest.mark.parametrize("scope", [True, False])
def test_an_array_that_gets_a_gradient(scope):
    net = dense(WIDTH)
    gradients = []
    options = gdb.batching(**FIXED) if scope else gdb.batching(analysis_budget=0)
    with autograd.record(), options as batch:
        made = [mx.nd.array([[i] * WIDTH]) for i in range(4)]
        unmarked = net(made[0])
        for array in made[:3]:
            array.attach_grad()
        results = [net(array * mx.nd.array([[2.0]])) for array in made]
        assert not batch.report.flushes
    autograd.backward([unmarked, *results])
    for array in made[:3]:
        gradients.append(array.grad.asnumpy())
    assert made[3].grad is None
    wanted = 2 * net.weight.data().asnumpy().sum(axis=0)
    np.testing.assert_allclose(gradients, [[wanted]] * 3, rtol=1e-5)


def test_an_array_is_its_own_after_the_scope():
    """It keeps its values, not those of the scope."""
    kept, net = [], dense(WIDTH)

    def scope():
        with gdb.batching(**FIXED):
            made = [mx.nd.array([[i] * WIDTH]) for i in range(2000)]
            kept.append(made[7])
            return [net(array) for array in made][7]

    same(net(mx.nd.array([[7] * WIDTH])), scope())
    gc.collect()
    tracemalloc.start()
    try:
        scope(), gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            scope()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000, "an array takes some 100 bytes, all arrays of a scope 400,000"
    assert [array.asnumpy().tolist() for array in kept] == [[[7] * WIDTH]] * 7
    again = pickle.loads(pickle.dumps(kept[0]))
    assert type(again) is mx.nd.NDArray and again.asnumpy().tolist() == [[7] * WIDTH]


def test_an_array_of_one_scope_is_an_argument_in_others():
    net = embedding()
    with gdb.batching(**FIXED):
        word = mx.nd.array([3])
        rows = mx.nd.array([1, 2])
    for _ in range(2):
        with gdb.batching(**FIXED):
            results = [net(word), net(rows[1:]), net(mx.nd.array([3]))]
            STATE.batch.flush()
            results.append(net(word) + net(rows)[0])
        same(results[0], net(mx.nd.array([3])))
        same(results[1], net(mx.nd.array([2])))
        same(results[3], net(mx.nd.array([3])) + net(mx.nd.array([1])))


def test_threads_share_arrays():
    net, failures = embedding(), []
    with gdb.batching(**FIXED):
        words = [mx.nd.array([i]) for i in range(10)]
    wanted = net(mx.nd.array(np.arange(10))).asnumpy()

    def work():
        for _ in range(10):
            with gdb.batching(**FIXED):
                results = [net(word) for word in words]
            got = np.concatenate([result.asnumpy() for result in results])
            failures.extend([] if np.array_equal(got, wanted) else [got])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_samples_that_decode_greedily():
    """Each step makes an array of what the last one computed; one flush serves all samples."""
    net, score = embedding(), dense(10)

    def decode(word, steps):
        results = []
        for _ in range(steps):
            results.append(score(net(mx.nd.array([word], dtype="int32"))))
            word = int(results[-1].argmax(axis=1).asscalar())
        return mx.nd.concat(*results, dim=0), word

    samples = [(i % 10, 1 + i % 4) for i in range(8)]
    wanted = [decode(*sample) for sample in samples]
    with gdb.batching(**FIXED) as batch:
        got = batch.map(decode, samples)
    for (scores, word), (wanted_scores, wanted_word) in zip(got, wanted):
        same(scores, wanted_scores)
        assert word == wanted_word
    assert len(batch.report.flushes) <= 5
