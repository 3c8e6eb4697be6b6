"""Parts of parameters taken under ``record`` are recorded, and are what they are in the loop."""

import contextlib

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import cell, equal
from tests.common import FIXED, SCOPES, loop_and_scope, semantics
from tests.depth import examples

scaled = cell(lambda F, x, w: F.broadcast_mul(F.tanh(x), w))
#: The same by interface.
SCALED = {"nd": scaled, "np": lambda x, w: mx.np.tanh(w) * x}


def variables(*shapes, front="nd", grad_req="write"):
    """Return variables with values that all differ."""
    found = []
    for k, shape in enumerate(shapes):
        values = np.random.RandomState(k).uniform(-1, 1, shape).astype("float32")
        found.append(getattr(mx, front).array(values))
        found[-1].attach_grad(grad_req)
    return found


def trained(program, scope, *arrays, times=1):
    """Run a program under `record`, perhaps in a scope; return results, and gradients of arrays."""
    found = []
    for _ in range(times):
        with autograd.record(), scope():
            results = program()
        autograd.backward(results)
        found += [x.asnumpy() for x in [*results, *(array.grad for array in arrays)]]
    return found


def compare(program, *arrays, times=1, options=FIXED):
    """Compare a program under `record` with the loop; return the scope."""
    scopes = []

    def scope():
        scopes.append(gdb.batching(**options))
        return scopes[-1]

    wanted = trained(program, contextlib.nullcontext, *arrays, times=times)
    for array in arrays:
        array.grad[:] = 0
    equal(trained(program, scope, *arrays, times=times), wanted)
    return scopes[-1]


@st.composite
def parts(draw):
    """Draw a shape, and for each of three samples keys that follow each other."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    found = []
    for _ in range(3):
        keys, left = [], list(shape)
        for _ in range(draw(st.integers(1, 2))):
            key, sizes = [], left
            for axis in range(draw(st.integers(1, len(left)))):
                start = draw(st.integers(0, left[axis] - 1))
                if draw(st.booleans()):
                    key.append(draw(st.sampled_from([start, start - left[axis]])))
                    sizes = [*sizes[:axis], None, *sizes[axis + 1 :]]
                    continue
                stop = draw(st.integers(start + 1, left[axis] + 1))
                first = draw(st.sampled_from([start, start - left[axis]]))
                key.append(slice(first, stop))
                length = min(stop, left[axis]) - start
                sizes = [*sizes[:axis], length, *sizes[axis + 1 :]]
            if draw(st.booleans()):
                key.append(Ellipsis)
            keys.append(key[0] if len(key) == 1 else tuple(key))
            left = [size for size in sizes if size is not None]
            if not left:
                break
        found.append(keys)
    return shape, found


@pytest.mark.parametrize("front", ["nd", "np"])
@examples(30)
@given(drawn=parts(), grad_req=st.sampled_from(["write", "add"]), options=st.sampled_from(SCOPES))
def test_parts_have_values_and_gradients_of_the_loop(front, drawn, grad_req, options):
    shape, keys = drawn
    with semantics(front):
        (w,) = variables(shape, front=front, grad_req=grad_req)
        inputs = variables((1,), (1,), (1,), front=front)

        def program():
            results = []
            for x, chosen in zip(inputs, keys):
                part = w
                for key in chosen:
                    part = part[key]
                flat = part.reshape((-1,))
                results.append(SCALED[front](x, flat))
            return results

        compare(program, w, *inputs, times=2, options=options)


@pytest.mark.parametrize("front", ["nd", "np"])
def test_parts_are_taken_once_and_the_backward_pass_is_direct(front, nodes):
    with semantics(front):
        (w,), inputs = variables((5, 4), front=front), variables(*[(1, 4)] * 6, front=front)

        def program():
            rows = [[w[i : i + 1] for i in range(5)] for _ in inputs]
            return [SCALED[front](x, row[i % 3]) for i, (x, row) in enumerate(zip(inputs, rows))]

        batch = compare(program, w, *inputs)
    assert not nodes
    calls = 6 if front == "nd" else 12
    assert (batch.report.nodes, batch.report.launches) == (calls + 3, calls // 6 + 1)


def test_reading_a_part_computes_nothing_else():
    (w,), (x,) = variables((4, 3)), variables((1, 3))
    with autograd.record(), gdb.batching(**FIXED) as batch:
        before = scaled(x, w[1:2])
        for part in (w[1:2], w[1], w[1, 2:3], w[1:3][1]):
            values = part.asnumpy()
            with autograd.pause():
                np.testing.assert_array_equal(values, part.asnumpy())
        assert float(w[2, 1].asscalar()) == w.asnumpy()[2, 1]
        assert before.pending
    assert not batch.report.forced and len(batch.report.flushes) == 1


def test_a_part_that_was_read_still_gets_its_gradient():
    w, x = variables((4, 3), (1, 3))

    def program():
        part, row = w[1:2], w[2]
        first = scaled(x, part)
        assert part.asnumpy().shape == (1, 3) and row.asnumpy().shape == (3,)
        return [first, scaled(x, part), scaled(x, row), scaled(x, part[0])]

    compare(program, w, x, times=2)


@pytest.mark.parametrize("front", ["nd", "np"])
@pytest.mark.parametrize("shapes", [False, True])
def test_elements_have_the_shapes_of_the_loop(front, shapes):
    """Arrays of ``mx.np`` have elements without axes."""
    (w, v) = variables((3,), (2, 3), front=front)

    def program():
        parts = [w[1], w[-1], v[1, 2], v[1][0], w[0:1]]
        return [*parts, *(2 * part for part in parts)]

    with mx.util.np_shape(shapes):
        wanted = trained(program, contextlib.nullcontext, w, v)
        for array in (w, v):
            array.grad[:] = 0
        got = trained(program, lambda: gdb.batching(**FIXED), w, v)
    equal(got, wanted)
    assert [x.shape for x in got] == [x.shape for x in wanted]


@pytest.mark.parametrize("written", ["part", "row", "view", "variable"])
def test_parts_share_memory(written):
    """MXNet's own part has the memory of the variable, under `record`, too."""

    def run(scope):
        w, x = variables((4, 3), (1, 3))
        with autograd.record(), scope:
            part = w[1:3]
            first = scaled(x, part)
            target = {"part": part, "row": w[1], "view": part[0], "variable": w}[written]
            with autograd.pause():
                target[:] = 2
            results = [first, scaled(x, part), scaled(x, w[2:3])]
        kept = part.asnumpy()
        autograd.backward(results)
        # In the loop, the gradient of `x` is calculated from what was written.
        return [*results, kept, w, w.grad]

    loop_and_scope(run, **FIXED)


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_part_stays_what_it_is_if_its_array_becomes_another_variable(when):
    def run(scope):
        w, x = variables((4, 3), (1, 3))
        grad = w.grad
        results = []
        with autograd.record():
            with scope:
                part = w[1:2]
                if when == "before":
                    w.attach_grad()
                results.append(scaled(x, part))
                if when == "between":
                    w.attach_grad()
                results.append(scaled(x, part))
                results.append(scaled(x, w[1:3]))
            if when == "after":
                w.attach_grad()
            results.append(part * 3)
        autograd.backward(results)
        return [*results, grad, w.grad, x.grad]

    loop_and_scope(run, **FIXED)


def test_a_part_that_is_held_after_the_scope_is_a_view():
    def run(scope):
        w, x = variables((4, 3), (1, 3))
        with autograd.record(), scope:
            part, row = w[1:3], w[1]
            loss = scaled(x, part).sum()
        loss.backward(retain_graph=True)
        w -= w.grad
        with autograd.record():
            again = (part * row).sum()
        again.backward()
        return [loss, part, row, again, w.grad, x.grad]

    loop_and_scope(run, **FIXED)


@pytest.mark.parametrize("recorded", [False, True])
def test_parts_and_views_of_parts_outside_of_record(recorded):
    """A view that autograd does not record gets no gradient, nor does a call."""

    def run(scope):
        w, x = variables((4, 3), (1, 3))
        with autograd.record(), scope:
            part = w[1:3]
            with autograd.pause() if not recorded else contextlib.nullcontext():
                view, product = part[1:2], scaled(x, part)
                shape = part.reshape((3, 2))
            results = [scaled(x, view), x * product[:1], x * shape.reshape((2, 3))[0]]
            results.append(scaled(x, part.detach()))
            results.append(scaled(x, part.copy()))
        autograd.backward(results)
        return [*results, w.grad, x.grad]

    loop_and_scope(run, **FIXED)


def test_variables_without_gradients_and_operators_before_the_scope():
    """An array that MXNet has computed is an input of its tape."""

    def run(scope):
        w, v, x = variables((4, 3), (4, 3), (1, 3))
        w.attach_grad("null")
        with autograd.record():
            doubled = v * 2
            with scope:
                results = [scaled(x, w[1:2]), scaled(x, doubled[1:3]), scaled(x, doubled[2])]
        autograd.backward(results)
        return [*results, v.grad, x.grad]

    loop_and_scope(run, **FIXED)


def test_large_parts_and_parts_with_gaps_are_mxnets_own():
    (w, large), (x,) = variables((4, 3), (1100, 1000)), variables((1, 1))

    def program():
        return [scaled(x, w[:, 1:2]), scaled(x, w[::2]), scaled(x, large[1:1090])]

    assert type(w[1:2]) is mx.nd.NDArray
    compare(program, w, x)
    with autograd.record(), gdb.batching(**FIXED):
        assert type(large[1:1090]) is type(w[:, 1:2]) is mx.nd.NDArray
        with pytest.raises(IndexError):
            w[4]
        with autograd.pause():
            assert type(w[1:2]) is mx.nd.NDArray


class Choosing(gdb.DynamicHybridBlock):
    """Multiplies by rows of its own parameter, and of one that it gets."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.inner, self.scaled = None, scaled

    def forward(self, x, numbers, row):
        parts = [self.table.weight.data()[n : n + 1] for n in numbers]
        if self.inner is not None:
            row = self.inner(row * 2, numbers[1:], parts[0])
        for part in (*parts, self.table.weight.data()[1], row):
            x = self.scaled(x, part)
        return x


@pytest.mark.parametrize("options", [{}, {"debug": True}])
@pytest.mark.parametrize("nested", [False, True])
def test_known_calls_read_parts(options, nested):
    """A piece reads rows of the parameters that it finds."""
    net = Choosing()
    net.initialize(mx.init.Uniform(1))
    if nested:
        net.inner = Choosing()
        net.inner.table = net.table
        net.inner.hybridize(trace_once=True)
    net.hybridize(trace_once=True)
    inputs, (w,) = variables(*[(1, 3)] * 8), variables((6, 3))

    def program():
        return [net(x, (i % 2, 3), w[i % 3 : i % 3 + 1]) for i, x in enumerate(inputs)]

    arrays = [net.table.weight.data(), w]
    net.table.weight.data().attach_grad()
    batch = compare(program, *arrays, *inputs, times=2, options={**FIXED, **options})
    if not options:
        assert batch.report.traced.known >= 8 and not batch.report.traced.new


def test_samples_of_a_map_take_parts_and_read_values():
    def run(scope):
        w, *inputs = variables((4, 3), *[(1, 3)] * 5)

        def step(x):
            x = scaled(x, w[1:2])
            index = int(abs(x.sum().asscalar()) * 100) % 3
            return scaled(x, w[index : index + 1] * w[3])

        with autograd.record(), scope as batch:
            results = [step(x) for x in inputs] if batch is None else batch.map(step, inputs)
        autograd.backward(results)
        return [*results, w.grad, *(x.grad for x in inputs)]

    loop_and_scope(run, **FIXED)


#: Parts that may be heads: equal ones, and those that share rows.
HEAD_KEYS = [1, slice(1, 2), slice(0, 2), (1, slice(1, 3))]
HEADS = st.lists(st.sampled_from(HEAD_KEYS), min_size=1, max_size=4)


@pytest.mark.parametrize("front", ["nd", "np"])
@examples(30)
@given(drawn=HEADS, late=st.booleans(), read=st.booleans(), scope_options=st.sampled_from(SCOPES))
def test_parts_that_are_heads_have_gradients_of_their_own(front, drawn, late, read, scope_options):
    """Each adds to the gradient, in the scope and after it."""

    def run(scope):
        (w,) = variables((3, 4), front=front)
        with autograd.record():
            with scope:
                heads = [w[key] for key in drawn]
                if read:
                    heads[0].asnumpy()
                if not late:
                    autograd.backward(heads)
            if late:
                autograd.backward(heads)
        return [*heads, w.grad]

    loop_and_scope(run, **scope_options)
