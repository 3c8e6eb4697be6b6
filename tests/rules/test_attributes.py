"""Every value of an attribute that MXNet's own description names has the same effect in a scope."""

import contextlib
import random

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from tests.cells import cell
from tests.common import loop_and_scope
from tests.fuzz.operators import numpy_names

from . import attributes

#: No test compares random numbers of MXNet.
MXNET_DRAWS = False
#: Of each of these operators, a few calls are compared here, and all by `make fuzz`.
COMPARED = [
    "Activation",
    "Cast",
    "Concat",
    "Embedding",
    "FullyConnected",
    "InstanceNorm",
    "L2Normalization",
    "LayerNorm",
    "LeakyReLU",
    "SliceChannel",
    "SwapAxis",
    "_linalg_gemm",
    "_linalg_gemm2",
    "_mod_scalar",
    "_power_scalar",
    "_rdiv_scalar",
    "_maximum_scalar",
    "argmax",
    "batch_dot",
    "broadcast_axis",
    "clip",
    "dot",
    "expand_dims",
    "log_softmax",
    "max",
    "mean",
    "norm",
    "one_hot",
    "pick",
    "repeat",
    "reverse",
    "slice_axis",
    "smooth_l1",
    "softmax",
    "softmin",
    "sort",
    "squeeze",
    "stack",
    "sum",
    "take",
    "tile",
    "topk",
    "transpose",
]
CALLS = 3


#: Those that `mx.np` has by another name, and its own that have attributes.
NUMPY = [op for op in COMPARED if op in numpy_names()]
NUMPY += sorted({c.op for c in attributes.cases("np") if c.op.startswith("_np") and c.attrs})
#: With axes that do not fit, and with fractions, MXNet ends the process.
NUMPY = [op for op in NUMPY if "tensordot" not in op and "lcm" not in op]


@pytest.mark.parametrize(
    "front, op", [("nd", op) for op in COMPARED] + [("np", op) for op in NUMPY]
)
def test_some_attributes_equal_the_loop(front, op):
    calls = list(attributes.changed(op, front))
    for case, attrs in random.Random(op).sample(calls, min(CALLS, len(calls))):
        assert attributes.compare(case, attrs, front) is None, attrs


WINDOWS = {"kernel", "stride", "dilate", "pad", "layout"}


@pytest.mark.parametrize("op, whole", [("Convolution", {}), ("Pooling", {"global_pool": "True"})])
def test_windows_equal_the_loop(op, whole):
    """MXNet checks some of them only when it runs the operator, even if it needs no window."""
    calls = [
        (case, {**attrs, **whole})
        for case, attrs in attributes.changed(op)
        if any(attrs.get(name) != case.attrs.get(name) for name in WINDOWS)
    ]
    for case, attrs in random.Random(op).sample(calls, 60):
        assert attributes.compare(case, attrs) is None, attrs


def test_every_attribute_has_values():
    """Fails if MXNet describes an attribute by a type that is unknown to `attributes`."""
    operators = {*rules.TABLE, *(case.op for case in attributes.cases("np"))}
    described = {op: attributes.described(op) for op in operators}
    for texts in described.values():
        for name in texts.keys() - attributes.FIXED:
            assert len(attributes.values_of(name, texts[name])) > 0
    assert "prelu" in attributes.values_of("act_type", described["LeakyReLU"]["act_type"])
    assert attributes.values_of("axis", described["pick"]["axis"])[-1] == "None"


#: Functions of an array of any number of dimensions.
FUNCTIONS = {
    "single elements": lambda F, x: F.tanh(x) * 2 + x,
    "reductions": lambda F, x: F.max(
        F.broadcast_mul(F.sum(x, axis=-1, keepdims=True), x), axis=0, exclude=True
    ),
    "softmax": lambda F, x: F.softmax(x, axis=-1) + F.log_softmax(x, axis=-1),
    "cumsum": lambda F, x: F.sort(x, axis=-1) * x,
    "reshape": lambda F, x: F.reshape(F.exp(x), (0, -1)),
    "new axes": lambda F, x: F.sigmoid(F.expand_dims(x, axis=1)),
}


@pytest.mark.parametrize("ndim", range(1, 8))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_of_any_number_of_dimensions_equal_the_loop(name, ndim):
    net, shape = cell(FUNCTIONS[name]), (2, 3, 1, 2, 1, 2, 1)[:ndim]

    def run(scope):
        xs = [nd.array(np.arange(np.prod(shape)).reshape(shape) * 0.1 * k) for k in (1, 2, 3)]
        for x in xs:
            x.attach_grad()
        with autograd.record(), scope:
            # A number that varies is an operand, unless calls run at once.
            results = [net(x * k) for k, x in enumerate(xs, 1)]
        autograd.backward(results)
        return [*results, *(x.grad for x in xs)]

    loop_and_scope(run, granularity="block", policy="depth", analysis_budget=None)


def test_arrays_of_seven_dimensions_run_at_once():
    """MXNet cannot reshape them, and a stack would have one more axis."""
    gain, shift, shape = nd.ones((3,)), nd.zeros((3,)), (3, 3, 2, 3, 2, 1, 1)

    def run(scope):
        with scope:
            lazy = [mx.nd.ones(shape) * k for k in (1, 2, 3)]
            return [mx.nd.InstanceNorm(x, gain, shift) for x in lazy]

    loop_and_scope(run, policy="depth")
    with gdb.batching(policy="depth") as batch:
        run(contextlib.nullcontext())
    reasons = {call.reason for call in batch.report.alone}
    assert reasons and all("6 axes" in reason for reason in reasons)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3), (2, 2)], ids=str)
def test_batch_norm_takes_parameters_of_any_shape_with_as_many_elements(shape):
    """Those with more axes run at once, those of another size are refused."""
    values = [nd.arange(1, 1 + np.prod(shape)).reshape(shape) for _ in range(4)]

    def run(scope):
        with scope:
            inputs = [nd.ones((2, 3)) * k for k in (1, 2)]
            return [nd.BatchNorm(x, *values, use_global_stats=True) for x in inputs]

    if len(values[0].reshape(-1)) == 3:
        loop_and_scope(run, policy="depth")
    else:
        with pytest.raises(gdb.ShapeError, match="is needed"):
            run(gdb.batching())


REFUSED = {
    (front, case.op): case
    for front in ("nd", "np")
    for case in attributes.cases(front)
    if case.op in rules.REFUSED
}


def test_every_operator_with_refused_dtypes_has_a_case():
    assert {op for _, op in REFUSED} == {*rules.REFUSED}


@pytest.mark.parametrize("front, op", REFUSED)
def test_dtypes_that_mxnet_refuses_are_refused(front, op):
    """All inputs have such a dtype, or each in turn."""
    case = REFUSED[front, op]
    for dtype in rules.REFUSED[op]:
        for only in [*range(len(case.inputs)), None]:
            attrs = {**case.attrs, "__dtype__": dtype, "__input__": only}
            assert not attributes.compare(case, attrs, front, granularity="operator"), dtype


def test_a_call_of_a_refused_dtype_raises_as_in_the_loop():
    net, x = cell(lambda F, x: F.Dropout(2 * x, p=0.5)), mx.nd.ones((1, 3), dtype="int32")
    for scope in (contextlib.nullcontext(), gdb.batching()):
        with pytest.raises(mx.MXNetError, match="floating point"), scope:
            net(x).asnumpy()
