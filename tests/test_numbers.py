"""Calls that differ in a number share a launch."""

import operator as python_operator

import mxnet as mx
import numpy as np
import pytest

from gluon_dynbatch.record.constants import constant_number
from gluon_dynbatch.record.operators import SCALAR_OPERATORS
from gluon_dynbatch.record.types import TYPES
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import attached, cell
from tests.common import FIXED
from tests.depth import rotate
from tests.test_trace_once import FunctionBlock

CELL = cell(lambda F, x: F.tanh(x))


def drawn(shape=(2, 3), dtype="float32", ctx=None):
    """Return samples of an array and a number each."""
    arrays = [mx.nd.array(np.random.normal(size=shape), ctx, dtype) for _ in range(7)]
    return list(zip(attached(arrays), (np.random.rand(7) + 0.5).tolist()))


@pytest.mark.parametrize("name, dtype", rotate(SCALAR_OPERATORS, ["float32", "float64"]))
def test_calls_of_operators_that_differ_in_a_number_share_a_launch(name, dtype):
    is_numpy, shape = name.startswith("_npi_"), (np.random.randint(1, 4), 3)
    module = mx.nd.np._internal if is_numpy else mx.nd._internal
    operator = getattr(module, name[len("_npi_") :] if is_numpy else name)

    def fn(x, number):
        x = CELL(x) + 1.5
        return operator(x.as_np_ndarray() if is_numpy else x, scalar=number)

    with mx.util.np_shape(is_numpy):
        check_numbers(fn, shape, dtype)


def check_numbers(fn, shape, dtype):
    """Check that numbers that differ are operands, and are not kept."""

    for options in (FIXED, {**FIXED, "debug": True}, {"granularity": "graph"}, FIXED):
        batch = check_against_loop(fn, drawn(shape, dtype), **options)
    assert batch.report.launches == 3, "after the first scope, numbers are expected to differ"
    count = len(RUNTIME.library.operators)
    check_against_loop(fn, drawn(shape, dtype))
    assert len(RUNTIME.library.operators) == count, "numbers are not kept"


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("operator", ["add", "sub", "mul", "truediv", "pow", "mod"])
def test_pythons_operators_with_different_numbers_share_a_launch(operator, swapped):
    """A lazy array is either operand; the other is anything that MXNet accepts."""
    apply = getattr(python_operator, operator)

    def fn(x, other):
        h = CELL(x) + 1.5
        other = h * 2 if other is None else other
        return apply(other, h) if swapped else apply(h, other)

    others = [2, 0.5, True, np.float32(3), np.float64(0.75), mx.nd.full((2, 3), 1.25), None]
    for _ in range(2):
        samples = [(x, other) for (x, _), other in zip(drawn(), others)]
        check_against_loop(fn, samples, **FIXED)


def test_a_constant_number_is_an_attribute_of_the_operator():
    samples = [(x, 0.5) for x, _ in drawn()]
    for _ in range(2):
        batch = check_against_loop(
            lambda x, number: mx.nd._internal._plus_scalar(CELL(x) * number), samples, **FIXED
        )
    assert "out0 = mul(in0)" in str(batch.plan)


@pytest.mark.parametrize("ctx", [mx.cpu(), mx.cpu(1)])
def test_many_numbers_in_several_flushes_equal_the_loop(ctx, monkeypatch):
    inside.limit(monkeypatch, "elements of a small chunk", 3)

    def fn(x, number):
        for _ in range(2):
            x = CELL(x) * number
            number += float(x.sum().asscalar())
        return x * number

    for _ in range(2):
        check_against_loop(fn, drawn(ctx=ctx))


SCALED = cell(lambda F, x, number: F.tanh(x * number) + number)


@pytest.mark.parametrize("fn", [SCALED, lambda x, number: mx.nd.clip(CELL(x), 0, number)])
@pytest.mark.parametrize("numbers", [[2, -1, 2, -1, 0.0, -0.0, 2], np.arange(7.0).tolist()])
def test_numbers_that_stay_attributes_are_parts_of_a_launch(fn, numbers):
    samples = [(x, number) for (x, _), number in zip(drawn(), numbers)]
    batch = check_against_loop(lambda x, number: fn(x, number), samples, **FIXED)
    # In a block, `x + 0` is a sum of one array, as Python's `sum` makes it.
    assert batch.report.launches == (1 + (0 in numbers) if fn is SCALED else 2)


@pytest.mark.parametrize("debug", [False, True])
def test_in_traced_blocks_numbers_are_arguments(debug):
    net, samples = FunctionBlock(lambda block, x, number: block.net(x) * number, CELL), drawn()
    for known_calls in (0, 0 if debug else len(samples)):
        batch = check_against_loop(lambda x, n: net(x, n), samples, debug=debug)
        assert batch.report.traced.known == known_calls and not batch.report.traced.refused


def test_a_number_becomes_real_if_code_asks_for_its_handle():
    number = constant_number(2, TYPES.of(mx.nd.ones((3, 4))))
    assert mx.nd.broadcast_add(number, mx.nd.ones((2, 1))).asnumpy().tolist() == [[3], [3]]
    number[:] = 9
    assert number.asnumpy().tolist() == [[9]]
