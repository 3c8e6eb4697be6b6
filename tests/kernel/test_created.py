"""Arrays that cells create by operators without inputs are computed by kernels, as MXNet's."""

from math import prod

import mxnet as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gluon_dynbatch.testing import check_against_loop
from tests.cells import cell
from tests.common import FIXED
from tests.depth import examples

EXTENT = st.integers(1, 6)
NUMBER = st.integers(-12, 12).map(lambda n: n / 4)
OPERATORS = {
    "zeros": st.fixed_dictionaries({"shape": st.tuples(EXTENT, EXTENT)}),
    "ones": st.fixed_dictionaries({"shape": st.tuples(EXTENT)}),
    "full": st.fixed_dictionaries({"shape": st.tuples(EXTENT, EXTENT), "val": NUMBER}),
    "arange": st.builds(
        lambda low, step, count, left_out, repeat: {
            "start": step * count if left_out else low,
            "stop": None if left_out else low + step * count,
            "step": step,
            "repeat": repeat,
        },
        NUMBER, NUMBER.filter(bool), st.integers(1, 7), st.booleans(), st.integers(1, 3),
    ),
    "linspace": st.fixed_dictionaries(
        {"start": NUMBER, "stop": NUMBER, "num": st.integers(2, 9), "endpoint": st.booleans()}
    ),
    "eye": st.fixed_dictionaries(
        {"N": st.integers(1, 9), "M": st.integers(0, 9), "k": st.integers(-4, 4)}
    ),
}  # fmt: skip
CREATED = st.sampled_from(sorted(OPERATORS)).flatmap(
    lambda op: st.tuples(st.just(op), OPERATORS[op])
)


def samples_of(size, dtype, heights):
    draw = np.random.RandomState(0).uniform
    samples = [mx.nd.array(draw(-1, 1, (height, size)), dtype=dtype) for height in heights]
    for sample in samples:
        sample.attach_grad()
    return samples


@examples(30)
@given(CREATED, st.sampled_from(["float32", "float64"]))
def test_created_arrays_equal_mxnet(created, dtype):
    op, attrs = created

    def make(F):
        return getattr(F, op)(**attrs, dtype=dtype)

    def combine(F, x):
        row = F.reshape(make(F), (1, -1))
        return F.broadcast_mul(x, row) + F.broadcast_add(x, row)

    samples = samples_of(prod(make(mx.nd).shape), dtype, (2, 1, 3))
    plan = check_against_loop(cell(combine), samples, **FIXED).plan
    assert [type(plan.kernels_of(launch.number)) for launch in plan.launches].count(str) == 0


def test_integers_are_created():
    def shifted(F, x):
        return F.broadcast_add(x, F.cast(F.arange(4, dtype="int32"), "float32"))

    net, samples = cell(shifted), samples_of(4, "float32", (2, 1))
    with mx.autograd.predict_mode():
        expected = [net(sample).asnumpy() for sample in samples]
    assert np.array_equal(expected[1], samples[1].asnumpy() + np.arange(4, dtype="float32"))
    check_against_loop(net, samples, **FIXED)


def test_cells_with_created_arrays_share_launches_between_sizes():
    def transformed(F, matrix, points):
        matrix = F.broadcast_add(matrix, F.expand_dims(F.eye(3), 0))
        return F.max(F.batch_dot(matrix, points), axis=2)

    draw = mx.nd.random.uniform
    samples = [(draw(shape=(1, 3, 3)), draw(shape=(1, 3, count))) for count in (4, 7, 2)]
    net = cell(transformed)
    batch = check_against_loop(lambda sample: net(*sample), samples, **FIXED)
    assert batch.report.launches == 1
