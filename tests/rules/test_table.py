"""The table itself: names, refusals, properties, and the shape of rewrites."""

from __future__ import annotations

import json
from typing import Any, Callable, Tuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from gluon_dynbatch import rules
from gluon_dynbatch.rules import properties

from .all_cases import EVERY
from .interpreter import Array, Case, R, call_operator, call_symbol, case, is_float, rewrite_symbol
from .test_registry import canonical_name

# MXNet 1.9.1 looks into a namespace that SciPy has since renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")

#: MXNet leaves these gradients unwritten or refuses to compute them.
UNWRITTEN = {
    "BatchNorm",
    "CTCLoss",
    "Embedding",
    "SequenceLast",
    "SequenceMask",
    "SequenceReverse",
}


@pytest.mark.parametrize(
    "names",
    [
        rules.TABLE,
        rules.REFUSED,
        rules.CREATION,
        properties._NO_GRADIENT,
        properties._MUTATES | properties._MUTATES_IN_TRAINING,
    ],
    ids=["table", "refused", "creation", "no-gradient", "mutates"],
)
def test_names_are_canonical(names: Any) -> None:
    wrong = {name: canonical_name(name) for name in names if canonical_name(name) != name}
    assert not wrong


F = mx.sym
USES: Tuple[Tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("plus", lambda x, y: x + y),
    ("minus", lambda x, y: x - y),
    ("times", lambda x, y: x * y),
    ("over", lambda x, y: x / y),
    ("power", lambda x, y: x**y),
    ("modulo", lambda x, y: x % y),
    ("greater", lambda x, y: x > y),
    ("equal", lambda x, y: x == y),
    ("scalars", lambda x, y: (2 - x) / 3 + 1 / (x**2) - (2**x) % 3),
    ("compare", lambda x, y: (x > 1) + (x <= 2) + (x != 3)),
    ("negative", lambda x, y: -x),
    ("maximum", lambda x, y: F.maximum(x, y) + F.minimum(x, 1)),
    ("hypot", lambda x, y: F.hypot(x, y)),
    ("broadcast", lambda x, y: F.broadcast_plus(x, y) + F.broadcast_minus(x, y)),
    ("split", lambda x, y: F.split(x, num_outputs=2)[0]),
    ("split_v2", lambda x, y: F.split_v2(x, 2, axis=1)[1]),
    ("concat", lambda x, y: F.concat(x, y, dim=1)),
    ("stack", lambda x, y: F.stack(x, y, axis=1)),
    ("reshape", lambda x, y: F.flatten(x.reshape((0, -1)).expand_dims(1))),
    ("axes", lambda x, y: F.swapaxes(x, 1, 2).transpose((0, 2, 1)).squeeze(axis=1)),
    ("flip", lambda x, y: F.flip(x, axis=1)),
    ("slices", lambda x, y: x.slice_axis(1, 0, 1) + x.slice((None, 0), (None, 1))),
    ("reduce", lambda x, y: x.mean(axis=0, exclude=True) + F.max_axis(x, axis=1) + x.norm(axis=1)),
    ("loss", lambda x, y: F.mean(F.square(x - y), axis=0, exclude=True)),
    ("add_n", lambda x, y: F.ElementWiseSum(x, y, x)),
    ("stop", lambda x, y: F.stop_gradient(F.identity(x)) + F.BlockGrad(y)),
    ("cast", lambda x, y: x.astype("float64") + F.cast(y, "float64")),
    ("gemm", lambda x, y: F.linalg.gemm2(x, y) + F.linalg_gemm2(x, y)),
    ("cumsum", lambda x, y: F.cumsum(x, axis=1)),
    ("pad", lambda x, y: F.pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 1, 1, 1))),
    ("arange_like", lambda x, y: F.contrib.arange_like(x, axis=1)),
    ("pick", lambda x, y: F.choose_element_0index(x, y)),
    ("dense", lambda x, y: F.FullyConnected(x, num_hidden=3).relu().log_softmax()),
)


@pytest.mark.parametrize("use", [u for _, u in USES], ids=[name for name, _ in USES])
def test_what_users_write_is_in_the_table(use: Callable[[Any, Any], Any]) -> None:
    nodes = json.loads(use(F.var("x"), F.var("y")).tojson())["nodes"]
    ops = {node["op"] for node in nodes} - {"null"}
    assert ops
    assert ops <= set(rules.TABLE)


def site_of(c: Case, pattern: str, leading: int = 2) -> rules.Site:
    arrays = [a.draw(np.random.default_rng(0), leading) for a in c.inputs]
    with autograd.predict_mode():
        outputs = call_operator(c, arrays)
    shapes = tuple(a.shape for a in arrays), tuple(o.shape for o in outputs)
    batched = tuple(letter == "B" for letter in pattern)
    return rules.Site(c.op, c.attrs, shapes[0], shapes[1], batched, False)


def plain(op: str, **attrs: str) -> rules.Site:
    return rules.Site(op, attrs, ((2, 3),), ((2, 3),), (True,), False)


def test_unknown_operators_are_named() -> None:
    for ask in (rules.rows, rules.stack):
        answer = ask(plain("my_operator"))
        assert isinstance(answer, rules.Refusal)
        assert "no batching rule for operator my_operator" in answer.reason


@pytest.mark.parametrize("op", sorted(rules.REFUSED))
def test_known_obstacles_are_explained(op: str) -> None:
    for ask in (rules.rows, rules.stack):
        answer = ask(plain(op))
        assert isinstance(answer, rules.Refusal)
        assert op in answer.reason and rules.REFUSED[op] in answer.reason


def test_refusals_are_sentences() -> None:
    reasons = set()
    for c in EVERY:
        for pattern in [p for p in c.patterns() if p not in c.stack.split()]:
            answer = rules.stack(site_of(c, pattern))
            if isinstance(answer, rules.Refusal):
                reasons.add(answer.reason)
        for pattern in [p for p in c.patterns() if p not in (c.rows + " " + c.ones).split()]:
            answer = rules.rows(site_of(c, pattern))
            if isinstance(answer, rules.Refusal):
                reasons.add(answer.reason)
    assert len(reasons) > 50
    for reason in reasons:
        assert reason.endswith(".") and len(reason.split()) > 4, reason


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0)])
def test_empty_and_unknown_shapes_are_refused(shape: Tuple[int, ...]) -> None:
    site = rules.Site("exp", {}, (shape,), (shape,), (True,), False)
    for ask in (rules.rows, rules.stack):
        answer = ask(site)
        assert isinstance(answer, rules.Refusal)
        assert "empty or unknown" in answer.reason


def test_odd_attributes_are_refused_not_guessed() -> None:
    for site in (
        plain("sum", axis="one"),
        plain("sum", axis="(1, 'x')"),
        plain("sum", axis="1.5"),
        plain("sum", axis="7"),
    ):
        for ask in (rules.rows, rules.stack):
            assert isinstance(ask(site), rules.Refusal)


def test_a_reshape_that_loses_elements_is_refused() -> None:
    site = rules.Site("Reshape", {"shape": "(1, -2)"}, ((2, 3),), ((1, 3),), (True,), False)
    for ask in (rules.rows, rules.stack):
        assert isinstance(ask(site), rules.Refusal)


def test_random_slopes_are_refused() -> None:
    site = plain("LeakyReLU", act_type="rrelu")
    for ask in (rules.rows, rules.stack):
        answer = ask(site)
        assert isinstance(answer, rules.Refusal)
        assert "rrelu" in answer.reason


def test_attributes_of_scopes_are_dropped() -> None:
    answer = rules.rows(plain("exp", __ctx_group__="first"))
    assert isinstance(answer, rules.Rewrite)
    assert answer.steps[0].attrs == {}


def test_operators_that_need_no_help_stay_single_steps() -> None:
    """A tree cell's operators must not pay for generality: one sample's step is one merged step."""
    x, w, b = Array((R, 3)), Array((4, 3)), Array((4,))
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
        (
            case("Embedding", Array((R,), "index", 5), Array((5, 3)), input_dim=5, output_dim=3),
            "BS",
        ),
    ):
        for ask in (rules.rows, rules.stack):
            answer = ask(site_of(c, pattern))
            assert isinstance(answer, rules.Rewrite)
            assert len(answer.steps) == 1, (c.op, ask.__name__, answer)


def claims() -> Any:
    for c in EVERY:
        fixed = rules.nondifferentiable_inputs(c.op)
        if fixed and c.gradient and c.op not in UNWRITTEN:
            yield c, fixed


@pytest.mark.parametrize("c, fixed", list(claims()), ids=lambda v: getattr(v, "op", None))
def test_inputs_said_to_get_no_gradient_get_none(c: Case, fixed: Tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [a.draw(rng, 2) for a in c.inputs]
    for array in filter(is_float, arrays):
        array.attach_grad()
        array.grad[:] = 7
    checked = [arrays[k] for k in fixed if k < len(arrays) and is_float(arrays[k])]
    with autograd.record(train_mode=c.training):
        outputs = [out for out in call_operator(c, arrays) if is_float(out)]
    if outputs and checked:
        heads = [mx.nd.array(rng.normal(size=o.shape), dtype=o.dtype) for o in outputs]
        autograd.backward(outputs, heads, train_mode=c.training)
        for array in checked:
            assert not array.grad.asnumpy().any()


def test_most_inputs_do_get_a_gradient() -> None:
    for op in ("FullyConnected", "elemwise_add", "dot", "Concat", "LayerNorm", "sum"):
        assert rules.nondifferentiable_inputs(op) == ()


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


def test_is_random() -> None:
    for op in ("Dropout", "_random_uniform", "_sample_normal", "_shuffle", "_random_normal_like"):
        assert rules.is_random(op)
    for op in ("exp", "_zeros", "_random_pdf_normal", "FullyConnected"):
        assert not rules.is_random(op)
    assert rules.is_random("LeakyReLU")
    assert rules.is_random("LeakyReLU", {"act_type": "rrelu"})
    assert not rules.is_random("LeakyReLU", {"act_type": "elu"})


def test_mutates() -> None:
    for op in ("BatchNorm", "sgd_update", "mp_lamb_update_phase1", "adam_update", "_set_value"):
        assert rules.mutates(op)
    for op in ("exp", "LayerNorm", "_copy", "Dropout"):
        assert not rules.mutates(op)
    assert rules.mutates("reset_arrays", training=False)
    assert not rules.mutates("BatchNorm", training=False)


def test_creation_operators_have_no_inputs_and_repeat_themselves() -> None:
    attrs = {
        "_arange": {"start": "0", "stop": "3"},
        "_linspace": {"start": "0", "stop": "3", "num": "4"},
        "_eye": {"N": "3"},
        "_full": {"shape": "(2, 3)", "value": "4"},
        "_zeros_without_dtype": {"shape": "(2, 3)", "dtype": "0"},
    }
    for op in sorted(rules.CREATION):
        given = {**attrs.get(op, {"shape": "(2, 3)"}), "ctx": "cpu(0)"}
        first, second = (call_operator(Case(op, (), given), [])[0].asnumpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not rules.is_random(op)
