"""Arrays of booleans: masks that calls return and read merge as floats do, ragged ones too."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import cell, equal
from tests.common import semantics
from tests.depth import examples

mnp = mx.np
COPIES = cell(lambda F, arrays: [F.np.copy(a) for a in arrays])

#: Functions of numbers and masks of one shape with two axes, by what they return.
TO_MASK = [
    lambda x, y, a, b: x > 0.1,
    lambda x, y, a, b: x <= y,
    lambda x, y, a, b: mnp.isfinite(x),
    lambda x, y, a, b: x.astype("float64") != 0,
    lambda x, y, a, b: (x * 4).astype("int64") == 0,
    lambda x, y, a, b: a & b,
    lambda x, y, a, b: a | b,
    lambda x, y, a, b: a ^ b,
    lambda x, y, a, b: ~a,
    lambda x, y, a, b: mnp.logical_not(a),
    lambda x, y, a, b: a == b,
    lambda x, y, a, b: a != b,
    lambda x, y, a, b: a.copy(),
    lambda x, y, a, b: mnp.expand_dims(a, 0).reshape(a.shape),
    lambda x, y, a, b: mnp.concatenate([a, b], axis=1)[:, : a.shape[1]],
    lambda x, y, a, b: mnp.stack([a, b], axis=1)[:, 1],
    lambda x, y, a, b: mnp.concatenate([a[:, 1:], a[:, :1]], axis=1),
    lambda x, y, a, b: mnp.ones_like(a),
    lambda x, y, a, b: a == a.any(axis=1, keepdims=True),
    lambda x, y, a, b: b != b.all(axis=0),
]
TO_NUMBERS = [
    lambda x, y, a, b: mnp.where(a, x, y * 2),
    lambda x, y, a, b: x * a,
    lambda x, y, a, b: x - b.astype("float32"),
    lambda x, y, a, b: y * a.astype("float64").astype("float32"),
    lambda x, y, a, b: x * a.sum().astype("float32"),
    lambda x, y, a, b: x + a.sum(axis=1, keepdims=True) * 0.1,
    lambda x, y, a, b: y * b.mean(axis=0),
    lambda x, y, a, b: mnp.where(a.any(), x, y),
    lambda x, y, a, b: x * a.prod(axis=0),
    lambda x, y, a, b: x + 0.5 * y,
]


@st.composite
def programs(draw):
    """Draw steps: a function, and the numbers and masks that it reads, counted from the last."""
    steps = []
    for _ in range(draw(st.integers(2, 7))):
        fn = draw(st.sampled_from(TO_MASK * 2 + TO_NUMBERS * 3))
        steps.append((fn, [draw(st.integers(0, 3)) for _ in range(4)]))
    return [*steps, (TO_NUMBERS[0], [0, 1, 0, 0])]


def run_steps(steps, x, y):
    numbers, masks = [x, y], [x > 0, y > 0]
    for fn, reads in steps:
        operands = [(numbers, masks)[k > 1][-1 - at % 2] for k, at in enumerate(reads)]
        result = fn(*operands)
        (masks if result.dtype == np.bool_ else numbers).append(result)
    return masks[-1], numbers[-1]


def results(run, samples, **options):
    """Return masks, numbers and gradients, in a scope if there are options; and its report."""
    batch = gdb.batching(**options) if options else None
    for a in (a for sample in samples for a in sample):
        a.attach_grad()
    with autograd.record():
        if batch is None:
            found = [run(*COPIES(list(sample))) for sample in samples]
        else:
            with batch:
                found = [run(*COPIES(list(sample))) for sample in samples]
    autograd.backward([number for _, number in found])
    values = [a.asnumpy() for pair in found for a in pair]
    assert all(mask.dtype == np.bool_ for mask in values[::2])
    return values + [a.grad.asnumpy() for s in samples for a in s], batch and batch.report


def samples_of(lengths):
    rng = np.random.RandomState(len(lengths))
    draw = lambda n: mnp.array(rng.normal(size=(2, n)), dtype="float32")  # noqa: E731
    return [(draw(n), draw(n)) for n in lengths]


def compare(run, lengths, **options):
    """Compare with the loop, and return the number of launches."""
    samples = samples_of(lengths)
    wanted, _ = results(run, samples)
    got, report = results(run, samples, policy="depth", **options)
    equal(got, wanted)
    return report.launches


@examples(30)
@given(programs(), st.sampled_from(["operator", "block"]))
def test_programs_of_masks_equal_the_loop(steps, granularity):
    """And their samples need the launches of samples of one length."""
    with semantics("np"):
        run = partial(run_steps, steps)
        ragged = compare(run, (3, 4, 2, 3), granularity=granularity)
        assert ragged == compare(run, (3, 3, 3, 3), granularity=granularity)


def attend(x, y):
    """Attend where a mask from comparisons allows."""
    scores = mnp.dot(x.T, y)
    mask = (scores > -1) & (scores < 1)
    weights = mx.npx.softmax(mnp.where(mask, scores, mnp.zeros_like(scores) - 1e9))
    return mask, mnp.dot(y, weights)


def test_masks_with_two_ragged_axes_take_one_launch_per_call():
    with semantics("np"):
        assert compare(attend, (5, 2, 7, 3), granularity="operator") == 11


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shared_mask_is_read_in_each_launch(dtype):
    """One from outside the scope, which all samples select by."""
    with semantics("np"):
        mask = mnp.array([[True], [False]])

        def run(x, y):
            chosen = mnp.where(mask, x.astype(dtype), y.astype(dtype)).astype("float32")
            return x > 1, chosen * (x + mask)

        assert compare(run, (3, 1, 2), granularity="operator") <= 9


ADDED = {
    "two": lambda F, a, b: (a + b) + a,
    "list": lambda F, a, b: sum([a, b, a]),
    "sum": lambda F, a, b: (a + b).sum() + (a + b),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("granularity", ["operator", "block"])
def test_a_cell_adds_masks(name, granularity):
    """The sum of two is a mask, too."""
    with semantics("np"):
        add = cell(ADDED[name])
        run = lambda x, y: (add(x > 0, y > 0) != 0, x + y)  # noqa: E731
        assert compare(run, (3, 3), granularity=granularity)


def test_numbers_that_become_booleans_get_the_gradient_of_the_loop():
    """It is not the derivative, so MXNet's operators compute them where gradients are wanted."""
    with semantics("np"):

        def run(x, y):
            mask = mnp.floor(x).astype("bool")
            return mask, x * 2 + y * mask.astype("float32")

        lengths = (3, 1, 2)
        assert compare(run, lengths, granularity="operator") > 8
        with gdb.batching(granularity="operator", policy="depth") as batch:
            for sample in samples_of(lengths):
                run(*COPIES(list(sample)))
        assert batch.report.launches == 7 and not batch.report.split
