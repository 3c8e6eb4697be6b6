"""Operators of ``mx.np`` equal the loop, in values, dtypes, shapes and gradients, and merge.

MXNet runs each call of the loop itself; in a scope, most are written with operators of ``mx.nd``.
"""

import contextlib
import itertools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.rules.numpy import TRANSLATED
from tests.cells import equal
from tests.common import semantics

from .numpy_calls import CASES, COPIES, N, P

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False
mnp, npx = mx.np, mx.npx


def run(fn, samples, scope):
    """Return results and gradients of the samples; and the scope, if there is one."""
    inputs = [a for sample in samples for a in sample if a.dtype in (np.float32, np.float64)]
    for a in inputs:
        a.attach_grad()
    with autograd.record():
        if scope is None:
            results = [fn(*map(mnp.copy, sample)) for sample in samples]
        else:
            with scope:
                results = [fn(*COPIES(list(sample))) for sample in samples]
    results = [r if isinstance(r, (list, tuple)) else [r] for r in results]
    heads = [x for r in results for x in r if x.dtype in (np.float32, np.float64)]
    draw = np.random.RandomState(1).uniform
    if heads and inputs:
        weights = [mnp.array(draw(0.5, 1.5, h.shape), dtype=h.dtype) for h in heads]
        try:
            autograd.backward(heads, weights)
        except mx.MXNetError:
            assert all(a.dtype == np.int32 for sample in samples for a in sample)
    types = [(type(x).__mro__[-3], x.dtype, x.shape) for r in results for x in r]
    return [x.asnumpy() for r in results for x in r], [a.grad.asnumpy() for a in inputs], types


def check(fn, *arguments, merges=True):
    """Compare three samples with the loop, and find out whether their calls merge."""
    rng = np.random.RandomState(0)
    with semantics("np"):
        samples = [[argument.draw(rng) for argument in arguments] for _ in range(3)]
        wanted = run(fn, samples, None)
        batch = gdb.batching(granularity="operator", policy="depth")
        got = run(fn, samples, batch)
        assert got[2] == wanted[2]
        for mine, others in zip(got[:2], wanted[:2]):
            for a, b in zip(mine, others):
                np.testing.assert_allclose(a, b, 1e-4, 1e-5)
        assert (not batch.report.alone) == merges, batch.report.alone


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_merged_calls_equal_the_loop(name):
    for fn, *arguments in CASES[name]:
        check(fn, *arguments)


@pytest.mark.parametrize("fn, arguments", [
    (lambda x: mnp.percentile(x, 30, axis=1), [N(2, 4)]),
    (lambda x: mnp.pad(x, ((0, 1), (1, 0))), [N(2, 3)]), (mnp.polyval, [N(3), N(2)]),
    (mnp.unique, [N(4)]), (mnp.nonzero, [N(4)]), (mnp.rot90, [N(2, 3)]),
    (lambda x: mnp.linalg.svd(x), [N(2, 3)]),
    (mnp.matmul, [N(2, 1, 4, 3), N(3, 3, 5)]),
    # MXNet adds floats, and rounds the sum; its products have no half precision, but `einsum` does.
    (lambda x: mnp.sum(x, dtype="int8"), [P(3)]), (lambda x: mnp.mean(x, dtype="int64"), [P(5)]),
    (lambda x, y: mnp.einsum("ij,jk->ik", x.astype("float16"), y.astype("float16")),
     [P(2, 3), P(3, 2)]),
])  # fmt: skip
def test_others_run_one_by_one(fn, arguments):
    check(fn, *arguments, merges=False)


def test_a_condition_with_a_number_has_the_right_gradient():
    """In MXNet 1.9.1, the gradient of the loop is wrong."""
    for fn, mask in (
        (lambda m, x: mnp.where(m, x, 2.0), [1, 0, 1]),
        (lambda m, x: mnp.where(m, 2.0, x), [0, 1, 0]),
    ):  # fmt: skip
        with semantics("np"):
            condition, x = mnp.array([True, False, True]), mnp.array([1.0, 2.0, 3.0])
            x.attach_grad()
            with autograd.record(), gdb.batching(policy="depth"):
                result = fn(*COPIES([condition, x]))
            result.backward()
            np.testing.assert_array_equal(x.grad.asnumpy(), mask)
            np.testing.assert_array_equal(result.asnumpy(), fn(condition, x).asnumpy())


def test_every_translation_is_used_by_a_case():
    """Or is of an operator that blocks call, or that has no known shapes outside of blocks."""
    rng, seen = np.random.RandomState(0), set()
    with semantics("np"):
        for name in CASES:
            with gdb.batching(policy="depth"):
                for fn, *arguments in CASES[name]:
                    fn(*COPIES([argument.draw(rng) for argument in arguments]))
                tape = STATE.recorder.tape
                seen.update(entry.token[1] for entry in tape.entries.values())
    blocks = {"_npi_zeros", "_npi_ones", "_npi_identity", "_npi_arange", "_npi_eye"}
    unknown = {"_npi_dsplit"}  # functions call `_npi_split`
    unknown |= {"_npi_where_lscalar", "_npi_where_rscalar"}  # see above
    assert {op for op in TRANSLATED if op.startswith("_np")} - seen <= blocks | unknown


def outcome(fn, arguments, scope):
    """Return dtypes and values of results, or that there are none."""
    try:
        with contextlib.ExitStack() as stack:
            if scope:
                stack.enter_context(gdb.batching(policy="depth"))
                arguments = COPIES(arguments)
            results = fn(*arguments)
        results = results if isinstance(results, (list, tuple)) else [results]
        found = [(x.dtype, x.asnumpy()) for x in results]
        mx.nd.waitall()
        return found
    except mx.MXNetError:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
        return "refused"


@pytest.mark.parametrize("dtype", ["bool", "uint8"])
@pytest.mark.parametrize("name", ["joins", "where", "reductions", "shapes", "equal", "less", "std",
                                  "argmax", "mod", "ldexp", "subtract", "exp"])  # fmt: skip
def test_narrow_dtypes_equal_the_loop(name, dtype):
    """Each function gives the values of the loop where MXNet takes such arrays."""
    rng = np.random.RandomState(0)
    with semantics("np"):
        for fn, *arguments in CASES[name][::2]:
            if {argument.dtype for argument in arguments} != {"float32"}:
                continue
            low = 0 if dtype == "bool" else 1
            values = [rng.randint(low, 4, argument.shape).astype(dtype) for argument in arguments]
            arrays = [mnp.array(value, dtype=dtype) for value in values]
            same_outcome(fn, arrays)


def same_outcome(fn, arrays):
    """Check that a function gives the arrays of the loop, or is refused as there."""
    wanted, got = (outcome(fn, arrays, scope) for scope in (False, True))
    if wanted == "refused" or got == "refused":
        assert got == wanted
    else:
        equal([value for _, value in got], [value for _, value in wanted], 1e-3, 1e-3)
        assert [dtype for dtype, _ in got] == [dtype for dtype, _ in wanted]


DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
#: What MXNet refuses of arrays without axes, or of booleans of several shapes.
REFUSED = [
    (lambda x: npx.leaky_relu(x, act_type="elu"), "float32", ()),
    (lambda x, y: npx.leaky_relu(x, y, act_type="prelu"), "float32", (), (1,)),
    (lambda x: npx.activation(x, act_type="softrelu"), "float32", ()),
    (lambda x, y: npx.pick(x, y), "float32", (3,), ()),
    (lambda x, y: npx.softmax(x, y.astype("int32"), use_length=True), "float32", (), ()),
    (lambda x: mnp.tril(x), "float32", ()),
    (lambda x: mnp.cumsum(x, axis=0), "float32", ()),
    (lambda x: mnp.cumsum(x), "float32", ()),
    (lambda x, y: mnp.tensordot(x, y, axes=0), "float32", (), (2,)),
    *((fn, "bool", *shapes) for fn in (mnp.bitwise_and, mnp.bitwise_xor)
      for shapes in (((2, 3), (3,)), ((3,), ()), ((), ()), ((3,), (3,)))),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_mxnet_refuses_by_shape_is_refused(number):
    fn, dtype, *shapes = REFUSED[number]
    with semantics("np"):
        same_outcome(fn, [mnp.ones(shape, dtype=dtype) for shape in shapes])


PAIRED = """
    add subtract multiply true_divide power mod maximum equal less hypot arctan2 copysign ldexp
    bitwise_and dot matmul outer
"""
PAIRS = {name: getattr(mnp, name) for name in PAIRED.split()}
PAIRS["stack"] = lambda a, b: mnp.stack([a, b])
PAIRS["where"] = lambda a, b: mnp.where(a, b, b)
PAIRS["take"] = lambda a, b: mnp.take(a, b, axis=0, mode="clip")


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_dtypes_equal_the_loop(name):
    values = np.array([[1, 0], [1, 1]]), np.array([[1, 1], [1, 1]])
    with semantics("np"):
        for dtypes in itertools.product(DTYPES, DTYPES):
            arrays = [mnp.array(v, dtype=dtype) for v, dtype in zip(values, dtypes)]
            same_outcome(PAIRS[name], arrays)
