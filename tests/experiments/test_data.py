"""Reading pairs and vectors: what is right is read whole, what is wrong is named."""

import mxnet as mx
import numpy as np
import pytest

from relatedness.assembly import fingerprint
from relatedness.corpora import DataError, load_corpus
from relatedness.data import (
    Loader,
    build_vocab,
    encode,
    read_vectors,
    target_distribution,
    unknown_words,
)

GOOD = {
    "a.toks": ["a dog runs", "cats sleep", "it rains"],
    "a.parents": ["2 3 0", "2 0", "2 0"],
    "b.toks": ["dogs run", "the cat sleeps", "rain"],
    "b.parents": ["2 0", "2 3 0", "0"],
    "sim.txt": ["4.5", "3", "1"],
    "id.txt": ["1", "7", "9"],
}


def write(folder, ending="\n", **changed):
    """Write the good files, with some lines changed: ``a_parents=(line, text)``."""
    folder.mkdir(parents=True)
    for name, lines in GOOD.items():
        lines = list(lines)
        change = changed.get(name.replace(".", "_"))
        if change is not None:
            lines[change[0] - 1] = change[1]
        (folder / name).write_bytes("".join(line + ending for line in lines).encode())


def test_good_files_are_read_whole(tmp_path):
    write(tmp_path / "train")
    corpus = load_corpus(tmp_path, splits=["train"])
    first, second, _ = corpus.splits["train"]
    assert first.tokens_a == ("a", "dog", "runs") and first.tree_a.heads == (1, 2, -1)
    assert second.tokens_b == ("the", "cat", "sleeps") and second.tree_b.root == 2
    assert (second.score, second.name) == (3.0, "7")
    assert corpus.skipped == ()


def test_line_ends_of_windows_and_odd_white_space_change_nothing(tmp_path):
    write(tmp_path / "unix" / "train")
    write(tmp_path / "windows" / "train", ending="\r\n")
    unix, windows = (load_corpus(tmp_path / name, splits=["train"]) for name in ("unix", "windows"))
    assert unix == windows
    write(tmp_path / "odd" / "train", a_toks=(1, "a\u00a0b dog\u0085 runs"))
    odd = load_corpus(tmp_path / "odd", splits=["train"]).splits["train"][0]
    assert odd.tokens_a == ("a\u00a0b", "dog\u0085", "runs")


BAD = [
    ("a_parents", "2 3", "a.parents", "2 heads for 3 tokens"),
    ("a_parents", "2 3 x", "a.parents", "a head is not a number"),
    ("a_parents", "2 3 +0", "a.parents", "a head is not a number: '+0'"),
    ("a_parents", "2 3 4", "a.parents", "head 4 of word 3 is out of range 0..3"),
    ("a_parents", "2 3 -1", "a.parents", "head -1 of word 3 is out of range"),
    ("a_parents", "2 3 2", "a.parents", "no root"),
    ("a_parents", "0 3 0", "a.parents", "2 roots (words 1, 3)"),
    ("a_parents", "2 1 0", "a.parents", "a cycle"),
    ("b_toks", "", "b.toks", "empty sentence"),
    ("sim_txt", "high", "sim.txt", "score 'high' is not a number"),
    ("sim_txt", "5.1", "sim.txt", "score 5.1 is not in 1..5"),
    ("sim_txt", "0", "sim.txt", "score 0 is not in 1..5"),
    ("sim_txt", "nan", "sim.txt", "score nan is not in 1..5"),
    ("id_txt", " ", "id.txt", "empty id"),
    ("id_txt", "a\tb", "id.txt", "has a tab in it"),
]


@pytest.mark.parametrize(("field", "text", "file", "reason"), BAD, ids=[bad[3] for bad in BAD])
def test_a_bad_pair_is_named_by_file_line_and_reason_or_skipped(
    tmp_path, field, text, file, reason
):
    write(tmp_path / "train", **{field: (1, text)})
    with pytest.raises(DataError) as caught:
        load_corpus(tmp_path, splits=["train"])
    error = caught.value
    assert (error.path, error.line) == (tmp_path / "train" / file, 1)
    assert reason in error.reason
    assert str(error) == f"{error.path}:1: {error.reason}"
    corpus = load_corpus(tmp_path, "skip", splits=["train"])
    assert [pair.name for pair in corpus.splits["train"]] == ["7", "9"]
    assert corpus.skipped == (str(error),)


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_files_that_do_not_fit_together_are_always_an_error(tmp_path, policy):
    write(tmp_path / "train")
    (tmp_path / "train" / "b.toks").write_text("dogs run\n")
    with pytest.raises(DataError, match=r"b\.parents: 3 lines, but b\.toks has 1"):
        load_corpus(tmp_path, policy, splits=["train"])
    (tmp_path / "train" / "b.parents").write_text("2 0\n")
    with pytest.raises(DataError, match=r"b\.toks: 1 sentences, but id\.txt has 3 ids"):
        load_corpus(tmp_path, policy, splits=["train"])
    (tmp_path / "train" / "id.txt").write_text("1\n")
    with pytest.raises(DataError, match=r"id\.txt: 1 lines, but sim\.txt has 3"):
        load_corpus(tmp_path, policy, splits=["train"])
    (tmp_path / "train" / "b.toks").unlink()
    (tmp_path / "train" / "id.txt").write_text("1\n7\n9\n")
    with pytest.raises(DataError, match=r"b\.toks: No such file"):
        load_corpus(tmp_path, policy, splits=["train"])


def test_an_id_that_stands_twice_is_refused(tmp_path):
    write(tmp_path / "train", id_txt=(3, "1"))
    with pytest.raises(DataError, match=r"id\.txt:3: id 1 is that of .*id\.txt:1, too"):
        load_corpus(tmp_path, splits=["train"])


def test_an_empty_split_is_an_error(tmp_path):
    write(tmp_path / "train")
    for name in GOOD:
        (tmp_path / "train" / name).write_text("")
    with pytest.raises(DataError, match="holds no pairs"):
        load_corpus(tmp_path, splits=["train"])


def test_bytes_that_are_no_text_are_named_by_line(tmp_path):
    write(tmp_path / "train")
    (tmp_path / "train" / "a.toks").write_bytes(b"a dog runs\ncats sl\xffeep\nit rains\n")
    with pytest.raises(DataError, match=r"a\.toks:2: not UTF-8"):
        load_corpus(tmp_path, splits=["train"])


@pytest.mark.parametrize("score", [1, 1.25, 2, 3.999, 4.5, 5])
def test_a_target_is_a_distribution_whose_mean_is_the_score(score):
    target = target_distribution(score)
    assert target.shape == (1, 5)
    assert target.min() >= 0 and target.sum() == pytest.approx(1)
    assert (target[0] * np.arange(1, 6)).sum() == pytest.approx(score)
    assert (target > 0).sum() <= 2


@pytest.fixture(scope="module")
def pairs(corpus):
    return corpus.splits["train"][:20]


def test_samples_hold_word_indices(pairs):
    vocab = build_vocab(pairs[:10])
    samples = encode(pairs, vocab, mx.cpu())
    for pair, sample in zip(pairs[:10], samples):
        indices = sample.tokens_b.asnumpy()
        assert indices.dtype == np.int32
        assert vocab.to_tokens(indices.tolist()) == list(pair.tokens_b)
    strange = encode([pairs[0]._replace(tokens_a=("qwertz",))], vocab, mx.cpu())[0]
    assert strange.tokens_a.asnumpy().tolist() == [vocab[vocab.unknown_token]]


def test_a_word_is_unknown_each_time_it_stands_there(pairs):
    strange = pairs[0]._replace(tokens_a=("qwertz", *pairs[0].tokens_a, "qwertz"))
    words = len(strange.tokens_a) + len(strange.tokens_b)
    assert unknown_words([strange], build_vocab(pairs)) == (2, words)


def test_a_pair_without_score_has_no_target():
    assert np.isnan(target_distribution(float("nan"))).all()


def names(loader, seed=0):
    np.random.seed(seed)
    return [[sample.name for sample in batch] for batch in loader]


def test_minibatches_hold_every_pair_once_and_shuffle_by_numpys_seed(pairs):
    vocab = build_vocab(pairs)
    loader = Loader(pairs, vocab, 8, shuffle=True)
    assert len(loader) == 3 and [len(batch) for batch in loader] == [8, 8, 4]
    assert sorted(sum(names(loader), [])) == sorted(pair.name for pair in pairs)
    assert names(loader, 1) == names(loader, 1) != names(loader, 2)
    assert sum(names(Loader(pairs, vocab, 8)), []) == [pair.name for pair in pairs]


def test_workers_give_the_same_minibatches(pairs):
    """The arrays are those of `encode`, too, which makes all samples at once."""
    vocab = build_vocab(pairs)
    alone, helped = (Loader(pairs, vocab, 3, shuffle=True, num_workers=n) for n in (0, 2))
    encoded = {sample.name: sample for sample in encode(pairs, vocab, mx.cpu())}
    for seed in (1, 2):  # the workers live on
        assert names(alone, seed) == names(helped, seed)
    for one, other in zip(names_and_arrays(alone), names_and_arrays(helped)):
        assert one == other == names_and_arrays([[encoded[one[0]]]])[0]
    assert next(iter(helped))[0].tree_a in {pair.tree_a for pair in pairs}


def names_and_arrays(loader):
    np.random.seed(5)
    return [
        (s.name, s.tree_a, s.tree_b, s.score)
        + tuple(
            (a.dtype, a.shape, a.asnumpy().tobytes()) for a in (s.tokens_a, s.tokens_b, s.target)
        )
        for batch in loader
        for s in batch
    ]


def test_vectors_are_those_of_the_file_and_seeded_for_other_words(tmp_path, pairs):
    vocab = build_vocab(pairs)
    known = vocab.idx_to_token[3]
    path = tmp_path / "vectors.txt"
    path.write_text(f"{known} 1 -2.5 3\nqwertz 0 0 1\n")
    vectors = read_vectors(path, vocab, seed=3)
    assert vectors.shape == (len(vocab), 3) and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[3], [1, -2.5, 3])
    others = np.delete(vectors, 3, axis=0)
    assert np.abs(others).min() > 0 and np.abs(others).max() <= 0.05
    np.testing.assert_array_equal(vectors, read_vectors(path, vocab, seed=3))
    assert not np.array_equal(vectors, read_vectors(path, vocab, seed=4))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a 1 2\nb 1\n", 2, "1 values, expected 2"),
        ("a 1 2\nb 1 x\n", 2, "not a finite number"),
        ("a 1 nan\n", 1, "not a finite number"),
        ("", 0, "empty file"),
    ],
)
def test_bad_vectors_are_named_by_line(tmp_path, pairs, text, line, reason):
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        read_vectors(path, build_vocab(pairs), seed=1)
    assert caught.value.line == line


def test_missing_vectors_are_an_error(tmp_path, pairs):
    with pytest.raises(DataError, match="no such file"):
        read_vectors(tmp_path / "none", build_vocab(pairs), seed=1)


def test_sick_is_read_whole(request):
    """The counts are those of the published data; its licence forbids shipping it."""
    folder = request.config.getoption("--sick")
    if folder is None:
        pytest.skip("--sick names no folder with SICK in the treelstm layout")
    splits = load_corpus(folder).splits
    assert {name: len(pairs) for name, pairs in splits.items()} == {
        "train": 4500, "dev": 500, "test": 4927,
    }  # fmt: skip
    words = {n: sum(len(p.tokens_a) + len(p.tokens_b) for p in ps) for n, ps in splits.items()}
    assert words == {"train": 87089, "dev": 9884, "test": 95218}
    trees = [tree for pair in splits["train"] for tree in (pair.tree_a, pair.tree_b)]
    assert np.mean([tree.depth for tree in trees]) == pytest.approx(4.4, abs=0.05)


def test_the_built_in_corpus_is_the_one_of_the_published_figures(corpus):
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {
        "train": 2000, "dev": 500, "test": 500,
    }  # fmt: skip
    assert fingerprint(corpus.splits) == (
        "84d2611de90c73ad5ff4939dec999f2ecb7e728e17c6426696472b799e3d0f09"
    )


def test_trees_of_the_built_in_corpus_have_the_shape_of_those_of_sick(corpus):
    pairs = [pair for split in corpus.splits.values() for pair in split]
    trees = [tree for pair in pairs for tree in (pair.tree_a, pair.tree_b)]
    assert np.mean([len(tree.heads) for tree in trees]) == pytest.approx(9.7, abs=0.4)
    assert np.mean([tree.depth for tree in trees]) == pytest.approx(4.4, abs=0.2)
    counts = np.bincount([len(children) for tree in trees for children in tree.children])
    assert counts[:2] / counts.sum() == pytest.approx([0.51, 0.28], abs=0.02)
    assert len({tree.heads for tree in trees}) > 1000
    scores = np.array([pair.score for pair in pairs])
    assert all(share > 0.01 for share in np.histogram(scores, 8, (1, 5))[0] / len(scores))
