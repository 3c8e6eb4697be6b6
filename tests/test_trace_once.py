"""Dynamic blocks with ``trace_once``: calls that are kept as pieces give the loop's results."""

import collections
import copy
import gc
import random
import sys
import weakref

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.native.recording import Place
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, TreeNet, array, attached, dense, make_cells
from tests.common import FIXED, SCOPES, named_lines
from tests.depth import examples
from tests.inside import limit_pieces, pieces_of
from tests.strategies import PROGRAMS


class FunctionBlock(gdb.DynamicHybridBlock):
    """A dynamic block that applies a function; `RUNS` lists the names of those that have run."""

    def __init__(self, fn, net=None, **attributes):
        super().__init__(prefix="function_")
        self._fn = fn
        if net is not None:
            self.net = net
        for name, value in attributes.items():
            setattr(self, name, value)
        self.hybridize(trace_once=True)

    def forward(self, *args):
        RUNS.append(self.name)
        return self._fn(self, *args)


RUNS = []


def traced(fn, **attributes):
    return FunctionBlock(fn, dense(WIDTH, flatten=False), **attributes)


def chain(block, x, times=1):
    for _ in range(times):
        x = block.net(x)
    return x


def scope(block, samples, **options):
    params, options = block.collect_params(), {**FIXED, **options}
    return check_against_loop(lambda s: block(*s), samples, params, **options).report.traced


def x(seed=0, rows=1):
    return array(rows, WIDTH, seed=seed)


@pytest.mark.parametrize("options", SCOPES)
@given(program=PROGRAMS)
@examples(3)
def test_random_programs_equal_the_loop_when_traced_and_when_known(program, options):
    """With ``debug=True``, the program is known from a scope without it."""
    block = FunctionBlock(lambda block, sample: program.fn(sample), program.block)
    try:
        for scope_options in (FIXED if options.get("debug") else options, options, options):
            batch = check_against_loop(block, program.samples, program.params, **scope_options)
        account = batch.report.traced
        assert account.known + account.new + sum(r.calls for r in account.refused)
    finally:
        program.block.hybridize()


TREES = st.recursive(
    st.just([]), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=4
)


@given(trees=st.lists(TREES, min_size=1, max_size=5))
@examples(8)
def test_each_tree_is_traced_once_with_its_subtrees(trees):
    net = TreeNet(make_cells().child_sum)
    net.hybridize(trace_once=True)
    samples = [(tree, x(i)) for i, tree in enumerate(trees)]
    first, again = scope(net, samples), scope(net, samples)
    assert not first.refused and not again.refused
    assert again.new == 0 and again.known == len(trees)


# Calls that are kept


def recursive(block, x, depth):
    """Call a closure that calls itself, and so holds arrays until it is collected."""
    first = block.net(x)

    def descend(depth):
        return block.net(descend(depth - 1) + first) if depth else first

    return descend(depth)


def test_calls_with_closures_are_kept_during_garbage_collections():
    block, thresholds = traced(recursive), gc.get_threshold()
    gc.set_threshold(5, 1, 1000)
    try:
        account = scope(block, [(x(), 3), (x(), 3)])
    finally:
        gc.set_threshold(*thresholds)
    assert (account.new, account.known, account.refused) == (1, 1, [])
    # A collection may come at the first instruction, which may belong to no line.
    assert Place(recursive.__code__, 0).where.line > 0


def test_only_equal_structures_share_a_piece():
    block = traced(chain)
    assert scope(block, [(x(1), 2), (x(2), 2), (x(3), 3), (x(4), 2)]).new == 2
    assert scope(block, [(x(5), 3), (x(6), 2)]).new == 0
    assert scope(block, [(x(5, 2), 2)]).new == 1  # another shape
    assert scope(block, [(x(5, 2), True)]).new == 1  # an equal number of another type


def test_the_order_of_ordered_dictionaries_matters():
    block = traced(lambda block, x, scales: block.net(x) * next(iter(scales.values())))
    scales = collections.OrderedDict(a=1.0, b=2.0)
    for first in "ab":
        scales.move_to_end(first, last=False)
        assert scope(block, [(x(), scales)]).new == 1


class Node:
    def __init__(self, times, array=None):
        self.times, self.array = times, array


def views(block, rows, at):
    h = block.net(rows[0:1])
    for i in range(1, at):
        h = block.net(rows[i : i + 1] + h)
    return h[0], block.net(rows)[1:2], block.net(rows[0:2][1:2])


def switching(block, x):
    with autograd.pause():
        h = block.net(x)
    return block.net(h)


def unrolled(block, x, times):
    """Stock cells count their calls, which changes no result."""
    states = block.cell.begin_state(1)
    for _ in range(times):
        x, states = block.cell(x, states)
    return x


def stock_cell():
    cell = rnn.LSTMCell(WIDTH, input_size=WIDTH)
    cell.initialize()
    return FunctionBlock(unrolled, cell=cell)


def outer(block, x):
    return block.inner(block.net(x)[1:3], block.net(x))


def nested():
    return traced(outer, inner=traced(lambda block, a, b: block.net(a) - b[0:1]))


def sides(block, rows, same):
    """Pass parts of one result and zeros, or parts of two results and ones, to a block."""
    h = block.net(rows)
    second, constant = (h, mx.nd.zeros) if same else (block.net(h), mx.nd.ones)
    return block.inner(h[0:1], second[1:2], constant((1, WIDTH)))


def joined():
    return traced(sides, inner=traced(lambda block, a, b, more: block.net(a + more) + b * a))


def computed(array):
    """Return a lazy array that has been computed."""
    with gdb.batching(**FIXED):
        lazy = dense(WIDTH)(array)
    assert lazy.handle
    return lazy


#: Functions that make a block, and a sample of it.
KEPT = {
    "views of arrays and of results": (lambda: traced(views), lambda i: (x(i, 4), 3)),
    "views of variables": (lambda: traced(views), lambda i: (*attached([x(i, 4)]), 3)),
    "arrays of an earlier scope": (lambda: traced(views), lambda i: (computed(x(i, 4)), 3)),
    "arrays within objects": (
        lambda: traced(lambda block, node: chain(block, node.array, node.times)),
        lambda i: (Node(2, x(i)),),
    ),
    "results of other calls": (nested, lambda i: (x(i, 4),)),
    "parts of a result, and constants": (joined, lambda i: (x(i, 4), i % 2 == 0)),
    "a mode that forward switches": (lambda: traced(switching), lambda i: (x(i),)),
    "stock cells": (stock_cell, lambda i: (x(i), 1 + i % 2)),
}


@pytest.mark.parametrize("make, sample", KEPT.values(), ids=KEPT)
def test_calls_that_are_kept(make, sample):
    block, samples = make(), [sample(i) for i in range(4)]
    assert not scope(block, samples).refused
    account = scope(block, samples)
    assert (account.known, account.refused) == (4, [])


def test_constants_parameters_and_arrays_of_the_block():
    def use(block, x):
        state = mx.nd.zeros((1, WIDTH))
        weight = block.net.weight.data()
        product = mx.nd.FullyConnected(block.net(x), weight, no_bias=True, num_hidden=WIDTH)
        return block.net(state) + product * block.mask, mx.nd.ones((1, 2)), state, state

    block = traced(use, mask=x(9))
    samples = [(x(i),) for i in range(3)]
    assert not scope(block, samples).refused
    block.net.weight.set_data(2 * block.net.weight.data())
    block.mask[:] = 3
    account = scope(block, samples)
    assert (account.new, account.known) == (0, 3)


def test_constants_are_created_in_the_current_context():
    block, sample = traced(lambda block, x: (block.net(x), mx.nd.zeros((1, 2)))), x()
    for number in range(2):
        with gdb.batching(**FIXED), mx.cpu(number):
            assert block(sample)[1].context == mx.cpu(number)


def test_results_may_be_arguments_and_share_memory_as_in_the_loop():
    """Each constant is an array of its own."""

    def cut(block, a, b):
        h = block.net(a)
        shared = {"b": b, "h": [h, (h, h[0])], "a": a}
        zeros = [mx.nd.zeros((1, 2)) for _ in range(2)]
        return shared, h.reshape((WIDTH,)), h.expand_dims(0), zeros

    block = traced(cut)
    with gdb.batching(**FIXED) as batch:
        for i in range(2):
            a, b = x(i), block.net(x(i))
            shared, flat, copied, (first, second) = block(a, b)
            assert shared["a"] is a and shared["b"] is b
            h, (again, row) = shared["h"]
            assert h is again
            first[:] = h[:] = 7
            assert first.asnumpy().all() and not second.asnumpy().any()
            assert (row.asnumpy() == 7).all() and (flat.asnumpy() == 7).all()
            assert (copied.asnumpy() != 7).all()
    assert batch.report.traced.known == 1


def test_each_mode_is_traced():
    block = traced(lambda block, x: mx.nd.Dropout(block.net(x), p=0.5))
    for _ in range(2):
        with gdb.batching(**FIXED):
            quiet = [block(x()) for _ in range(3)]
        with autograd.record(), gdb.batching(**FIXED) as batch:
            noisy = [block(x()) for _ in range(3)]
        assert all((q.asnumpy() != 0).all() for q in quiet)
        assert len({n.asnumpy().tobytes() for n in noisy}) > 1
    assert (batch.report.traced.new, batch.report.traced.known) == (0, 3)


def test_calls_of_pieces_keep_the_lines_of_the_user():
    block = traced(chain)
    with gdb.batching(**FIXED) as batch:
        for _ in range(2):
            block(x(), 2)
            random.random(), np.random.uniform()  # only draws in forward matter
        first, _, third, _ = map(STATE.recorder.tape.place, range(4))
    assert batch.report.traced.known == 1
    assert first == third and "x = block.net(x)" in named_lines(str(third.where))[0]


def test_debug_accepts_a_constant_of_another_scope():
    block = traced(lambda block, x: (block.net(x), mx.nd.zeros((1, WIDTH))))
    for debug in (False, True, True):
        with gdb.batching(**FIXED, debug=debug):
            zeros = block(x())[1]
        assert (zeros.asnumpy() == 0).all()


def test_pieces_belong_to_one_block_and_are_off_by_default():
    block = FunctionBlock(chain)
    copied = copy.deepcopy(block)
    assert pieces_of(copied) is not pieces_of(block) and len(pieces_of(copied)) == 0
    block = traced(chain)
    block.hybridize()
    assert pieces_of(block) is None and scope(block, [(x(), 1)] * 2).new == 0


def test_pieces_have_a_limit_in_bytes_and_hold_no_arrays():
    block = traced(chain)
    limit_pieces(block, 20_000)
    scope(block, [(x(), n) for n in range(40) for _ in range(2)])
    assert 0 < len(pieces_of(block)) < 40 and pieces_of(block).bytes <= 20_000
    assert scope(block, [(x(), 39)]).known == 1
    assert scope(block, [(x(), 0)]).new == 1
    with gdb.batching(**FIXED):
        result = block(x())
    reference = weakref.ref(result)
    del result
    assert reference() is None


def test_former_arrays_of_a_block_are_freed():
    block = traced(lambda block, x: block.net(x) + block.mask, mask=x(9))
    first = block.mask
    scope(block, [(x(),)])
    for number in range(4):
        block.mask = x(number)
        assert scope(block, [(x(),)]).new == 1
    assert sys.getrefcount(first) == sys.getrefcount(x())  # keys hold no arrays


# Runs within and beside other runs


def test_a_forward_that_waits_while_others_run():
    """Some samples wait until all others have been recorded and computed."""

    def wait(block, x, waits):
        h = block.net(x)
        if waits and float(block.inner(h, 1).asnumpy().sum()) > 100:
            return h
        return block.inner(h, 2)

    block = traced(wait, inner=traced(chain))
    samples = [(x(i), i % 3 == 0) for i in range(6)]
    for _ in range(3):
        account = scope(block, samples)
    assert account.known >= 4


def beyond(held):
    """Return a function that reads its last argument, or else the last array of `held`."""
    return lambda block, x, *more: block.net(x) + (more or held)[-1]


@pytest.mark.parametrize("is_argument", [False, True])
def test_an_array_of_the_outer_run(is_argument):
    """An inner run that reads it, but not as an argument, is not kept; the outer run is."""
    held = []

    def outer(block, x):
        held.append(block.net(x))
        more = held if is_argument else ()
        try:
            return block.inner(block.net(x), *more) * held[-1]
        finally:
            held.clear()

    block = traced(outer, inner=traced(beyond(held)))
    samples = [(x(i),) for i in range(3)]
    first, again = scope(block, samples), scope(block, samples)
    assert (again.known, again.new) == (3, 0)
    assert ("another sample" in str(first.refused)) == (not is_argument)


def test_an_array_that_was_recorded_before_the_run():
    """A run that reads it, or passes it to an inner run, is not kept, but needs no flush."""
    held = []
    inner = traced(lambda block, x, y: block.net(x) + y)
    for read in (beyond(held), lambda block, x: block.inner(block.net(x), held[-1])):
        block = traced(read, inner=inner)

        def program(sample, block=block):
            held.append(block.net(sample))
            return block(sample), held.pop().detach()

        for _ in range(2):
            report = check_against_loop(program, [x(i) for i in range(3)], **FIXED).report
        assert "another sample" in str(report.traced.refused) and len(report.flushes) == 1


#: What a block makes of an argument of two rows, before it calls a dense layer.
PARTS = {
    "slice": lambda b, s: s[0:1],
    "row": lambda b, s: s[1].reshape((1, WIDTH)),
    "row, keyword": lambda b, s: s[-1].reshape(shape=(1, -1)),
    "part of a slice": lambda b, s: s[0:2][1:2],
    "steps": lambda b, s: s[::2],
    "columns": lambda b, s: mx.nd.concat(s[:, 1:], s[:, 0:1], dim=1),
    "part of a reshaped array": lambda b, s: s.reshape((-1,))[WIDTH : 2 * WIDTH].reshape((1, -1)),
    "slice_axis": lambda b, s: mx.nd.slice_axis(s, axis=0, begin=0, end=1),
    "method": lambda b, s: s.slice_axis(axis=0, begin=1, end=2),
    "expand_dims": lambda b, s: s[1].expand_dims(0),
    "rows": lambda b, s: mx.nd.stack(*[row for row in s]),
    "arithmetic": lambda b, s: 2 * s + 1,
    "zeros": lambda b, s: s + mx.nd.zeros((3, WIDTH))[1:3],
    "ones": lambda b, s: s[0:1] * mx.nd.ones((WIDTH,)).reshape((1, -1)),
    "parameter": lambda b, s: s + b.net.weight.data()[1].reshape((1, WIDTH)).broadcast_to(s.shape),
    "lookup": lambda b, s: mx.nd.take(b.net.weight.data(), s.argmax(axis=1)),
}
#: How the argument is made, with another number for each sample.
ARGUMENTS = {
    "array": lambda i: array(2, WIDTH, seed=i),
    "zeros": lambda i: mx.nd.zeros((2, WIDTH)),
    "ones": lambda i: mx.nd.ones((2, WIDTH)),
    "part of zeros": lambda i: mx.nd.zeros((4, WIDTH))[i % 2 : i % 2 + 2],
    "full": lambda i: mx.nd.full((2, WIDTH), i / 8),
    "arange": lambda i: mx.nd.arange(i, i + 2 * WIDTH).reshape((2, WIDTH)) / 9,
    "lazy": lambda i: array(2, WIDTH, seed=i) + mx.nd.zeros((2, WIDTH)),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_parts_of_arguments_and_operators_on_them_are_kept(argument):
    """The scope with ``debug=True`` also compares the calls."""

    def uses(part):
        return traced(lambda block, s: block.net(part(block, s)))

    blocks = [uses(part) for part in PARTS.values()]
    params = [p for block in blocks for p in block.collect_params().values()]
    make, numbers = ARGUMENTS[argument], list(range(4))

    def made_in_scope(number):
        return [block(make(number)) for block in blocks]

    def made_before(argument):
        return [block(argument) for block in blocks]

    calls = len(numbers) * len(blocks)
    for options in ({}, {}, {"debug": True}):
        batch = check_against_loop(made_in_scope, numbers, params, **FIXED, **options)
        account = batch.report.traced
        assert (account.known + account.new, account.refused) == (calls, [])
    assert account.new == calls
    for known in (len(blocks), calls):
        samples = [make(number) for number in numbers]
        account = check_against_loop(made_before, samples, params, **FIXED).report.traced
        assert account.known >= known and not account.refused
