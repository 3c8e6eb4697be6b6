"""The padded tagger computes what the tagger does; phrases are read and scored as in the paper."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from baselines.padded import PaddedBatching, bucketed
from relatedness.data import DataError
from workloads import sentiment, sequences
from workloads.sequences import TaggedSample


def tagger():
    return sequences.tagging(limit=12, embedding_size=3, hidden_size=4)


def ragged_samples(lengths, words=7, tags=4):
    rng = np.random.RandomState(3)
    return [
        TaggedSample(
            mx.nd.array(rng.randint(0, words, length), dtype="int32"),
            mx.nd.array(rng.randint(0, tags, length)),
        )
        for length in lengths
    ]


# Padded


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


def test_padding_of_other_words_than_its_own_would_show():
    """The same check fails if the states are not kept at zero while the padding is read."""
    workload, samples = tagger(), ragged_samples([2, 9])
    batching = PaddedBatching(workload._replace(samples=samples))
    batching.model.lstm.r0_i2h_weight.data()[:, -1] = 0
    losses = loop_of(workload, samples)
    with pytest.raises(AssertionError):
        check_padded(batching, workload.model, losses, batching.differentiate(samples))


def test_an_epoch_of_buckets_has_every_sentence_once():
    samples = ragged_samples([1, 1, 2, 5, 5, 5, 6, 20, 21, 40])
    drawn = bucketed(samples, 2, seed=4)
    epochs, lengths = [[], []], []
    for epoch in epochs:
        while sum(map(len, epoch)) < len(samples):
            epoch.append(next(drawn))
            lengths.append([len(sample.words) for sample in epoch[-1]])
        assert {id(sample) for sample in sum(epoch, [])} == set(map(id, samples))
        assert max(map(len, epoch)) == 2
    orders = [[list(map(id, batch)) for batch in epoch] for epoch in epochs]
    assert orders[0] != orders[1]
    assert list(map(id, next(bucketed(samples, 2, seed=4)))) == orders[0][0]
    assert max(max(row) - min(row) for row in lengths) <= 2, "lengths of a bucket are alike"


def test_sentences_of_one_length_are_one_bucket():
    assert len(next(bucketed(ragged_samples([3, 3, 3]), 5, seed=1))) == 3


# Sentiment


TREE = "(3 (2 It) (4 (4 (2 is) (3 good)) (2 .)))"


def write(folder, text):
    (folder / "train.txt").write_text(text, encoding="utf-8")
    return folder


def test_trees_are_read_with_labels_of_all_phrases(tmp_path):
    """A word may hold U+00A0; labels are listed from the words up."""
    folder = write(tmp_path, f"{TREE}\n(0 a\u00a0b)\n")
    first, second = sentiment.read_treebank(folder)
    assert first.words == ("It", "is", "good", ".")
    assert first.shape == (0, ((1, 2), 3))
    assert first.labels == (2, 2, 3, 4, 2, 4, 3)
    assert second == (("a\u00a0b",), 0, (0,))
    assert sentiment.read_treebank(folder, limit=1) == [first]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("(3 (2 a) (2 b)", r'a "\)" is missing'),
        ("(3 (2 a) (2 b)))", r'a "\)" too many'),
        ("(5 a)", "label '5' is none of 0 to 4"),
        ("( a)", "label '' is none"),
        ("(3 (2 a) (2 b) (2 c))", "a phrase of 3 parts"),
        ("(3)", "a phrase of 0 parts"),
        ("(3 (2 (2 a)) (2 b))", "not one binary tree"),
        ("(3 a b)", "not one binary tree"),
        ("(3 a) (3 b)", "not one binary tree"),
        ("a", "not one binary tree"),
        ("", "not one binary tree"),
    ],
)
def test_lines_that_are_no_tree_are_named(tmp_path, line, reason):
    with pytest.raises(DataError, match=rf"train.txt:2: .*{reason}"):
        sentiment.read_treebank(write(tmp_path, f"{TREE}\n{line}\n"))


def test_a_file_without_trees_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no trees"):
        sentiment.read_treebank(write(tmp_path, ""))
    with pytest.raises(DataError, match=r"nowhere.train.txt: No such file"):
        sentiment.read_treebank(tmp_path / "nowhere")


def words_below(shape):
    return [shape] if isinstance(shape, int) else sum(map(words_below, shape), [])


def test_the_built_in_corpus_gives_binary_trees_over_its_words():
    for sentence in sentiment.embedded_phrases(limit=50):
        assert words_below(sentence.shape) == list(range(len(sentence.words)))
        assert len(sentence.labels) == 2 * len(sentence.words) - 1
        assert sentence.labels.count(0) == len(sentence.words)
        assert sentence.labels[-1] == min(len(sentence.words), sentiment.CLASSES) - 1


def test_sentiment_computes_what_the_loop_computes():
    workload = sentiment.sentiment(limit=6, embedding_size=3, hidden_size=4)
    trained = [p for p in workload.trainer._params if p.grad_req != "null"]
    gdb.testing.check_against_loop(workload.loss, workload.samples, trained)


def test_a_phrase_has_the_states_of_the_paper():
    """Tai, Socher, Manning 2015, equations 9 to 14 with N = 2, for one phrase of two words."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def dense(block, x):
        return block.weight.data().asnumpy() @ x + block.bias.data().asnumpy()

    model = sentiment.sentiment(limit=6, embedding_size=3, hidden_size=4).model
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
