"""Native functions equal NumPy's over their whole range, on every instruction set."""

import math

import mxnet as mx
import numpy as np
import pytest
from scipy import special

from gluon_dynbatch.kernel.layout import Columns, Slot
from gluon_dynbatch.kernel.step import Access, Instruction, Pointwise
from gluon_dynbatch.native import executing
from gluon_dynbatch.testing import check_against_loop
from tests.cells import array, attached, cell
from tests.kernel.native import launch

TYPES = [np.float32, np.float64]
PI = np.longdouble("3.14159265358979323846264338327950288")
SETTINGS = {
    "hard_sigmoid": (0.25, 0.5), "clip": (-1.5, 2.0), "smooth_l1": (1.5, 0.0), "keep": (0.25, 1.5),
}  # fmt: skip


def access(register, number, how="row", column=0):
    return Access(register, Columns(Slot("in", number), column), how)


def run(program, arrays, rows):
    launch([program], {Slot("in", k): array for k, array in enumerate(arrays)}, rows)


def apply(name, *operands):
    """Return the results of a native function for arrays of equal shape and type."""
    arity = executing.CODES[name][1]
    assert arity == len(operands)
    rows = [np.ascontiguousarray(operand)[None] for operand in operands]
    out = np.empty_like(rows[0])
    loads = [access(i, i) for i in range(arity)]
    instruction = Instruction(name, 3, tuple(range(arity)), SETTINGS.get(name, ()))
    stores = [access(3, arity)]
    run(Pointwise(out.size, out.dtype.name, 4, loads, [instruction], stores), [*rows, out], 1)
    return out[0]


def specials(dtype):
    tiny, info = np.nextafter(dtype(0), dtype(1)), np.finfo(dtype)
    sizes = [0, tiny, 99 * tiny, info.tiny, 0.3, 0.5, 0.7, 1, 1.5, 2, 2.5, 3, 21, 90, 100, info.max]
    sizes = np.array([*sizes, np.inf, 2 / info.eps + 1, 1 / info.eps - 0.5], dtype)
    return np.concatenate([sizes, -sizes, [np.nan]]).astype(dtype)


def sample(dtype, count, rng):
    """Return numbers of all exponents and both signs, many of them where functions are curved."""
    bits = {np.float32: np.uint32, np.float64: np.uint64}[dtype]
    any_bits = rng.integers(0, np.iinfo(bits).max, count, bits).view(dtype)
    near = [rng.uniform(-a, a, count // 4) for a in (1, 2, 12, 120)]
    at_one = 1 + rng.choice([-1, 1], count // 4) * 2.0 ** rng.uniform(-24, 0, count // 4)
    return np.concatenate([any_bits, *near, at_one, -at_one, specials(dtype)]).astype(dtype)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# Functions that NumPy computes in the next wider type.
NAMES = (
    "negative reciprocal square sqrt cbrt exp expm1 log log1p log2 log10 sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arctanh ceil floor trunc"
)
WIDE = {name: getattr(np, name) for name in NAMES.split()}
WIDE.update(
    arccosh=lambda x: np.arccosh(np.where(x < 1, np.nan, x)),
    rsqrt=lambda x: 1 / np.sqrt(x),
    abs=np.abs,
    sigmoid=sigmoid,
    softrelu=lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    softsign=lambda x: x / (1 + np.abs(x)),
    degrees=lambda x: x * (180 / PI).astype(x.dtype),
    radians=lambda x: x * (PI / 180).astype(x.dtype),
    relu=lambda x: np.where(x <= 0, 0, x),
    hard_sigmoid=lambda x: np.clip(0.25 * x + 0.5, 0, 1),
    clip=lambda x: np.clip(x, -1.5, 2),
    smooth_l1=lambda x: np.where(np.abs(x) > 1 / 2.25, np.abs(x) - 0.5 / 2.25, 1.125 * x * x),
    round=lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    rint=lambda x: np.where(x - np.floor(x) <= np.ceil(x) - x, np.floor(x), np.ceil(x)),
    fix=np.trunc,
    sign=lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    logical_not=lambda x: x == 0,
    keep=lambda x: np.where(x < 0.25, x.dtype.type(1.5), 0),
)
NAMES = "hypot power equal not_equal greater greater_equal logical_and logical_or logical_xor"
WIDE_BINARY = {name: getattr(np, name) for name in [*NAMES.split(), "maximum", "minimum"]}
WIDE_BINARY.update(
    add=np.add, sub=np.subtract, mul=np.multiply, div=np.divide, greatest=np.maximum,
    lesser=np.less, lesser_equal=np.less_equal, gate=lambda a, b: np.where(a == 0, 0, a * b),
    mod=lambda a, b: np.where(b == 0, 0, np.mod(a, b)),
)  # fmt: skip
# A function that SciPy computes in double precision only.
DOUBLE = {"erf": special.erf}
#: Functions whose zeros may have another sign than NumPy's.
ANY_ZERO = {"greatest", "maximum", "minimum", "mod"}


def check_function(name, function, *operands):
    """Compare with a function in the next wider type, the signs of zeros included."""
    got, exact = apply(name, *operands), widened(function, *operands)
    assert_close(got, exact, *operands)
    zeros = (got == 0) & (exact == 0)
    same_sign = np.signbit(got[zeros]) == np.signbit(exact[zeros])
    assert same_sign.all() or name in ANY_ZERO, name


def widened(function, *operands):
    """Return the values of a function of float32 in float64, of float64 in longdouble."""
    wide = np.float64 if operands[0].dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        return function(*(operand.astype(wide) for operand in operands))


def assert_close(got, exact, *operands, ulps=4.0):
    """Check that results are within units in the last place of exact values."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        _, exponent = np.frexp(np.minimum(np.abs(rounded), info.max))
        unit = np.ldexp(info.eps, np.maximum(exponent - 1, info.minexp))
        good = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        # Infinity counts as the power of two above the largest number.
        top = np.where(np.isinf(got), np.copysign(exact.dtype.type(2) ** info.maxexp, got), got)
        good |= np.isfinite(exact) & (np.abs(top - exact) <= ulps * unit)
    bad = np.flatnonzero(~good)[:5]
    arguments = [operand[bad] for operand in operands]
    assert not bad.size, f"{arguments} gave {got[bad]}, not {rounded[bad]}"


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_one_number_are_within_4_ulp(instruction_set, dtype):
    x = sample(dtype, 8000, np.random.default_rng(1))
    for name, function in {**WIDE, **(DOUBLE if dtype is np.float32 else {})}.items():
        check_function(name, function, x)


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_two_numbers_are_within_4_ulp(instruction_set, dtype):
    rng = np.random.default_rng(5)
    grid = np.meshgrid(specials(dtype), specials(dtype))
    a, b = (np.concatenate([sample(dtype, 6000, rng), ends.ravel()]) for ends in grid)
    for name, function in WIDE_BINARY.items():
        check_function(name, function, a, b)
    assert executing.CODES.keys() == {*WIDE, *WIDE_BINARY, *DOUBLE, "select"}
    assert_close(apply("select", a, b, a), np.where(a != 0, b, a), a, b)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_columns_in_any_order_equal_numpy(dtype, seed):
    """Runs of columns, of any length, between single ones, repeated ones and zeros."""
    rng = np.random.RandomState(seed)
    pieces = [rng.permutation(400)[:30], np.arange(370, 400), np.zeros(40), np.full(20, -1)]
    for _ in range(12):
        start = rng.randint(0, 300)
        pieces.append(np.arange(start, start + rng.randint(1, 70)))
    order = np.concatenate([pieces[k] for k in rng.permutation(len(pieces))]).astype(int)
    source = rng.normal(size=(3, 400)).astype(dtype)
    out = np.empty((3, len(order)), dtype)
    load, store = access(0, 0, tuple(order.tolist())), access(1, 1)
    program = Pointwise(
        len(order), source.dtype.name, 2, (load,), (Instruction("negative", 1, (0,), ()),), (store,)
    )
    run(program, [source, out], 3)
    np.testing.assert_array_equal(out, np.where(order < 0, 0, -source[:, order]))


@pytest.mark.parametrize("width", [2, 7, 100, 1000])
def test_sums_and_maxima_of_rows_equal_numpy(instruction_set, width):
    rng = np.random.default_rng(width)
    x = rng.normal(0, 1, (9, width)).astype(np.float32)
    x[1, width // 2] = np.nan
    x[2], x[3, 0], x[4, -1] = -np.inf, np.nan, np.nan
    sums, maxima = np.zeros((2, 9, 1), np.float32)
    stores = [access(0, 1, "sum"), access(0, 2, "max")]
    run(Pointwise(width, "float32", 1, [access(0, 0)], [], stores), [x, sums, maxima], 9)
    np.testing.assert_array_equal(maxima[:, 0], x.max(axis=1))
    exact = [math.fsum(row) for row in x]
    np.testing.assert_array_equal(sums[:, 0], np.array(exact, np.float32))


@pytest.mark.parametrize("width", [1, 3, 8, 21, 100, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_any_width_equal_mxnet(instruction_set, width, dtype):
    """The cell reads slices of columns, a number per row and a shared array."""

    def fn(F, x, number, shared):
        left = F.slice_axis(x, axis=1, begin=0, end=width)
        right = F.slice_axis(x, axis=1, begin=width, end=None)
        y = F.broadcast_maximum(left - right, F.cast(number, dtype)) * 2
        y = F.where(right, F.broadcast_add(y, F.sum(shared, axis=0, keepdims=True)), -left)
        return F.concat(right, y, dim=1), F.sum(y, axis=1), F.max(y, axis=1)

    (shared,) = attached([mx.nd.round(9 * array(2, width, dtype=dtype))])
    samples = []
    for rows in (1, 40, 2):
        x, number = (mx.nd.round(9 * array(rows, n, seed=n)) for n in (2 * width, 1))
        samples.append((*attached([x.astype(dtype)]), number.astype("int32"), shared))
    net = cell(fn)
    plan = check_against_loop(lambda s: net(*s), samples, (), (1e-5, 1e-4)).plan
    assert "by MXNet" not in str(plan), plan
