"""Results and gradients of kernels equal those of MXNet's operators."""

import tracemalloc
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from gluon_dynbatch.kernel.created import CREATED
from gluon_dynbatch.kernel.draws import DRAWS
from gluon_dynbatch.kernel.operators import NATIVE
from gluon_dynbatch.kernel.tensor import ROUGH
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, cell, equal
from tests.common import FIXED
from tests.depth import DEEP, examples
from tests.fuzz.operators import function
from tests.rules.all_cases import EVERY
from tests.rules.elementwise_cases import BINARY, SCALAR, UNARY
from tests.rules.interpreter import attach

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False

#: Operators with kernels, some cases of which run in MXNet: words of the reasons.
LEFT = {
    "Convolution": {"three axes", "fits into the padding"},
    "Pooling": {"reduces parts of maps"},
    "LeakyReLU": {"not for selu"},
    "broadcast_add": {"calls run one by one"},
    "softmax": {"rows have lengths", "share its integers"},
}


def run(fn, samples, training=True, **options):
    """Compare a cell with the loop, which MXNet runs; return segment and kernels of each launch.

    Arrays in several samples are weights.  Others are copied, as variables do not merge.
    """
    net, count = cell(fn), {}
    for array in sum(map(list, samples), []):
        count[id(array)] = count.get(id(array), 0) + 1

    def call(sample):
        arrays = [x if x.grad is None or count[id(x)] > 1 else x * 1 for x in sample]
        with autograd.train_mode() if training else autograd.predict_mode():
            return net(*arrays)

    options = {"granularity": "block", "policy": "depth", "analysis_budget": None, **options}
    plan = check_against_loop(call, samples, **options).plan
    return [(launch.segment, plan.kernels_of(launch.number)) for launch in plan.launches]


def outcomes(launches):
    """Return how many launches have kernels, and the reasons why others run in MXNet."""
    reasons = [reason for _, reason in launches if isinstance(reason, str)]
    return len(launches) - len(reasons), set(reasons)


def dtype_of(op, attrs):
    """Return the dtype of a test: single where MXNet's constants are, as doubles have no kernel."""
    single = op in ROUGH or attrs.get("act_type") == "gelu"
    return "float32" if single or op == "amp_cast" else "float64"


def tolerance_of(op, dtype):
    if dtype == "float32":
        return 1e-5, 1e-6
    return (1e-6, 1e-7) if rules.of(op).single else (1e-8, 1e-9)


def samples_of(c, pattern, rng):
    def draw(array, rows):
        values = array.draw(rng, rows)
        return values.astype(dtype_of(c.op, c.attrs)) if values.dtype == np.float32 else values

    ragged = c.has_rows(pattern) and not c.shares_rows(pattern)
    shared = [draw(array, 2) for array in c.inputs]
    samples = []
    for rows in (2, 1, 3) if ragged else (2, 2, 2):
        arrays = zip(pattern, c.inputs, shared)
        samples.append([same if letter == "S" else draw(a, rows) for letter, a, same in arrays])
        attach(c.op, samples[-1])
    return samples


def check(c, number):
    """Compare the case of this number of an operator: the first with all patterns of inputs."""
    launches, rng = [], np.random.default_rng(0)
    options = {"tolerance": tolerance_of(c.op, dtype_of(c.op, c.attrs)), "training": c.training}
    patterns = sorted({*c.rows.split(), *c.stack.split()})
    if patterns and number and not DEEP:
        patterns = [patterns[number % len(patterns)]]
    for pattern in patterns:
        launches += run(function(c.op, c.attrs), samples_of(c, pattern, rng), **options)
    return outcomes(launches)


BY_OPERATOR = {}
for case in EVERY:
    # MXNet cannot differentiate a sort without an axis in a symbol.
    differentiable = case.op != "sort" or "axis" in case.attrs
    # Calls with statistics that are not parameters of a block are not recorded.
    if case.op in NATIVE - {"BatchNorm", "_npi_tril"} and not case.random and differentiable:
        BY_OPERATOR.setdefault(case.op, []).append(case)


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_operators_equal_mxnet(op):
    counts, reasons = zip(*(check(c, number) for number, c in enumerate(BY_OPERATOR[op])))
    reasons = set().union(*reasons)
    words = LEFT.get(op, set())
    assert all(any(word in reason for word in words) for reason in reasons), reasons
    assert all(any(word in reason for reason in reasons) for word in words), reasons
    assert any(counts)


def test_every_operator_has_cases():
    # `test_draws.py` and `test_created.py` test operators without inputs, and `tests/rules/` those
    # of `mx.np`.
    others = NATIVE - set(BY_OPERATOR) - set(DRAWS) - set(CREATED)
    assert others == {"_grad_add", "BatchNorm", "_npi_tril"}


#: Kinks, ends of ranges, and poles.
GRID = np.array([-2, -1, -0.5, 0, 0.5, 1, 2])
WITH_ATTRIBUTES = {"Activation", "Cast", "amp_cast", "clip", "hard_sigmoid", "smooth_l1"}
KINKED = [
    *((op, 1, {}) for op in UNARY if op in NATIVE and op not in WITH_ATTRIBUTES),
    *((op, 1, {"scalar": scalar}) for op in SCALAR for scalar in (0, 0.5, 1)),
    *(("LeakyReLU", 1, {"act_type": kind}) for kind in ("leaky", "elu", "gelu")),
    *(("Activation", 1, {"act_type": kind}) for kind in ("relu", "softrelu", "softsign")),
    ("clip", 1, {"a_min": -0.5, "a_max": 1}),
    ("hard_sigmoid", 1, {"alpha": 0.5}),
    ("smooth_l1", 1, {"scalar": 1}),
    ("_contrib_gradientmultiplier", 1, {"scalar": 0}),
    *((op, 2, {}) for op in BINARY),
    ("where", 3, {}),
]


@pytest.mark.parametrize("op, count, attrs", KINKED)
def test_derivatives_at_kinks_and_poles_equal_mxnet(op, count, attrs):
    dtype = dtype_of(op, attrs)
    grids = np.meshgrid(*[GRID] * count)
    samples = []
    for step in (1, -1):
        samples.append([mx.nd.array(a.reshape(-1, 7)[:, ::step], dtype=dtype) for a in grids])
        attach(op, samples[-1])
    launches = run(function(op, attrs), samples, tolerance=tolerance_of(op, dtype))
    assert outcomes(launches) == (1, set())


def test_a_norm_of_another_dtype_runs_in_mxnet(monkeypatch):
    # Without it, MXNet refuses another dtype.
    monkeypatch.setenv("MXNET_SAFE_ACCUMULATION", "1")
    norm = function("norm", {"ord": "2", "axis": "1", "out_dtype": "float64"})
    samples = [[mx.nd.array([[k, 2, 3]], dtype="float32")] for k in range(3)]
    reason = "operator norm has no native steps here: dtypes differ"
    assert outcomes(run(norm, samples)) == (0, {reason})


#: Attributes that MXNet keeps in double precision, and those in single precision.
NUMBERS = [
    ("one_hot", "on_value"), ("one_hot", "off_value"), ("smooth_l1", "scalar"),
    ("_contrib_arange_like", "start"), ("_contrib_arange_like", "step"), ("_mul_scalar", "scalar"),
    ("clip", "a_max"), ("hard_sigmoid", "alpha"), ("_contrib_quadratic", "a"),
    ("softmax", "temperature"), ("LayerNorm", "eps"), ("L2Normalization", "eps"),
]  # fmt: skip


@pytest.mark.parametrize("op, name", NUMBERS)
def test_numbers_have_the_precision_that_they_have_in_mxnet(op, name):
    for c in BY_OPERATOR[op][:2]:
        attrs = {**c.attrs, name: "0.3", **({"dtype": "float64"} if op == "one_hot" else {})}
        samples = samples_of(c, c.stack.split()[0], np.random.default_rng(0))
        launches = run(function(op, attrs), samples, c.training, tolerance=(1e-11, 1e-13))
        assert outcomes(launches)[0]


#: Sizes on both sides of the bounds of MXNet's algorithms: 8 times the positions, and 16.
SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 40, 300]
RANKED = [
    ("argmax", {}, True), ("argmin", {}, True), ("topk", {"k": "1"}, True),
    ("topk", {"k": "1", "is_ascend": "1"}, True), ("topk", {"k": "3", "ret_typ": "both"}, False),
    ("topk", {"k": "2", "ret_typ": "mask", "is_ascend": "1"}, False),
    ("topk", {"k": "20", "dtype": "int32"}, False), ("topk", {"k": "0"}, False),
    ("argsort", {}, False), ("sort", {"is_ascend": "0"}, False),
]  # fmt: skip
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def ranks_as_mxnet(op, attrs, samples):
    call = function(op, {"axis": "1", **attrs})
    with np.errstate(invalid="ignore"):
        wanted = [np.stack([y.asnumpy() for y in results(call(mx.nd, *s))]) for s in samples]
    net = cell(call)
    with gdb.batching(**FIXED) as batch:
        got = [results(net(*s)) for s in samples]
    for a, b in zip(got, wanted):
        np.testing.assert_array_equal(np.stack([y.asnumpy() for y in a]), b)
    assert not any(isinstance(kernels, str) for kernels in batch.plan.kernels)


@pytest.mark.parametrize("op, attrs, with_nan", RANKED)
@DTYPES
def test_equal_elements_and_nan_have_the_order_that_they_have_in_mxnet(op, attrs, with_nan, dtype):
    rng = np.random.RandomState(0)
    for size in [size for size in SIZES if size >= int(attrs.get("k", 1))]:
        samples = []
        for _ in range(3):
            values = rng.randint(0, 4, (20, size, 2)).astype(dtype)
            if with_nan:
                values[rng.uniform(size=values.shape) < 0.1] = np.nan
            values[rng.uniform(size=values.shape) < 0.1] = -np.inf
            samples.append([mx.nd.array(values, dtype=dtype)])
        ranks_as_mxnet(op, attrs, samples)


def killer(size):
    """Return numbers whose medians of three split off two of them at a time (Musser 1997)."""
    half = np.arange(size // 2)
    first = np.where(half % 2, size // 2 + half - 1, half)
    return np.concatenate([first, 2 * half + 1, np.arange(size % 2) + size])


ORDERS = {
    "random": lambda rng, size: rng.uniform(-1, 1, size),
    "few": lambda rng, size: rng.randint(0, rng.randint(1, 9), size),
    "rising": lambda rng, size: np.arange(size) // rng.randint(1, 4),
    "falling": lambda rng, size: -np.arange(size) // rng.randint(1, 4),
    "both": lambda rng, size: -abs(np.arange(size) - size // 2),
    "killer": lambda rng, size: killer(size),
}


@given(
    st.sampled_from(["topk", "argsort", "sort"]), st.integers(1, 1024), st.integers(1, 200),
    st.booleans(), st.lists(st.sampled_from(sorted(ORDERS)), min_size=2, max_size=3),
    st.integers(0, 2**31),
)  # fmt: skip
@examples(20)
def test_any_number_of_elements_is_ranked_as_in_mxnet(op, size, k, is_ascend, orders, seed):
    rng = np.random.RandomState(seed)
    attrs = {"is_ascend": str(int(is_ascend)), **({"k": str(min(k, size))} if op == "topk" else {})}
    rows = [[ORDERS[name](rng, size), ORDERS[name](rng, size)[::-1]] for name in orders]
    ranks_as_mxnet(op, attrs, [[mx.nd.array(np.stack(row), dtype="float64")] for row in rows])


@DTYPES
def test_native_steps_sort_a_limited_number_of_elements(dtype):
    rng = np.random.RandomState(0)
    for op, attrs, size, ranked in [
        ("argsort", {}, 1024, True), ("argsort", {}, 1025, False),
        ("topk", {"k": "4", "ret_typ": "both"}, 5000, True),
        ("topk", {"k": "1024"}, 8192, True), ("topk", {"k": "1025"}, 8200, False),
    ]:  # fmt: skip
        samples = [[mx.nd.array(rng.uniform(size=(1, size)), dtype=dtype)] for _ in range(2)]
        launches = run(function(op, {"axis": "1", **attrs}), samples)
        reason = f"operator {op} has no native steps here: native steps sort or choose at most"
        assert outcomes(launches)[0] == ranked
        assert ranked or outcomes(launches)[1].pop().startswith(reason)


def results(result):
    return result if isinstance(result, list) else [result]


@pytest.mark.parametrize("shape, axis", [((3, 4), 1), ((2, 4, 3), 1), ((2, 3, 4), -1)])
@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_norm_in_prediction_equals_mxnet(shape, axis, fix_gamma, dtype):
    net = nn.BatchNorm(axis=axis, in_channels=4, scale=not fix_gamma, epsilon=0.02)
    net.initialize()
    net.cast(dtype)
    net.hybridize()
    rng, arrays = np.random.RandomState(0), []
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(rng.uniform(0.5, 2, 4), dtype=dtype))
        arrays += [parameter] * (parameter.grad_req != "null")

    def run(scope):
        xs = [mx.nd.array(rng.normal(size=shape), dtype=dtype) for _ in range(3)]
        for x in xs:
            x.attach_grad()
        with autograd.record(train_mode=False), scope:
            losses = [mx.nd.square(net(x)) for x in xs]
        autograd.backward(losses, train_mode=False)
        return [a.asnumpy() for a in (*losses, *(x.grad for x in xs), *(p.grad() for p in arrays))]

    state = rng.get_state()
    wanted = run(nullcontext())
    rng.set_state(state)
    scope = gdb.batching(**FIXED)
    equal(run(scope), wanted, *(1e-4, 1e-5) if dtype == "float32" else (1e-9, 1e-10))
    assert not any(isinstance(kernels, str) for kernels in scope.plan.kernels), scope.plan.kernels


MANY = {  # of axes that are not the first, so that a sample is one row of the launch
    "max": lambda F, x: F.max(x, axis=-1),
    "min": lambda F, x: F.min(x, axis=-1),
    "max of columns": lambda F, x: F.max(x, axis=1),
    "softmax": lambda F, x: F.softmax(x, axis=-1) * 3,
    "log_softmax": lambda F, x: F.log_softmax(x, axis=1),
}


@pytest.mark.parametrize("heads, words", [(4, 9), (2, 33), (3, 41), (40, 1), (17, 2)])
@pytest.mark.parametrize("fn", MANY.values(), ids=MANY)
def test_reductions_of_many_rows_of_a_sample_have_kernels(fn, heads, words):
    """As in an attention with several heads; equal largest elements all get the gradient."""

    def call(F, x):
        return fn(F, x.reshape((words, heads, -1)).transpose((1, 0, 2)))

    shape = 3, words, heads * words
    samples = [(x,) for x in attached(list(mx.nd.random.normal(shape=shape).round()))]
    count, reasons = outcomes(run(call, samples))
    assert count and not reasons


@pytest.mark.parametrize(
    "program",
    [
        lambda F, x: F.transpose(x, (0, 2, 1)),
        lambda F, x: F.slice(x, begin=(None, 1, 1), end=(None, 4, 4)),
        lambda F, x: F.max(x, axis=1),
        lambda F, x: F.broadcast_add(x, F.slice_axis(x, axis=1, begin=0, end=1)),
        lambda F, x: F.concat(x, x, dim=1),
    ],
    ids=["transpose", "slice", "max", "broadcast", "concat"],
)
def test_rows_that_are_too_long_to_be_moved_take_no_memory_for_indices(program):
    net = cell(program)
    x = mx.nd.zeros((1, 2048, 2048))
    mx.nd.waitall()
    tracemalloc.start()
    try:
        with gdb.batching(**FIXED) as batch:
            y = net(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.report.launches == 1
    assert y.shape == net(x).shape
    assert peak < x.size  # an index takes eight bytes
