"""Every rule, in both layouts: merged calls equal the loop, and others are refused."""

from collections import Counter
from math import prod

import mxnet as mx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet.base import MXNetError

from gluon_dynbatch import rules
from tests.depth import DEEP, examples

from .all_cases import EVERY, EXTENTS, NAMES, draw
from .interpreter import Array, Checker, R, case

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False


ALL = [draw(*extents) for extents in EXTENTS]


def check_extents_of_one(c):
    """Other patterns may merge as well, and MXNet may refuse the call."""
    try:
        Checker(c).loop([2, 2])
    except MXNetError:
        return
    Checker(c).check(stack=False, rows=False)


def numbered():
    """Return each case with its number among the cases of its operator."""
    count = Counter()
    for number, c in enumerate(EVERY):
        count[c.op] += 1
        yield number, count[c.op]


@pytest.mark.parametrize("number, of_operator", numbered(), ids=NAMES)
def test_listed_cases_equal_the_loop_or_are_refused(number, of_operator):
    """The first case of an operator has all extents, later ones the first and one of the others."""
    first, other, ones = (cases[number] for cases in ALL)
    Checker(first).check(samples=3)
    if DEEP or of_operator == 1 or of_operator % 2:
        Checker(other, 1).check(samples=1)
    if DEEP or of_operator == 1 or not of_operator % 2:
        check_extents_of_one(ones)


def fits(shape, codes, reverse):
    symbol = mx.sym.Reshape(mx.sym.var("x"), shape=tuple(codes), reverse=reverse)
    try:
        reshaped = symbol.infer_shape(x=shape)[1][0]
    except MXNetError:
        return False
    # With some codes before -2, MXNet infers a wrong size, and reads past the end of the array.
    return prod(reshaped) == prod(shape)


@st.composite
def reshapes(draw):
    """Draw codes that consume a shape from the left, so that most of them are valid."""
    rest = shape = draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=4))
    codes = []
    while rest:
        code = draw(st.sampled_from([0, 0, -1, -2, -3, -4, rest[0], 1]))
        if code == -3 and len(rest) < 2 or code == -1 and -1 in codes:
            code = 0
        parts = [[-1, 1], [1, -1], [2, -1], [-1, 2]]
        codes += [code] + (draw(st.sampled_from(parts)) if code == -4 else [])
        rest = [] if code == -2 else rest[2 if code == -3 else 1 :]
    # MXNet reads beyond the shape if codes follow -2, as they do in reverse.
    reverse = draw(st.booleans()) and not {-4, -2} & set(codes)
    assume(all(fits((r, *shape[1:]), codes, reverse) for r in (1, 2, 3)))
    return case("Reshape", Array((R, *shape[1:])), shape=tuple(codes), reverse=reverse)


@st.composite
def broadcasts(draw):
    ndims = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    full = [draw(st.integers(2, 3)) for _ in range(max(ndims))]
    shapes = [[draw(st.sampled_from([n, 1])) for n in full[len(full) - k :]] for k in ndims]
    if ndims[0] == len(full):
        shapes[0][0] = R
        if ndims[1] == len(full):
            shapes[1][0] = draw(st.sampled_from([1, R]))
    op = draw(st.sampled_from(["broadcast_add", "broadcast_mul", "broadcast_maximum"]))
    return case(op, *(Array(tuple(s), "positive") for s in shapes))


@st.composite
def slopes(draw):
    """Draw a prelu whose slopes belong to one or both of the first two axes of the data."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    axes = draw(st.sampled_from([(0,), (1,), (0, 1)] if len(shape) > 1 else [(0,)]))
    if draw(st.booleans()):
        # The only axis of a vector of slopes is not rows, unless the data is a vector, too.
        shape[0] = R if len(axes) == len(shape[:2]) or axes == (1,) else 1
    slope = [draw(st.sampled_from([1, shape[axis]])) for axis in axes]
    return case("LeakyReLU", Array(tuple(shape)), Array(tuple(slope)), act_type="prelu")


@examples(30)
@given(reshapes() | broadcasts() | slopes())
def test_random_reshapes_broadcasts_and_slopes_equal_the_loop(c):
    # With a batch axis, MXNet's kernels may not support as many alternating axes.
    Checker(c).check(stack=max(len(a.shape) for a in c.inputs) < 4 or c.op == "Reshape", rows=False)


def test_every_rule_has_a_case_that_merges():
    assert {c.op for c in EVERY if c.rows} == {
        op for op, rule in rules.TABLE.items() if rule.rows is not None
    }
    assert {c.op for c in EVERY if c.stack} == set(rules.TABLE)
