"""Python's ``sum`` of a list is a sum as ``add_n`` is, with arrays of `mx.nd` and of `mx.np`."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from tests.cells import cell
from tests.common import same

OPERATOR = {"granularity": "operator", "policy": "depth"}
#: Trees: the children of each node.
TREES = [(), ((),), ((), ()), (((),), (), ()), ((((), ()), ()), ((),)), (((), (), (), ()), ())]


class Node(gdb.DynamicHybridBlock):
    """A node of a child-sum tree: a gate for the sum of the children, and one for each of them."""

    def __init__(self, add):
        super().__init__()
        self._add = add
        self.whole, self.each = (gluon.nn.Dense(3, in_units=3) for _ in range(2))

    def hybrid_forward(self, F, x, children):
        if not children:
            return x
        gate = self.whole(self._add(F, children))
        terms = [(x + self.each(h)) * h for h in children]
        return x * gate + self._add(F, terms)


def tree_of(net, x, tree):
    return net(x, [tree_of(net, x, child) for child in tree])


def plain(F, arrays):
    return sum(arrays)


def trained(net, front, scope):
    arrays = [x.as_np_ndarray() if front == "np" else x for x in map(mx.nd.array, draws())]
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        if scope is None:
            losses = [tree_of(net, x, tree).sum() for x, tree in zip(arrays, TREES)]
        else:
            with scope:
                losses = [tree_of(net, x, tree).sum() for x, tree in zip(arrays, TREES)]
    autograd.backward(losses)
    gradients = [p.grad() for p in net.collect_params().values()]
    return [each.asnumpy() for each in (*losses, *(x.grad for x in arrays), *gradients)]


def draws():
    rng = np.random.RandomState(1)
    return [rng.normal(size=(1, 3)) for _ in TREES]


def made(add):
    net = Node(add)
    mx.random.seed(2)
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    return net


def test_trees_need_as_many_launches_as_with_add_n(front):
    net = made(plain)
    wanted = trained(net, front, None)
    for options in (OPERATOR, {}, {**OPERATOR, "debug": True}, {"granularity": "block"}):
        for got, expected in zip(trained(net, front, gdb.batching(**options)), wanted):
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
    with gdb.batching(**OPERATOR) as batch:
        trained_in(net, front)
    with mx.util.np_array(False), mx.util.np_shape(False), gdb.batching(**OPERATOR) as by_add_n:
        trained_in(made(lambda F, arrays: F.add_n(*arrays)), "nd")
    assert batch.report.launches == by_add_n.report.launches
    assert not batch.report.split


def trained_in(net, front):
    for x, tree in zip(map(mx.nd.array, draws()), TREES):
        tree_of(net, x.as_np_ndarray() if front == "np" else x, tree)


#: Cells of a list, and how many launches they take for lists of several lengths.
CELLS = [
    (lambda F, xs: sum(xs), 1),
    (lambda F, xs: sum(x * 2 for x in xs) + 1, 2),
    (lambda F, xs: [sum(xs), sum(xs) * 2], 2),
    (lambda F, xs: sum(xs, xs[0] * 2), 3),
    (lambda F, xs: sum(xs) + xs[0] * xs[0], 1),
]


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_sums_of_lists_equal_the_loop(front, number):
    fn, launches = CELLS[number]
    net, array = cell(fn), mx.np.array if front == "np" else mx.nd.array
    lists = [[array([[i + k, 1.5]]) for k in range(i)] for i in (1, 2, 3)]
    wanted = [net(arrays) for arrays in lists]
    with gdb.batching(**OPERATOR) as batch:
        results = [net(arrays) for arrays in lists]
    same(results, wanted)
    assert batch.report.launches == launches


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool"])
def test_dtypes_of_sums_are_those_of_the_loop(front, dtype):
    net, array = cell(lambda F, xs: sum(xs) * 1), mx.np.array if front == "np" else mx.nd.array
    if front == "nd" and dtype == "bool":
        pytest.skip("mx.nd cannot add booleans")
    lists = [[array([[i, k]], dtype=dtype) for k in range(i)] for i in (1, 2, 3)]
    wanted = [net(arrays) for arrays in lists]
    with gdb.batching(**OPERATOR):
        results = [net(arrays) for arrays in lists]
    same(results, wanted)
    assert {y.dtype for y in results} == {y.dtype for y in wanted}


def test_outside_of_scopes_the_program_is_the_users():
    net = cell(lambda F, xs: sum(xs))
    with gdb.batching(**OPERATOR):
        net([mx.nd.ones((1, 2))] * 3)
    same(net([mx.nd.ones((1, 2))] * 3), np.full((1, 2), 3, "float32"))
    assert "add_n" not in net._cached_graph[1].tojson()
