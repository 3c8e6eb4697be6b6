"""Dynamic blocks with ``trace_once`` that make arrays from their arguments."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH
from tests.common import FIXED
from tests.depth import examples
from tests.inside import pieces_of
from tests.test_made_arrays import CREATED, SOURCES
from tests.test_trace_once import FunctionBlock, Node, scope, traced, x


def from_numbers(block, x, numbers):
    """Make an array per number; return one of them, too."""
    h = block.net(x)
    for number in numbers:
        h = h * mx.nd.array([[number] * WIDTH]) + mx.nd.full((1, WIDTH), number)
    last = mx.nd.array(numbers, dtype="float64")
    return h, last, last, mx.nd.arange(len(numbers) + 1)


def read(block, x, numbers):
    """Read and convert arrays that it makes: their values depend on the arguments."""
    made = mx.nd.array(numbers)
    assert made.astype("int32").dtype is np.int32 and mx.nd.ones(3).asnumpy().all()
    h = block.net(x) * made.asnumpy()[0] + made[1].copy() - made.astype("float32")[0:1]
    return (h if made[1].asscalar() > 1 else -h), made.astype("float64")


def from_numpy(block, x, values, node):
    part = mx.nd.array(values)[1:]
    return block.net(x) + part[0] + mx.nd.array([node.times] * WIDTH).reshape((1, -1))


def embedded(block, words):
    """Embed words one by one, as a program does that has them as numbers."""
    return [block.net(mx.nd.array([word], dtype="int32")) for word in words]


def embedding():
    net = nn.Embedding(10, WIDTH)
    net.initialize()
    net.hybridize()
    return FunctionBlock(embedded, net=net)


def passes(block, x, numbers):
    """Pass arrays that it makes, parts of them, and one array twice, to a traced block."""
    results = []
    for number in numbers:
        rows = mx.nd.array([[number] * WIDTH, [number + 1] * WIDTH])
        results.append(block.inner(block.net(x), rows[0:1], rows[1:2], rows))
        results.append(block.inner(rows[0:1], rows[0:1], mx.nd.ones((1, WIDTH)), rows))
        results.append(block.inner(rows[1:2], mx.nd.zeros((1, WIDTH)), rows[0:1], rows))
    return results


def combined(block, a, b, c, rows):
    return block.net(a) * b + c + mx.nd.zeros((1, WIDTH)) + mx.nd.ones((1, WIDTH)) + rows[0:1]


def outer():
    return traced(passes, inner=traced(combined))


def of_the_block(block, x):
    """Read an array of the block, which a scope has made, and parts of it."""
    return block.net(x) + block.rows[1:2] + block.row + block.rows.reshape((-1,))[:WIDTH]


def with_attributes():
    with gdb.batching(**FIXED):
        rows = mx.nd.array(np.arange(2 * WIDTH).reshape(2, -1))
        return traced(of_the_block, rows=rows, row=rows[0:1])


#: Functions that make a block, and a sample of it.
KEPT = {
    "numbers": (lambda: traced(from_numbers), lambda i: (x(i), [1, 2.5, i % 2])),
    "reads": (lambda: traced(read), lambda i: (x(i), [2, i % 2])),
    "NumPy": (lambda: traced(from_numpy), lambda i: (x(i), np.full((2, WIDTH), i % 2), Node(3))),
    "words": (embedding, lambda i: ([3, 1, i % 2],)),
    "arguments of other blocks": (outer, lambda i: (x(i), [i % 2, 5])),
    "attributes": (with_attributes, lambda i: (x(i),)),
}


@pytest.mark.parametrize("make, sample", KEPT.values(), ids=KEPT)
def test_calls_that_are_kept(make, sample):
    block, samples = make(), [sample(i) for i in range(6)]
    assert not scope(block, samples).refused
    for options in ({}, {"granularity": "operator"}):
        account = scope(block, samples, **options)
        assert (account.known, account.new, account.refused) == (6, 0, [])
    account = scope(block, samples, debug=True)
    assert account.known == 0 and not account.refused


MADE = {
    **CREATED,
    **{f"array of {name}": lambda source=source: mx.nd.array(source)
       for name, source in SOURCES.items()},
    "one_hot": lambda: mx.nd.one_hot(mx.nd.array([1, 0, 3]), 4),
    "dtype and device": lambda: mx.nd.array([1, 2], mx.cpu(1), "int32"),
}  # fmt: skip


def has_elements(make):
    """Whether a function makes an array that can be compared: one with axes and elements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(make().shape) and make().size > 0
        except Exception:
            return False


@pytest.mark.filterwarnings("ignore")  # of MXNet and NumPy, about some sources
def test_all_arrays_that_are_made_lazily_are_kept():
    kept, at_once = [], []
    with gdb.batching(**FIXED):
        for make in filter(has_elements, MADE.values()):
            (kept if isinstance(make(), LazyNDArray) else at_once).append(make)
    assert len(kept) > 40 and len(at_once) > 4
    block = traced(lambda block, x: (block.net(x), [make() for make in kept]))
    for known in (0, 2):
        account = scope(block, [(x(0),), (x(1),)])
        assert (account.known, account.refused) == (known or 1, [])
    for make in at_once:
        block = traced(lambda block, x, make=make: (block.net(x), make()))
        assert scope(block, [(x(0),)]).refused


def test_other_values_are_another_structure():
    block = traced(from_numbers)
    assert scope(block, [(x(), [1, 2]), (x(), [1, 3]), (x(1), [1, 2])]).new == 2
    assert scope(block, [(x(), [1, 2]), (x(), [1, 3])]).new == 0
    assert scope(block, [(x(), np.array([1, 2])), (x(), np.array([1, 3]))]).new == 2


@given(numbers=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=6))
@examples(8)
def test_arrays_made_outside_are_arguments(numbers):
    """Their values are no part of the structure."""
    block = outer()

    def fn(numbers):
        rows = [mx.nd.array([[number] * WIDTH]) for number in numbers]
        return [block(row, [1]) for row in rows], [block.inner(row, row, row, row) for row in rows]

    for _ in range(2):
        account = gdb.testing.check_against_loop(fn, numbers, **FIXED).report.traced
        assert not account.refused
    assert account.new == 0 or not any(numbers)


def test_zeros_and_ones_as_arguments_are_told_apart():
    """The block makes zeros, too, which its argument must not stand for."""
    block = traced(lambda block, a: block.net(a) + mx.nd.zeros((1, WIDTH)) + mx.nd.full((1, 1), 3))

    def fn(which):
        make = [mx.nd.zeros, mx.nd.ones, lambda shape: mx.nd.full(shape, 3)][which]
        return block(make((1, WIDTH)))

    for _ in range(2):
        account = gdb.testing.check_against_loop(fn, [0, 1, 2, 0, 1, 2], **FIXED).report.traced
    assert (account.known, account.refused) == (6, [])


def test_an_array_of_the_outer_run_is_no_constant_of_the_inner_one():
    made = []

    def run(block, x, number):
        made.append(mx.nd.array([[number] * WIDTH]))
        return block.inner(x)

    block = traced(run, inner=traced(lambda block, x: block.net(x) * made[-1]))
    samples = [(x(i), i % 2) for i in range(4)]
    refused = scope(block, samples).refused
    assert [(found.reason, found.calls) for found in refused] == [
        ("it reads an array that is neither an argument nor the block's own", 2)
    ]
    account = scope(block, samples)
    assert (account.known, account.refused) == (4, [])


def test_results_are_arrays_of_their_own():
    def run(block, x):
        made = mx.nd.array([1.0, 2])
        return block.net(x), made, made, mx.nd.ones(2)

    block = traced(run)
    with gdb.batching(**FIXED) as batch:
        results = [block(x()) for _ in range(3)]
        for number, (_, first, again, ones) in enumerate(results):
            assert first is again
            first[:] = number
            ones += number
    assert batch.report.traced.known == 2
    for number, (_, first, _, ones) in enumerate(results):
        assert first.asnumpy().tolist() == [number] * 2
        assert ones.asnumpy().tolist() == [number + 1] * 2


def test_arrays_are_made_in_the_current_context():
    block = FunctionBlock(lambda block, number: mx.nd.array([number]) * mx.nd.arange(2))
    for number in range(2):
        with gdb.batching(**FIXED), mx.cpu(number):
            assert block(3).context == mx.cpu(number)
            assert block(3).asnumpy().tolist() == [0, 3]


def test_debug_finds_values_that_do_not_depend_on_the_arguments():
    numbers = [1]
    block = traced(lambda block, x: block.net(x) * mx.nd.array(numbers))
    scope(block, [(x(),)])
    numbers[0] = 2
    with pytest.raises(gdb.MismatchError, match="other calls"):
        scope(block, [(x(),)], debug=True)


def test_gradients_flow_to_an_argument_that_was_made_in_the_scope():
    block = traced(lambda block, a: block.net(a) * mx.nd.array([[2.0]]))
    for _ in range(2):
        with autograd.record(), gdb.batching(**FIXED):
            made = [mx.nd.array([[i] * WIDTH]) for i in range(3)]
            for array in made[:2]:
                array.attach_grad()
            results = [block(array) for array in made]
        autograd.backward(results)
        wanted = 2 * block.net.weight.data().asnumpy().sum(axis=0)
        for array in made[:2]:
            np.testing.assert_allclose(array.grad.asnumpy(), [wanted], rtol=1e-5)
        assert made[2].grad is None


def test_pieces_count_the_values_that_they_hold():
    block = traced(lambda block, x, n: block.net(x) + mx.nd.array(np.full((n, 1), 1.0)))
    sizes = []
    for count in (1, 1001):
        before = pieces_of(block).bytes if sizes else 0
        scope(block, [(x(), count)])
        sizes.append(pieces_of(block).bytes - before)
    assert sizes[1] - sizes[0] >= 4 * 1000


def test_arguments_that_an_earlier_flush_computed_are_kept():
    """Their values are still in an arena; calls read them there, and get gradients from there."""
    block = traced(lambda block, x, y: (block.net(x) - y, y))

    def apply(reads):
        rows = [block.net(x(seed)) for seed in range(3)]
        if reads:
            rows[0].asnumpy()
        return [block(row, other) for row in rows for other in (row, rows[0], x(9))]

    for reads, counts in ((False, (3, 6)), (True, (3, 6)), (True, (0, 9))):
        params = block.collect_params()
        batch = check_against_loop(apply, [reads], params, **FIXED)
        traced_once = batch.report.traced
        assert (traced_once.new, traced_once.known) == counts
        assert not [found for found in batch.report.findings if found.kind == "unkept"]
