"""The baselines agree with the loop over samples."""

import ast
from argparse import Namespace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import baselines
from relatedness.trees import CLASSES, Tree
from suite.runner import BATCHED, Runner
from workloads import sequences
from workloads.base import Sample
from workloads.pairs import RELATEDNESS, RelatednessModel
from workloads.registry import WORKLOADS, make

WORDS = 11


def words(rng, length):
    return mx.nd.array(rng.randint(0, WORDS, length), dtype="int32")


def pair(rng, *heads):
    trees = [Tree.from_heads(each) for each in heads]
    sides = [part for tree in trees for part in (words(rng, len(tree.heads)), tree)]
    return Sample(tuple(sides), mx.nd.array(rng.dirichlet(np.ones(CLASSES), 1)))


def random_heads(rng, max_words):
    """Attach every word to an earlier one of a random order, so that any word can be the root."""
    order = rng.permutation(rng.randint(1, max_words + 1))
    heads = [-1] * len(order)
    for i in range(1, len(order)):
        heads[order[i]] = int(order[rng.randint(0, i)])
    return heads


def chain(length):
    return list(range(-1, length - 1))


RANDOM = np.random.RandomState(7)
#: The heads of both sentences of each pair.
CASES = {
    "random trees": [[random_heads(RANDOM, 12) for _ in "ab"] for _ in range(9)],
    "one pair": [([1, -1, 1], [-1, 0, 0, 2])],
    "single words": [([-1], [-1])] * 3,
    "one pair of single words": [([-1], [-1])],
    "single words among others": [([-1], [1, 2, -1]), ([-1, 0], [-1]), ([-1], [-1])],
    "chains": [(chain(40), chain(3)), (chain(1), chain(25))],
    "equal trees": [([2, 2, -1, 2], [2, 2, -1, 2])] * 5,
    "a wide tree": [([-1] + 30 * [0], [1, -1])],
}


def relatedness(heads, frozen):
    rng = np.random.RandomState(7)
    model = RelatednessModel(WORDS, embedding_size=5, hidden_size=6, similarity_size=4)
    model.initialize(mx.init.Uniform(0.7))
    model.embedding.weight.grad_req = "null" if frozen else "write"
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 1.0})
    return RELATEDNESS.workload(model, trainer, [pair(rng, *each) for each in heads])


def tagger(lengths):
    rng = np.random.RandomState(3)
    samples = [
        Sample((words(rng, length),), mx.nd.array(rng.randint(0, 4, length)), length)
        for length in lengths
    ]
    workload = sequences.tagging(limit=12, embedding_size=3, hidden_size=4)
    return workload._replace(samples=samples)


def check(make, mode, trained=1e-2):
    """Compare three steps of training, then predictions and parameters, with the loop.

    Losses have to change by more than `trained`.
    """
    results = []
    for runner_mode in ("imperative", mode):
        mx.random.seed(3)
        workload = make()
        runner = Runner(workload, runner_mode)
        samples = workload.samples
        arrays = [runner.step(samples).asnumpy() for _ in range(3)]
        arrays += [runner.predict(batch).asnumpy() for batch in (samples, samples[:1])]
        arrays += [p.data().asnumpy() for p in workload.model.collect_params().values()]
        results.append(arrays)
    for expected, actual in zip(*results):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(results[0][0] - results[0][2]).max() > trained, "the losses change"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("heads", CASES.values(), ids=CASES)
def test_manual_equals_the_loop(heads, frozen):
    check(lambda: relatedness(heads, frozen), "manual")


@pytest.mark.parametrize("lengths", [[1, 9, 4, 4], [3, 3], [1], [30, 1, 2]])
def test_padding_equals_the_loop_over_sentences(lengths):
    check(lambda: tagger(lengths), "manual")


#: Models that are batched by hand, with the interfaces for which they are.
BY_HAND = [(name, each) for name in sorted(BATCHED) for each in BATCHED[name].interfaces
           if each in WORKLOADS[name].interfaces]  # fmt: skip


@pytest.mark.parametrize("name, interface", BY_HAND)
def test_models_by_hand_equal_the_loop(name, interface):
    args = Namespace(seed=3, limit=7, data=None, wikiner=None, sst=None, clevr=None)
    check(lambda: make(name, args, interface, embedding_size=4, hidden_size=8), "manual", 1e-3)


def test_baselines_do_not_use_the_library():
    for path in Path(baselines.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", ())]
            names.append(getattr(node, "module", None) or "")
            assert not any(str(name).startswith("gluon_dynbatch") for name in names), path
