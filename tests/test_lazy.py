"""A lazy array can be used like any NDArray: in its scope, after it, and by any other code.

Each use is compared with the same use of a real array of equal values.
"""

import copy
import pickle
import weakref

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray, LazyNumPy
from tests.cells import cell
from tests.common import host, same, semantics
from tests.fuzz.recipes import CHAINS, EAGER

MXNET_DRAWS = False

SHAPE = (4, 3, 2)
SHIFT = cell(lambda F, x, by: x + by)
BOTH = pytest.mark.usefixtures("front")
VALUES = np.random.RandomState(0).uniform(-1, 1, SHAPE).astype("float32")


def create(values, dtype=None):
    """Return a real array of `mx.np` or `mx.nd`."""
    return (mx.np if mx.util.is_np_array() else mx.nd).array(values, dtype=dtype or values.dtype)


def real():
    return create(VALUES + 1)


def lazy():
    """Return an array of the same values, recorded if a scope is open."""
    return SHIFT(create(VALUES), 1)


def check_use(use):
    """Compare a use while the value is pending, after a flush, and after the scope."""
    wanted = use(real())
    with gdb.batching(policy="depth") as batch:
        pending, flushed, later = use(lazy()), lazy(), lazy()
        batch.flush()
        assert not flushed.pending
        flushed = use(flushed)
        in_scope = host(flushed)
    for got in (pending, in_scope, flushed, use(later)):
        same(got, wanted)


def test_shape_and_type_are_known_without_a_flush(front):
    x = create(VALUES, dtype="float64")
    with gdb.batching(policy="depth") as batch:
        y = SHIFT(x, 1)
        assert isinstance(y, mx.nd.NDArray) and isinstance(y, mx.np.ndarray) == (front == "np")
        assert type(y) is {"nd": LazyNDArray, "np": LazyNumPy}[front]
        assert (y.shape, y.ndim, y.size, y.stype) == (SHAPE, 3, 24, "default")
        assert y.dtype == np.float64 and y.ctx == mx.cpu()
        assert type(y.dtype) is (type if front == "nd" else type(np.dtype("float64")))
        assert (len(y), y.writable) == (4, True)
        assert y.pending and batch.report.flushes == []
    assert not y.pending and y.shape == SHAPE and y.dtype == np.float64
    same(y, x + 1)


def test_the_length_is_that_of_axis_0(front):
    with mx.util.np_shape(True), gdb.batching(policy="depth"):
        assert len(lazy()) == 4 and len(lazy()[1]) == 3
        if front == "np":
            with pytest.raises(TypeError, match="unsized"):
                len(lazy()[0, 0, 0])


BASIC = [
    0, 2, -1, -4, np.int64(1), slice(None), slice(1, 3), slice(-2, None), slice(None, -1),
    slice(2, 99), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2), slice(-1, None, -1),
    (0, 1), (-1, -1), (0, 1, 1), (slice(None), 1), (slice(1, 3), slice(0, 2)),
    (slice(None), slice(None), -1), (slice(None, None, -1), slice(None, None, 2)),
    (2, slice(None), 0), (slice(3, 0, -1), -1, slice(1, None)), Ellipsis, (Ellipsis, 0),
    (0, Ellipsis), (Ellipsis, slice(0, 1)), (1, Ellipsis, -1), None, (None, 0), (slice(None), None),
    (0, None, Ellipsis, None), (slice(0, 2), Ellipsis, None, 1),
]  # fmt: skip
ADVANCED = [
    [0, 2], [3, -1, 0], np.array([1, 1]), ([0, 1], [2, 0]), (slice(None), [0, 2]), (0, [1, 2]),
    ([0, 3], slice(None), 1), np.array([[0, 1], [2, 3]]), (slice(None), slice(None), [1, 0]),
]  # fmt: skip


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_indexing_is_that_of_numpy(key, front):
    wanted = np.asarray((VALUES + 1)[key])
    if front == "nd":
        wanted = wanted.reshape(np.shape(wanted) or (1,))
    same(real()[key], wanted)
    check_use(lambda y: y[key])
    with gdb.batching(policy="depth"):
        got = SHIFT(lazy()[key], 1)
    same(got, np.asarray(wanted + np.float32(1)))


def test_basic_indexing_needs_no_flush_and_rows_need_no_call(front):
    with gdb.batching(policy="depth") as batch:
        y = lazy()
        got = [y[1], y[1:3], y[-1][0], y[1:][1:][0], y[:, 1], y[::2, 1], y.reshape((2, 12))[1]]
        assert batch.report.flushes == []
    # `reshape` of `mx.np` makes a copy.
    assert batch.report.nodes == (3 if front == "nd" else 4) and len(got) == 7


def assigned(y, key):
    """Assign a part of `y` to that part of a real array, and return the real array."""
    target = mx.nd.array(np.zeros(SHAPE))
    target[key] = y if key == slice(None) else y[key]
    return target


INDEX = mx.nd.array([2, 0], dtype="int32")
USES = {
    "real on the left": lambda y: mx.nd.ones(SHAPE) >= y, "eq itself": lambda y: y == y,
    "NumPy number": lambda y: y * np.float32(2), "beyond the end": lambda y: y[9:],
    "topk": lambda y: y.topk(k=2, axis=1), "split": lambda y: y.split(2, axis=0),
    "NumPy function": lambda y: np.tanh(y.asnumpy()), "array as index": lambda y: y[INDEX],
    "as index": lambda y: real()[y[0, :, 0].zeros_like().astype("int32")],
    "str": lambda y: str(y).replace("Lazy", ""), "repr": lambda y: repr(y).replace("Lazy", ""),
    "format": lambda y: f"{y!r:>5}".replace("Lazy", ""),
    "reshape numbers": lambda y: y.reshape(2, 12), "reshape -3": lambda y: y.reshape((-3, 0)),
    "reshape to no axes": lambda y: y[:1, :1, :1].reshape(()),
    "reshape sum to no axes": lambda y: y.sum().reshape([]),
    "reshape reverse": lambda y: y.reshape((-1, 0), reverse=True),
    "expand_dims last": lambda y: y.expand_dims(-1), "squeeze": lambda y: y[:1].squeeze(),
    "expand_dims inplace": lambda y: y.expand_dims(1, True),
    "squeeze axis": lambda y: y[:, :1].squeeze(axis=1),
    "squeeze axes": lambda y: y[:1, :1].squeeze(axis=(0, 1)),
    "squeeze inplace": lambda y: y[:1].squeeze(inplace=True),
    "flatten inplace": lambda y: y.flatten(inplace=True),
    "astype class": lambda y: (y * 10).astype(np.int32),
    "astype same": lambda y: y.astype("float32", copy=False),
    "other context": lambda y: y.as_in_context(mx.cpu(1)),
    "name of the other context": lambda y: str(y.as_in_context(mx.cpu(1)).context),
    "copyto context": lambda y: y.copyto(mx.cpu(1)),
    "copyto": lambda y: y.copyto(mx.nd.zeros(SHAPE)),
    "as_np_ndarray": lambda y: y.as_np_ndarray().asnumpy(),
    "as_nd_ndarray": lambda y: y.as_nd_ndarray(), "asscalar": lambda y: y[0, 0, 0].asscalar(),
    "int": lambda y: int(y[2, 2, 1].asscalar() * 10), "len": len, "list": list,
    "bool": lambda y: bool(y[0, 0, 0] > 0), "pickle": lambda y: pickle.loads(pickle.dumps(y)),
    "copy.deepcopy": copy.deepcopy, "deepcopy of a nest": lambda y: copy.deepcopy([y, (y,)]),
    "wait_to_read": lambda y: y.wait_to_read(), "nd.array": mx.nd.array,
    "to_dlpack": lambda y: mx.nd.from_dlpack(y.to_dlpack_for_read()),
    **{f"assigned to {key}": lambda y, key=key: assigned(y, key)
       for key in (slice(None), 1, (1, 2), slice(1, 3), (slice(None), 0), (0, 1, 1), [0, 2])},
    # Expressions that the fuzzer uses.
    **{text: lambda y, text=text: eval(text.format("y"), {"mx": mx, "F": mx.nd, "y": y})
       for text in (*EAGER, *CHAINS)},
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_uses_are_those_of_a_real_array(use):
    check_use(use)


def changed(y, change):
    change(y)
    return y


def read_only(y):
    y.attach_grad()
    return y.grad


NUMPY_USES = {
    **{name: USES[name] for name in (
        "eq itself", "NumPy number", "beyond the end", "NumPy function", "reshape numbers", "len",
        "as_nd_ndarray", "list", "bool", "pickle", "copy.deepcopy", "deepcopy of a nest",
        "wait_to_read", "astype class", "astype same",
    )},
    "real on the left": lambda y: mx.np.ones(SHAPE) >= y,
    "number on the left": lambda y: [2 + y, 2 - y, 2 * y, 2 / y, 2 ** y, 2 % y],
    "operators": lambda y: [y + y, y - 1.5, -y, abs(-y), y % 2, y ** 2, y[0] @ y[0].T],
    "comparisons": lambda y: [y > 1, y >= y, y < 1, y <= 1, y == 1, y != y, ~(y > 1)],
    "masks": lambda y: [y[y > 1], y[(y > 1) & (y < 1.5)]],
    "array as index": lambda y: y[mx.np.array([2, 0], dtype="int32")],
    "as index": lambda y: real()[(y[0, :, 0] * 0).astype("int32")],
    "zero-dimensional": lambda y: [y[0, 0, 0], y.sum(), y.mean() + y.max(), y[1, 1, 1] * y],
    "of a zero-dimensional one": lambda y: [y.sum()[()], y.sum().reshape((1, 1))],
    "empty": lambda y: [y[4:], mx.np.concatenate([y[:0], y]), y[4:].sum()],
    "item": lambda y: [y[0, 0, 0].item(), y.item(3), y.tolist(), float(y.sum()), int(y[1, 0, 0])],
    "methods": lambda y: [
        y.T, y.reshape(-1), y.reshape((2, 12)), y.transpose(1, 0, 2), y.swapaxes(0, 1),
        y.flatten(), y.squeeze(), y.mean(axis=0), y.std(axis=1), y.argmax(axis=1), y.cumsum(axis=1),
        y.clip(0, 1), y.repeat(2, axis=0), y.copy(), y.detach(), y.argsort(), y.prod(),
        y.any(), y.all(axis=1), y.var(), y.min(axis=(0, 2), keepdims=True), y.dot(y[0, 0]),
    ],
    "views": lambda y: [y.reshape_view(2, -1), y.reshape_view((-1,)), y.reshape_view((4, 6))[1]],
    "NumPy's protocol": lambda y: [
        np.sum(y, axis=1), np.concatenate([y, y]), np.exp(y), np.add(y, 1), np.mean(y),
        np.dot(y, y[0, 0]),
    ],
    "print": lambda y: [str(y), repr(y), f"{y.sum():.3f}", repr(y > 1), repr(y.astype("int32"))],
    "as_nd_ndarray and back": lambda y: [(y.as_nd_ndarray() * 2).as_np_ndarray() + 1],
    "assigned": lambda y: [
        changed(mx.np.zeros(SHAPE), lambda z, key=key: z.__setitem__(key, y[key]))
        for key in (slice(None), 1, (1, 2), (slice(None), 0), (0, 1, 1))
    ],
    "changed": lambda y: [
        changed(y, lambda z: z.__setitem__(0, 3)), changed(y, lambda z: z.__setitem__(z > 2, 0.5)),
    ],
    "in place": lambda y: y.__iadd__(y),
    "other context": lambda y: y.as_in_ctx(mx.cpu(1)), "copyto": lambda y: y.copyto(mx.cpu(1)),
    "gradient": read_only,
    "attribute": lambda y: changed(y, lambda z: setattr(z, "name", "y")).name,
}  # fmt: skip


# MXNet's own code for arrays of `mx.np` uses names that are deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("use", NUMPY_USES.values(), ids=NUMPY_USES)
def test_uses_of_arrays_of_mx_np_are_those_of_a_real_array(use):
    with semantics("np"):
        check_use(use)


def test_arrays_of_both_classes_share_memory():
    with semantics("np"):
        zeros = mx.np.zeros
        for whole in (lazy, lambda: lazy()[1:], lambda: zeros(SHAPE), lambda: zeros(SHAPE)[1:]):
            with gdb.batching(policy="depth"):
                y = whole()
                other = y.as_nd_ndarray()
                again = other.as_np_ndarray()
                assert type(other) is LazyNDArray and type(again) is LazyNumPy
            y[0] = 7
            same(other, y.asnumpy())
            same(again, y.asnumpy())
            other[1] = 8
            same(y, other.asnumpy())


#: Empty slices and shapes, and several values that are converted to one.
REFUSED = [
    lambda y: y[2:1], lambda y: y[0, 1:1], bool, lambda y: y.asscalar(), lambda y: y.reshape(()),
    lambda y: y.reshape(),
]  # fmt: skip


@pytest.mark.parametrize("use", REFUSED)
def test_uses_that_a_real_array_refuses(use):
    with pytest.raises(Exception) as wanted:
        host(use(real()))
    with gdb.batching(policy="depth"), pytest.raises(wanted.type) as got:
        host(use(lazy()))
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("use", [
    bool, float, lambda y: y[0].item(), lambda y: y[9], lambda y: y[0, 0, 0, 0], hash,
    lambda y: y.reshape(5), lambda y: y.asscalar(), lambda y: y.sum()[0], lambda y: len(y.sum()),
    lambda y: y + mx.nd.ones(SHAPE), lambda y: y.__setitem__(0, mx.nd.ones((3, 2))),
])  # fmt: skip
def test_uses_that_a_real_array_of_mx_np_refuses(use):
    with semantics("np"):
        with pytest.raises(Exception) as wanted:
            host(use(real()))
        with gdb.batching(policy="depth"), pytest.raises(wanted.type):
            host(use(lazy()))


@BOTH
def test_only_lazy_arrays_that_nothing_refers_to_are_used_again():
    with gdb.batching(policy="depth") as batch:
        kept, dropped, watched = (SHIFT(real(), 1) for _ in range(3))
        reference = weakref.ref(watched)
        del dropped, watched
        batch.flush()
        assert reference() is None
        again = [SHIFT(real(), number) for number in range(3)]
        assert all(y is not kept for y in again)
    for number, y in zip((1, 0, 1, 2), (kept, *again)):
        same(y, SHIFT(real(), number))


def test_hash_and_identity():
    with gdb.batching(policy="depth"):
        y = SHIFT(real(), 1)
        names = {y: "y"}
        y.asnumpy()
        assert names[y] == "y" and y in names and SHIFT(real(), 1) not in names


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_a_single_element_is_read_as_mxnet_reads_it(front, shape, dtype):
    """By samples of a map, of a pending array and of one that an earlier flush has computed."""
    if front == "nd" and not shape:
        shape = (1, 1, 1)
    names = ["item", "__float__", "__bool__"] if front == "np" else ["asscalar", "__bool__"]

    def read(number):
        x = SHIFT(create(np.full(shape, number, dtype)), 1)
        found = [getattr(x, name)() for name in names for _ in range(2)]
        return found + [getattr(SHIFT(x, 1), name)() for name in names]

    for got, wanted in zip(gdb.map(read, range(3)), map(read, range(3))):
        assert [type(value) for value in got] == [type(value) for value in wanted]
        assert [np.shape(value) for value in got] == [np.shape(value) for value in wanted]
        assert [getattr(value, "dtype", 0) for value in got] == [
            getattr(value, "dtype", 0) for value in wanted
        ]
        assert got == wanted
