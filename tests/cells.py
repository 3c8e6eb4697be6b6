"""Cells, programs and checks that many tests share."""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.modes import RECORDING
from gluon_dynbatch.plan.check import check_plan, check_transposed
from gluon_dynbatch.plan.transpose import Heads, transpose
from gluon_dynbatch.record.types import TYPES
from gluon_dynbatch.schedule import check_groups, lower_bound
from gluon_dynbatch.schedule.dependencies import check_dependencies
from gluon_dynbatch.testing import check_against_loop

#: The features of a vector, and the words of the vocabulary.
WIDTH, WORDS = 4, 7


class ChildSum(gdb.DynamicHybridBlock):
    """A child-sum Tree-LSTM (Tai, Socher, Manning 2015, arXiv:1503.00075), equations 2 to 8."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.input = nn.Dense(3 * WIDTH, in_units=WIDTH)
        self.hidden = nn.Dense(3 * WIDTH, in_units=WIDTH, use_bias=False)
        self.forget_input = nn.Dense(WIDTH, in_units=WIDTH)
        self.forget_hidden = nn.Dense(WIDTH, in_units=WIDTH, use_bias=False)

    def hybrid_forward(self, F, x, states, memories):
        gates = self.input(x)
        if states:
            gates = gates + self.hidden(F.add_n(*states))
        i, o, u = F.split(gates, num_outputs=3, axis=1)
        c = F.sigmoid(i) * F.tanh(u)
        if states:
            forget = self.forget_input(x)
            c = c + F.add_n(
                *[F.sigmoid(forget + self.forget_hidden(h)) * m for h, m in zip(states, memories)]
            )
        return F.sigmoid(o) * F.tanh(c), c


class Attention(gdb.DynamicHybridBlock):
    """One query over a memory of several rows (Luong, Pham, Manning 2015)."""

    def hybrid_forward(self, F, query, memory):
        return F.dot(F.softmax(F.dot(query, memory, transpose_b=True)), memory)


class TreeNet(gdb.DynamicHybridBlock):
    """A child-sum tree over word vectors: a node is a list of nodes."""

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell

    def forward(self, node, x):
        children = [self(child, x) for child in node]
        return self.cell(x, [h for h, _ in children], [m for _, m in children])


class Squaring(mx.operator.CustomOp):
    """Computes an eighth of the square of each number; fails if one is negative."""

    def forward(self, is_train, req, in_data, out_data, aux):
        if in_data[0].asnumpy().min() < 0:
            raise KeyError("on purpose")
        self.assign(out_data[0], req[0], in_data[0] * in_data[0] / 8)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], in_data[0] * out_grad[0] / 4)


@mx.operator.register("dynbatch_test_squaring")
class SquaringProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Squaring()


SQUARING = {"op_type": "dynbatch_test_squaring"}


class Apply(gdb.DynamicHybridBlock):
    """A cell that applies a function, which may call the blocks `parts`."""

    def __init__(self, fn, *parts, **kwargs):
        super().__init__(**kwargs)
        self._fn = fn
        for part in parts:
            self.register_child(part)

    def hybrid_forward(self, F, *args):
        return self._fn(F, *args)


def cell(fn, *parts, prefix="the_cell_"):
    """Return a hybridized cell that applies a function of ``F`` and arrays to its arguments."""
    block = Apply(fn, *parts, prefix=prefix)
    block.hybridize()
    return block


def unary(prefix=None, **kwargs):
    return gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, activation="tanh", prefix=prefix, **kwargs))


def binary(prefix=None):
    dense = nn.Dense(WIDTH, in_units=2 * WIDTH, activation="tanh")
    return cell(lambda F, x, y: dense(F.concat(x, y, dim=1)), dense, prefix=prefix)


class Cells(gdb.DynamicHybridBlock):
    """A network that owns several cells."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.linear, self.head = unary(), unary()
        self.child_sum = ChildSum()
        self.norm = gdb.convert(nn.LayerNorm(in_channels=WIDTH))
        self.embedding = gdb.convert(nn.Embedding(WORDS, WIDTH))


def ready(block, scale=0.7):
    """Initialise with the same values each time, hybridize, and return the block."""
    mx.random.seed(1)
    block.initialize(mx.init.Uniform(scale))
    block.hybridize()
    return block


def make_cells():
    return ready(Cells(), 0.8)


def dense(units=3, width=4, scale=0.7, **kwargs):
    return ready(gdb.convert(nn.Dense(units, in_units=width, **kwargs)), scale)


def module():
    """Return ``mx.np`` under NumPy's semantics, and else ``mx.nd``."""
    return mx.np if mx.util.is_np_array() else mx.nd


def array(*shape, seed=0, **kwargs):
    """Return a random array; equal arguments give equal values."""
    values = np.random.RandomState(sum(shape) + seed).uniform(-1, 1, shape)
    return module().array(values, **{"dtype": "float32", **kwargs})


def inputs(count, width=WIDTH, seed=0):
    random = np.random.RandomState(seed)
    return [mx.nd.array(random.uniform(-1, 1, (1, width))) for _ in range(count)]


def attached(arrays):
    for x in arrays:
        x.attach_grad()
    return arrays


# Programs of one sample


def chain(cells, x):
    for cell in cells:
        x = cell(x)
    return x


def tree(a, join, shape):
    """Run a binary tree: a leaf is an array, an inner node a pair."""
    if isinstance(shape, tuple):
        return join(tree(a, join, shape[0]), tree(a, join, shape[1]))
    return a(shape)


def complete(height, x):
    return x if not height else (complete(height - 1, x), complete(height - 1, x))


def run_tree(net, tree):
    """Run a child-sum cell bottom up; a leaf is a word, an inner node reads word 0."""
    children = [run_tree(net, child) for child in tree] if isinstance(tree, list) else []
    word = mx.nd.array([0 if isinstance(tree, list) else tree], dtype="int32")
    return net.child_sum(net.embedding(word), [h for h, _ in children], [c for _, c in children])


TREE_BATCH = [[1, [2, 3]], 4, [[5], 6, 0], [1, [2, 3]]]


def tree_losses(net, trees=TREE_BATCH):
    return [(run_tree(net, tree)[0] ** 2).sum() for tree in trees]


# Results and checks


def gradients(net):
    params = net.collect_params().items()
    return {name: p.grad().asnumpy() for name, p in params if p.grad_req != "null"}


def equal(got, wanted, rtol=1e-5, atol=1e-6):
    """Check that lists of arrays have close values, and equal classes, shapes and dtypes.

    An array of NumPy may stand for one of MXNet of either class.
    """
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        if isinstance(a, mx.nd.NDArray) and isinstance(b, mx.nd.NDArray):
            assert isinstance(a, mx.np.ndarray) == isinstance(b, mx.np.ndarray)
        a, b = (x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in (a, b))
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol, atol)


def heads_of(plan, slots=None):
    """Return the results of a plan, or those in `slots`, that can have a gradient, as heads.

    All external arrays count as being in a graph.
    """
    graph, rows = plan.graph, []
    for slot in range(len(graph.slot_unit)) if slots is None else slots:
        unit = graph.slot_unit[slot]
        segment = graph.segments[graph.segment[unit]]
        port = segment.outputs[slot - graph.slot0[unit]]
        if segment.mode & RECORDING:
            size = int(graph.dependencies.rows[unit]) * port.row_size
            rows.append((slot, 0, size, TYPES.kind_of(port.dtype, segment.context)))
    in_graph = np.ones(len(plan.region_of) - len(graph.slot_unit), dtype=bool)
    return Heads(*np.array(rows, dtype=np.int64).reshape(-1, 4).T, in_graph)


def check_invariants(batch):
    """Check graph, groups and plan of a scope's last flush; return the number of launches."""
    if not batch.plan:
        assert batch.report.launches == 0
        return 0
    graph = batch.plan.graph.dependencies
    check_dependencies(graph)
    groups = np.full(graph.size, -1, np.int32)
    for number, launch in enumerate(batch.plan.launches):
        groups[launch.units] = number
    check_groups(graph, groups)
    check_plan(batch.plan)
    all_heads = heads_of(batch.plan)
    some_heads = heads_of(batch.plan, range(0, len(batch.plan.graph.slot_unit), 3))
    no_externals = all_heads._replace(in_graph=np.zeros_like(all_heads.in_graph))
    for heads in (all_heads, some_heads, no_externals):
        check_transposed(batch.plan, heads, transpose(batch.plan, heads))
    launches = len(batch.plan.launches)
    assert lower_bound(graph) <= launches <= graph.size
    return launches


def widths(batch):
    return [len(launch.units) for launch in batch.plan.launches]


def launches(fn, samples, granularity, policy="depth", **options):
    """Compare `fn` with the loop, and return the widths of its launches, widest first."""
    options.setdefault("analysis_budget", None)
    batch = check_against_loop(fn, samples, granularity=granularity, policy=policy, **options)
    found_widths = sorted(widths(batch), reverse=True)
    assert batch.report.launches == batch.report.flushes[-1].launches == len(found_widths)
    assert sum(found_widths) == batch.plan.graph.dependencies.size
    return found_widths
