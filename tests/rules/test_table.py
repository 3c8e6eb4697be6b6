"""The rule table: every operator of MXNet is in it once, and its properties are right."""

import re
from collections import Counter
from functools import reduce

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from docs.list_operators import canonical_name, numpy_table, reference
from gluon_dynbatch import rules
from gluon_dynbatch.rules.spelling import SIGNS, written
from tests.common import ROOT

from . import numpy_calls
from .all_cases import EVERY
from .interpreter import Case, call_operator, differentiate, is_float

MXNET_DRAWS = False

NAMED = (*rules.MERGED, rules.CREATION, *rules.UNSUPPORTED)


OPERATORS = frozenset(map(canonical_name, mx.operator.get_all_registered_operators()))
INTERNAL = OPERATORS.difference(*(family.rules for family in NAMED))


def test_every_operator_that_users_call_is_in_one_family():
    """Under its canonical name."""
    assert len(OPERATORS) > 800
    named = Counter(op for family in NAMED for op in family.rules)
    assert set(named.values()) == {1} and set(named) <= OPERATORS
    unknown = rules.of("my_operator")
    assert not unknown.merges and not unknown.reason
    assert not any(rules.of(op).merges or rules.of(op).reason for op in INTERNAL)


def test_operators_without_an_underscore_are_not_internal():
    """Except for optimizer steps and conversions to sparse arrays, which other classes call."""
    steps = ("_update", "_phase1", "_phase2", "_finite", "_lars", "_sum_sq")
    exceptions = {"cast_storage", "reset_arrays", "fill_element_0index"}
    assert all(op.startswith("_") or op.endswith(steps) or op in exceptions for op in INTERNAL)


def test_the_page_of_operators_is_current():
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert page == reference(), "run python docs/list_operators.py"


def test_the_page_lists_every_operator_of_numpy_once():
    """Those that functions of `mx.np` call, and that tests compare, are listed as merged."""
    rows = re.findall(r"^\| `(_np[ix]?_\w+)` \| (.+?) \|$", numpy_table(), re.MULTILINE)
    registered = mx.operator.get_all_registered_operators()
    wanted = {op for op in registered if re.match("_np[ix]?_", op) and "backward" not in op}
    assert {op for op, _ in rows} == wanted and len(rows) == len(wanted) == 283
    merged = {canonical_name(op) for op, merges in rows if merges != "never, see above"}
    assert {case.op for case in numpy_calls.calls()} <= merged


def site_of(op, shape=(2, 3), **attrs):
    return rules.Site(op, attrs, (shape,), (shape,), (True,), False)


def refusals(site):
    reasons = [rules.why_not(site, stacked) for stacked in (False, True)]
    assert all(reasons), site
    return reasons


def test_refusals_of_unsupported_operators_have_a_reason():
    for op in [op for family in rules.UNSUPPORTED for op in family.rules]:
        message = f"Operator {written(op)} can't be merged: {rules.of(op).reason}."
        assert refusals(site_of(op)) == [message] * 2


def test_messages_write_operators_as_users_do():
    """As a name in ``mx.nd`` or ``mx``, or as a sign; except for those that users cannot call."""
    exceptions = {
        "_CustomFunction", "_hypot", "_hypot_scalar", "_rnn_param_concat",
        "_npi_boolean_mask_assign_scalar", "_npi_boolean_mask_assign_tensor",
    }  # fmt: skip
    for op in {op for family in NAMED for op in family.rules} - exceptions:
        name = written(op)
        callable_ = any(resolve(root, name) for root in (mx.nd, mx))
        assert callable_ or name in SIGNS.values() or op.startswith("_backward_"), (op, name)


def resolve(root, name):
    """Return what a dotted name is; None if it is nothing."""
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), root)


def test_refusals():
    """Of unknown operators, wrong attributes, empty arrays and reshapes that lose elements."""
    unknown = "There is no batching rule for operator my_operator, so its calls run one by one."
    assert refusals(site_of("my_operator")) == [unknown] * 2
    for axis in ("one", "(1, 'x')", "1.5", "7"):
        assert refusals(site_of("softmax", axis=axis))
    assert all("rrelu" in reason for reason in refusals(site_of("LeakyReLU", act_type="rrelu")))
    for shape in ((), (0, 3), (3, 0)):
        assert all("empty or unknown" in reason for reason in refusals(site_of("exp", shape)))
    assert refusals(
        rules.Site("Reshape", {"shape": "(1, -2)"}, ((2, 3),), ((1, 3),), (True,), False)
    )


#: Operators with inputs whose gradient MXNet does not write, or refuses to compute.
UNWRITTEN = (
    "BatchNorm CTCLoss Embedding SequenceLast SequenceMask SequenceReverse "
    "_contrib_BatchNormWithReLU"
)
CONSTANT = [
    c for c in EVERY if rules.of(c.op).no_gradient and c.gradient and c.op not in UNWRITTEN.split()
]


@pytest.mark.parametrize("c", CONSTANT, ids=lambda c: c.op)
def test_inputs_without_a_gradient_in_the_table_get_zeros(c):
    rng = np.random.default_rng(0)
    arrays = [a.draw(rng, 2) for a in c.inputs]
    constant = [a for k, a in enumerate(arrays) if k in rules.of(c.op).no_gradient and is_float(a)]
    for array in filter(is_float, arrays):
        array.attach_grad()
        array.grad[:] = 7
    with autograd.record(train_mode=c.training):
        outputs = [out for out in call_operator(c, arrays) if is_float(out)]
    if outputs and constant:
        heads = [rng.normal(size=o.shape).astype(o.dtype) for o in outputs]
        differentiate(outputs, heads, c.training)
        assert not any(array.grad.asnumpy().any() for array in constant)


def test_properties_of_some_operators():
    drawn = "Dropout _random_uniform _sample_normal _shuffle _random_normal_like _image_random_hue"
    assert all(rules.is_random(op) for op in drawn.split())
    assert not any(rules.is_random(op) for op in ("exp", "_random_pdf_normal"))
    variants = None, {"act_type": "rrelu"}, {"act_type": "elu"}
    assert [rules.is_random("LeakyReLU", attrs) for attrs in variants] == [True, True, False]
    modes = {}, {"mode": "always"}
    drawn = [rules.is_random("Dropout", a, t) for a in modes for t in (True, False)]
    assert drawn == [True, False, True, True]
    wanted = {"adam_update": "always", "_set_value": "always", "BatchNorm": "training", "exp": ""}
    assert {op: rules.of(op).writes or "" for op in wanted} == wanted
    # Unknown operators are not trusted.
    assert rules.of("FullyConnected").adds_to_gradients
    assert not rules.of("my_operator").adds_to_gradients


def test_creation_operators_have_no_inputs_and_are_deterministic():
    shape, steps = {"shape": "(2, 3)"}, {"start": "0", "stop": "3"}
    attrs = {
        "_arange": steps, "_linspace": {**steps, "num": "4"}, "_eye": {"N": "3"},
        "_full": {**shape, "value": "4"}, "_zeros_without_dtype": {**shape, "dtype": "0"},
        "_npi_arange": steps, "_npi_eye": {"N": "3"}, "_npi_logspace": {**steps, "num": "4"},
        "_npi_indices": {"dimensions": "(2, 3)"}, "_npi_identity": {"shape": "(3, 3)"},
        **{f"_npi_{window}": {"M": "5"} for window in ("blackman", "hamming", "hanning")},
    }  # fmt: skip
    for op in rules.CREATION.rules:
        c = Case(op, (), {**attrs.get(op, shape), "ctx": "cpu(0)"})
        first, second = (call_operator(c, [])[0].asnumpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not rules.is_random(op)
