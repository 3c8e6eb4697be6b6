"""Pieces of models as kernels; what is left to MXNet, and why."""

from dataclasses import replace

import mxnet as mx
import pytest

from gluon_dynbatch.kernel.express import express
from gluon_dynbatch.rules.site import RefuseError
from tests.cells import array, attached

from .test_operators import outcomes, run


def dense(F, x, weight, *bias, units, **more):
    return F.FullyConnected(x, weight, *bias, num_hidden=units, no_bias=not bias, **more)


def lstm(F, x, h, c, *p):
    """Return the cell that every framework has, of three features."""
    gates = dense(F, x, p[0], p[1], units=12) + dense(F, h, p[2], p[3], units=12)
    into, forget, out, new = F.SliceChannel(gates, num_outputs=4, axis=1)
    c = F.Activation(forget, act_type="sigmoid") * c + F.sigmoid(into) * F.tanh(new)
    return F.sigmoid(out) * F.tanh(c), c


def normalised(F, x, *p):
    made = F.relu(dense(F, x, p[0], p[1], units=4)) + 0.5
    made = F.LayerNorm(made, p[2], p[3], axis=-1, eps=1e-3)
    return made, F.log_softmax(made, temperature=2.0)


def shared(F, x, matrix, row, *p):
    """Return products with matrices from outside, and vectors of several parts of a row."""
    made = F.broadcast_add(F.dot(x, matrix, transpose_b=True), F.reshape(row, (1, 1, -1)))
    column = F.broadcast_like(F.reshape(p[0], (1, 3, 1)), made, (0, 2), (0, 2))
    return dense(F, made * column, p[1], p[0], units=3, flatten=False)


def moved(F, x, y):
    last = F.slice_axis(x, axis=1, begin=-1, end=None)
    x = F.concat(x, F.expand_dims(y, axis=1), last, dim=1)
    x = F.slice(x, begin=(None, 1, None), end=(None, None, 3))
    return F.stack(x, x * 2, axis=3).reshape((0, -1))


def turned(F, x):
    """Return columns that fall into more pieces than a loop takes: turned, and every other one."""
    other = F.transpose(F.exp(x), (0, 2, 1))
    half = F.slice(F.reshape(other, (0, -1)), begin=(None, 80), end=(None, None), step=(None, -2))
    return F.batch_dot(other, x), half + 1, F.sum(F.transpose(other, (0, 2, 1)), axis=(1, 2))


def from_left(F, x, y, *p):
    """Return matrices times those of a row, one above the other, as products of the transposes."""
    columns = F.concat(F.transpose(x, (0, 2, 1)), F.transpose(y, (0, 2, 1)), dim=2)
    made = dense(F, columns, p[0], units=6, flatten=False), F.dot(columns, p[1])
    return [F.transpose(one, (0, 2, 1)) for one in made]


def from_left_by_more(F, x, *p):
    """Return the same with a matrix that is larger than those of a row."""
    made = dense(F, F.transpose(x, (0, 2, 1)), p[0], units=100, flatten=False)
    return F.transpose(made, (0, 2, 1))


def deep(F, x):
    """Return what takes for ever where sharing is not seen."""
    for _ in range(400):
        x = F.sin(x) + x * 0.5
    return F.broadcast_axis(F.slice_axis(x, axis=1, begin=1, end=2), axis=1, size=2)


def blocked(F, x, y):
    return x * F.BlockGrad(F.sin(y)) + F.BlockGrad(x)


def apart(F, x, h, *p):
    one = F.dot(x, p[0])
    return one + F.dot(h, p[1]), F.tanh(one)


def once(F, x, y):
    """Return what is computed for every column of a row."""
    return F.broadcast_mul(x, F.exp(y)), F.broadcast_mul(x, y * 2)


def gaps(F, x, *p):
    """Return products whose rows are parts of others', both of what they read and of themselves."""
    side = F.reshape(dense(F, F.reshape(x, (0, -1, 2)), p[2], units=3, flatten=False), (0, -1))
    one, other = dense(F, x, p[0], units=4), dense(F, x, p[1], units=4)
    parts = dense(F, F.reshape(one, (0, -1, 2)), p[2], units=3, flatten=False)
    return F.concat(one, other, side, dim=1), parts


def added(F, x, y, *p):
    one = dense(F, x, p[0], units=4, flatten=False)
    return one + F.reshape(dense(F, y, p[1], units=8), (0, 2, 4))


def parted(F, x, *p):
    one = dense(F, x, p[0], units=4)
    left, right = F.split(one, num_outputs=2, axis=1)
    return one * 2, F.tanh(left) * right


def casts(F, x, y):
    return F.cast(F.concat(x, y * 2, dim=1), "float32")


#: Per cell the shapes of what a row of a sample brings, and of weights.
PIECES = {
    lstm: ([(4,), (3,), (3,)], [(12, 4), (12,), (12, 3), (12,)]),
    normalised: ([(3,)], [(4, 3), (4,), (4,), (4,)]),
    shared: ([(3, 5)], [(2, 5), (2,), (3,), (3, 2)]),
    moved: ([(2, 5), (5,)], []),
    turned: ([(9, 9)], []),
    from_left: ([(17, 17), (17, 17)], [(6, 34), (34, 5)]),
    from_left_by_more: ([(20, 15)], [(100, 20)]),
    deep: ([(3,)], []),
    blocked: ([(3,), (3,)], []),
    apart: ([(2,), (2,)], [(2, 3), (2, 3)]),
    added: ([(2, 3), (3,)], [(4, 3), (8, 3)]),
    parted: ([(3,)], [(4, 3)]),
    casts: ([(3,), (2,)], []),
    once: ([(5,), (1,)], []),
    gaps: ([(6,)], [(4, 6), (4, 6), (3, 2)]),
}


def segment_of(fn, shapes, weights=()):
    """Compare a cell in double precision with MXNet; return the segment of its one launch."""
    common = attached([array(*s, dtype="float64", seed=9 + k) for k, s in enumerate(weights)])
    samples = [
        [*attached([array(n, *s, dtype="float64", seed=k) for k, s in enumerate(shapes)]), *common]
        for n in (1, 3, 2)
    ]
    (segment,) = run(fn, samples, tolerance=(1e-10, 1e-12))
    return segment


@pytest.mark.parametrize("fn", PIECES)
def test_pieces_of_models_equal_mxnet(fn):
    assert outcomes([segment_of(fn, *PIECES[fn])]) == (1, set())


def reached(fn, kind):
    """Return what results are computed from, of a kind."""
    stack = list(express(segment_of(fn, *PIECES[fn])))
    found = []
    while stack:
        node = stack.pop()
        if node not in found:
            found.append(node)
            stack += node.args
    return [node for node in found if node.kind == kind]


@pytest.mark.parametrize("fn, products", [(lstm, [2]), (apart, [1, 1]), (parted, [1])])
def test_products_that_are_added_are_one_unless_read_elsewhere(fn, products):
    assert [len(product.args) for product in reached(fn, "product")] == products


def test_what_all_columns_share_is_computed_once_per_row():
    shared = {str(total) for total in reached(once, "reduced")}
    assert shared == {"reduced[sum](exp(in1))", "reduced[sum](mul(in1, 2.0))"}


def test_columns_are_moved_once():
    moves = {str(node) for node in reached(turned, "permuted")}
    assert moves == {f"moved[{columns} columns](exp(in0))" for columns in (81, 41)}


def test_products_of_transposes_move_nothing_unless_the_matrix_is_large():
    assert not reached(from_left, "permuted") and len(reached(from_left, "dot")) == 2
    assert len(reached(from_left_by_more, "permuted")) == 2 and not reached(
        from_left_by_more, "dot"
    )


X = [(2, 2)]
LEFT = [
    (lambda F, x, w: F.topk(x, axis=1), "operator topk has no kernel"),
    (lambda F, x, w: F.dot(x, F.exp(w)), "a factor is computed"),
    (lambda F, x, w: F.cast(x, "float16"), "float16"),
]


@pytest.mark.parametrize("fn, reason", LEFT, ids=[reason for _, reason in LEFT])
def test_the_rest_is_left_to_mxnet(fn, reason):
    count, reasons = outcomes([segment_of(fn, X, X)])
    assert not count and all(reason in told for told in reasons)


def test_there_are_no_kernels_on_a_gpu():
    segment = segment_of(lambda F, x: F.exp(x), [(2,)])
    with pytest.raises(RefuseError, match="gpu"):
        express(replace(segment, context=mx.gpu()))
