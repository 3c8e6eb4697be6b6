"""The workloads of the experiments: each agrees with the plain loop in a scope."""

import json
from argparse import Namespace

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from command import UsageError
from workloads import lattice, modules, parser, sequences, trees
from workloads.front import semantics
from workloads.registry import WORKLOADS, make
from workloads.text import DataError


def test_minibatches_of_an_epoch_share_no_sample():
    workload = sequences.tagging(limit=10, embedding_size=2, hidden_size=2)
    drawn = workload.minibatches(5, seed=1)
    first, second, third = (next(drawn) for _ in range(3))
    assert len({id(sample) for sample in first + second}) == 10
    assert [id(sample) for sample in first] != [id(sample) for sample in third]
    with pytest.raises(UsageError, match="minibatch of 11 .* has 10 sentences"):
        workload.minibatches(11, seed=1)


def tiny(name, interface=None, limit=4):
    args = Namespace(seed=3, limit=limit, data=None, wikiner=None, sst=None, clevr=None)
    width = 4 if name == "transformer" else 3  # so that there are several heads
    return make(name, args, interface, embedding_size=width, hidden_size=4)


#: All workloads that differ, each with the interfaces of its model.
DIFFERENT = sorted({*WORKLOADS} - {"experts64", "experts256", "experts1024"})
MADE = [(name, each) for name in DIFFERENT for each in WORKLOADS[name].interfaces]


@pytest.mark.parametrize("name, interface", MADE)
def test_workloads_agree_with_the_loop(name, interface):
    workload = tiny(name, interface)
    trained = [p for p in workload.trainer._params if p.grad_req != "null"]

    def run(sample):
        return workload.score(sample), workload.loss(sample)

    with semantics(interface):
        gdb.testing.check_against_loop(run, workload.samples, trained)
        assert isinstance(workload.loss(workload.samples[0]), mx.np.ndarray) == (interface == "np")
    assert workload.lines >= 2 and workload.samples[0].size >= 1


BOTH = [name for name, entry in WORKLOADS.items() if len(entry.interfaces) == 2]


@pytest.mark.parametrize("name", BOTH)
def test_models_of_both_interfaces_need_the_same_launches(name):
    counts = []
    for interface in WORKLOADS[name].interfaces:
        workload = tiny(name, interface)
        scope = gdb.batching(granularity="operator", policy="depth")
        with semantics(interface), scope as batch:
            for sample in workload.samples:
                workload.loss(sample)
        counts.append((batch.report.launches, batch.report.at_once))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["parser", "seq2seq", "beam"])
def test_greedy_steps_of_all_samples_run_together(name):
    workload = tiny(name)
    expected = workload.predict(workload.samples)
    with gdb.batching() as batch:
        results = workload.predict(workload.samples)
    assert len(batch.report.flushes) <= max(len(scores) for scores in expected) + 1
    for sample, scores, of_loop in zip(workload.samples, results, expected):
        assert len(scores) == len(sample.target)
        np.testing.assert_allclose(scores.asnumpy(), of_loop.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "heads, actions",
    [([-1], "S"), ([1, -1], "SSL"), ([-1, 0], "SSR"), ([1, 3, 3, -1], "SSLSSLL"),
     ([-1, 2, 0, 0], "SSSLRSR"), ([2, 3, -1, 2], None)],
)  # fmt: skip
def test_the_oracle_builds_projective_trees(heads, actions):
    """S shifts; L makes the second word of the stack a dependent of the top one, R the reverse."""
    result = parser.oracle(heads)
    assert (result and "".join("SLR"[action] for action in result)) == actions


def test_a_lattice_has_the_words_that_end_at_each_character():
    dictionary = {"in": 0, "king": 1, "ink": 2, "i": 3}
    words = lattice.lattice_of("kinking", dictionary)
    assert words == ((), (), ((1, 0),), ((1, 2),), (), ((4, 0),), ((3, 1),))


def test_the_mv_rnn_computes_the_equations_of_the_paper():
    """Socher et al. 2012: p = g(W [B a; A b]), P = W_M [A; B]."""
    join = trees.MatrixVectorJoin(3)
    join.initialize(mx.init.Normal(1))
    a, b = mx.nd.random.normal(shape=(2, 1, 3))
    A, B = mx.nd.random.normal(shape=(2, 1, 3, 3))
    vector, matrix = (each.asnumpy()[0] for each in join(a, A, b, B))
    weight, bias = (p.data().asnumpy() for p in (join.vector.weight, join.vector.bias))
    a, A, b, B = (each.asnumpy()[0] for each in (a, A, b, B))
    expected = np.tanh(weight @ np.concatenate([B @ a, A @ b]) + bias)
    np.testing.assert_allclose(vector, expected, rtol=1e-4)
    expected = join.matrix.weight.data().asnumpy() @ np.concatenate([A, B])
    np.testing.assert_allclose(matrix, expected, rtol=1e-4)


def test_clevr_questions_are_programs_and_answers(tmp_path):
    steps = [{"type": "scene", "inputs": [], "value_inputs": []},
             {"type": "filter_size", "inputs": [0], "value_inputs": ["large"]}]  # fmt: skip
    content = {"questions": [{"program": [steps, steps[:1]], "answers": [True, 2]}]}
    path = tmp_path / "questions" / "CLEVR_train_1_x.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    questions = modules.read_clevr(tmp_path)
    scene, large = ("scene", ()), ("filter_size large", (0,))
    assert questions == [((scene, large), "True"), ((scene,), "2")]
    assert modules.read_clevr(tmp_path, limit=1) == questions[:1]
    assert modules.read_clevr(path.parent) == questions, "the inner folder works, too"
    path.write_text("{}")
    with pytest.raises(DataError, match="CLEVR_train_1_x.json: is not"):
        modules.read_clevr(tmp_path)


def write(folder, text):
    (folder / "train.txt").write_text(text, encoding="utf-8")
    return folder


def test_wikiner_lines_are_parsed_as_words_and_tags(tmp_path):
    write(tmp_path, "Mad|I-ORG |||O\n\nx|O\n")
    first, second = sequences.read_wikiner(tmp_path)
    assert first == (("Mad", "||"), ("I-ORG", "O"))
    assert second == (("x",), ("O",))
    assert sequences.read_wikiner(tmp_path, limit=1) == [first]
    with pytest.raises(DataError, match="train.txt:1: 'b' is not"):
        sequences.read_wikiner(write(tmp_path, "a|O b\n"))


TREE = "(3 (2 It) (4 (4 (2 is) (3 good)) (2 .)))"


def test_trees_are_read_with_labels_of_all_phrases(tmp_path):
    """A word may contain U+00A0; labels are in post-order."""
    folder = write(tmp_path, f"{TREE}\n(0 a\u00a0b)\n")
    first, second = trees.read_treebank(folder)
    assert first.words == ("It", "is", "good", ".")
    assert first.shape == (0, ((1, 2), 3))
    assert first.labels == (2, 2, 3, 4, 2, 4, 3)
    assert second == (("a\u00a0b",), 0, (0,))
    assert trees.read_treebank(folder, limit=1) == [first]
    for line in ("(3 (2 a) (2 b)", "(5 a)", "(3 (2 a) (2 b) (2 c))", "(3 a) (3 b)", ""):
        with pytest.raises(DataError, match="train.txt:2: "):
            trees.read_treebank(write(tmp_path, f"{TREE}\n{line}\n"))


def test_the_tree_lstm_computes_the_equations_of_the_paper():
    """Tai, Socher, Manning 2015, equations 9 to 14 with N = 2, for one phrase of two words."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def dense(block, x):
        return block.weight.data().asnumpy() @ x + block.bias.data().asnumpy()

    model = trees.phrase_workload("sst", limit=6, embedding_size=3, hidden_size=4).model
    for parameter in model.collect_params().values():
        parameter.set_data(mx.nd.random.normal(shape=parameter.shape))
    rows = model.embedding.weight.data().asnumpy()
    h, c = [], []
    for word in (2, 5):
        i, o, u = np.split(dense(model.leaf.gates, rows[word]), 3)
        c.append(sigmoid(i) * np.tanh(u))
        h.append(sigmoid(o) * np.tanh(c[-1]))
    i, left, right, o, u = np.split(dense(model.join.gates, np.concatenate(h)), 5)
    c.append(sigmoid(i) * np.tanh(u) + sigmoid(left) * c[0] + sigmoid(right) * c[1])
    h.append(sigmoid(o) * np.tanh(c[-1]))
    scores = model(mx.nd.array([2, 5], dtype="int32"), (0, 1)).asnumpy()
    np.testing.assert_allclose(scores, [dense(model.score, each) for each in h], rtol=1e-4)
