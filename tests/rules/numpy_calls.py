"""Calls of functions of ``mx.np`` and ``mx.npx``, and the calls of operators that they make."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Tuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet import npx
from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch.record.operators import operator_of
from tests.cells import cell
from tests.common import semantics

from .interpreter import Array, Case

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
            if self.kind == "halves":  # and numbers between them
                values = rng.randint(-9, 10, self.shape) / 4
            if self.kind == "wild":
                values = np.choose(rng.randint(0, 4, self.shape), [values, np.nan, np.inf, -np.inf])
        return mnp.array(np.asarray(values, self.dtype), dtype=self.dtype)


def P(*shape, **more):
    return A(shape, kind="positive", **more)


def N(*shape, **more):
    return A(shape, **more)


CASES = {}
ROUNDING = ["ceil", "floor", "trunc", "rint", "fix"]
KINDS = {"log": "positive", "log2": "positive", "log10": "positive", "log1p": "positive",
         "sqrt": "positive", "cbrt": "positive", "reciprocal": "positive", "arccosh": "above",
         "tan": "unit", "arcsin": "unit", "arccos": "unit", "arctanh": "unit"}  # fmt: skip
for name in ("exp tanh sin cos arctan sinh cosh arcsinh expm1 square negative abs sign ceil floor "
             "trunc rint fix degrees radians logical_not " + " ".join(KINDS)).split():  # fmt: skip
    fn, kind = getattr(mnp, name), KINDS.get(name, "normal")
    CASES[name] = [(fn, A((2, 3), kind=kind)), (fn, A(kind=kind)), (fn, A((3,), "float64", kind))]
    CASES[name] += [(fn, A((3,), "int32"))] * (name not in KINDS and name not in ("sinh", "cosh"))
    CASES[name] += [(fn, A((4, 9), kind="halves"))] * (name in ROUNDING)
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
    *((mnp.around, x) for x in (N(2, 3), A((4, 9), kind="halves"), N(3, dtype="int32"))),
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
    *((lambda a, b: mnp.hstack([a, b]), N(*s), N(*s)) for s in ((3,), (2, 3), (2, 3, 2))),
    *((lambda a, b: mnp.dstack([a, b]), N(*s), N(*s)) for s in ((3,), (2, 3), (2, 3, 2))),
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


#: Operators without a gradient; MXNet may crash when it computes one of computed arrays.
NO_GRADIENT = (
    "_np_all _np_any _npi_argmax _npi_argmin _npi_around _npi_ceil _npi_fix _npi_floor "
    "_npi_full_like _npi_isfinite _npi_isinf _npi_isnan _npi_isneginf _npi_isposinf "
    "_npi_logical_not _npi_rint _npi_sign _npi_std _npi_trunc _npi_var"
)
COMPARISONS = ("equal", "greater", "less", "bitwise", "lcm")


def has_gradient(op):
    return op not in NO_GRADIENT.split() and not any(word in op for word in COMPARISONS)


@lru_cache(maxsize=None)
def calls():
    """Return the calls of operators of ``mx.np`` that the functions in `CASES` make, as cases."""
    found, kinds, rng = {}, {}, np.random.RandomState(0)

    def note(handle, arrays, keys, values, *rest):
        op, attrs = operator_of(handle).name, dict(zip(keys, map(str, values)))
        inputs = tuple(Array(a.shape, *kinds.get(id(a), ("normal",))) for a in arrays)
        known = op.startswith("_np") and op != "_np_copy" or op in ("expand_dims", "Flatten")
        if known and inputs and all(np.dtype(a.dtype).name != "float64" for a in arrays):
            c = Case(op, inputs, attrs, stack="B" * len(inputs), gradient=has_gradient(op))
            found[op, str(inputs), str(attrs)] = c
        return invoke(handle, arrays, keys, values, *rest)

    with semantics("np"), gdb.batching(policy="depth"):
        # Within a scope, as only then all functions call their operators there.
        invoke = register._imperative_invoke
        for fn, *arguments in (case for cases in CASES.values() for case in cases):
            copies = COPIES([a.draw(rng) for a in arguments])
            kinds.update((id(copy), _kind(a)) for copy, a in zip(copies, arguments))
            with patch.object(register, "_imperative_invoke", note):
                fn(*copies)
            kinds.clear()
    return list(found.values())


def _kind(a):
    """Return the kind and the bound of an `Array` with such values."""
    if a.dtype == "bool":
        return "bit bool", 0
    if a.dtype.startswith("int"):
        return ("index32" if a.kind == "index" else "length32"), 3
    return ("normal" if a.kind == "wild" else a.kind), 0
