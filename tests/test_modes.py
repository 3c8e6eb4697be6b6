"""Arrays get gradients as in the loop, in whatever mode they and their views were made."""

import contextlib
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import attached, cell, equal
from tests.common import FIXED, semantics
from tests.depth import examples

#: A product of one array and a number that depends on another one, which has any shape.
MIX = cell(
    lambda F, x, y: F.reshape_like(
        F.broadcast_mul(
            F.reshape(x, shape=(1, -1)), F.reshape(F.sum(F.tanh(y)), shape=(1, 1)) + 1.5
        ),
        x,
    )
)
NUMPY_MIX = cell(lambda F, x, y: x * (F.np.tanh(y).sum() + 1.5))
SQUARE = cell(lambda F, x: x * x * 0.5)


class Halves(gdb.DynamicHybridBlock):
    """Adds what it computes from two views, one of which is not recorded."""

    def forward(self, x, y):
        with autograd.pause():
            half = x[0:1]
        with autograd.record():
            whole = y.reshape((-1,))
        mix = NUMPY_MIX if mx.util.is_np_array() else MIX
        return mix(mix(whole, half), SQUARE(x)).reshape((1, -1))


TRACED = Halves(prefix="halves_")
TRACED.hybridize(trace_once=True)

MODES = {
    "record": autograd.record,
    "pause": autograd.pause,
    "predict": partial(autograd.record, False),
    "train": autograd.train_mode,
}
#: What makes an array of others, x and y, with arrays of `mx.nd`.
STEPS = {
    "call": lambda x, y: MIX(x, y),
    "square": lambda x, y: SQUARE(x),
    "operator": lambda x, y: x * 0.75,
    "traced": lambda x, y: TRACED(x, y),
    "slice": lambda x, y: x[0:1],
    "row": lambda x, y: x[-1],
    "column": lambda x, y: x.reshape((1, -1))[:, :1],
    "reshape": lambda x, y: x.reshape((-1, 1)),
    "flat": lambda x, y: x.reshape((-1,)),
    "expand": lambda x, y: x.expand_dims(0),
    "flatten": lambda x, y: x.flatten(),
    "turn": lambda x, y: x.reshape((1, -1)).T,
    "detach": lambda x, y: x.detach(),
    "same": lambda x, y: x.astype("float32", copy=False),
    "cast": lambda x, y: x.astype("float64").astype("float32"),
    "copy": lambda x, y: x.copy(),
    "stop": lambda x, y: mx.nd.BlockGrad(x),
    "other": lambda x, y: x.as_np_ndarray().as_nd_ndarray(),
    "read": lambda x, y: x * float(y.sum().asnumpy().ravel()[0] > 0),
    "hand out": lambda x, y: (x.wait_to_read(), x)[1],
    "pickle": lambda x, y: (y.handle, x)[1],
}
NUMPY_STEPS = {
    **STEPS,
    "call": lambda x, y: NUMPY_MIX(x, y),
    "row": lambda x, y: x[-1:],
    "column": lambda x, y: x.reshape(1, -1)[:, :1],
    "reshape": lambda x, y: x.reshape_view((-1, 1)),
    "flat": lambda x, y: x.reshape(-1),
    "expand": lambda x, y: x[None],
    "flatten": lambda x, y: x.flatten(),
    "turn": lambda x, y: x.reshape(1, -1).T,
    "stop": lambda x, y: mx.nd.BlockGrad(x.as_nd_ndarray()).as_np_ndarray(),
    "other": lambda x, y: x.as_nd_ndarray().as_np_ndarray(),
}

NUMBERS = st.integers(0, 30)
PROGRAMS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(sorted(MODES)), max_size=2),
        st.sampled_from(sorted(STEPS)),
        NUMBERS,
        NUMBERS,
    ),
    min_size=1,
    max_size=9,
)


def compute(program, steps, arrays):
    """Run a program on arrays; return the sum of what it computes."""
    pool = list(arrays)
    for modes, step, i, j in program:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(MODES[mode]())
            pool.append(steps[step](pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]))
    total = SQUARE(pool[0]).sum()
    for array in pool[1:]:
        total = total + SQUARE(array).sum()
    return total, pool[len(arrays) :]


def outcome(front, program, scope, in_map):
    make = mx.np.array if front == "np" else mx.nd.array
    steps = NUMPY_STEPS if front == "np" else STEPS
    values = np.random.RandomState(3).uniform(0.2, 1, (3, 2, 2)).astype(np.float32)
    variables = attached([make(x, dtype="float32") for x in values[:2]])
    with autograd.record(), scope:
        constant = make(values[2], dtype="float32")
        samples = [[*variables, constant], [constant, *variables]]
        run = partial(compute, program, steps)
        results = gdb.map(run, samples) if in_map else [run(sample) for sample in samples]
    autograd.backward([total for total, _ in results])
    arrays = [array for total, pool in results for array in (total, *pool)]
    gradients = [x.grad for x in variables]
    return [np.array(x.asnumpy()) for x in (*arrays, *gradients)]


@pytest.mark.parametrize("front", ["nd", "np"])
@examples(35)
@given(PROGRAMS, st.sampled_from([{}, {}, {"debug": True}]), st.booleans())
def test_views_and_calls_in_any_modes_get_the_gradients_of_the_loop(
    front, program, options, in_map
):
    """Of computed, pending, handed out and external arrays, and of constants."""
    with semantics(front):
        wanted = outcome(front, program, contextlib.nullcontext(), False)
        got = outcome(front, program, gdb.batching(**{**FIXED, **options}), in_map)
    equal(got, wanted, rtol=1e-4, atol=1e-4)


def test_detached_arrays_and_views_of_computed_arrays_are_lazy_too():
    """They share memory with their array, need no copy, and what reads them is recorded."""
    x = attached([mx.nd.array([[1, 2, 3, 4]])])[0]
    with autograd.record(), gdb.batching(**FIXED) as batch:
        kept, real = SQUARE(x), SQUARE(x)
        real.wait_to_read()
        later = SQUARE(x)
        batch.flush()
        with autograd.pause():
            arrays = [later.detach(), later[0:1], real.detach(), real[0:1], kept.detach()]
        calls = [SQUARE(a) for a in arrays]
        assert all(call.pending for call in calls)
    assert not batch.report.at_once
    autograd.backward([*calls, kept, later])
    equal([x.grad], [2 * x])
    with autograd.pause():
        later[0, 0] = 7
    assert [a[0, 0].asscalar() for a in arrays] == [7, 7, 0.5, 0.5, 0.5]


def test_a_piece_with_a_view_that_is_not_recorded_is_not_used_for_arrays_with_gradients():
    class Paused(gdb.DynamicHybridBlock):
        def forward(self, x):
            with autograd.record():
                return MIX(x[0:1], x)

    outcomes = []
    for scope in (contextlib.nullcontext(), gdb.batching(**FIXED)):
        net = Paused(prefix="paused_")
        net.hybridize(trace_once=True)
        x = attached([mx.nd.array([[1, 2], [3, 4]])])[0]
        with autograd.record(), scope:
            results = []
            for mode in (autograd.pause, autograd.record, autograd.pause):
                for array in (x * 1, SQUARE(x), SQUARE(x.detach()), x):
                    with mode():
                        results.append(net(array))
            total = mx.nd.add_n(*results).sum()
        total.backward()
        outcomes.append([*results, x.grad])
    equal(outcomes[1], outcomes[0])
