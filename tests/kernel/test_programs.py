"""Cells and other pieces of models as expressions; what is left to MXNet, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List

import mxnet as mx
import numpy as np
import pytest

from gluon_dynbatch.kernel.columns import NotExpressed
from gluon_dynbatch.kernel.express import express
from gluon_dynbatch.kernel.expression import PRODUCT, READ, TOTAL, Node, Slot
from gluon_dynbatch.lower.segment import ParameterRows, Segment

from .interpreter import compare, interpret
from .programs import draw, inputs, parameters, port, segment_of

S = mx.sym
CLOSE = 1e-10, 1e-12


def dense(x: Any, weight: Any, bias: Any, units: int, **more: Any) -> Any:
    return S.FullyConnected(x, weight, bias, num_hidden=units, **more)


def lstm(k: int) -> Segment:
    """Return the cell that every framework has."""
    x, h, c = inputs((k + 1,), (k,), (k,))
    p = parameters(4)
    gates = dense(x, p[0], p[1], 4 * k) + dense(h, p[2], p[3], 4 * k)
    into, forget, out, new = S.SliceChannel(gates, num_outputs=4, axis=1)
    c = S.Activation(forget, act_type="sigmoid") * c + S.sigmoid(into) * S.tanh(new)
    h = S.sigmoid(out) * S.tanh(c)
    ports = [port((k + 1,)), port((k,)), port((k,))]
    return segment_of([h, c], ports, [k, k], [(4 * k, k + 1), (4 * k,), (4 * k, k), (4 * k,)])


def gru(k: int) -> Segment:
    """Return the cell in which one product is added to another after a gate."""
    x, h = inputs((k + 1,), (k,))
    p = parameters(4)
    left = S.SliceChannel(dense(x, p[0], p[1], 3 * k), num_outputs=3, axis=1)
    right = S.SliceChannel(dense(h, p[2], p[3], 3 * k), num_outputs=3, axis=1)
    reset, update = S.sigmoid(left[0] + right[0]), S.sigmoid(left[1] + right[1])
    new = S.tanh(left[2] + reset * right[2])
    made = (1 - update) * new + update * h
    return segment_of(
        [made], [port((k + 1,)), port((k,))], [k], [(3 * k, k + 1), (3 * k,), (3 * k, k), (3 * k,)]
    )


def tree(k: int) -> Segment:
    """Return a child-sum Tree-LSTM cell for three children."""
    x, h, c = inputs((k,), (3, k), (3, k))
    p = parameters(6)
    gates = dense(x, p[0], p[1], 3 * k) + dense(S.sum(h, axis=1), p[2], None, 3 * k, no_bias=True)
    into, out, new = S.split(gates, num_outputs=3, axis=1)
    kept = dense(h, p[4], None, k, flatten=False, no_bias=True)
    kept = S.sigmoid(S.broadcast_add(kept, S.expand_dims(dense(x, p[3], p[5], k), axis=1)))
    c = S.sigmoid(into) * S.tanh(new) + S.sum(kept * c, axis=1)
    shapes = [(3 * k, k), (3 * k,), (3 * k, k), (k, k), (k, k), (k,)]
    ports = [port((k,)), port((3, k)), port((3, k))]
    return segment_of([S.sigmoid(out) * S.tanh(c), c], ports, [k, k], shapes)


def attention(k: int) -> Segment:
    """Return additive attention over five places."""
    query, keys = inputs((k,), (5, k))
    p = parameters(3)
    moved = dense(query, p[0], None, k, no_bias=True)
    mixed = dense(keys, p[1], None, k, no_bias=True, flatten=False)
    seen = S.tanh(S.broadcast_add(S.expand_dims(moved, axis=1), mixed))
    scores = S.dot(seen, p[2])
    weights = S.expand_dims(S.softmax(scores, axis=1), axis=2)
    context = S.sum(S.broadcast_mul(weights, keys), axis=1)
    return segment_of([context], [port((k,)), port((5, k))], [k], [(k, k), (k, k), (k,)])


def normalised(k: int) -> Segment:
    """Return a layer with its normalisation, and a score."""
    (x,) = inputs((k,))
    p = parameters(4)
    made = S.LayerNorm(S.relu(dense(x, p[0], p[1], k + 1)) + 0.5, p[2], p[3], axis=-1, eps=1e-3)
    score = S.log_softmax(made, temperature=2.0)
    return segment_of(
        [made, score], [port((k,))], [k + 1] * 2, [(k + 1, k), (k + 1,), (k + 1,), (k + 1,)]
    )


def shared(k: int) -> Segment:
    """Return products with matrices from outside, and vectors of several parts of a row."""
    (x,), matrix, row = inputs((3, k)), S.var("in1"), S.reshape(S.var("in2"), (1, 1, -1))
    p = parameters(2)
    made = S.dot(x, matrix, transpose_b=True)
    made = S.broadcast_add(made, row) * S.broadcast_like(
        S.reshape(p[0], (1, 3, 1)), made, (0, 2), (0, 2)
    )
    made = dense(made, p[1], p[0], 3, flatten=False)
    ports = [port((3, k)), port((2, k), True), port((2,), True)]
    return segment_of([made], ports, [9], [(3,), (3, 2)])


def moved(k: int) -> Segment:
    """Return columns that are cut, joined and turned round."""
    x, y = inputs((2, k), (k,))
    y = S.expand_dims(y, axis=1)
    x = S.concat(x, y, S.slice_axis(x, axis=1, begin=-1, end=None), dim=1)
    x = S.slice(x, begin=(None, 1, None), end=(None, None, k // 2 + 1))
    x = S.stack(x, x * 2, axis=3).reshape((0, -1))
    return segment_of([x], [port((2, k)), port((k,))], [6 * (k // 2 + 1)])


def looked_up(k: int) -> Segment:
    """Return a sum of embeddings and a product, and the loss of labels."""
    words, place, x, label = inputs((k,), (1,), (k,), (1,))
    p = parameters(4)
    made = S.Embedding(words, p[0], input_dim=4, output_dim=k, dtype="float64")
    made = made.sum(axis=1) + S.take(p[1], place, mode="wrap").reshape((-1, k))
    made = made + S.Embedding(words, p[0], input_dim=4, output_dim=k, dtype="float64").max(axis=1)
    scores = S.log_softmax(made + dense(x, p[2], p[3], k))
    chosen = {"differentiable": False}
    ports = [port((k,), dtype="int32", **chosen), port((1,), dtype="int64", **chosen)]
    ports += [port((k,)), port((1,), **chosen)]
    shapes = [(4, k), (3, k), (k, k), (k,)]
    return segment_of([S.pick(scores, label.reshape((-1,)))], ports, [1], shapes)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("make", [lstm, gru, tree, attention, normalised, shared, moved, looked_up])
def test_pieces_of_models_equal_mxnet(make: Any, k: int) -> None:
    segment, rng = make(k), np.random.default_rng(k)
    compare(segment, express(segment), draw(segment, 4, rng), rng, CLOSE)


def reached(results: Any) -> List[Node]:
    """Return what results are computed from."""
    stack, found = list(results), []
    while stack:
        node = stack.pop()
        if node not in found:
            found.append(node)
            stack += node.args
    return found


def test_a_cell_has_one_product() -> None:
    products = [n for n in reached(express(lstm(3)).results) if n.kind == PRODUCT]
    assert [len(product.args) for product in products] == [2]


def test_products_that_are_read_elsewhere_stay_apart() -> None:
    x, h = inputs((2,), (2,))
    p = parameters(2)
    one, other = (S.dot(a, b) for a, b in zip((x, h), p))
    segment = segment_of([one + other, S.tanh(one)], [port((2,))] * 2, [3, 3], [(2, 3), (2, 3)])
    expressed, rng = express(segment), np.random.default_rng(0)
    products = [n for n in reached(expressed.results) if n.kind == PRODUCT]
    assert [len(product.args) for product in products] == [1, 1]
    compare(segment, expressed, draw(segment, 3, rng), rng, CLOSE)


def test_what_is_dear_is_computed_once_per_row() -> None:
    x, y = inputs((5,), (1,))
    segment = segment_of(
        [S.broadcast_mul(x, S.exp(y)), S.broadcast_mul(x, y * 2)], [port((5,)), port((1,))], [5, 5]
    )
    kept = [n for n in reached(express(segment).results) if n.kind == TOTAL]
    assert [str(total) for total in kept] == ["total[](exp(in1))"]


def test_a_blocked_gradient_does_not_flow() -> None:
    x, y = inputs((3,), (3,))
    made = x * S.BlockGrad(S.sin(y)) + S.BlockGrad(x)
    segment, rng = segment_of([made], [port((3,))] * 2, [3]), np.random.default_rng(0)
    arrays = draw(segment, 4, rng)
    expressed = express(segment)
    compare(segment, expressed, arrays, rng, CLOSE)
    assert Slot("in", 1) not in interpret(expressed, arrays, [np.ones((4, 3))]).gradients


def test_zero_gradients_stay_zero() -> None:
    """Also where the derivative is infinite."""
    x, y = inputs((2,), (2,))
    made = [S.sqrt(x), S.norm(y, axis=1, keepdims=True), S.log(x) * x]
    segment = segment_of(made, [port((2,))] * 2, [2, 1, 2])
    arrays = {Slot("in", 0): np.zeros((3, 2)), Slot("in", 1): np.zeros((3, 2))}
    heads = [np.zeros((3, 2)), np.zeros((3, 1)), np.zeros((3, 2))]
    with np.errstate(all="ignore"):
        found = interpret(express(segment), arrays, heads).gradients
    assert all((gradient == 0).all() for gradient in found.values()) and len(found) == 2


def test_deep_programs_take_no_longer_for_their_sharing() -> None:
    (x,) = inputs((3,))
    for _ in range(400):
        x = S.sin(x) + x * 0.5
    one = S.broadcast_axis(S.slice_axis(x, axis=1, begin=1, end=2), axis=1, size=2)
    segment, rng = segment_of([one], [port((3,))], [2]), np.random.default_rng(0)
    compare(segment, express(segment), draw(segment, 2, rng), rng, (1e-6, 1e-9))


def test_inputs_of_which_only_the_shape_counts_may_be_of_any_type() -> None:
    (x, like) = inputs((6,), (2, 3))
    segment = segment_of(
        [S.reshape_like(x, like) * 2], [port((6,)), port((2, 3), dtype="int32")], [6]
    )
    reads = [n for n in express(segment).expressions.nodes if n.kind == READ]
    assert [n.attrs[0] for n in reads] == [Slot("in", 0)]


def test_rows_of_parameters_are_weights() -> None:
    (x,) = inputs((4,))
    segment = segment_of(
        [S.dot(x, parameters(1)[0], transpose_b=True)], [port((4,))], [2], [(6, 4)]
    )
    rows = ParameterRows(segment.parameters[0], 2, 4)
    expressed = express(replace(segment, parameters=(rows,)))
    ((weight,), _) = expressed.results[0].attrs
    assert expressed.differentiable == {Slot("in", 0), Slot("param", 0)}
    assert (weight.rows, weight.columns, weight.units) == (2, 4, 2)


X = inputs((2, 2))[0]
W = S.var("param0")
LEFT = [
    (S.topk(X, axis=1), "operator topk has no kernel"),
    (S.sum(X, axis=0), "it reduces rows"),
    (S.expand_dims(X, axis=0) + 1, "rows are not along axis 0"),
    (S.slice_axis(X, axis=0, begin=0, end=1), "joins rows"),
    (S.reverse(X, axis=0), "it moves rows"),
    (S.dot(X, S.exp(W)), "a factor is computed"),
    (S.broadcast_mul(S.expand_dims(S.dot(W, W), axis=0), X), "all rows share what is multiplied"),
    (S.cast(X, "float16"), "float16"),
    (S.LeakyReLU(X, act_type="selu"), "not for selu"),
    (S.Reshape(X, (-1, 8)), "rows are not along axis 0"),
    (S.elemwise_add(X, S.reshape(W, (1, 2, 2))), "shapes depend on the number of rows"),
    (S.argmax(X, axis=1), "operator argmax has no kernel"),
]


@pytest.mark.parametrize("result, reason", LEFT, ids=[reason for _, reason in LEFT])
def test_the_rest_is_left_to_mxnet(result: Any, reason: str) -> None:
    segment = segment_of([result], [port((2, 2))], [4], [(2, 2)])
    with pytest.raises(NotExpressed, match=reason):
        express(segment)


def test_many_pieces_are_left_to_mxnet() -> None:
    (x,) = inputs((100, 2))
    segment = segment_of([S.softmax(x)], [port((100, 2))], [200])
    with pytest.raises(NotExpressed, match="more than 32 pieces"):
        express(segment)


def test_layouts_and_types_that_have_no_kernels() -> None:
    segment = segment_of([S.exp(inputs((2,))[0])], [port((2,))], [2])
    with pytest.raises(NotExpressed, match="one by one"):
        express(replace(segment, layout="unbatched"))
    with pytest.raises(NotExpressed, match="gpu"):
        express(replace(segment, context=mx.gpu()))
    with pytest.raises(NotExpressed, match="int32"):
        express(replace(segment, inputs=(port((2,), dtype="int32"),)))
