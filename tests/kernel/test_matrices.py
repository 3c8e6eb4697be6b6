"""Cells of matrices with few and many rows per sample, drawn at random, against the loop."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import HybridBlock, nn

from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, cell
from tests.common import semantics
from tests.depth import examples

#: Up to 4 rows are added up one by one, up to 16 rows of two matrices are copied one by one, and
#: more of them otherwise.
ROWS = st.sampled_from([1, 2, 3, 4, 5, 16, 17, 33])
WIDTHS = st.sampled_from([1, 3, 4])
UNARY = ("tanh", "sigmoid", "square")

NAMES = ("dense", "dense", "concat", "times", "attend", "mean", "across", "less", "normed")
NAMES += ("halved", "pick", "unary")


class Drawn(HybridBlock):
    """Runs the steps of a program on matrices of equal height; each step appends a matrix."""

    def __init__(self, widths, steps):
        super().__init__()
        self._steps, widths = [], list(widths)
        for name, first, second, number in steps:
            first, second = first % len(widths), second % len(widths)
            width = widths[first]
            if name == "dense":
                self.register_child(nn.Dense(number, in_units=width, flatten=False))
                width = number
            elif name == "concat":
                width += widths[second]
            elif name == "attend":
                width = widths[second]
            elif name == "mean":
                width = 1
            elif name == "normed" and width > 1:
                # Where a row has nearly equal elements, a small epsilon would multiply rounding.
                self.register_child(nn.LayerNorm(epsilon=0.1, in_channels=width))
            elif name == "halved" and width % 2 == 0:
                number = width
            elif name in ("normed", "halved"):
                name = "unary"
            widths.append(width)
            self._steps.append((name, first, second, number))

    def hybrid_forward(self, F, *matrices):
        """Return the sum over the rows of each matrix."""
        matrices, layers = list(matrices), iter(self._children.values())
        for name, first, second, number in self._steps:
            x, y = matrices[first], matrices[second]
            if name == "dense":
                x = next(layers)(x)
            elif name == "concat":
                x = F.concat(x, y, dim=1)
            elif name == "mean":
                x = F.mean(x, axis=1, keepdims=True)
            elif name == "across":
                x = F.broadcast_mul(F.softmax(x, axis=0), F.mean(y, axis=(0, 1), keepdims=True))
            elif name == "less":
                x = F.broadcast_sub(x, F.max(x, axis=0, keepdims=True))
            elif name == "normed":
                x = next(layers)(x)
            elif name == "halved":
                x = F.reshape(F.softmax(F.reshape(x, (-1, 2))), (-1, number))
            elif name == "pick":
                largest = F.pick(y, F.argmax(y, axis=1), axis=1)
                x = F.broadcast_add(x, F.expand_dims(largest, 1))
            elif name == "times":
                x = F.broadcast_mul(x, F.mean(y, axis=1, keepdims=True))
            elif name == "attend":
                x = F.dot(F.softmax(F.dot(x, F.transpose(x)), axis=1), y)
            else:
                x = getattr(F, UNARY[number % len(UNARY)])(x)
            matrices.append(x)
        return [F.sum(x, axis=0, keepdims=True) for x in matrices]


STEPS = st.tuples(
    st.sampled_from(NAMES),
    *(st.integers(0, 9),) * 2,
    st.integers(1, 4),
)


@examples(20)
@given(
    st.lists(WIDTHS, min_size=1, max_size=3),
    st.lists(STEPS, min_size=1, max_size=6),
    st.lists(ROWS, min_size=1, max_size=2),
    st.integers(0, 9),
)
def test_values_and_gradients_are_those_of_the_loop(widths, steps, heights, seed):
    """Of samples of which some have equally many rows."""
    mx.random.seed(seed)
    random = np.random.RandomState(seed)
    net = Drawn(widths, steps)
    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    samples = [
        tuple(attached([mx.nd.array(random.uniform(-1, 1, (height, w))) for w in widths]))
        for height in heights
        for _ in range(2)
    ]
    batch = check_against_loop(
        lambda sample: net(*sample), samples, net.collect_params(), granularity="operator"
    )
    assert not batch.report.alone


def test_an_index_of_a_column_that_is_repeated_equals_the_loop():
    """The largest of a single column, as an index into it."""
    for height in (1, 3, 16, 33):
        net = Drawn([4], [("mean", 0, 0, 1), ("pick", 0, 1, 1)])
        net.hybridize()
        samples = attached([mx.nd.random.uniform(-1, 1, (height, 4)) for _ in range(3)])
        check_against_loop(net, samples, granularity="operator")


def test_an_operand_that_is_also_part_of_a_concatenation_gets_its_gradient():
    """Its gradient with respect to a matrix reads each of its rows, not those of the copy."""
    steps = [("concat", 0, 1, 1), ("dense", 2, 0, 4), ("dense", 0, 0, 4), ("times", 3, 4, 1)]
    for height in (16, 17, 30):
        net = Drawn([4, 1], steps)
        net.initialize(mx.init.Uniform(0.5))
        net.hybridize()
        samples = [
            tuple(mx.nd.random.uniform(-1, 1, (height, width)) for width in (4, 1))
            for _ in range(2)
        ]
        check_against_loop(lambda sample, net=net: net(*sample), samples, net.collect_params(),
                           granularity="operator")  # fmt: skip


#: Products of a matrix, which is square, and a constant of as many or fewer rows or columns.
CONSTANT_PRODUCTS = [
    lambda F, x, c: F.batch_dot(c, x), lambda F, x, c: F.batch_dot(x, c),
    lambda F, x, c: F.batch_dot(c, x, transpose_b=True),
    lambda F, x, c: F.batch_dot(x, c, transpose_a=True, transpose_b=True),
    lambda F, x, c: F.batch_dot(F.slice_axis(c, axis=1, begin=0, end=1), x),
    lambda F, x, c: F.batch_dot(F.slice_axis(c, axis=1, begin=0, end=1), x, transpose_b=True),
    lambda F, x, c: F.batch_dot(x, F.slice_axis(c, axis=2, begin=0, end=1)),
    lambda F, x, c: F.batch_dot(c, F.slice_axis(x, axis=2, begin=0, end=1)),
    lambda F, x, c: F.batch_dot(c, c) * x,
]  # fmt: skip


@pytest.mark.parametrize("product", CONSTANT_PRODUCTS)
@pytest.mark.parametrize("constant", ["zeros_like", "ones_like"])
def test_products_with_constants_equal_the_loop(constant, product):
    net = cell(lambda F, x: product(F, F.tanh(x), getattr(F, constant)(x)))
    samples = attached([mx.nd.random.normal(shape=(1, 3, 3)) for _ in range(4)])
    check_against_loop(net, samples, granularity="operator")


@pytest.mark.parametrize("constant", ["zeros_like", "ones_like"])
@pytest.mark.parametrize("subscripts", ["ij,ij->i", "ij,ij->j", "ij,ij->", "ij,kj->ik"])
def test_sums_of_products_with_constants_equal_the_loop(subscripts, constant):
    with semantics("np"):
        net = cell(lambda F, x: F.np.einsum(subscripts, getattr(F.np, constant)(x), F.np.tanh(x)))
        samples = attached([mx.np.random.normal(size=(3, 3)) for _ in range(4)])
        check_against_loop(net, samples, granularity="operator")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("rows", [8, 9, 64, 65])
def test_products_of_few_and_of_many_rows_equal_the_loop(rows, steps):
    """The number of rows, and of launches, decides when a matrix is packed, if at all."""
    dense = nn.Dense(50, in_units=50, activation="tanh")
    dense.initialize(mx.init.Normal(0.1))
    net = cell(lambda F, x, w: F.dot(F.tanh(dense(x)), w), dense)
    (weight,) = attached([mx.nd.eye(50) / 2])
    samples = [(mx.nd.random.normal(shape=(1, 50)), weight) for _ in range(rows)]

    def run(x, w):
        for _ in range(steps):
            x = net(x, w)
        return x

    check_against_loop(run, samples, [dense.weight, dense.bias])
    weight.attach_grad("null")
    check_against_loop(run, samples)
