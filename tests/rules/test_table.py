"""The table: every operator of MXNet is in it once, and what it says of each is so."""

import ctypes
from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import _LIB, check_call

from docs.list_operators import reference
from gluon_dynbatch import rules
from tests.common import ROOT

from .all_cases import EVERY
from .interpreter import Case, call_operator, differentiate, is_float

NAMED = (*rules.MERGED, rules.CREATION, *rules.UNSUPPORTED)


def canonical_name(op):
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(handle, ctypes.byref(name)))
    return name.value.decode()


OPERATORS = frozenset(map(canonical_name, mx.operator.get_all_registered_operators()))
INTERNAL = OPERATORS.difference(*(family.rules for family in NAMED))


def test_every_operator_of_mxnet_is_in_one_family():
    """Under its canonical name, if users call it."""
    assert len(OPERATORS) > 800
    named = Counter(op for family in NAMED for op in family.rules)
    assert set(named.values()) == {1} and set(named) <= OPERATORS
    unknown = rules.of("an operator of nobody's")
    assert not unknown.merges and not unknown.reason
    assert not any(rules.of(op).merges or rules.of(op).reason for op in INTERNAL)


def test_generated_functions_of_mxnet_belong_to_users():
    """What `mx.nd` and `mx.sym` show without an underscore is internal by name only."""
    # Optimizer steps and conversions to sparse arrays; users reach them through other classes.
    steps = ("_update", "_phase1", "_phase2", "_finite", "_lars", "_sum_sq")
    others = {"cast_storage", "reset_arrays", "fill_element_0index"}
    assert all(op.startswith("_") or op.endswith(steps) or op in others for op in INTERNAL)


def test_the_page_is_current():
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert page == reference(), "run python docs/list_operators.py"


def plain(op, **attrs):
    return rules.Site(op, attrs, ((2, 3),), ((2, 3),), (True,), False)


def refusals(site):
    reasons = [rules.why_not(site, stacked) for stacked in (False, True)]
    assert all(reasons), site
    return reasons


def test_what_never_merges_is_explained():
    for op in [op for family in rules.UNSUPPORTED for op in family.rules]:
        assert refusals(plain(op)) == [f"Operator {op} can't be merged: {rules.of(op).reason}."] * 2


def test_refusals():
    """Of unknown operators, odd attributes, empty arrays and reshapes that lose elements."""
    unknown = "There is no batching rule for operator my_operator, so its calls run one by one."
    assert refusals(plain("my_operator")) == [unknown] * 2
    for axis in ("one", "(1, 'x')", "1.5", "7"):
        assert refusals(plain("softmax", axis=axis))
    assert all("rrelu" in said for said in refusals(plain("LeakyReLU", act_type="rrelu")))
    for shape in ((), (0, 3), (3, 0)):
        for said in refusals(rules.Site("exp", {}, (shape,), (shape,), (True,), False)):
            assert "empty or unknown" in said
    assert refusals(
        rules.Site("Reshape", {"shape": "(1, -2)"}, ((2, 3),), ((1, 3),), (True,), False)
    )


#: MXNet leaves these gradients unwritten or refuses to compute them.
UNWRITTEN = (
    "BatchNorm CTCLoss Embedding SequenceLast SequenceMask SequenceReverse "
    "_contrib_BatchNormWithReLU"
)
FIXED = [
    c for c in EVERY if rules.of(c.op).no_gradient and c.gradient and c.op not in UNWRITTEN.split()
]


@pytest.mark.parametrize("c", FIXED, ids=lambda c: c.op)
def test_inputs_said_to_get_no_gradient_get_none(c):
    rng = np.random.default_rng(0)
    arrays = [a.draw(rng, 2) for a in c.inputs]
    fixed = [a for k, a in enumerate(arrays) if k in rules.of(c.op).no_gradient and is_float(a)]
    for array in filter(is_float, arrays):
        array.attach_grad()
        array.grad[:] = 7
    with autograd.record(train_mode=c.training):
        outputs = [out for out in call_operator(c, arrays) if is_float(out)]
    if outputs and fixed:
        heads = [rng.normal(size=o.shape).astype(o.dtype) for o in outputs]
        differentiate(outputs, heads, c.training)
        assert not any(array.grad.asnumpy().any() for array in fixed)


def test_what_is_known_of_some_operators():
    drawn = "Dropout _random_uniform _sample_normal _shuffle _random_normal_like _image_random_hue"
    assert all(rules.is_random(op) for op in drawn.split())
    assert not any(rules.is_random(op) for op in ("exp", "_random_pdf_normal"))
    kinds = None, {"act_type": "rrelu"}, {"act_type": "elu"}
    assert [rules.is_random("LeakyReLU", kind) for kind in kinds] == [True, True, False]
    wanted = {"adam_update": "always", "_set_value": "always", "BatchNorm": "training", "exp": ""}
    assert {op: rules.of(op).writes or "" for op in wanted} == wanted
    # An operator that nobody looked at is not trusted.
    assert rules.of("FullyConnected").adds_to_gradients
    assert not rules.of("my_operator").adds_to_gradients


def test_creation_operators_have_no_inputs_and_repeat_themselves():
    shape, steps = {"shape": "(2, 3)"}, {"start": "0", "stop": "3"}
    attrs = {
        "_arange": steps, "_linspace": {**steps, "num": "4"}, "_eye": {"N": "3"},
        "_full": {**shape, "value": "4"}, "_zeros_without_dtype": {**shape, "dtype": "0"},
    }  # fmt: skip
    for op in rules.CREATION.rules:
        given = {**attrs.get(op, shape), "ctx": "cpu(0)"}
        first, second = (call_operator(Case(op, (), given), [])[0].asnumpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not rules.is_random(op)
