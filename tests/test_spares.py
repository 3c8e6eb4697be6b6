"""Arenas of small flushes are used again, but never while anything uses them."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import mxnet as mx
import pytest
from hypothesis import given
from mxnet import autograd

import gluon_dynbatch as gdb
from tests import inside
from tests.cells import WIDTH, array, equal, inputs, ready, unary
from tests.common import FIXED, by_mxnets_operators
from tests.depth import examples

#: What a program holds of a result, and what it reads of it later.
HOLDS = {
    "nothing": lambda x: None,
    "itself": lambda x: x,
    "a row": lambda x: x[0],
    "a part": lambda x: x[0:1, 1:3],
    "detached": lambda x: x.detach(),
    "reshaped": lambda x: x.reshape((-1,)),
    "a copy": lambda x: x.copy(),
    "values": lambda x: x.asnumpy(),
    "a number": lambda x: x[0, 0].asscalar(),
    "a view of memory": lambda x: mx.nd.from_dlpack(x.to_dlpack_for_read()),
}
#: Per flush: its input, what is held of its two results, and whether it ends the scope.
FLUSHES = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([*HOLDS]), st.sampled_from([*HOLDS]), st.booleans()
    ),
    min_size=3,
    max_size=12,
)


@given(FLUSHES)
@examples(60)
def test_what_is_held_keeps_its_values(flushes):
    """Whatever is held of earlier flushes with the same plan, and however it is held."""
    net, arrays, held, wanted = ready(unary()), inputs(4), [], []
    stated = gdb.batching(**FIXED)
    stated.__enter__()
    for number, first, second, ends in flushes:
        results = net(arrays[number]), net(arrays[number] + 1)
        results[0].wait_to_read()
        held += [HOLDS[first](results[0]), HOLDS[second](results[1])]
        del results
        wanted += [(number, 0, first), (number, 1, second)]
        if ends:
            stated.__exit__(None, None, None)
            stated = gdb.batching(**FIXED)
            stated.__enter__()
    stated.__exit__(None, None, None)
    for kept, (number, more, how) in zip(held, wanted):
        expected = HOLDS[how](net(arrays[number] + more))
        equal([kept] * (expected is not None), [expected] * (expected is not None))


def decode(net, x, steps):
    """Feed a cell with its own results, each of which is read."""
    for _ in range(steps):
        x = net(x)
        x[0, 0].asscalar()
    return x


def test_a_known_plan_allocates_no_arena(monkeypatch):
    """Two sets are in use in turns: each flush reads the results of the one before."""
    net, x = ready(unary()), array(1, WIDTH)
    allocated = inside.allocated_arenas(monkeypatch)
    with gdb.batching(**FIXED):
        decode(net, x, 4)
        before = len(allocated)
        result = decode(net, x, 20)
        assert len(allocated) == before
    equal([result], [decode(net, x, 20)])


def test_arenas_after_a_failure_are_new():
    """MXNet's engine keeps an error with what an operation was to write."""
    net, rows = ready(unary()), array(3, WIDTH)

    def chosen(*numbers):
        with gdb.batching(**FIXED):
            found = net(mx.nd.gather_nd(rows, mx.nd.array([numbers])))
            found.wait_to_read()
            return found.asnumpy()

    first = chosen(0, 2)
    with pytest.raises(IndexError):
        chosen(0, 7)
    for _ in range(3):
        equal([chosen(0, 2)], [first])


def test_spare_arenas_have_a_limit():
    """However many plans there are; and all are freed when asked."""
    net = ready(unary())
    for count in range(1, 41):
        with gdb.batching(**FIXED):
            net(array(200 * count, WIDTH)).wait_to_read()
        assert inside.bytes_of_spare_arenas() <= 8 << 20
    assert inside.bytes_of_spare_arenas() > 0
    inside.free_spare_arenas()
    assert inside.bytes_of_spare_arenas() == 0


def test_threads_share_a_plan():
    """Each has arenas of its own."""
    net, arrays = ready(unary()), inputs(4)

    def run(number):
        with gdb.batching(**FIXED):
            return [decode(net, arrays[(number + k) % 4], 1 + k % 3) for k in range(12)]

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(run, range(6))]
    for number, results in enumerate(found):
        equal(results, [decode(net, arrays[(number + k) % 4], 1 + k % 3) for k in range(12)])


@pytest.mark.parametrize("native", [True, False])
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=2, max_size=6))
@examples(20)
def test_backward_passes_read_what_their_flush_computed(native, minibatches):
    """However many flushes of the same plan come between a flush and its backward pass.

    Each minibatch has an input, and says whether its results become real at once, and whether its
    backward pass comes at once.
    """
    net, arrays = ready(unary()), inputs(4)
    found, wanted, later = [], [], []
    with contextlib.nullcontext() if native else by_mxnets_operators():
        for number, real, now in minibatches:
            x = arrays[number].copy()
            x.attach_grad()
            with autograd.record(), gdb.batching(**FIXED):
                hidden = net(net(x))
                hidden.wait_to_read()
                loss = net(hidden).sum()
            if real:
                loss.wait_to_read()
                loss = loss.real()
            del hidden
            (later.append if not now else autograd.backward)(loss)
            found.append(x)
        for loss in later:
            loss.backward()
        mx.nd.waitall()
    for number, _, _ in minibatches:
        x = arrays[number].copy()
        x.attach_grad()
        with autograd.record():
            loss = net(net(net(x))).sum()
        loss.backward()
        wanted.append(x.grad)
    equal([x.grad for x in found], wanted)
