"""Random whole programs: what one sample does is drawn as data and run by dynamic blocks.

A program is a list of :class:`Step`; each names an operation and, by number, the values it reads.
Numbers are taken modulo the values there are, so every list is a program, and shrinking one leaves
one.  Samples of a minibatch get lists of their own, as samples of a dynamic model have graphs of
their own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.modes import FLOATS, RECORDING
from gluon_dynbatch.plan.check import check_plan, check_transposed
from gluon_dynbatch.plan.plan import Plan
from gluon_dynbatch.plan.transpose import Head, transpose
from gluon_dynbatch.schedule import check_groups, lower_bound
from gluon_dynbatch.schedule.dependencies import check_graph

#: Features of every vector, and words of the vocabulary.
WIDTH, WORDS = 3, 7
GRAD_REQS = ("write", "add", "null")


class Linear(gdb.DynamicHybridBlock):
    """One input, one result, a child of its own."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.dense(x)


class Gate(gdb.DynamicHybridBlock):
    """Two inputs and two results, with parameters of its own."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight_x = self.params.get("weight_x", shape=(2 * WIDTH, WIDTH))
            self.weight_h = self.params.get("weight_h", shape=(2 * WIDTH, WIDTH))

    def hybrid_forward(self, F: Any, x: Any, h: Any, weight_x: Any, weight_h: Any) -> Any:
        left = F.FullyConnected(x, weight_x, no_bias=True, num_hidden=2 * WIDTH)
        right = F.FullyConnected(h, weight_h, no_bias=True, num_hidden=2 * WIDTH)
        update, candidate = F.split(left + right, num_outputs=2, axis=1)
        made = F.sigmoid(update) * F.tanh(candidate)
        # Without identity, hybridized MXNet 1.9.1 itself fails when x and h are one array.
        return made, made + F.identity(h)


class ChildSum(gdb.DynamicHybridBlock):
    """Any number of children in lists, as in a child-sum Tree-LSTM (arXiv:1503.00075)."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.input = nn.Dense(2 * WIDTH, in_units=WIDTH)
            self.hidden = nn.Dense(2 * WIDTH, in_units=WIDTH, use_bias=False)
            self.forget_input = nn.Dense(WIDTH, in_units=WIDTH)
            self.forget_hidden = nn.Dense(WIDTH, in_units=WIDTH, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any, states: Any, memories: Any) -> Any:
        gates = self.input(x)
        if states:
            gates = gates + self.hidden(F.add_n(*states))
        output, update = F.split(gates, num_outputs=2, axis=1)
        memory = F.tanh(update)
        if states:
            place = self.forget_input(x)
            kept = [F.sigmoid(place + self.forget_hidden(h)) * c for h, c in zip(states, memories)]
            memory = memory + F.add_n(*kept)
        return F.sigmoid(output) * F.tanh(memory), memory


class Nested(gdb.DynamicHybridBlock):
    """Dictionaries, tuples, None and numbers, in and out."""

    def hybrid_forward(self, F: Any, x: Any, named: Any, factor: Any, extra: Any) -> Any:
        first, (second, nothing) = named["first"], named["rest"]
        assert nothing is None
        mixed = first * factor + second * x
        if extra is not None:
            mixed = mixed + F.identity(extra)
        return {"mixed": mixed, "parts": [F.relu(first), (second, None)]}


class Lookup(gdb.DynamicHybridBlock):
    """Attention of one row over a matrix, which may be the sample's own or everybody's."""

    def hybrid_forward(self, F: Any, x: Any, memory: Any) -> Any:
        weights = F.softmax(F.dot(x, memory, transpose_b=True), axis=-1)
        return F.dot(weights, memory)


class Pool(gdb.DynamicHybridBlock):
    """Reduces over the rows of one sample, which therefore cannot be joined along them."""

    def hybrid_forward(self, F: Any, rows: Any) -> Any:
        return F.mean(rows, axis=0, keepdims=True), F.max(rows, axis=0, keepdims=True)


class Cells(gdb.DynamicHybridBlock):
    """All cells that programs call."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.linear, self.other, self.gate = Linear(), Linear(), Gate()
            self.child_sum, self.nested, self.lookup, self.pool = (
                ChildSum(),
                Nested(),
                Lookup(),
                Pool(),
            )
            self.rows = gdb.convert(
                nn.Dense(WIDTH, in_units=WIDTH, flatten=False, activation="relu")
            )
            self.norm = gdb.convert(nn.LayerNorm(in_channels=WIDTH))
            self.embedding = gdb.convert(nn.Embedding(WORDS, WIDTH))

    def forward(self, sample: Sample) -> Any:
        return run_steps(self, sample)


class Step(NamedTuple):
    """One operation; what the numbers mean depends on it."""

    op: str
    a: int
    b: int
    n: int


class Sample(NamedTuple):
    """What one sample does, and with which arrays."""

    steps: Tuple[Step, ...]
    #: Numbers of the values that are returned, and the structure they are returned in.
    results: Tuple[int, ...]
    structure: str
    arrays: Dict[str, mx.nd.NDArray]


class Machine:
    """The values a program has so far: vectors (1, WIDTH) and matrices (rows, WIDTH)."""

    def __init__(self, cells: Cells, arrays: Dict[str, mx.nd.NDArray]):
        self.cells = cells
        self.arrays = arrays
        self.vectors: List[Any] = [arrays["x"], arrays["y"]]
        self.matrices: List[Any] = [arrays["rows"]]

    def vector(self, number: int) -> Any:
        return self.vectors[number % len(self.vectors)]

    def matrix(self, number: int) -> Any:
        return self.matrices[number % len(self.matrices)]

    def some(self, step: Step) -> List[Any]:
        """Return up to three vectors, the same one perhaps twice."""
        return [self.vector(step.a + k * step.b) for k in range(1 + step.n % 3)]


def _child_sum(m: Machine, s: Step) -> None:
    children = [] if s.n % 4 == 3 else m.some(s)
    m.vectors += m.cells.child_sum(m.vector(s.b), children, children[::-1])


def _nested(m: Machine, s: Step) -> None:
    named = {"first": m.vector(s.a), "rest": (m.vector(s.b), None)}
    made = m.cells.nested(
        m.vector(s.n + 1), named, (2, 2.0, -1)[s.n % 3], None if s.n % 2 else m.vector(s.n)
    )
    m.vectors += [made["mixed"], made["parts"][0], made["parts"][1][0]]
    assert made["parts"][1][1] is None


def _view_rows(m: Machine, s: Step) -> None:
    rows = m.matrix(s.a)
    low = s.b % len(rows)
    m.matrices.append(rows[low : low + 1 + s.n % 3])


def _view_one(m: Machine, s: Step) -> None:
    rows = m.matrix(s.a)
    at = s.b % len(rows)
    m.vectors.append(rows[at].reshape((1, WIDTH)) if s.n % 2 else rows[at : at + 1])


def _concat_slice(m: Machine, s: Step) -> None:
    both = mx.nd.concat(m.vector(s.a), m.vector(s.b), dim=1)
    m.vectors.append(mx.nd.slice_axis(both, axis=1, begin=s.n % 3, end=s.n % 3 + WIDTH))


def _stack_mean(m: Machine, s: Step) -> None:
    m.vectors.append(mx.nd.stack(*m.some(s), axis=0).mean(axis=0))


def _reshaped(m: Machine, s: Step) -> None:
    rows = m.matrix(s.a)
    m.matrices.append(rows.reshape((-1,)).reshape((1, -1)).reshape((0, -1, WIDTH))[0])


def _first(op: Callable[[Machine, Step], Any]) -> Callable[[Machine, Step], None]:
    """Make an operation of a function that returns one vector."""

    def run(m: Machine, s: Step) -> None:
        m.vectors.append(op(m, s))

    return run


def _rows(op: Callable[[Machine, Step], Any]) -> Callable[[Machine, Step], None]:
    """Make an operation of a function that returns one matrix."""

    def run(m: Machine, s: Step) -> None:
        m.matrices.append(op(m, s))

    return run


OPERATIONS: Dict[str, Callable[[Machine, Step], None]] = {
    "linear": _first(lambda m, s: m.cells.linear(m.vector(s.a))),
    "other": _first(lambda m, s: m.cells.other(m.vector(s.a))),
    "gate": lambda m, s: m.vectors.extend(m.cells.gate(m.vector(s.a), m.vector(s.b))),
    "child_sum": _child_sum,
    "nested": _nested,
    "lookup": _first(lambda m, s: m.cells.lookup(m.vector(s.a), m.matrix(s.b))),
    "lookup_shared": _first(lambda m, s: m.cells.lookup(m.vector(s.a), m.arrays["memory"])),
    "pool": lambda m, s: m.vectors.extend(m.cells.pool(m.matrix(s.a))),
    "rows": _rows(lambda m, s: m.cells.rows(m.matrix(s.a))),
    "rows_of_vector": _first(lambda m, s: m.cells.rows(m.vector(s.a))),
    "norm": _first(lambda m, s: m.cells.norm(m.vector(s.a))),
    "embed": _rows(lambda m, s: m.cells.embedding(m.arrays["words"])),
    "view_rows": _view_rows,
    "view_one": _view_one,
    "join": _rows(lambda m, s: mx.nd.concat(*m.some(s), dim=0)),
    "reshape": _reshaped,
    "add": _first(lambda m, s: m.vector(s.a) + m.vector(s.b)),
    "multiply": _first(lambda m, s: m.vector(s.a) * m.vector(s.b)),
    "scalar": _first(lambda m, s: (1 - m.vector(s.a)) * (0.5, 2, -0.5)[s.n % 3]),
    "concat_slice": _concat_slice,
    "stack_mean": _stack_mean,
    "add_n": _first(lambda m, s: mx.nd.add_n(*m.some(s))),
    "softmax": _first(lambda m, s: mx.nd.softmax(m.vector(s.a), axis=-1)),
    "sum": _first(lambda m, s: m.vector(s.a) * m.vector(s.b).sum(axis=1, keepdims=True)),
    "dot_shared": _first(lambda m, s: mx.nd.dot(m.vector(s.a), m.arrays["weight"])),
    "broadcast": _rows(lambda m, s: mx.nd.broadcast_add(m.matrix(s.a), m.vector(s.b))),
    "zeros": _first(
        lambda m, s: m.vector(s.a) + mx.nd.zeros((1, WIDTH), dtype=m.vector(s.a).dtype)
    ),
}


def run_steps(cells: Cells, sample: Sample) -> Any:
    """Run the program of a sample and return its results in their structure."""
    machine = Machine(cells, sample.arrays)
    for step in sample.steps:
        OPERATIONS[step.op](machine, step)
    values = machine.vectors + machine.matrices
    results = [values[-1 - number % len(values)] for number in sample.results]
    if sample.structure == "dict":
        return {"some": tuple(results), "nothing": None}
    return results


@lru_cache(maxsize=None)
def cells(dtype: str = "float32") -> Cells:
    """Return the cells of a dtype: one set, so that symbols are built once."""
    mx.random.seed(7)
    made = Cells(prefix=f"cells_{dtype}_")
    made.initialize(mx.init.Uniform(0.8))
    made.cast(dtype)
    made.hybridize()
    return made


class Program(NamedTuple):
    """What the oracle takes."""

    fn: Callable[[Any], Any]
    samples: List[Any]
    block: Any

    @property
    def params(self) -> List[Any]:
        return list(self.block.collect_params().values())

    def __repr__(self) -> str:
        """Write what tells programs apart: arrays as shape and request for a gradient."""
        return "\n".join(["Program of"] + [f"  {_brief(sample)}" for sample in self.samples])


def _brief(value: Any) -> str:
    if isinstance(value, mx.nd.NDArray):
        return f"{value.shape}{'' if value.grad is None else '*'}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({', '.join(_brief(v) for v in value)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)


def array(
    random: np.random.RandomState, shape: Tuple[int, ...], dtype: str, grad_req: str
) -> mx.nd.NDArray:
    """Return random values, with a gradient unless `grad_req` is ``"null"``."""
    made = mx.nd.array(random.uniform(-1, 1, shape), dtype=dtype)
    if grad_req != "null":
        made.attach_grad(grad_req)
    return made


def _arrays(
    random: np.random.RandomState, dtype: str, rows: int, grad_req: str
) -> Dict[str, mx.nd.NDArray]:
    return {
        "x": array(random, (1, WIDTH), dtype, grad_req),
        "y": array(random, (1, WIDTH), dtype, "null"),
        "rows": array(random, (rows, WIDTH), dtype, grad_req),
        "words": mx.nd.array(random.randint(0, WORDS, rows), dtype="int32"),
    }


STEPS = st.builds(Step, st.sampled_from(sorted(OPERATIONS)), *[st.integers(0, 9)] * 3)


@st.composite
def dags(
    draw: Any, most_samples: int = 4, most_steps: int = 8, dtypes: Tuple[str, ...] = ("float32",)
) -> Program:
    """Minibatches of random DAGs over all cells and operators."""
    dtype = draw(st.sampled_from(dtypes))
    random = np.random.RandomState(draw(st.integers(0, 99)))
    requests = st.sampled_from(GRAD_REQS)
    shared = {
        "memory": array(random, (4, WIDTH), dtype, draw(requests)),
        "weight": array(random, (WIDTH, WIDTH), dtype, draw(requests)),
    }
    scripts = st.lists(STEPS, max_size=most_steps).map(tuple)
    # Some samples repeat the graph of another: that is what there is to merge.
    pool = draw(st.lists(scripts, min_size=1, max_size=2))
    samples = []
    for _ in range(draw(st.integers(1, most_samples))):
        arrays = _arrays(random, dtype, draw(st.sampled_from((1, 3))), draw(requests))
        results = draw(st.lists(st.integers(0, 30), max_size=3).map(tuple))
        steps = draw(st.sampled_from(pool))
        samples.append(
            Sample(steps, results, draw(st.sampled_from(("list", "dict"))), {**arrays, **shared})
        )
    block = cells(dtype)
    return Program(block, samples, block)


#: Trees of random arity: a word, or a list of subtrees.
TREES = st.recursive(
    st.integers(0, WORDS - 1), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=10
)


def run_tree(net: Cells, tree: Any) -> Tuple[Any, Any]:
    """Run a child-sum cell bottom up; a leaf is a word, an inner node reads word 0."""
    children = tree if isinstance(tree, list) else []
    made = [run_tree(net, child) for child in children]
    word = mx.nd.array([0 if isinstance(tree, list) else tree], dtype="int32")
    return net.child_sum(net.embedding(word), [h for h, _ in made], [c for _, c in made])


@st.composite
def tree_batches(
    draw: Any, most_samples: int = 6, dtypes: Tuple[str, ...] = ("float32",)
) -> Program:
    """Minibatches of trees through a child-sum cell."""
    block = cells(draw(st.sampled_from(dtypes)))
    pool = draw(st.lists(TREES, min_size=1, max_size=3))
    trees = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=most_samples))
    return Program(lambda tree: block.other(run_tree(block, tree)[0]), trees, block)


def run_sequence(net: Cells, sequence: Dict[str, Any]) -> Any:
    """Project all rows at once, run them one by one, and join the states."""
    rows = net.rows(net.embedding(sequence["words"]) * sequence["scale"])
    state = sequence["start"]
    states = []
    for i in range(len(rows)):
        made, state = net.gate(rows[i : i + 1] if i % 2 else rows[i].reshape((1, -1)), state)
        states.append(made)
    half = len(rows) // 2
    both = mx.nd.concat(*states, dim=0)
    return [net.rows(both), both.reshape((1, -1)), net.pool(both[half:]), state]


@st.composite
def sequence_batches(
    draw: Any, most_samples: int = 4, dtypes: Tuple[str, ...] = ("float32",)
) -> Program:
    """Minibatches of sequences of different lengths."""
    dtype = draw(st.sampled_from(dtypes))
    random = np.random.RandomState(draw(st.integers(0, 99)))
    start = array(random, (1, WIDTH), dtype, draw(st.sampled_from(GRAD_REQS)))
    lengths = draw(st.lists(st.sampled_from((1, 2, 5)), min_size=1, max_size=most_samples))
    samples = [
        {
            "words": mx.nd.array(random.randint(0, WORDS, n), dtype="int32"),
            "scale": array(random, (n, 1), dtype, draw(st.sampled_from(GRAD_REQS))),
            "start": start if draw(st.booleans()) else array(random, (1, WIDTH), dtype, "write"),
        }
        for n in lengths
    ]
    block = cells(dtype)
    return Program(lambda sequence: run_sequence(block, sequence), samples, block)


def heads_of(plan: Plan, slots: Optional[Sequence[int]] = None) -> List[Head]:
    """Return some results of a plan that can have a gradient, or all, as heads."""
    graph, heads = plan.graph, []
    for slot in range(len(graph.slot_unit)) if slots is None else slots:
        unit = graph.slot_unit[slot]
        segment = graph.segments[graph.segment[unit]]
        port = segment.outputs[slot - graph.slot0[unit]]
        if segment.mode & RECORDING and port.dtype in FLOATS:
            shape = (int(graph.dependencies.rows[unit]), port.row_size)
            heads.append(Head(slot, 0, shape, port.dtype, segment.context))
    return heads


def check_invariants(batch: gdb.Batch) -> int:
    """Check graph, grouping and plan of a scope's last flush, and return its launches."""
    if batch.plan is None:
        assert batch.report.launches == 0
        return 0
    graph = batch.plan.graph.dependencies
    check_graph(graph)
    groups = np.full(graph.size, -1, np.int32)
    for number, launch in enumerate(batch.plan.launches):
        groups[launch.units] = number
    check_groups(graph, groups)
    check_plan(batch.plan)
    for heads in (heads_of(batch.plan), heads_of(batch.plan)[::3]):
        check_transposed(batch.plan, heads, transpose(batch.plan, heads))
    launches = len(batch.plan.launches)
    assert lower_bound(graph) <= launches <= graph.size
    return launches


#: Any of the three kinds.
PROGRAMS = st.one_of(dags(), tree_batches(), sequence_batches())


def make_cells(**options: Any) -> Cells:
    """Return new cells, the same ones each time."""
    mx.random.seed(3)
    net = Cells()
    net.initialize(mx.init.Uniform(0.8))
    net.hybridize(**options)
    return net


TREE_BATCH = [[1, [2, 3]], 4, [[5], 6, 0], [1, [2, 3]]]


def tree_losses(net: Cells, trees: Any = TREE_BATCH) -> List[Any]:
    return [(run_tree(net, tree)[0] ** 2).sum() for tree in trees]


def gradients(net: Cells) -> Dict[str, np.ndarray]:
    return {
        name: p.grad().asnumpy().copy()
        for name, p in net.collect_params().items()
        if p.grad_req != "null"
    }


def assert_close(
    wanted: Dict[str, np.ndarray], got: Dict[str, np.ndarray], tolerance: float = 1e-4
) -> None:
    assert wanted.keys() == got.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], tolerance, 1e-5, err_msg=name)


def zero_gradients(net: Cells) -> None:
    net.collect_params().zero_grad()
