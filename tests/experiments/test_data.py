"""Pairs and vectors are read, and invalid ones are reported; minibatches."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from relatedness.corpora import load_corpus, read_requests
from relatedness.options import fingerprint
from relatedness.training import Data
from relatedness.trees import Tree
from workloads.pairs import RELATEDNESS
from workloads.text import DataError, build_vocab, encode, read_vectors

GOOD = {
    "a.toks": ["a dog runs", "cats sleep", "it rains"],
    "a.parents": ["2 3 0", "2 0", "2 0"],
    "b.toks": ["dogs run", "the cat sleeps", "rain"],
    "b.parents": ["2 0", "2 3 0", "0"],
    "sim.txt": ["4.5", "3", "1"],
    "id.txt": ["1", "7", "9"],
}


def write(folder, ending="\n", **changed):
    """Write valid files, with some lines changed: ``a_parents=(line, text)``."""
    folder.mkdir(parents=True)
    for name, lines in GOOD.items():
        lines = list(lines)
        change = changed.get(name.replace(".", "_"))
        if change is not None:
            lines[change[0] - 1] = change[1]
        (folder / name).write_bytes("".join(line + ending for line in lines).encode())


def read(folder, skip=False):
    return load_corpus(folder, ["train"], skip=skip)["train"]


def test_files_are_read_with_any_line_ends_and_unusual_white_space(tmp_path):
    write(tmp_path / "unix" / "train")
    first, second, _ = read(tmp_path / "unix")
    assert first.tokens_a == ("a", "dog", "runs") and first.tree_a.heads == (1, 2, -1)
    assert second.tokens_b == ("the", "cat", "sleeps") and second.tree_b.root == 2
    assert (second.score, second.name) == (3.0, "7")
    write(tmp_path / "windows" / "train", ending="\r\n")
    assert read(tmp_path / "unix") == read(tmp_path / "windows")
    write(tmp_path / "odd" / "train", a_toks=(1, "a\u00a0b dog\u0085 runs"))
    assert read(tmp_path / "odd")[0].tokens_a == ("a\u00a0b", "dog\u0085", "runs")


def test_an_invalid_pair_is_reported_with_file_line_and_reason_or_skipped(tmp_path, capsys):
    write(tmp_path / "train", a_parents=(1, "2 1 0"))
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    location = tmp_path / "train" / "a.parents:1"
    assert str(caught.value).startswith(f"{location}: word 1 cannot be reached from the root")
    assert len(read(tmp_path, skip=True)) == 2
    assert capsys.readouterr().err.startswith(f"skipped: {caught.value}\nskipped 1 pairs")


def test_the_text_of_sick_replaces_the_scores(tmp_path):
    """Its pairs are in another order."""
    write(tmp_path / "plain" / "train")
    write(tmp_path / "sick" / "train")
    (tmp_path / "sick" / "train" / "sim.txt").unlink()
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score"
    lines = (header, "9\tx\ty\t1", "1\tx\ty\t4.5", "7\tx\ty\t3", "")
    (tmp_path / "sick" / "SICK_train.txt").write_text("\r\n".join(lines))
    assert read(tmp_path / "sick") == read(tmp_path / "plain")


def test_the_built_in_corpus_is_that_of_the_published_figures(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {
        "train": 2000, "dev": 500, "test": 500,
    }  # fmt: skip
    assert fingerprint(corpus).startswith("2a9f9598f618a829")


def test_requests_are_pairs_without_scores():
    request = {"a": {"words": "it rains", "heads": [2, 0]}, "b": {"words": "rain", "heads": [0]}}
    lines = [json.dumps(request), json.dumps({**request, "name": "tea"})]
    first, second = read_requests(Path("x"), lines)
    assert (first.words, first.tree_a.heads) == (("it", "rains", "rain"), (1, -1))
    assert (first.name, second.name) == ("1", "tea") and math.isnan(first.score)


@pytest.mark.parametrize("score", [1, 1.25, 2, 3.999, 4.5, 5])
def test_a_target_is_a_distribution_whose_mean_is_the_score(pairs, score):
    target = pairs[0]._replace(score=score).target()
    assert target.shape == (1, 5)
    assert target.min() >= 0 and target.sum() == pytest.approx(1)
    assert (target[0] * np.arange(1, 6)).sum() == pytest.approx(score)
    assert (target > 0).sum() <= 2
    assert np.isnan(pairs[0]._replace(score=math.nan).target()).all()


def test_metrics_of_relatedness(pairs):
    """1, 4, 9 against 1, 2, 3: products of deviations sum to 8, squares to 98/3 and 2."""
    three = [pair._replace(score=score) for pair, score in zip(pairs, (1.0, 2.0, 3.0))]
    metrics = RELATEDNESS.measure(np.array([1.0, 4.0, 9.0]), three)
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["pearson"] == pytest.approx(8 / math.sqrt(2 * 98 / 3))
    assert metrics["mse"] == pytest.approx((0 + 4 + 36) / 3)
    for answers, items in (([3.0, 3.0, 3.0], three), ([2.0], three[:1])):
        undefined = RELATEDNESS.measure(np.array(answers), items)
        assert undefined["pearson"] is undefined["spearman"] is None


@pytest.fixture(scope="module")
def pairs(corpus):
    return corpus["train"][:20]


def vocab_of(pairs):
    return build_vocab(pair.words for pair in pairs)


def test_samples_have_word_indices(pairs):
    vocab = vocab_of(pairs[:10])
    samples = encode(pairs, vocab)
    for pair, sample in zip(pairs[:10], samples):
        indices = sample.inputs[2].asnumpy()
        assert indices.dtype == np.int32
        assert vocab.to_tokens(indices.tolist()) == list(pair.tokens_b)
    with_unknown = pairs[0]._replace(tokens_a=("qwertz",))
    (sample,) = encode([with_unknown], vocab)
    assert sample.inputs[0].asnumpy().tolist() == [vocab[vocab.unknown_token]]


def minibatches(data, shuffle, seed=0):
    np.random.seed(seed)
    return [[id(sample) for sample in batch] for batch in data.minibatches(shuffle)]


def test_minibatches_have_every_pair_once_in_an_order_by_numpys_seed(pairs):
    data = Data(RELATEDNESS, pairs, encode(pairs, vocab_of(pairs)), 8)
    plain, shuffled = minibatches(data, False), minibatches(data, True, 1)
    assert [len(batch) for batch in shuffled] == [8, 8, 4]
    assert sum(plain, []) == list(map(id, data.samples))
    assert sorted(sum(shuffled, [])) == sorted(sum(plain, []))
    assert shuffled == minibatches(data, True, 1) != minibatches(data, True, 2)


def test_vectors_come_from_the_file_or_are_random_by_seed(tmp_path, pairs):
    vocab = vocab_of(pairs)
    word = vocab.idx_to_token[3]
    path = tmp_path / "vectors.txt"
    path.write_text(f"{word} 1 -2.5 3\nqwertz 0 0 1\n")
    vectors, count = read_vectors(path, vocab, seed=3)
    assert vectors.shape == (len(vocab), 3) and vectors.dtype == np.float32 and count == 1
    np.testing.assert_array_equal(vectors[3], [1, -2.5, 3])
    others = np.delete(vectors, 3, axis=0)
    assert np.abs(others).min() > 0 and np.abs(others).max() <= 0.05
    np.testing.assert_array_equal(vectors, read_vectors(path, vocab, seed=3)[0])
    assert not np.array_equal(vectors, read_vectors(path, vocab, seed=4)[0])


def test_a_very_deep_tree_is_built_and_an_empty_one_is_rejected():
    tree = Tree.from_heads([i - 1 for i in range(20_000)])
    assert tree.order == tuple(reversed(range(20_000)))
    with pytest.raises(ValueError, match="at least one word"):
        Tree.from_heads([])
