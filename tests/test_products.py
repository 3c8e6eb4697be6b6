"""Native matrix products, for every instruction set that this processor has, against NumPy."""

import threading

import numpy as np
import pytest

from gluon_dynbatch.native import products

AVAILABLE = sorted({products.use(most) for most in range(3)})
SIZES = [(1, 1, 1), (2, 3, 5), (3, 16, 4), (5, 33, 1), (4, 48, 17), (7, 49, 31), (23, 100, 64)]
SIZES += [(131, 53, 20), (9, 17, 600), (10, 97, 257), (0, 5, 3), (5, 0, 3), (6, 50, 0)]


@pytest.fixture(params=AVAILABLE, autouse=True)
def isa(request):
    assert products.use(request.param) == request.param
    yield request.param
    assert products.use(2) == AVAILABLE[-1]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


def draw(seed, dtype, *shape):
    return np.random.RandomState(seed).standard_normal(shape).astype(dtype)


def within(array, margin=3):
    """Return a view of a copy that has values around it, and what it is a view of."""
    rows, columns = array.shape
    whole = np.full((rows + 2, columns + 2 * margin + 1), 12345, array.dtype)
    view = whole[1 : rows + 1, margin : margin + columns]
    view[...] = array
    return view, whole


def surrounded(whole, margin=3):
    """Whether nothing was written around the view."""
    whole = whole.copy()
    whole[1:-1, margin : -margin - 1] = 12345
    return (whole == 12345).all()


def check(got, terms, length):
    """Compare with the sum of products of matrices, a bound on the error of which is known."""
    type_ = np.float64 if got.dtype == np.float32 else np.longdouble
    wide = [(np.asarray(a, type_), np.asarray(b, type_)) for a, b in terms]
    wanted = sum(a @ b for a, b in wide)
    size = sum(np.abs(a) @ np.abs(b) for a, b in wide)
    bound = 2 * max(length, 1) * np.finfo(got.dtype).eps * size
    assert (np.abs(got - wanted) <= bound).all()


def beside(array):
    """Return a factor that makes a matrix a term of a sum of products."""
    return np.eye(array.shape[0]), array


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_multiply(m, n, k, transposed, dtype):
    a, _ = within(draw(1, dtype, m, k))
    b, _ = within(draw(2, dtype, *((n, k) if transposed else (k, n))))
    b = b.T if transposed else b
    bias, before = draw(3, dtype, n), draw(4, dtype, m, n)
    rows = np.broadcast_to(bias, (m, n))
    packed = products.pack(b)
    for shift in (None, bias):
        for accumulate in (False, True):
            # What is not added to may hold anything.
            c, whole = within(before if accumulate else np.full_like(before, np.nan))
            products.multiply(a, packed, c, shift, accumulate)
            terms = [(a, b)] + [beside(rows)] * (shift is not None) + [beside(before)] * accumulate
            check(c, terms, k + 1)
            assert surrounded(whole)
            if transposed:
                c, whole = within(before if accumulate else np.full_like(before, np.nan))
                products.multiply_few(a, b.T, c, shift, accumulate)
                check(c, terms, k + 1)
                assert surrounded(whole)


def test_rows_do_not_depend_on_how_many_there_are(dtype):
    a, b = draw(1, dtype, 40, 300), draw(2, dtype, 300, 70)
    packed, all_rows, some = products.pack(b), np.empty((40, 70), dtype), np.empty((3, 70), dtype)
    products.multiply(a, packed, all_rows)
    products.multiply(a[20:23], packed, some)
    assert (some == all_rows[20:23]).all()


def test_what_is_not_finite_goes_where_it_does_in_numpy(dtype):
    a, b = draw(1, dtype, 9, 20), draw(2, dtype, 20, 53)
    a[1, 3], a[2, 4], a[4, 5], a[6, 6], b[7, 50], b[8, 1] = (
        np.inf,
        np.nan,
        0,
        -np.inf,
        np.inf,
        np.nan,
    )
    b[5, 9], a[:, 0], b[0, 2] = np.inf, 0, -np.inf
    got = np.empty((9, 53), dtype)
    products.multiply(a, products.pack(b), got)
    with np.errstate(invalid="ignore"):
        wanted = a @ b
    kinds = [np.isnan, np.isposinf, np.isneginf]
    assert all((kind(got) == kind(wanted)).all() for kind in kinds)
    assert np.isnan(got).any() and np.isposinf(got).any() and np.isfinite(got).any()


ROWS = [[], [0], [1], [3, 0, 2], [23] * 30, [250], [249, 1], [251], [100, 500, 1], [2, 0]]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("n, k", [(1, 1), (35, 97)])
def test_weight_gradient(rows, n, k, dtype):
    dys = [within(draw(i, dtype, count, n))[0] for i, count in enumerate(rows)]
    xs = [within(draw(i + 99, dtype, count, k))[0] for i, count in enumerate(rows)]
    before = draw(5, dtype, n, k)
    terms = [(dy.T, x) for dy, x in zip(dys, xs)]
    for accumulate in (False, True):
        dw, whole = within(before if accumulate else np.full_like(before, np.nan))
        for first, last in ((0, n // 3), (n // 3, n)):
            products.weight_gradient(dys, xs, dw, first, last, accumulate)
        start = [beside(before if accumulate else 0 * before)]
        check(dw, start + terms, sum(rows) + 1)
        assert surrounded(whole)


def test_weight_gradient_skips_rows_of_zeros(dtype):
    """Of either sign, and whatever is in the other factor; but not zeros beside something else."""
    dy, x = draw(1, dtype, 300, 70), draw(2, dtype, 300, 60)
    dy[::3] = 0
    dy[3::6] = -0.0
    x[::3] = np.nan
    x[3::6] = np.inf
    dw = np.full((70, 60), np.nan, dtype)
    products.weight_gradient([dy[:7], dy[7:]], [x[:7], x[7:]], dw)
    kept = np.arange(300) % 3 != 0
    check(dw, [(dy[kept].T, x[kept])], 300)
    dy[0, 69] = 1
    products.weight_gradient([dy], [x], dw, 0, 10)
    assert np.isnan(dw[:10]).all() and np.isfinite(dw[10:]).all()


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("n", [1, 63, 130])
def test_bias_gradient(rows, n, dtype):
    dys = [within(draw(i, dtype, count, n))[0] for i, count in enumerate(rows)]
    before = draw(5, dtype, n)
    for accumulate in (False, True):
        db = before.copy() if accumulate else np.full(n, np.nan, dtype)
        products.bias_gradient(dys, db, accumulate)
        start = [beside((before if accumulate else 0 * before)[None])]
        check(db[None], start + [(np.ones((1, len(dy))), dy) for dy in dys], 4)


def test_bias_gradient_of_many_rows_is_accurate():
    dy = np.full((100_000, 1), 0.1, "float32")
    db = np.empty(1, "float32")
    products.bias_gradient([dy], db)
    assert db[0] == np.float32(dy.sum(dtype="float64"))


def test_threads_may_share_what_is_packed(dtype):
    a, b = draw(1, dtype, 320, 260), draw(2, dtype, 260, 130)
    packed, c, dw = products.pack(b), np.empty((320, 130), dtype), np.empty((130, 260), dtype)

    def work(i):
        part = slice(80 * i, 80 * (i + 1))
        products.multiply(a[part], packed, c[part])
        products.weight_gradient([c0], [a], dw, 33 * i, min(130, 33 * (i + 1)))

    c0 = draw(3, dtype, 320, 130)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(c, [(a, b)], 260)
    check(dw, [(c0.T, a)], 320)


def test_unfit_arrays_are_refused(dtype):
    a, b = draw(1, dtype, 4, 3), draw(2, dtype, 3, 5)
    packed = products.pack(b)
    with pytest.raises(ValueError):
        products.multiply(a, packed, np.empty((4, 200), dtype))
    with pytest.raises(ValueError):
        products.multiply(a[:, ::2], packed, np.empty((4, 5), dtype))
    with pytest.raises(TypeError):
        products.pack(b.astype("float16"))
    with pytest.raises(ValueError):
        products.weight_gradient([a], [b], np.empty((3, 5), dtype))
