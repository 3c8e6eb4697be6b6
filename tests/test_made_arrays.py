"""Arrays that a program makes in a scope: those of MXNet, but their values wait for the calls."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet.ndarray import array as imported_array

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from tests.common import FIXED, host, same
from tests.depth import rotate
from tests.inside import owner_of
from tests.test_lazy import REFUSED, SHAPE, USES, VALUES

MXNET_DRAWS = False


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
        assert len({id(owner_of(array)) for array in made}) == 3
        assert len(set(map(id, made))) == 9


SOURCES_OF_USES = {
    "whole": lambda: mx.nd.array(VALUES + 1),
    "part": lambda: mx.nd.array(np.stack([VALUES, VALUES + 1]))[1],
    "reshaped": lambda: mx.nd.array((VALUES + 1).ravel()).reshape(SHAPE),
    "detached": lambda: mx.nd.array(VALUES + 1).detach(),
}


@pytest.mark.parametrize("use, source", rotate(USES, SOURCES_OF_USES))
def test_uses_are_those_of_an_array_of_mxnet(use, source):
    use, make = USES[use], SOURCES_OF_USES[source]
    wanted = use(mx.nd.array(VALUES + 1))
    with gdb.batching(policy="depth"):
        made, later = make(), make()
        assert type(made) is LazyNDArray and not made.pending
        in_scope = host(use(made))
    same(in_scope, wanted)
    same(use(later), wanted)


@pytest.mark.parametrize("use", REFUSED)
def test_uses_that_an_array_of_mxnet_refuses_are_refused(use):
    with pytest.raises(Exception) as wanted:
        host(use(mx.nd.array(VALUES + 1)))
    with gdb.batching(policy="depth"), pytest.raises(wanted.type) as got:
        host(use(mx.nd.array(VALUES + 1)))
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("use", [
    lambda a: a.reshape((1,)), lambda a: a.asscalar(), lambda a: a[()], lambda a: a.shape,
    lambda a: a.copy(), lambda a: a + 1, lambda a: a.expand_dims(0), len, float,
])  # fmt: skip
def test_an_array_without_axes_is_that_of_mxnet(use):
    try:
        wanted = use(mx.nd.array(3))
    except Exception as error:
        with gdb.batching(**FIXED), pytest.raises(type(error)):
            use(mx.nd.array(3))
    else:
        with gdb.batching(**FIXED):
            got = use(mx.nd.array(3))
        assert repr(got).replace("Lazy", "") == repr(wanted)


def test_arrays_are_lazy_by_whatever_name_the_function_was_imported():
    with gdb.batching(**FIXED):
        assert type(imported_array([1])) is type(mx.ndarray.utils.array([1])) is LazyNDArray
    assert type(imported_array([1])) is mx.nd.NDArray


#: Calls that fill arrays, with other spellings of the same and with what differs.
FILLED = [
    lambda f, e: f((2, 3)), lambda f, e: f([2, 3]), lambda f, e: f(shape=(2, 3), dtype="float32"),
    lambda f, e: f((2, 3), ctx=mx.cpu()), lambda f, e: f((2, 3), ctx=mx.cpu(1)), lambda f, e: f(6),
    lambda f, e: f((3, 2)), lambda f, e: f((2, 3), dtype=np.float64), lambda f, e: f((6,)),
    lambda f, e: f((2, 3), dtype="int32"), lambda f, e: e(lambda: f((2, 3)), mx.cpu(1)),
]  # fmt: skip


def _in_context(call, context):
    with context:
        return call()


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_equal_calls_that_fill_arrays_are_found_by_all_arguments(front, name):
    fill = getattr(mx.np if front == "np" else mx.nd, name)
    wanted = [make(fill, _in_context) for make in FILLED]
    with gdb.batching(policy="depth"):
        first = [make(fill, _in_context) for make in FILLED]
        again = [make(fill, _in_context) for make in FILLED[::-1]][::-1]
    for got in (first, again):
        for x, y in zip(got, wanted):
            assert (x.shape, x.dtype, x.ctx) == (y.shape, y.dtype, y.ctx)
            assert isinstance(x, type(y))
            np.testing.assert_array_equal(x.asnumpy(), y.asnumpy())
    first[0][:] = 7  # equal calls share values, not memory
    np.testing.assert_array_equal(again[0].asnumpy(), wanted[0].asnumpy())


@pytest.mark.parametrize("shape", [
    3, [2, 3], (), (True, 2), (2.0,), [[2]], "ab", np.int32(4), (np.int64(2), 3), np.array([2, 3]),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("module", [mx.nd, mx.np], ids=["nd", "np"])
def test_shapes_of_all_kinds_give_what_they_give_without_a_scope(module, name, shape):
    """Also a second time, and errors of the same class."""

    def outcome():
        try:
            made = getattr(module, name)(shape, dtype="int32")
            return made.shape, made.dtype, made.asnumpy().tolist()
        except Exception as error:
            return type(error)

    expected = outcome()
    with gdb.batching():
        assert [outcome(), outcome()] == [expected] * 2
