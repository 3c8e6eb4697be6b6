"""Loops over parts of rows, such as the rows of each sample's matrix."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_dynbatch.kernel.layout import Columns, Order, Slot, parts_between
from gluon_dynbatch.kernel.step import Access, Instruction, Pointwise, Wanted
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, cell
from tests.depth import examples
from tests.kernel.native import launch

SIZES = st.integers(1, 9), st.sampled_from([2, 3, 16, 45]), st.sampled_from([2, 5, 16, 33, 700])
REDUCTIONS = {"sum": np.sum, "max": np.max, "prod": np.prod}


@examples(30)
@given(*SIZES, st.integers(0, 3), st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_all_ways_to_load_and_store_parts(rows, parts, width, gap, dtype, seed):
    """Rows are `gap` columns apart from each other, so that parts do not follow each other."""
    rng = np.random.default_rng(seed)
    arrays, loads, values = {}, [], []

    def load(columns, how, step, view, shared=False):
        """Load an array of some columns after the first; `view` makes parts of them."""
        slot, space = Slot("in", len(arrays)), 0 if shared else gap
        x = arrays[slot] = rng.uniform(0.5, 1, (1 if shared else rows, 1 + columns + space))
        x = arrays[slot] = x.astype(dtype)
        loads.append(Access(len(loads), Columns(slot, 1), how, step=step))
        values.append(np.broadcast_to(view(x[:, 1 : 1 + columns]), (rows, parts, width)))
        if shared:
            arrays[slot] = x[0]

    def cut(x):
        return x.reshape(-1, parts, width)

    for shared in (False, True):
        load(parts * width, "row", width, cut, shared)
        load(width, "row", 0, lambda x: x[:, None, :], shared)
        load(parts, "broadcast", 1, lambda x: x[:, :, None], shared)
        load(1, "broadcast", 0, lambda x: x[:, :, None], shared)
    order = Order(rng.permutation(parts * width).tolist())
    load(parts * width, order, 0, lambda x: cut(x[:, list(order)]))
    for step in (0, width):
        loads.append(Access(len(loads), None, "iota", 1.5, step))
        numbers = 1.5 + np.arange(width) + step * np.arange(parts)[:, None]
        values.append(np.broadcast_to(numbers, (rows, parts, width)))
    loads.append(Access(len(loads), None, "broadcast", 0.75))
    values.append(np.full((rows, parts, width), 0.75))
    stores, wanted = [], {}
    for register, value in enumerate(values):
        slot = Slot("out", register)
        arrays[slot] = np.full((rows, 2 + parts * width + gap), -7, dtype)
        stores.append(Access(register, Columns(slot, 2), "row", step=width))
        wanted[slot] = value.reshape(rows, -1)
    last = len(loads)
    for name, reduce in REDUCTIONS.items():
        slot = Slot(name, 0)
        arrays[slot] = np.full((rows, 2 + parts + gap), -7, dtype)
        stores.append(Access(last, Columns(slot, 2), name, step=1))
        wanted[slot] = reduce((values[0] * values[2]).astype(dtype).astype(np.float64), axis=2)
    product = Instruction("mul", last, (0, 2), ())
    step = Pointwise(width, np.dtype(dtype).name, last + 1, loads, [product], stores, parts)
    launch([step], arrays, rows)
    for slot, value in wanted.items():
        columns = slice(2, 2 + value.shape[1])
        exact = slot.kind in ("out", "max")
        np.testing.assert_allclose(arrays[slot][:, columns], value.astype(dtype),
                                   rtol=0 if exact else 1e-5 if dtype is np.float32 else 1e-12,
                                   atol=0)  # fmt: skip
        rest = np.delete(arrays[slot], range(2, 2 + value.shape[1]), axis=1)
        assert (rest == -7).all(), "a store writes its own columns only"


@given(st.integers(0, 99), st.integers(1, 99), st.integers(1, 9))
def test_columns_are_cut_at_parts(start, width, size):
    found = []
    for number, parts, first, columns in parts_between(start, width, size):
        assert first + columns <= size
        assert parts == 1 or (first, columns) == (0, size)
        found += [(number + part) * size + first + column
                  for part in range(parts) for column in range(columns)]  # fmt: skip
    assert found == list(range(start, start + width))


def attention(F, x, y):
    """Attend to the rows of a matrix, and normalize."""
    scores = F.softmax(F.dot(x, y, transpose_b=True), axis=-1)
    return F.L2Normalization(F.expand_dims(x + F.dot(scores, y), 2), mode="channel")


def pooled(F, x, y):
    """Weigh the rows of a matrix, compared with their mean."""
    u = F.broadcast_sub(x, F.mean(y, axis=0, keepdims=True))
    weights = F.softmax(F.sum(F.tanh(u), axis=1, keepdims=True), axis=0)
    return F.broadcast_mul(x, weights), F.max(u, axis=1), F.sum(u, axis=0)


def chosen(F, x, y):
    """Choose an element of each row, and divide by sums of rows."""
    best = F.pick(F.dot(x, y, transpose_b=True), F.argmax(y, axis=1), axis=1)
    return F.broadcast_div(F.broadcast_add(x, F.expand_dims(best, 1)), F.sum(y * y, 1, True) + 1)


@pytest.mark.parametrize("fn", [attention, pooled, chosen])
def test_kernels_have_equally_many_steps_for_all_heights(fn):
    """Of the kernels of one launch; its values and gradients are those of the loop."""
    net, heights = cell(fn), range(25, 46)
    samples = [
        tuple(attached([mx.nd.random.uniform(-1, 1, (height, 5)) for _ in range(2)]))
        for height in heights
    ]
    batch = check_against_loop(lambda sample: net(*sample), samples, granularity="operator")
    (launch,) = batch.plan.launches
    kernels = [k for k in batch.plan.kernels if not isinstance(k, str)]
    assert len(kernels) == len(heights)
    results = sum(slot.kind == "out" for slot in kernels[0].forward.arrays)
    wanted = Wanted(tuple(range(results)), (0, 1), ())
    for direction in ([k.forward for k in kernels], [k.backward(wanted) for k in kernels]):
        counts = {len(kernel.steps) for kernel in direction}
        assert len(counts) == 1, "each height takes other steps"
        assert max(counts) < 20
