"""Indices outside of a table, or that are not numbers, select the elements that MXNet selects."""

import numpy as np
import pytest
from mxnet import autograd, nd

import gluon_dynbatch as gdb
from tests.cells import cell

NOT_FINITE = [np.nan, np.inf, -np.inf]
INTEGERS = [-1, -8, 0, 6, 7, 9]
#: Numbers that do not fit into 32 or 64 bits, or that no float has.
LARGE = [2.0**31, -(2.0**31), 3e9, -3e9, 2.0**32 + 512, 1e10, 2.0**53, 1e20, -1e20]
INDICES = {
    "float16": [*NOT_FINITE, *INTEGERS, -0.5, 6.9, 2.7, 60000],
    "float32": [*NOT_FINITE, *INTEGERS, -0.5, 6.9, 2.7, *LARGE],
    "float64": [*NOT_FINITE, *INTEGERS, -0.5, 6.9, 2.7, *LARGE, 2.0**32 + 3, -(2.0**32) - 3],
    "int8": [*INTEGERS, 127, -128],
    "uint8": [0, 6, 7, 255],
    "int32": [*INTEGERS, 2**31 - 1, -(2**31)],
    "int64": [*INTEGERS, 2**31 + 3, 2**32 + 3, -(2**32) - 3, 2**53 + 1, 2**62 + 1, 2**63 - 1,
              -(2**63)],
}  # fmt: skip
SHAPE = (7, 3)


def embedding(F, i, x):
    return F.Embedding(i, x, input_dim=7, output_dim=3)


def one_hot(F, i, x):
    return F.broadcast_add(F.one_hot(i, depth=7), x)


def take(mode, axis=0):
    return lambda F, i, x: F.take(x, i, mode=mode, axis=axis)


def pick(mode):
    return lambda F, i, x: F.pick(x, i, mode=mode)


#: Functions of indices and a table, the shape of the table, and whether the samples share it.
CALLS = {
    "Embedding": (embedding, SHAPE, True),
    "one_hot": (one_hot, (1, 7), True),
    "take clip": (take("clip"), SHAPE, True),
    "take wrap": (take("wrap"), SHAPE, True),
    "take clip, columns": (take("clip", 1), SHAPE[::-1], True),
    "take wrap, columns": (take("wrap", 1), SHAPE[::-1], True),
    "take clip, own tables": (take("clip"), SHAPE, False),
    "take wrap, own tables": (take("wrap"), SHAPE, False),
    "take clip, own columns": (take("clip", 1), SHAPE[::-1], False),
    "take wrap, own columns": (take("wrap", 1), SHAPE[::-1], False),
    "pick clip": (pick("clip"), (7,), False),
    "pick wrap": (pick("wrap"), (7,), False),
}


def run(net, indices, tables, **scope):
    """Return values, and gradients of the tables, of three calls in a scope or in a loop."""
    for table in tables:
        table.attach_grad()
    own = len({id(table) for table in tables}) > 1
    with autograd.record():
        # Results are not variables, so these can be tables of the samples.
        read = [table * 1 if own else table for table in tables]
        if scope:
            with gdb.batching(analysis_budget=None, **scope) as batch:
                results = list(map(net, indices, read))
            assert batch.report.launches == 1
        else:
            results = list(map(net, indices, read))
    autograd.backward(results)
    return [a.asnumpy() for a in (*results, *(table.grad for table in tables))]


@pytest.mark.parametrize("dtype", INDICES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_indices_select_what_they_select_in_mxnet(name, dtype):
    fn, shape, shared = CALLS[name]
    values = np.array(INDICES[dtype], dtype=dtype)
    shape = (len(values), *shape) if name.startswith("pick") else shape
    indices = [nd.array(np.roll(values, k), dtype=dtype) for k in range(3)]
    tables = [nd.array(np.arange(np.prod(shape)).reshape(shape) + 100 * k) for k in range(3)]
    tables = tables[:1] * 3 if shared else tables
    got = run(cell(fn), indices, tables, granularity="block", policy="depth")
    wanted = run(cell(fn), indices, tables)
    # MXNet's gradients of `take` use 32 bits of an index.  In tables of the samples, and along
    # other axes than 0, the gradient goes to what was read.
    for a, b in list(zip(got, wanted))[: 3 if "," in name else None]:
        np.testing.assert_array_equal(a, b)
