"""A lazy array answers as MXNet's own array does, in each use that Python and NumPy have for one.

Each use runs with a plain array and with one that is pending in a scope: with the same result, or
an error of the same class, and the same content afterwards.
"""

import copy
import pickle
import warnings
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import cell
from tests.common import FIXED

MXNET_DRAWS = False

HOST = np.ones((2, 3), "float32")
#: Uses of an array `x` of shape (2, 3).
USES = """
np.mean(x); np.sum(x, axis=0); np.asarray(x); np.array(x, dtype="float64"); np.add(x, x)
np.add(x, HOST); HOST + x; x + HOST; HOST @ x.T; np.concatenate([x, x]); np.stack([x, x])
np.dot(x, x.T); np.where(x > 0, x, x); np.percentile(x, 50); np.linalg.norm(x); np.unique(x)
np.allclose(x, x); np.array_equal(x, x); np.add.reduce(x); np.maximum(x, 1)
np.sum(x, axis=0, out=np.zeros(3, "float32")); np.add(x, x, out=x)
np.float32(2) + x; x + np.float32(2); np.float64(2) * x; x * np.float64(2); x + np.int64(2)
str(x); repr(x); f"{x[0, 0]}"; str(x.tolist())
[r for r in x]; list(x); (lambda a, b: a + b)(*x); len(x); list(enumerate(x)); list(zip(x, x))
list(reversed(x)); sum(x); max(x[0]); sorted(x[0]); min(range(3), key=lambda i: x[0, i])
pickle.loads(pickle.dumps(x)); copy.deepcopy(x); copy.copy(x)
5.0 in x; x[0, 0] in x; bool(x); bool(x[0, 0]); not x[0, 0]; 0 < x[0, 0] < 3; 0 < x < 3
x[0, 0] and x[0, 1]; any(x[0]); all(x[0]); x == x; x == None; x != None; x == "a"; {x: 1}[x]
x == [1, 2, 3]; x < (1, 2)
float(x[0, 0]); int(x[0, 0]); [1, 2, 3][x[1, 1].astype("int32")]; list(range(int(x[1, 1])))
complex(x[0, 0]); round(x[0, 0]); divmod(x, 2); x // 2; x % 2; x ** 2; 2 ** x; 3 % x; -x; +x
abs(x)
~(x > 0); x @ x.T; x << 1; (x > 0) & (x < 3); (x > 0) | (x < 3); (x > 0) ^ (x < 3)
x[x > 0] = 0; x[1] = 7; x[:, 1] = 7; x[[0, 1]] = 3; x[np.array([1])] = 3; x += 1; x *= 2
x[0, 0] = x[1, 1]; x[x > 1] = -1.0; x[:1] = x[1:]; own(x).zeros((2, 3))[:1] = x[:1]
HOST.copy()[:] = x; del x[0]
x[x > 0]; x[np.array([1, 0])]; x[[1, 0]]; x[[0, 1], [1, 2]]; x[..., 1]; x[None]; x[::-1]; x[-1]
x[np.int64(1)]; x[True]; x[np.array([True, False])]; x[5]; x[0, 0, 0]; x[1.0]; x["a"]; x[1:1]
x[1:9]
x[:0].sum(); list(x[0, 0]); len(x[0, 0]); x[0, 0][()]; x[0, 0][0]
x[0, 0].item(); x.item(); x.item(3); x.item(0, 1); x[0, 0].asscalar(); x.asscalar()
(x.size, x.ndim, x.shape, str(x.dtype), str(x.context)); x.T; list(x.flat); x.flatten(); x.ravel()
x.nbytes; x.itemsize; x.shape = (3, 2); x.strides; x.fill(3); x.sort(axis=1); x.argsort(axis=1)
x.argmax(axis=1); x.nonzero(); x.mean(); x.std(); x.var(); x.cumsum(); x.clip(0, 1); x.round()
x.dot(x.T); x.take(own(x).array([1, 0])); x.repeat(2); x[None].squeeze(); x.swapaxes(0, 1)
x.transpose((1, 0)); x.transpose(1, 0); x.reshape(3, 2); x.reshape((-1,)); x.reshape(5, 2)
x.astype("int32"); x.astype(np.float64); x.astype(int); x.astype("foo"); x.as_in_context(mx.cpu())
x.as_in_ctx(mx.cpu()); x.copyto(mx.cpu()); x.slice_axis(1, 0, 2); x.tostype("default"); x.asnumpy()
x.wait_to_read(); x.grad; x.zero_grad(); mx.nd.from_dlpack(x.to_dlpack_for_read()); x.__array__()
memoryview(x); x.sum(); x.sum(dtype="float64"); x.expand_dims(0); x[:1].broadcast_to((4, 3))
x.mean(axis=0, keepdims=True); x.zeros_like(); x.norm(); x.topk(); x.one_hot(3); x.nothing; x()
own(x).add(x, x, out=own(x).zeros((2, 3))); own(x).exp(x, out=x); own(x).exp(x, out=x * 2)
own(x).array([x[0, 0], x[0, 1]]); own(x).array(x); own(x).array([x[0], x[1]]); np.array([x[0, 0]])
[isinstance(x, c) for c in (mx.nd.NDArray, mx.np.ndarray, np.ndarray)]; x.attach_grad(); x.detach()
x.backward()
"""


def own(x):
    """Return MXNet's module for arrays of the class of `x`."""
    return mx.np if isinstance(x, mx.np.ndarray) else mx.nd


#: What uses name.
NAMES = {"copy": copy, "pickle": pickle, "mx": mx, "np": np, "own": own, "HOST": HOST}


def use(text, x):
    """Run a statement; return its value if it is an expression."""
    names = {**NAMES, "x": x}
    try:
        code = compile(text, "use", "eval")
    except SyntaxError:
        exec(compile(text, "use", "exec"), names)
        return names["x"]
    return eval(code, names)


def content(value):
    """Return what can be compared of a result."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [content(each) for each in value]
    if isinstance(value, mx.nd.NDArray):
        values = value.asnumpy().tolist() if value.size else []
        return own(value).__name__, value.shape, str(value.dtype), values
    if isinstance(value, np.ndarray):
        values = list(map(content, value.ravel())) if value.dtype == object else value.tolist()
        return "host", value.shape, str(value.dtype), values
    if isinstance(value, memoryview):
        return "memoryview"
    return type(value).__name__, str(value)


def outcome(text, array):
    """Return the result, or the classes of the error; and the content of the array after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about arrays of another library
        try:
            return content(use(text, array)), content(array)
        except Exception as error:
            return [each.__name__ for each in type(error).__mro__], content(array)


@pytest.mark.parametrize("text", filter(None, USES.replace("\n", "; ").split("; ")))
def test_uses_of_lazy_arrays_are_those_of_plain_ones(front, text):
    double, array = cell(lambda F, x: x * 1), mx.np.array if front == "np" else mx.nd.array
    for mode in (autograd.pause, autograd.record):
        found = []
        for scope in (nullcontext(), gdb.batching(**FIXED)):
            with mode(), scope:
                found.append(outcome(text, double(array([[1, -2, 3.5], [4, 2, -6]]))))
        plain, lazy = found
        if isinstance(plain[0], list):
            assert plain[0][0] in lazy[0] and plain[1] == lazy[1]
        else:
            assert plain == lazy
