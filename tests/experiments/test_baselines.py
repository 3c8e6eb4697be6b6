"""The baselines compute what the loop over samples computes; else they would be no measure."""

import ast
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import baselines
from baselines.manual import ManualBatching
from baselines.padded import PaddedBatching
from relatedness.trees import CLASSES, Tree
from suite.runner import MODES, Runner
from workloads import sequences
from workloads.base import Sample
from workloads.pairs import RELATEDNESS, RelatednessModel

WORDS = 11


def sample(rng, heads_a, heads_b):
    def words(heads):
        return mx.nd.array(rng.randint(0, WORDS, len(heads)), dtype="int32")

    target = mx.nd.array(rng.dirichlet(np.ones(CLASSES), 1))
    trees = [Tree.from_heads(heads) for heads in (heads_a, heads_b)]
    return Sample((words(heads_a), trees[0], words(heads_b), trees[1]), target)


def random_heads(rng, most):
    """Hang every word below an earlier one in a random order, so that roots stand anywhere."""
    order = rng.permutation(rng.randint(1, most + 1))
    heads = [-1] * len(order)
    for place in range(1, len(order)):
        heads[order[place]] = int(order[rng.randint(0, place)])
    return heads


def chain(length):
    return list(range(-1, length - 1))


def case(name):
    rng = np.random.RandomState(7)
    return {
        "random trees": lambda: [
            sample(rng, random_heads(rng, 12), random_heads(rng, 12)) for _ in range(9)
        ],
        "one pair": lambda: [sample(rng, [1, -1, 1], [-1, 0, 0, 2])],
        "single words": lambda: [sample(rng, [-1], [-1]) for _ in range(3)],
        "one pair of single words": lambda: [sample(rng, [-1], [-1])],
        "single words among others": lambda: [
            sample(rng, [-1], [1, 2, -1]), sample(rng, [-1, 0], [-1]), sample(rng, [-1], [-1]),
        ],
        "chains": lambda: [sample(rng, chain(40), chain(3)), sample(rng, chain(1), chain(25))],
        "equal trees": lambda: [sample(rng, [2, 2, -1, 2], [2, 2, -1, 2]) for _ in range(5)],
        "a wide tree": lambda: [sample(rng, [-1] + 30 * [0], [1, -1])],
    }[name]()  # fmt: skip


CASES = ("random trees", "one pair", "single words", "one pair of single words",
         "single words among others", "chains", "equal trees", "a wide tree")  # fmt: skip


def make_model():
    model = RelatednessModel(WORDS, embedding_size=5, hidden_size=6, similarity_size=4)
    model.initialize(mx.init.Uniform(0.7))
    model.hybridize()
    return model


#: What stands in gradients before, so that what is not written shows.
STALE = 9


def trained(model):
    return {n: p for n, p in model.collect_params().items() if p.grad_req != "null"}


def spoil_gradients(model):
    for parameter in trained(model).values():
        parameter.grad()[:] = STALE


def gradients(model):
    return {n: p.grad().asnumpy().copy() for n, p in trained(model).items()}


def loop(model, samples, loss):
    """Score pair by pair, and differentiate: the oracle."""
    model.hybridize(False)
    scores = [model(*each.inputs) for each in samples]
    spoil_gradients(model)
    with autograd.record():
        losses = [loss(model(*each.inputs), each.target) for each in samples]
    autograd.backward(losses)
    model.hybridize()
    joined = [mx.nd.concat(*arrays, dim=0).asnumpy() for arrays in (scores, losses)]
    return (*joined, gradients(model))


def check(model, samples):
    loss = gluon.loss.KLDivLoss(from_logits=True)
    scores, losses, expected = loop(model, samples, loss)
    spoil_gradients(model)
    batching = ManualBatching(model)
    np.testing.assert_allclose(batching.score(samples).asnumpy(), scores, rtol=1e-5, atol=1e-6)
    found = batching.differentiate(samples, loss).asnumpy()
    np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-6)
    for parameter, gradient in gradients(model).items():
        if (expected[parameter] == STALE).all():  # no sample uses it; zero is as good
            assert (gradient == STALE).all() or (gradient == 0).all(), parameter
        else:
            np.testing.assert_allclose(
                gradient, expected[parameter], rtol=1e-4, atol=1e-6, err_msg=parameter
            )


@pytest.mark.parametrize("trees", CASES)
def test_manual_equals_the_loop(trees):
    check(make_model(), case(trees))


def test_a_frozen_embedding_stays_without_gradient():
    model = make_model()
    model.embedding.weight.grad_req = "null"
    check(model, case("random trees"))


def test_gradients_add_up_if_parameters_ask_for_it():
    samples, loss = case("random trees"), gluon.loss.KLDivLoss(from_logits=True)
    model = make_model()
    batching = ManualBatching(model)
    batching.differentiate(samples, loss)
    once = gradients(model)
    for parameter in model.collect_params().values():
        parameter.grad_req = "add"
        parameter.zero_grad()
    for _ in range(2):
        batching.differentiate(samples, loss)
    for parameter, gradient in gradients(model).items():
        np.testing.assert_allclose(gradient, 2 * once[parameter], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_a_runner_trains_and_predicts_alike(mode):
    """Three steps and a prediction, against the loop."""
    results = []
    for kind in ("imperative", mode):
        mx.random.seed(3)
        model = make_model()
        trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5})
        runner = Runner(RELATEDNESS.workload(model, trainer), kind)
        samples = case("random trees")
        losses = [runner.step(samples).losses.asnumpy() for _ in range(3)]
        scores = [runner.predict(some).asnumpy() for some in (samples, samples[:1])]
        results.append((losses, *scores))
        assert (runner.report is not None) == (kind == "dynamic")
    for expected, found in zip(*results):
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-5)


def test_manual_runs_more_pairs_of_one_depth_in_no_more_calls(monkeypatch):
    counts = []
    invoke = mx.nd.CachedOp.__call__

    def counted(self, *arguments, **keywords):
        counts[-1] += 1
        return invoke(self, *arguments, **keywords)

    batching = ManualBatching(make_model())
    batching.score(case("one pair"))  # builds the graphs
    monkeypatch.setattr(mx.nd.CachedOp, "__call__", counted)
    rng = np.random.RandomState(2)
    heads = [-1, 0, 0, 2]
    for pairs in (1, 2, 50):
        counts.append(0)
        batching.score([sample(rng, heads, heads) for _ in range(pairs)])
    # Two lookups, inputs, leaves and their forget gates; two levels, one with forget gates; head.
    assert counts == [9, 9, 9]


def test_baselines_do_not_use_the_library():
    for path in Path(baselines.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", ())]
            names.append(getattr(node, "module", None) or "")
            assert not any(str(name).startswith("gluon_dynbatch") for name in names), path


# The padded tagger


def tagger():
    return sequences.tagging(limit=12, embedding_size=3, hidden_size=4)


def ragged_samples(lengths, words=7, tags=4):
    rng = np.random.RandomState(3)
    return [
        Sample(
            (mx.nd.array(rng.randint(0, words, length), dtype="int32"),),
            mx.nd.array(rng.randint(0, tags, length)),
            length,
        )
        for length in lengths
    ]


CELLS = {"l0": "forwards", "r0": "backwards"}


def loop_of(workload, samples):
    with autograd.record():
        losses = [workload.loss(sample) for sample in samples]
    autograd.backward(losses)
    return mx.nd.concat(*losses, dim=0).asnumpy()


def check_padded(batching, model, losses, found):
    np.testing.assert_allclose(found.asnumpy(), losses, rtol=1e-5)
    for side, name in CELLS.items():
        cell = getattr(model, name)
        for part in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"):
            gradient = getattr(batching.model.lstm, f"{side}_{part}").grad().asnumpy()
            expected = getattr(cell, part).grad().asnumpy()
            if part == "i2h_weight":
                assert not gradient[:, -1].any(), "what shuts the gate at the padding is not moved"
                gradient = gradient[:, :-1]
            np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-7, err_msg=part)
    for part in ("weight", "bias"):
        gradient, expected = (
            getattr(one.score, part).grad().asnumpy() for one in (batching.model, model)
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("lengths", [[1, 9, 4, 4], [3, 3], [1], [30, 1, 2]])
def test_padding_equals_the_loop_over_sentences(lengths):
    workload, samples = tagger(), ragged_samples(lengths)
    batching = PaddedBatching(workload._replace(samples=samples))
    losses = loop_of(workload, samples)
    assert np.ptp(losses) > 0 or len(losses) == 1
    found = batching.differentiate(samples)
    check_padded(batching, workload.model, losses, found)
    scores = mx.nd.concat(*map(workload.score, samples), dim=0).asnumpy()
    np.testing.assert_allclose(batching.score(samples).asnumpy(), scores, rtol=1e-4, atol=1e-6)


def test_padding_of_other_words_than_its_own_would_show():
    """The same check fails if the states are not kept at zero while the padding is read."""
    workload, samples = tagger(), ragged_samples([2, 9])
    batching = PaddedBatching(workload._replace(samples=samples))
    batching.model.lstm.r0_i2h_weight.data()[:, -1] = 0
    losses = loop_of(workload, samples)
    with pytest.raises(AssertionError):
        check_padded(batching, workload.model, losses, batching.differentiate(samples))
