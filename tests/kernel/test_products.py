"""Native matrix products equal NumPy's, on every instruction set of this processor."""

from itertools import product

import numpy as np
import pytest

from gluon_dynbatch.kernel.layout import Columns, Dot, Slot, Weight
from gluon_dynbatch.kernel.step import FEW, PACKED, PANELS, Dots, Product
from gluon_dynbatch.native import executing
from tests.kernel.native import add_up, launch

MXNET_DRAWS = False

SIZES = [(1, 1, 1), (2, 3, 5), (3, 16, 4), (5, 33, 1), (4, 48, 17), (7, 49, 31), (23, 100, 64)]
SIZES += [(131, 53, 20), (9, 17, 600), (10, 97, 257), (0, 5, 3), (5, 0, 3), (6, 50, 0)]
pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.parametrize("dtype", ["float32", "float64"]),
]


def draw(seed, dtype, *shape):
    return np.random.RandomState(seed).standard_normal(shape).astype(dtype)


def within(array, margin=3):
    """Copy an array into the middle of a larger one; return the view and the larger array."""
    rows, columns = array.shape
    whole = np.full((rows + 2, columns + 2 * margin + 1), 12345, array.dtype)
    view = whole[1 : rows + 1, margin : margin + columns]
    view[...] = array
    return view, whole


def surrounded(whole, margin=3):
    """Return whether the margin around the view is unchanged."""
    whole = whole.copy()
    whole[1:-1, margin : -margin - 1] = 12345
    return (whole == 12345).all()


def check(got, terms, length):
    """Check that a sum of matrix products is within the bound on its rounding error."""
    wide = np.float64 if got.dtype == np.float32 else np.longdouble
    terms = [(np.asarray(a, wide), np.asarray(b, wide)) for a, b in terms]
    wanted = sum(a @ b for a, b in terms)
    magnitude = sum(np.abs(a) @ np.abs(b) for a, b in terms)
    bound = 2 * max(length, 1) * np.finfo(got.dtype).eps * magnitude
    assert (np.abs(got - wanted) <= bound).all()


def as_term(array):
    """Return a matrix as a product, which can be a term of a sum of products."""
    return np.eye(array.shape[0]), array


def multiply(a, b, c, bias=None, accumulate=False, transposed=False, matrices=PACKED):
    """Write the product of `a` and `b`, plus a bias, to `c`, or add it to `c`."""
    left, weight, vector, result = Slot("in", 0), Slot("param", 0), Slot("param", 1), Slot("out", 0)
    arrays = {left: a, weight: b.ravel(), result: c, vector: bias}
    factor = Weight(Columns(weight), *b.shape, transposed)
    bias_at = None if bias is None else Columns(vector)
    step = Product(Columns(left), factor, Columns(result), bias_at, accumulate, 1, a.dtype.name)
    launch([step], arrays, len(a), matrices)


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_equal_numpy(m, n, k, transposed, dtype):
    a, _ = within(draw(1, dtype, m, k))
    b = draw(2, dtype, *((n, k) if transposed else (k, n)))
    bias, before = draw(3, dtype, n), draw(4, dtype, m, n)
    rows = np.broadcast_to(bias, (m, n))
    for vector in (None, bias):
        for accumulate in (False, True):
            terms = [(a, b.T if transposed else b)] + [as_term(rows)] * (vector is not None)
            terms += [as_term(before)] * accumulate
            results = []
            for matrices in (PACKED, PANELS, FEW):
                # If `c` is overwritten, its old contents must not matter.
                c, whole = within(before if accumulate else np.full_like(before, np.nan))
                multiply(a, b, c, vector, accumulate, transposed, matrices)
                check(c, terms, k + 1)
                assert surrounded(whole)
                results.append(c)
            assert (results[0] == results[1]).all()


def test_rows_do_not_depend_on_how_many_there_are(dtype):
    a, b = draw(1, dtype, 40, 300), draw(2, dtype, 300, 70)
    all_rows, some = np.empty((40, 70), dtype), np.empty((3, 70), dtype)
    multiply(a, b, all_rows)
    multiply(a[20:23], b, some)
    assert (some == all_rows[20:23]).all()


@pytest.mark.parametrize("m, k, n", [(1, 20, 7), (1, 5, 9), (1, 64, 33), (3, 40, 18), (9, 25, 50)])
@pytest.mark.parametrize("transposed", product([False, True], repeat=2))
def test_products_with_a_matrix_for_each_row_equal_numpy(m, k, n, transposed, dtype):
    a, b, got = draw(1, dtype, 5, m, k), draw(2, dtype, 5, k, n), np.empty((5, m * n), dtype)
    stored = (each.swapaxes(1, 2) if t else each for each, t in zip((a, b), transposed))
    slots = [Slot("in", 0), Slot("in", 1), Slot("out", 0)]
    step = Dots(*map(Columns, slots), Dot(1, m, k, n, transposed), a.dtype.name)
    launch([step], dict(zip(slots, [*(x.reshape(5, -1) for x in stored), got])), 5)
    for left, right, row in zip(a, b, got):
        check(row.reshape(m, n), [(left, right)], k)


@pytest.mark.parametrize("matrices", [PACKED, PANELS, FEW])
@pytest.mark.parametrize("transposed", [False, True])
def test_infinities_and_nans_appear_where_they_do_in_numpy(transposed, matrices, dtype):
    a, b = draw(1, dtype, 9, 20), draw(2, dtype, 20, 53)
    a[1, 3], a[2, 4], a[4, 5], a[6, 6], a[:, 0] = np.inf, np.nan, 0, -np.inf, 0
    b[7, 50], b[8, 1], b[5, 9], b[0, 2] = np.inf, np.nan, np.inf, -np.inf
    got = np.empty((9, 53), dtype)
    multiply(a, b.T if transposed else b, got, transposed=transposed, matrices=matrices)
    with np.errstate(invalid="ignore"):
        wanted = a @ b
    predicates = [np.isnan, np.isposinf, np.isneginf]
    assert all((is_such(got) == is_such(wanted)).all() for is_such in predicates)
    assert np.isnan(got).any() and np.isposinf(got).any() and np.isfinite(got).any()


ROWS = [[], [0], [1], [3, 0, 2], [23] * 30, [250], [249, 1], [251], [100, 500, 1], [2, 0]]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("n, k", [(1, 1), (35, 97)])
@pytest.mark.parametrize("second", [False, True])
def test_gradients_of_weights_equal_numpy(rows, n, k, second, dtype):
    dys = [within(draw(i, dtype, count, n))[0] for i, count in enumerate(rows)]
    xs = [within(draw(i + 99, dtype, count, k))[0] for i, count in enumerate(rows)]
    before = draw(5, dtype, n, k)
    whole = np.concatenate([before, before, before])
    add_up(executing.MATRIX, whole[n : 2 * n], dys, xs, second)
    check(whole[n : 2 * n], [as_term(before), *((y.T, x) for y, x in zip(dys, xs))], sum(rows) + 1)
    assert (whole[:n] == before).all() and (whole[2 * n :] == before).all()


@pytest.mark.parametrize("second", [False, True])
def test_gradients_of_weights_skip_rows_of_zeros(second, dtype):
    """Zeros of either sign, whatever the other factor holds; but only if the whole row is zero."""
    dy, x = draw(1, dtype, 300, 70), draw(2, dtype, 300, 60)
    zero, other = (x, dy) if second else (dy, x)
    zero[::3], zero[3::6] = 0, -0.0
    other[::3], other[3::6] = np.nan, np.inf
    dw = np.zeros((70, 60), dtype)
    add_up(executing.MATRIX, dw, [dy[:7], dy[7:]], [x[:7], x[7:]], second)
    kept = np.arange(300) % 3 != 0
    check(dw, [(dy[kept].T, x[kept])], 300)
    zero[0, -1] = 1
    add_up(executing.MATRIX, dw, [dy], [x], second)
    assert np.isnan(dw).all()


@pytest.mark.parametrize("n, k, columns", [(1, 1, 1), (25, 50, 25), (7, 60, 300)])
@pytest.mark.parametrize("second", [False, True])
def test_gradients_of_weights_by_columns_equal_numpy(n, k, columns, second, dtype):
    """Matrices of zeros are skipped, whatever the other factor holds."""
    dys, xs = ([draw(i, dtype, rows, size, columns) for i, rows in enumerate((3, 0, 4))]
               for size in (n, k))  # fmt: skip
    zero, other = (xs, dys) if second else (dys, xs)
    zero[2][1], other[2][1] = 0, np.nan
    before = draw(5, dtype, n, k)
    got = before.copy()
    flat = [[x.reshape(len(x), size * columns) for x in each] for size, each in ((n, dys), (k, xs))]
    add_up(executing.MATRIX, got, *flat, second, columns)
    other[2][1] = 0
    pairs = ((y, x.T) for ys, others in zip(dys, xs) for y, x in zip(ys, others))
    check(got, [as_term(before), *pairs], 7 * columns + 1)


@pytest.mark.parametrize(
    "rows, n", [*product(ROWS, [1, 63, 130]), ([100_000], 1), ([100_000], 35)], ids=str
)
def test_gradients_of_biases_equal_numpy(rows, n, dtype):
    """Its error does not grow with the number of rows."""
    dys = [within(draw(i, dtype, count, n))[0] for i, count in enumerate(rows)]
    before = draw(5, dtype, n)
    db = before.copy()
    add_up(executing.ROW, db, dys, dys)
    check(db[None], [as_term(before[None])] + [(np.ones((1, len(dy))), dy) for dy in dys], 4)
