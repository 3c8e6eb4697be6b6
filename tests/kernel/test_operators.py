"""Results and gradients of kernels equal those of MXNet's operators."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from gluon_dynbatch.kernel.operators import NATIVE
from gluon_dynbatch.kernel.tensor import ROUGH
from gluon_dynbatch.testing import check_against_loop
from tests.cells import cell
from tests.fuzz.operators import function
from tests.rules.all_cases import EVERY
from tests.rules.elementwise_cases import BINARY, SCALAR, UNARY
from tests.rules.interpreter import attach

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False

#: Operators with kernels, some cases of which run in MXNet: words of the reasons.
LEFT = {
    "Convolution": {"three axes", "fits into the padding", "more elements than its maps"},
    "FullyConnected": {"all rows share its first input"},
    "LeakyReLU": {"not for selu"},
    "broadcast_add": {"calls run one by one"},
    "repeat": {"32 pieces"},
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
    # MXNet stores the slope of LeakyReLU in single precision.
    return (1e-6, 1e-7) if op == "LeakyReLU" else (1e-8, 1e-9)


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


def check(c):
    launches, rng = [], np.random.default_rng(0)
    options = {"tolerance": tolerance_of(c.op, dtype_of(c.op, c.attrs)), "training": c.training}
    for pattern in sorted({*c.rows.split(), *c.stack.split()}):
        launches += run(function(c.op, c.attrs), samples_of(c, pattern, rng), **options)
    return outcomes(launches)


BY_OPERATOR = {}
for case in EVERY:
    if case.op in NATIVE and not case.random:
        BY_OPERATOR.setdefault(case.op, []).append(case)


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_operators_equal_mxnet(op):
    counts, reasons = zip(*(check(c) for c in BY_OPERATOR[op]))
    reasons = set().union(*reasons)
    words = LEFT.get(op, set())
    assert all(any(word in reason for word in words) for reason in reasons), reasons
    assert all(any(word in reason for reason in reasons) for word in words), reasons
    assert any(counts)


def test_every_operator_has_cases():
    assert NATIVE - set(BY_OPERATOR) == {"_grad_add"}


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
    assert outcomes(run(norm, samples)) == (0, {"operator norm has no kernel here: dtypes differ"})


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
