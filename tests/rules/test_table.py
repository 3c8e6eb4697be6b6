"""The table: every operator of MXNet is in it once, and what it says of each is so."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path
from typing import FrozenSet, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import _LIB, check_call

from docs.list_operators import reference
from gluon_dynbatch import rules

from .all_cases import EVERY, NAMES
from .interpreter import (
    Array,
    Case,
    R,
    attach,
    call_operator,
    call_symbol,
    case,
    differentiate,
    is_float,
    mode_of,
    rewrite_symbol,
)

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")

ROOT = Path(__file__).parents[2]
NAMED = (*rules.MERGED, rules.CREATION, *rules.UNSUPPORTED)


def canonical_name(op: str) -> str:
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(handle, ctypes.byref(name)))
    assert name.value is not None
    return name.value.decode()


OPERATORS: FrozenSet[str] = frozenset(
    map(canonical_name, mx.operator.get_all_registered_operators())
)
INTERNAL = OPERATORS.difference(*(family.rules for family in NAMED))


def test_every_operator_of_mxnet_is_in_one_family() -> None:
    """Under its canonical name, if users call it."""
    assert len(OPERATORS) > 800
    named = Counter(op for family in NAMED for op in family.rules)
    assert set(named.values()) == {1} and set(named) <= OPERATORS
    unknown = rules.of("an operator of nobody's")
    assert not unknown.merges and not unknown.reason
    assert not any(rules.of(op).merges or rules.of(op).reason for op in INTERNAL)


def test_generated_functions_of_mxnet_belong_to_users() -> None:
    """What `mx.nd` and `mx.sym` show without an underscore is internal by name only."""
    # Optimizer steps and conversions to sparse arrays; users reach them through other classes.
    steps = ("_update", "_phase1", "_phase2", "_finite", "_lars", "_sum_sq")
    others = {"cast_storage", "reset_arrays", "fill_element_0index"}
    assert all(op.startswith("_") or op.endswith(steps) or op in others for op in INTERNAL)


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert page == reference(), "run python docs/list_operators.py"


def site_of(c: Case, pattern: str, leading: int = 2) -> rules.Site:
    arrays = [a.draw(np.random.default_rng(0), leading) for a in c.inputs]
    with autograd.predict_mode():
        outputs = call_operator(c, arrays)
    shapes = tuple(a.shape for a in arrays), tuple(o.shape for o in outputs)
    return rules.Site(c.op, c.attrs, *shapes, tuple(letter == "B" for letter in pattern), False)


def plain(op: str, **attrs: str) -> rules.Site:
    return rules.Site(op, attrs, ((2, 3),), ((2, 3),), (True,), False)


def refusals(site: rules.Site) -> List[str]:
    answers = [rules.rows(site), rules.stack(site)]
    assert all(isinstance(answer, rules.Refusal) for answer in answers), answers
    return [answer.reason for answer in answers if isinstance(answer, rules.Refusal)]


def test_what_never_merges_is_explained() -> None:
    for op in [op for family in rules.UNSUPPORTED for op in family.rules]:
        assert refusals(plain(op)) == [f"Operator {op} can't be merged: {rules.of(op).reason}."] * 2


def test_refusals() -> None:
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


def test_operators_that_need_no_help_stay_single_steps() -> None:
    """A tree cell's operators must not pay for generality: one sample's step is one merged step."""
    x, w, b = Array((R, 3)), Array((4, 3)), Array((4,))
    numbers, table = Array((R,), "index", 5), Array((5, 3))
    for c, pattern in (
        (case("FullyConnected", x, w, b, num_hidden=4), "BSS"),
        (case("FullyConnected", x, w, b, num_hidden=4, flatten=False), "BSS"),
        (case("dot", x, Array((3, 4))), "BS"),
        (case("elemwise_add", x, x), "BB"),
        (case("broadcast_add", x, Array((3,))), "BS"),
        (case("Activation", x, act_type="tanh"), "B"),
        (case("slice_axis", x, axis=1, begin=0, end=2), "B"),
        (case("SliceChannel", Array((R, 4)), num_outputs=2), "B"),
        (case("Concat", x, x, num_args=2), "BB"),
        (case("add_n", x, x, x, num_args=3), "BBB"),
        (case("sum", x, axis=1), "B"),
        (case("softmax", x), "B"),
        (case("Embedding", numbers, table, input_dim=5, output_dim=3), "BS"),
    ):
        for ask in (rules.rows, rules.stack):
            answer = ask(site_of(c, pattern))
            assert isinstance(answer, rules.Rewrite)
            assert len(answer.steps) == 1, (c.op, ask.__name__, answer)


#: MXNet leaves these gradients unwritten or refuses to compute them.
UNWRITTEN = (
    "BatchNorm CTCLoss Embedding SequenceLast SequenceMask SequenceReverse "
    "_contrib_BatchNormWithReLU"
)
FIXED = [
    c for c in EVERY if rules.of(c.op).no_gradient and c.gradient and c.op not in UNWRITTEN.split()
]


@pytest.mark.parametrize("c", FIXED, ids=lambda c: c.op)
def test_inputs_said_to_get_no_gradient_get_none(c: Case) -> None:
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


START = 0.25
ADDED = [
    pytest.param(c, id=name)
    for name, c in zip(NAMES, EVERY)
    # Those that write to their inputs cannot be given copies; of these, BatchNorm sets the gradient
    # of a gamma that it does not use to zero.
    if c.gradient and not c.random and rules.of(c.op).adds_up and not rules.of(c.op).writes
]


def gradients(c: Case, grad_req: str) -> List[np.ndarray]:
    """Run the operator as a ``CachedOp`` and go backward, as a launch does."""
    rng = np.random.default_rng(0)
    arrays = [array.draw(rng, 2) for array in c.inputs]
    attach(c.op, arrays)
    trained = [array for array in arrays if array.grad is not None]
    for array in trained:
        array.attach_grad(grad_req)
        array.grad[:] = START if grad_req == "add" else 0
    step = rules.Step(c.op, c.attrs, tuple((rules.INPUT, k) for k in range(len(arrays))))
    with mode_of(c, recording=True):
        heads = tuple((0, k) for k in range(len(call_operator(c, arrays))))
        outputs = call_symbol(rewrite_symbol(rules.Rewrite((step,), heads), len(arrays)), arrays)
    if trained and any(map(is_float, outputs)):
        drawn = [rng.normal(size=o.shape).astype(o.dtype) for o in outputs]
        differentiate(outputs, drawn, c.training)
    return [array.grad.asnumpy() for array in trained]


@pytest.mark.parametrize("c", ADDED)
def test_gradients_of_several_launches_add_up(c: Case) -> None:
    for added, written in zip(gradients(c, "add"), gradients(c, "write")):
        np.testing.assert_allclose(added, START + written, 1e-4, 1e-4)


RANDOM = [c for c in EVERY if c.random and c.stack]


@pytest.mark.parametrize("c", RANDOM, ids=[f"{i}-{c.op}" for i, c in enumerate(RANDOM)])
def test_samples_have_draws_of_their_own(c: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal samples, merged, draw differently, and the operator is known to be random."""
    # With oneDNN, the fused RNN of MXNet 1.9.1 leaves its dropout out.
    monkeypatch.setenv("MXNET_USE_MKLDNN_RNN", "0")
    assert rules.is_random(c.op)
    pattern = c.stack.split()[0]
    rng, samples = np.random.default_rng(0), 40
    arrays = [a.draw(rng, 2) for a in c.inputs]
    merged = [mx.nd.stack(*[a] * samples) if p == "B" else a for p, a in zip(pattern, arrays)]
    site = site_of(c, pattern)
    answer = rules.stack(site)
    assert isinstance(answer, rules.Rewrite)
    mx.random.seed(3)
    with autograd.train_mode():
        drawn = call_symbol(rewrite_symbol(answer, len(merged)), merged)[0].asnumpy()
    assert drawn.shape == (samples, *site.outputs[0])
    assert len(np.unique(drawn.reshape(samples, -1), axis=0)) > 1


def test_what_is_known_of_some_operators() -> None:
    for op in ("Dropout", "_random_uniform", "_sample_normal", "_shuffle", "_random_normal_like"):
        assert rules.is_random(op)
    for op in ("exp", "_zeros", "_random_pdf_normal", "FullyConnected"):
        assert not rules.is_random(op)
    assert rules.is_random("_image_random_hue") and rules.is_random("LeakyReLU")
    assert rules.is_random("LeakyReLU", {"act_type": "rrelu"})
    assert not rules.is_random("LeakyReLU", {"act_type": "elu"})
    for op in ("sgd_update", "mp_lamb_update_phase1", "adam_update", "_set_value", "reset_arrays"):
        assert rules.of(op).writes == "always"
    assert rules.of("BatchNorm").writes == "training"
    for op in ("exp", "LayerNorm", "_copy", "Dropout", "multi_sum_sq"):
        assert not rules.of(op).writes
    for op in ("FullyConnected", "elemwise_add", "dot", "Concat", "LayerNorm", "sum"):
        assert rules.of(op).no_gradient == ()
    # An operator that nobody looked at is not trusted.
    assert rules.of("FullyConnected").adds_up
    assert not any(rules.of(op).adds_up for op in ("clip", "SVMOutput", "my_operator"))


def test_creation_operators_have_no_inputs_and_repeat_themselves() -> None:
    attrs = {
        "_arange": {"start": "0", "stop": "3"},
        "_linspace": {"start": "0", "stop": "3", "num": "4"},
        "_eye": {"N": "3"},
        "_full": {"shape": "(2, 3)", "value": "4"},
        "_zeros_without_dtype": {"shape": "(2, 3)", "dtype": "0"},
    }
    for op in rules.CREATION.rules:
        given = {**attrs.get(op, {"shape": "(2, 3)"}), "ctx": "cpu(0)"}
        first, second = (call_operator(Case(op, (), given), [])[0].asnumpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not rules.is_random(op)
