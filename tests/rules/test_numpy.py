"""Operators of ``mx.np`` equal the loop, in values, dtypes, shapes and gradients, and merge.

MXNet runs each call of the loop itself; in a scope, most are written with operators of ``mx.nd``.
"""

from dataclasses import dataclass
from typing import Tuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, npx

import gluon_dynbatch as gdb
from gluon_dynbatch.rules.numpy import TRANSLATED
from tests.cells import cell
from tests.common import semantics

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False
mnp = mx.np
COPIES = cell(lambda F, arrays: [F.np.copy(a) for a in arrays])


@dataclass(frozen=True)
class A:
    """An argument: its shape, dtype, and the kind of its values."""

    shape: Tuple[int, ...] = ()
    dtype: str = "float32"
    kind: str = "normal"

    def draw(self, rng):
        if self.dtype == "bool":
            values = rng.uniform(size=self.shape) > 0.5
        elif self.dtype.startswith("int"):
            values = rng.randint(0 if self.kind == "index" else 1, 3, self.shape)
        else:
            low, high = {"positive": (0.3, 2), "unit": (-0.9, 0.9), "above": (1.2, 2)}.get(
                self.kind, (-2, 2)
            )
            values = rng.uniform(low, high, self.shape)
            if self.kind == "wild":
                values = np.choose(rng.randint(0, 4, self.shape), [values, np.nan, np.inf, -np.inf])
        return mnp.array(np.asarray(values, self.dtype), dtype=self.dtype)


def P(*shape, **more):
    return A(shape, kind="positive", **more)


def N(*shape, **more):
    return A(shape, **more)


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


CASES = {}
KINDS = {"log": "positive", "log2": "positive", "log10": "positive", "log1p": "positive",
         "sqrt": "positive", "cbrt": "positive", "reciprocal": "positive", "arccosh": "above",
         "tan": "unit", "arcsin": "unit", "arccos": "unit", "arctanh": "unit"}  # fmt: skip
for name in ("exp tanh sin cos arctan sinh cosh arcsinh expm1 square negative abs sign ceil floor "
             "trunc rint fix degrees radians logical_not " + " ".join(KINDS)).split():  # fmt: skip
    fn, kind = getattr(mnp, name), KINDS.get(name, "normal")
    CASES[name] = [(fn, A((2, 3), kind=kind)), (fn, A(kind=kind)), (fn, A((3,), "float64", kind))]
    CASES[name] += [(fn, A((3,), "int32"))] * (name not in KINDS and name not in ("sinh", "cosh"))
for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf"):
    CASES[name] = [(getattr(mnp, name), A((3, 2), kind="wild")),
                   (getattr(mnp, name), A((3,), "int32"))]  # fmt: skip
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((), ()), ((1, 3), (2, 1)),
          ((2, 1, 3), (4, 1)), ((3,), (2, 3))]  # fmt: skip
PROMOTED = ["add", "subtract", "multiply", "true_divide", "power"]
for name in ("hypot maximum minimum equal not_equal greater greater_equal less less_equal mod "
             "arctan2 copysign ldexp " + " ".join(PROMOTED)).split():  # fmt: skip
    fn = getattr(mnp, name)
    CASES[name] = [(fn, P(*a), P(*b)) for a, b in SHAPES]
    CASES[name] += [(fn, P(2, 3, dtype=a), P(2, 3, dtype=b)) for a, b in (
        ("int32", "float32"), ("bool", "float32"), ("float64", "int32"),
    ) if name in PROMOTED]  # fmt: skip
    for number in (2, 1.5, 0) if name not in ("hypot", "copysign", "ldexp", "arctan2") else ():
        for dtype in ("float32", "float64", "int32"):
            if name != "true_divide" or dtype != "int32":
                CASES[name] += [
                    (lambda x, fn=fn, n=number: fn(x, n), P(2, 3, dtype=dtype)),
                    (lambda x, fn=fn, n=number: fn(n, x), P(2, 3, dtype=dtype)),
                ]
for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    fn = getattr(mnp, name)
    CASES[name] = [(fn, N(3, dtype=dtype), N(3, dtype=dtype)) for dtype in ("bool", "int32")]
    CASES[name] += [
        (fn, N(2, 3, dtype="int32"), N(3, dtype="int32")),
        (mnp.invert, N(3, dtype="bool")),
    ]
for name in ("sum", "prod", "max", "min", "mean", "std", "var", "any", "all"):
    fn = getattr(mnp, name)
    CASES[name] = [
        (lambda x, fn=fn, axis=axis, keep=keep: fn(x, axis=axis, keepdims=keep), P(*shape))
        for shape in ((2, 3, 4), (3,), (1, 4), ())
        for axis in (None, *range(-1, len(shape)), *(((0, 2),) if len(shape) > 2 else ()))
        for keep in (False, True)
        if shape or axis is None
    ]
    if name in ("sum", "prod", "max", "min", "any", "all"):
        CASES[name] += [(fn, N(2, 3, dtype="int32"))]
for name in ("argmax", "argmin", "cumsum"):
    fn = getattr(mnp, name)
    CASES[name] = [(lambda x, fn=fn, axis=axis: fn(x, axis=axis), N(2, 3)) for axis in (None, 0, 1)]
CASES["reductions"] = [
    (lambda x: mnp.std(x, axis=1, ddof=1), N(2, 4)), (lambda x: mnp.sum(x, dtype="float64"), N(3)),
    (mnp.average, N(2, 3)), (lambda x, w: mnp.average(x, axis=1, weights=w), N(2, 3), P(3)),
    (lambda x, w: mnp.average(x, axis=0, weights=w), N(2, 3), P(2, 3)),
    *((lambda x, k=k: mnp.linalg.norm(x, **k), N(2, 3)) for k in (
        {}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}, {"ord": 1, "axis": 1},
    )),
]  # fmt: skip
CASES["where"] = [
    (mnp.where, N(*c, dtype=dtype), N(*a), N(*b))
    for dtype in ("bool", "float32", "int32")
    for c, a, b in (
        ((2, 3), (2, 3), (2, 3)), ((3,), (2, 3), ()), ((), (), ()), ((2, 1), (3,), (2, 3)),
    )
]  # fmt: skip
CASES["where"] += [(lambda m: mnp.where(m, 2.5, 0), N(3, dtype="bool"))]
CASES["shapes"] = [
    (mnp.around, N(2, 3)),
    *((lambda x, s=s: mnp.reshape(x, s), N(2, 3)) for s in ((3, 2), (-1,), (2, 3, 1), (2, -1))),
    *((lambda x, s=s: npx.reshape(x, s), N(2, 3)) for s in ((-2, -1), (-2, 3), (-4,))),
    (lambda x: x.reshape(()), N(1, 1)), (lambda x: x.reshape((1, 1)), N()),
    (mnp.squeeze, N(1, 3, 1)), (lambda x: mnp.squeeze(x, 0), N(1, 3, 1)), (mnp.squeeze, N(1, 1)),
    *((lambda x, axis=axis: mnp.expand_dims(x, axis), N(2, 3)) for axis in (0, 1, -1)),
    (lambda x: mnp.expand_dims(x, 0), N()), (lambda x: x.T, N(2, 3)), (lambda x: x.T, N(3)),
    (lambda x: x.T, N()), (lambda x: mnp.transpose(x, (1, 2, 0)), N(2, 3, 4)),
    (lambda x: mnp.swapaxes(x, 0, -1), N(2, 3, 4)), (lambda x: mnp.moveaxis(x, 0, -1), N(2, 3, 4)),
    (lambda x: mnp.moveaxis(x, (0, 1), (2, 0)), N(2, 3, 4)),
    *((lambda x, s=s: mnp.broadcast_to(x, s), N(*own)) for own, s in (
        ((3,), (2, 3)), ((2, 1), (2, 3)), ((), (2, 2)), ((1, 3), (4, 2, 3)),
    )),
    *((lambda x, axis=axis: mnp.flip(x, axis), N(2, 3)) for axis in (0, 1, (0, 1))),
    *((lambda x, s=s: mnp.roll(x, *s), N(2, 3)) for s in (
        (1, None), (1, 0), (-1, 1), ((1, 2), (0, 1)), (7, 1),
    )),
    (mnp.copy, N()), (npx.batch_flatten, N(2, 3, 2)), (lambda x: mnp.repeat(x, 2), N(2, 3)),
    (lambda x: mnp.tile(x, (2, 1)), N(2, 3)), (lambda x: mnp.full_like(x, 2.5), N(2, 3)),
    (mnp.zeros_like, N()), (mnp.ones_like, N(2)),
    (lambda x: (x > 0).astype("float32") * x, N(2, 3)),
]  # fmt: skip
CASES["joins"] = [
    *((lambda a, b, axis=axis: mnp.concatenate([a, b], axis=axis), N(2, 3), N(2, 3))
      for axis in (0, 1, -1, None)),
    (lambda a, b: mnp.concatenate([a, b], axis=1), N(2, 3), N(2, 1)),
    *((lambda a, b, axis=axis: mnp.stack([a, b], axis=axis), N(2, 3), N(2, 3))
      for axis in (0, 1, -1)),
    (lambda a, b: mnp.stack([a, b]), N(), N()),
    *((lambda a, b: mnp.vstack([a, b]), N(*s), N(*s)) for s in ((3,), (2, 3), ())),
    *((lambda a, b: mnp.column_stack([a, b]), N(*s), N(*s)) for s in ((3,), (2, 3))),
    (lambda x: mnp.split(x, 2, axis=1), N(2, 4)), (lambda x: mnp.split(x, (1, 3), axis=0), N(4, 2)),
    (lambda x: mnp.hsplit(x, 2), N(2, 4)), (lambda x: mnp.hsplit(x, 2), N(4)),
    (lambda x: mnp.vsplit(x, 2), N(4, 2)), (lambda x: mnp.dsplit(x, 2), N(2, 3, 4)),
    (lambda x: mnp.array_split(x, 3), N(4, 2)), *((f, N(*s)) for f in (
        mnp.atleast_1d, mnp.atleast_2d, mnp.atleast_3d) for s in ((), (3,), (2, 3))),
]  # fmt: skip
CASES["diagonals"] = [
    (mnp.diag, N(3)), (lambda x: mnp.diag(x, 1), N(3)), (lambda x: mnp.diag(x, -1), N(3, 4)),
    (mnp.diagonal, N(3, 4)), (lambda x: mnp.diagonal(x, 1, 0, 2), N(3, 2, 4)), (mnp.trace, N(3, 4)),
    (lambda x: mnp.trace(x, 0, 1, 2), N(2, 3, 4)), (mnp.diagflat, N(2, 2)), (mnp.diff, N(2, 4)),
    (lambda x: mnp.diff(x, n=2, axis=0), N(4, 2)), (lambda x: mnp.tril(x, 1), N(2, 3, 4)),
]  # fmt: skip
CASES["products"] = [
    *((mnp.dot, N(*a), N(*b)) for a, b in (
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((2, 4, 3), (3,)),
        ((2, 4, 3), (3, 5)), ((2, 3), (4, 3, 5)), ((), (2, 3)), ((2, 3), ()), ((), ()),
    )),
    *((mnp.matmul, N(*a), N(*b)) for a, b in (
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((2, 4, 3), (3, 5)),
        ((2, 4, 3), (2, 3, 5)), ((2, 3), (4, 3, 5)), ((2, 2, 4, 3), (2, 2, 3, 5)),
        ((3,), (2, 3, 4)),
    )),
    *((lambda a, b, n=n: mnp.tensordot(a, b, n), N(*a), N(*b)) for n, a, b in (
        (1, (2, 3), (3, 4)), (2, (2, 3, 4), (3, 4, 5)), (0, (2,), (3,)), (2, (2, 3), (2, 3)),
        (((0,), (1,)), (2, 3), (4, 2)), (((1, 0), (0, 1)), (2, 3, 5), (3, 2, 4)),
    )),
    *((lambda *a, s=s: mnp.einsum(s, *a), *[N(*x) for x in shapes]) for s, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ij->ji", (2, 3)),
        ("bqd,bkd->bqk", (2, 3, 4), (2, 5, 4)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("ij->i", (2, 3)), ("ij->", (2, 3)), ("i,i->", (3,), (3,)), ("i,j->ij", (3,), (2,)),
        ("ij,ij->i", (2, 3), (2, 3)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
        ("ij,k->ij", (2, 3), (2,)), ("nlhd,nmhd->nhlm", (1, 3, 2, 4), (1, 5, 2, 4)),
        ("...ij,...jk->...ik", (2, 2, 3, 4), (2, 4, 5)), ("ij->ij", (2, 3)),
    )),
    (mnp.inner, N(2, 3), N(4, 3)), (mnp.outer, N(2), N(3)), (npx.batch_dot, N(2, 3, 4), N(2, 4, 2)),
]  # fmt: skip
CASES["networks"] = [
    (npx.relu, N(2, 3)), (npx.sigmoid, N(2, 3)), (npx.softmax, N(2, 3)), (npx.erf, N(2, 3)),
    (lambda x: npx.log_softmax(x, axis=0), N(2, 3)), (npx.pick, N(2, 3), A((2,), kind="positive")),
    (lambda x: npx.leaky_relu(x, act_type="gelu"), N(2, 3)), (npx.smooth_l1, N(2, 3)),
    (lambda x: npx.activation(x, "softrelu"), N(2, 3)), (lambda x: mnp.clip(x, -0.5, 0.5), N(2, 3)),
    (lambda x, w, b: npx.fully_connected(x, w, b, num_hidden=4), N(2, 3), N(4, 3), N(4)),
    (lambda x: npx.topk(x, k=2), N(2, 3)), (lambda x: mnp.sort(x, axis=-1), N(2, 3)),
    (lambda x, i: mnp.take(x, i, axis=0, mode="clip"), N(4, 3), A((), "int32", "index")),
    (lambda x, i: mnp.take(x, i, axis=0, mode="clip"), N(4, 3), A((2,), "int32", "index")),
    (lambda x: x[:, 1:3], N(2, 4)), (lambda x: x[1, 2] + x[0], N(2, 4)),
    (lambda x: x[::2], N(4, 3)),
    (lambda x: 1 / x - 2 + x / 3 * (-x), P(2, 3)), (lambda x, y: x @ y, N(2, 3), N(3, 2)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_merged_calls_equal_the_loop(name):
    for fn, *arguments in CASES[name]:
        check(fn, *arguments)


@pytest.mark.parametrize("fn, arguments", [
    (lambda x: mnp.percentile(x, 30, axis=1), [N(2, 4)]),
    (lambda x: mnp.pad(x, ((0, 1), (1, 0))), [N(2, 3)]), (mnp.polyval, [N(3), N(2)]),
    (mnp.unique, [N(4)]), (mnp.nonzero, [N(4)]), (mnp.rot90, [N(2, 3)]),
    (lambda x: mnp.hstack([x, x]), [N(3)]), (lambda x: mnp.linalg.svd(x), [N(2, 3)]),
    (mnp.matmul, [N(2, 1, 4, 3), N(3, 3, 5)]),
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
            with gdb.batching(policy="depth") as batch:
                for fn, *arguments in CASES[name]:
                    fn(*COPIES([argument.draw(rng) for argument in arguments]))
                tape = batch._opened().recorder.tape
                seen.update(entry.name for entry in tape.entries.values())
    blocks = {"_npi_zeros", "_npi_ones", "_npi_identity", "_npi_arange", "_npi_eye"}
    unknown = {"_npi_hstack", "_npi_dstack", "_npi_dsplit"}
    unknown |= {"_npi_where_lscalar", "_npi_where_rscalar"}  # see above
    assert {op for op in TRANSLATED if op.startswith("_np")} - seen <= blocks | unknown
