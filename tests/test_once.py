"""What all calls compute from parameters and shared arrays alone runs once per flush.

A cell makes some arrays from its parameters and from a memory that all calls share, at least one of
them a product, and then combines them with a sample's own matrix.
"""

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import HybridBlock

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import WIDTH, array, attached, check_invariants, ready
from tests.common import arrays
from tests.depth import examples

ROWS = 3
SHAPES = {
    "queries": (ROWS, WIDTH), "seeds": (ROWS, WIDTH), "square": (WIDTH, WIDTH),
    "low": (WIDTH, 2), "high": (2, WIDTH), "bias": (WIDTH,),
}  # fmt: skip



def positive(F, low, vector):
    """Return a matrix that has a square root."""
    return F.dot(low, low, transpose_b=True) + F.diag(F.ones_like(vector))


#: What is computed of matrices of `ROWS` x `WIDTH`, which all calls share.
COMMON = {
    "dense": lambda F, q, p: F.FullyConnected(q, p["square"], p["bias"], num_hidden=WIDTH),
    "flat": lambda F, q, p: F.FullyConnected(
        F.reshape(q, (ROWS, 1, WIDTH)), p["square"], no_bias=True, num_hidden=WIDTH, flatten=False
    ).reshape((ROWS, WIDTH)),
    "dot": lambda F, q, p: F.dot(q, p["square"], transpose_b=True),
    "turned": lambda F, q, p: F.dot(F.transpose(q), p["square"], transpose_a=True),
    "vector": lambda F, q, p: F.broadcast_add(q, F.reshape(F.dot(p["square"], p["bias"]), (1, -1))),
    "gemm": lambda F, q, p: F.linalg.gemm2(q, p["square"], alpha=0.5),
    "batch": lambda F, q, p: F.batch_dot(
        F.expand_dims(q, 0), F.expand_dims(p["square"], 0), transpose_b=True
    ).reshape((ROWS, WIDTH)),
    "attend": lambda F, q, p: F.dot(F.softmax(F.dot(q, q, transpose_b=True)), p["seeds"]),
    "added": lambda F, q, p: F.tanh(q) + p["seeds"],
    "taken": lambda F, q, p: F.take(q, F.arange(start=ROWS - 1, stop=-1, step=-1)),
    "low": lambda F, q, p: F.dot(F.dot(q, p["low"]), p["high"]),
    "root": lambda F, q, p: F.dot(q, F.linalg.potrf(positive(F, p["low"], p["bias"]))),
}  # fmt: skip

#: How a matrix of a sample is combined with one that all calls share; with ragged matrices, too.
COMBINED = {
    "scores": lambda F, x, q: F.dot(q, x, transpose_b=True),
    "weights": lambda F, x, q: F.FullyConnected(x, q, no_bias=True, num_hidden=ROWS),
    "right": lambda F, x, q: F.dot(x, F.transpose(q)),
    "attention": lambda F, x, q: F.dot(F.softmax(F.dot(q, x, transpose_b=True)), x),
    "sum": lambda F, x, q: F.broadcast_mul(x, F.sum(q, axis=0, keepdims=True)),
    "table": lambda F, x, q: F.take(q, F.argmax(x, axis=1) % ROWS),
    "whole": lambda F, x, q: F.broadcast_mul(q, F.mean(x, axis=(0, 1), keepdims=True)),
}


class Common(HybridBlock):
    """Computes `steps` of what all calls share, then combines each with the sample's matrix."""

    def __init__(self, steps, combined, memory, **kwargs):
        super().__init__(**kwargs)
        self._steps, self._combined, self._memory = steps, combined, memory
        for name, shape in SHAPES.items():
            setattr(self, name, self.params.get(name, shape=shape))

    def hybrid_forward(self, F, x, *memory, **params):
        shared = [memory[0] if self._memory else params["queries"]]
        for name, source in self._steps:
            shared.append(COMMON[name](F, shared[source % len(shared)], params))
        return [
            COMBINED[name](F, x, shared[-1 - source % len(shared)])
            for name, source in self._combined
        ]


@lru_cache(maxsize=None)
def common(steps, combined, memory=False, dtype="float32"):
    net = ready(gdb.convert(Common(steps, combined, memory, prefix="common_")), 0.5)
    net.cast(dtype)
    net.hybridize()
    return net


def compare(net, heights, memory=None, dtype="float32", **options):
    xs = [x.astype(dtype) for x in arrays(*[(n, WIDTH) for n in heights])]
    shared = () if memory is None else (memory.astype(dtype),)
    samples = attached(xs)
    batch = check_against_loop(lambda x: net(x, *shared), samples, net.collect_params(), **options)
    check_invariants(batch)
    return batch


SOURCES = st.integers(0, 3)
STEPS = st.lists(st.tuples(st.sampled_from(list(COMMON)), SOURCES), min_size=1, max_size=4)
ENDS = st.lists(st.tuples(st.sampled_from(list(COMBINED)), SOURCES), min_size=1, max_size=3)
HEIGHTS = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=6)


@pytest.mark.parametrize("native", [True, False])
def test_values_and_gradients_equal_the_loop(native, monkeypatch):
    inside.with_new_plans(monkeypatch, native=native)

    @examples(60 if native else 20)
    @given(
        STEPS.map(tuple), ENDS.map(tuple), HEIGHTS, st.booleans(), st.booleans(),
        st.sampled_from(GRANULARITIES), st.sampled_from(list(POLICIES)),
        st.sampled_from([None, 3]), st.sampled_from(["float32", "float64"]), st.booleans(),
    )  # fmt: skip
    def check(
        steps, combined, heights, memory, trained, granularity, policy, max_rows, dtype, debug
    ):
        net = common(steps, combined, memory, dtype)
        shared = array(ROWS, WIDTH, seed=9) if memory else None
        if memory and trained:
            shared.attach_grad()
        options = {"policy": policy, "max_rows": max_rows, "debug": debug}
        compare(
            net, heights, shared, dtype, granularity=granularity, analysis_budget=None, **options
        )

    check()


PRODUCTS = sorted({*COMMON} - {"added", "taken", "attend", "root"})


@pytest.mark.parametrize("step", PRODUCTS)
@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_samples_of_all_sizes_share_one_launch_after_it(step, granularity):
    net = common(((step, 0),), (("attention", 0), ("sum", 0)))
    batch = compare(net, [1, 2, 5, 2, 3], granularity=granularity, analysis_budget=None)
    assert [len(launch.units) for launch in batch.plan.launches] == [1, 5]
    assert "by MXNet" not in str(batch.plan)


@pytest.mark.parametrize("end", sorted(COMBINED))
def test_a_computed_factor_is_an_array_in_memory(end):
    net = common((("added", 0), ("dot", 1)), ((end, 0), (end, 1)))
    batch = compare(net, [2, 2, 2], granularity="operator", analysis_budget=None)
    assert batch.report.launches <= 3
    assert "by MXNet" not in str(batch.plan)


def test_functions_of_parameters_alone_need_no_launch_of_their_own():
    net = common((("added", 0),), (("sum", 0), ("whole", 0)))
    batch = compare(net, [2, 2, 2], granularity="block", analysis_budget=None)
    assert batch.report.launches == 1


def test_only_what_has_no_kernel_runs_by_mxnet():
    net = common((("root", 0),), (("attention", 0),))
    batch = compare(net, [1, 2, 3], granularity="operator", analysis_budget=None)
    kernels = [batch.plan.kernels_of(launch.number) for launch in batch.plan.launches]
    assert [isinstance(kernel, str) for kernel in kernels] == [True, False]


def test_two_memories_are_two_units():
    net = common((("dense", 0),), (("scores", 0),), memory=True)
    first, second = array(ROWS, WIDTH, seed=1), array(ROWS, WIDTH, seed=2)
    first.attach_grad()
    second.attach_grad()
    xs = attached(arrays(*[(n, WIDTH) for n in (1, 2, 2, 3)]))
    samples = list(zip(xs, [first, second, first, second]))
    batch = check_against_loop(
        lambda x, memory: net(x, memory), samples, net.collect_params(), granularity="operator",
        analysis_budget=None,
    )  # fmt: skip
    check_invariants(batch)


class Steps(gdb.DynamicHybridBlock):
    """Calls a cell several times, each with the result of the one before."""

    def __init__(self, net, **kwargs):
        super().__init__(**kwargs)
        self.net = net

    def forward(self, x, count):
        for _ in range(count):
            x = self.net(x)[0]
        return x


@pytest.mark.parametrize("trace_once", [False, True])
def test_all_steps_of_all_samples_read_one_result(trace_once):
    net = Steps(common((("dense", 0), ("turned", 1)), (("attention", 0),)))
    net.hybridize(trace_once=trace_once)
    samples = list(zip(attached(arrays(*[(n, WIDTH) for n in (1, 3, 2, 3)])), (3, 1, 2, 3)))
    batch = check_against_loop(
        lambda x, count: net(x, count), samples, net.collect_params(),
        granularity="operator", policy="depth", analysis_budget=None,
    )  # fmt: skip
    check_invariants(batch)
    assert batch.report.launches == 1 + 3


#: What draws of parameters alone: each call has its own numbers, so these are not common.
DRAWS = {
    "dropped factor": lambda F, x, w: F.dot(x, F.Dropout(w, p=0.5, mode="always")),
    "drawn factor": lambda F, x, w: F.dot(x, F.random.uniform_like(w)),
    "product of a drawn one": lambda F, x, w: F.broadcast_add(
        x, F.sum(F.dot(F.Dropout(w, p=0.5, mode="always"), w))
    ),
    "product of a created one": lambda F, x, w: F.broadcast_add(
        x, F.dot(F.random.uniform(shape=(1, WIDTH)), w)
    ),
}


class Drawing(HybridBlock):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.w = self.params.get("w", shape=(WIDTH, WIDTH))

    def hybrid_forward(self, F, x, w):
        return self.draw(F, x, w)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_draws_does_not_run_once(draw, granularity):
    cell, x = ready(Drawing(draw)), array(1, WIDTH)
    with gdb.batching(granularity=granularity):
        results = [cell(x) for _ in range(8)]
    # Two of eight may be equal by chance; if the draw ran once, all are.
    assert len({result.asnumpy().tobytes() for result in results}) > 1
