"""The layouts of a data folder: told apart, read alike, and wrong lines named."""

from pathlib import Path

import pytest

from relatedness import corpora
from relatedness.corpora import DataError, load_conllu_pairs, load_corpus, same_text

EXAMPLE = Path(__file__).with_name("pairs.conllu")

PAIRS = [  # id, score, and per side: text, words, 1-based heads
    ("4", "4.5", ("A dog can't run.", "A dog ca n't run .", "2 5 5 5 0 5"),
     ("Dogs run", "dogs run", "2 0")),
    ("11", "2", ("It rains (a lot)", "It rains -LRB- a lot -RRB-", "2 0 5 5 2 5"),
     ("Rain", "rain", "0")),
]  # fmt: skip
HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def conllu(words, heads):
    rows = zip(range(1, 99), words.split(), heads.split())
    return "".join(f"{i}\t{word}" + "\t_" * 4 + f"\t{head}" + "\t_" * 3 + "\n"
                   for i, word, head in rows) + "\n"  # fmt: skip


def write(folder, layout, split="train"):
    """Write the pairs; the parses of the second pair first, where ids say which is whose."""
    raw, parses = layout.startswith("sick"), layout.split("-")[-1]
    pairs = PAIRS[::-1] if raw else PAIRS
    (folder / split).mkdir(parents=True)
    files = {"id.txt": "".join(f"{pair[0]}\n" for pair in pairs)}
    for side, column in (("a", 2), ("b", 3)):
        sentences = [pair[column][1:] for pair in pairs]
        if parses == "conllu":
            files[f"{side}.conllu"] = "".join(conllu(*sentence) for sentence in sentences)
        else:
            files[f"{side}.toks"] = "".join(f"{words}\n" for words, _ in sentences)
            files[f"{side}.parents"] = "".join(f"{heads}\n" for _, heads in sentences)
    if raw:
        lines = [f"{name}\t{a[0]}\t{b[0]}\t{score}\tNEUTRAL\n" for name, score, a, b in PAIRS]
        (folder / "SICK_train.txt").write_bytes((HEADER + "".join(lines)).encode())
    else:
        files["sim.txt"] = "".join(f"{pair[1]}\n" for pair in pairs)
    for name, text in files.items():
        (folder / split / name).write_text(text)
    return folder


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("layout", ["conllu", "sick-treelstm", "sick-conllu"])
def test_every_layout_gives_the_same_pairs(tmp_path, layout):
    expected = load_corpus(write(tmp_path / "plain", "treelstm"), splits=["train"])
    assert [pair.name for pair in expected.splits["train"]] == ["4", "11"]
    assert load_corpus(write(tmp_path / layout, layout), splits=["train"]) == expected


def test_sicks_windows_line_ends_change_nothing(tmp_path):
    folder = write(tmp_path, "sick-treelstm")
    expected = load_corpus(folder, splits=["train"])
    content = (folder / "SICK_train.txt").read_bytes()
    (folder / "SICK_train.txt").write_bytes(content.replace(b"\n", b"\r\n"))
    assert load_corpus(folder, splits=["train"]) == expected


def test_a_folder_of_no_known_format_is_told_what_is_needed(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train: no known format; expected id.txt; .*SICK_train"):
        load_corpus(tmp_path, splits=["train"])
    with pytest.raises(DataError, match="dev: No such file"):
        load_corpus(tmp_path, splits=["dev"])
    (tmp_path / "dev").write_text("")
    with pytest.raises(DataError, match="dev: not a folder"):
        load_corpus(tmp_path, splits=["dev"])


def test_scores_of_its_own_make_the_text_of_sick_needless(tmp_path):
    folder = write(tmp_path, "sick-conllu")
    (folder / "train" / "sim.txt").write_text("1\n5\n")
    assert load_corpus(folder, splits=["train"]).splits["train"][1].score == 5


BAD_SICK = [  # which file, what is changed in it, where the error is, its reason
    ("SICK_train.txt", "sentence_B", "text_B", 1, "no column sentence_B in the header", True),
    ("SICK_train.txt", "\tNEUTRAL", "", 2, "4 columns, but the header has 5", False),
    ("SICK_train.txt", "4.5", "x", 2, "score 'x' is not a number", False),
    ("SICK_train.txt", "4.5", "", 2, "score '' is not a number", False),
    ("SICK_train.txt", "4.5", "5.5", 2, "score 5.5 is not in 1..5", False),
    ("train/id.txt", "4", "5", 2, "pair '5' is not in ", True),
    ("train/id.txt", "4", "11", 2, "pair 11 stands in line 1, too", True),
    ("train/a.toks", "dog", "cat", 2,
     "the parse of pair 4 is of \"A cat ca n't run .\", but {}/SICK_train.txt:2 has "
     '"A dog can\'t run."', False),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "line", "reason", "always"), BAD_SICK)
def test_what_is_wrong_with_sick_is_named(tmp_path, file, old, new, line, reason, always):
    folder = write(tmp_path, "sick-treelstm")
    change(folder / file, old, new)
    with pytest.raises(DataError) as caught:
        load_corpus(folder, splits=["train"])
    error = caught.value
    assert (error.path, error.line) == (folder / file, line)
    assert reason.format(folder) in error.reason
    if not always:
        corpus = load_corpus(folder, "skip", splits=["train"])
        assert [pair.name for pair in corpus.splits["train"]] == ["11"]
        assert corpus.skipped == (str(error),)


def test_a_pair_of_sick_without_parse_is_named(tmp_path):
    folder = write(tmp_path, "sick-treelstm")
    with (folder / "SICK_train.txt").open("a") as file:
        file.write("12\tHm\tHm\t3\tNEUTRAL\n")
    with pytest.raises(DataError, match=r"SICK_train\.txt:4: no parse of pair '12'.*id\.txt"):
        load_corpus(folder, splits=["train"])
    assert len(load_corpus(folder, "skip", splits=["train"]).splits["train"]) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("A dog, can't!", "a dog ca n't", True),
        ("It (rains)", "it -LRB- rains -RRB-", True),
        ("caf\u00e9 \ufb01ne", "CAFE\u0301 FINE", True),
        ("two dogs", "two dog", False),
        ("room 12", "room 21", False),
    ],
)
def test_texts_are_compared_by_letters_and_figures(one, other, same):
    assert same_text(one, other) == same


def test_the_example_is_read_whole():
    """Words are the syntactic ones; multiword tokens and empty nodes are none."""
    corpus = load_conllu_pairs(EXAMPLE)
    first, second = corpus.splits[""]
    assert first.tokens_a == ("do", "n't", "wake", "the", "dogs", ".")
    assert first.tree_a.heads == (2, 2, -1, 4, 2, 2)
    assert second.tokens_a == ("Ann", "drinks", "tea", "and", "Bob", "milk")
    assert second.tree_a.children == ((), (0, 2, 4), (), (), (3, 5), ())
    assert [pair.name for pair in corpus.splits[""]] == ["1", "tea"]
    assert first.score != first.score, "not judged"


BAD_CONLLU = [  # line of the example, the new line, line of the error, its reason
    (7, "3\twake\t_\t_\t_\t_\tx\t_\t_\t_", 7, "a head is not a number: 'x'"),
    (7, "3\twake\t_\t_\t_\t_\t_\t_\t_\t_", 7, "a head is not a number: '_'"),
    (8, "4\tthe\t_\t_\t_\t_\t7\t_\t_\t_", 8, "head 7 of word 4 is out of range 0..6"),
    (9, "5\tdogs\t_\t_\t_\t_\t0\t_\t_\t_", 9, "2 roots (words 3, 5)"),
    (9, "5\tdogs\t_\t_\t_\t_\t4\t_\t_\t_", 8, "word 4 cannot be reached from the root: a cycle"),
    (7, "3\twake\t_\t_\t_\t_\t1\t_\t_\t_", 5, "no root"),
    (8, "4 the 5", 8, "1 columns with tabs between, expected 10"),
    (8, "5\tthe\t_\t_\t_\t_\t5\t_\t_\t_", 8, "word id 5, expected 4"),
    (8, "four\tthe\t_\t_\t_\t_\t5\t_\t_\t_", 8, "word id four, expected 4"),
    (8, "4\t\t_\t_\t_\t_\t5\t_\t_\t_", 8, "id 4 has no word beside it"),
    (4, "1-x\tDon't\t_\t_\t_\t_\t_\t_\t_\t_", 4, "word id 1-x, expected 1"),
]


@pytest.mark.parametrize(("number", "text", "line", "reason"), BAD_CONLLU)
def test_a_wrong_line_of_conllu_is_named(number, text, line, reason):
    lines = EXAMPLE.read_text().split("\n")
    lines[number - 1] = text
    with pytest.raises(DataError) as caught:
        load_conllu_pairs(EXAMPLE, lines)
    assert (caught.value.line, reason in caught.value.reason) == (line, True), caught.value
    corpus = load_conllu_pairs(EXAMPLE, lines, "skip")
    assert [pair.name for pair in corpus.splits[""]] == ["tea"]
    assert corpus.skipped == (str(caught.value),)


def test_a_word_may_have_spaces_in_it():
    lines = ["1\tNew  York\t_\t_\t_\t_\t0\t_\t_\t_", "", "1\t\u00a0\u3042\t_\t_\t_\t_\t0\t_\t_\t_"]
    (pair,) = load_conllu_pairs(Path("x"), lines).splits[""]
    assert (pair.tokens_a, pair.tokens_b) == (("New  York",), ("\u00a0\u3042",))


def test_sentences_that_do_not_pair_up_are_an_error():
    lines = EXAMPLE.read_text().split("\n")
    with pytest.raises(DataError, match=r"pairs\.conllu:18: sentence 3 has no partner") as caught:
        load_conllu_pairs(EXAMPLE, lines[:27], "skip")
    assert caught.value.line == 18
    with pytest.raises(DataError, match="holds no pairs"):
        load_conllu_pairs(EXAMPLE, ["", " "])


@pytest.mark.parametrize("layout", ["treelstm", "conllu"])
def test_an_endless_sentence_is_refused_by_its_length(tmp_path, monkeypatch, layout):
    """Its words would take hours; the limit is a small one here."""
    monkeypatch.setattr(corpora, "MAX_WORDS", 5)
    write(tmp_path, layout)
    with pytest.raises(DataError, match="a sentence of more than 5 words; split it") as caught:
        load_corpus(tmp_path, splits=["train"])
    sentence = ("a.conllu", 1) if layout == "conllu" else ("a.toks", 1)
    assert (caught.value.path.name, caught.value.line) == sentence
    corpus = load_corpus(tmp_path, "skip", splits=["train"])
    assert not corpus.splits["train"] and len(corpus.skipped) == 2


def test_a_comment_alone_is_an_empty_sentence():
    with pytest.raises(DataError, match=r"x:1: empty sentence"):
        load_conllu_pairs(Path("x"), ["# newdoc", "", "1\tso\t_\t_\t_\t_\t0\t_\t_\t_"])


def test_names_of_pairs_must_agree_and_differ():
    lines = EXAMPLE.read_text().split("\n")
    at = lines.index("# sent_id = 4")
    with pytest.raises(DataError, match=rf":{at + 1}: pair_id milk, but tea at the sentence bef"):
        load_conllu_pairs(EXAMPLE, [*lines[:at], "# pair_id = milk", *lines[at + 1 :]])
    assert load_conllu_pairs(EXAMPLE, [*lines[:at], "# pair_id = tea", *lines[at + 1 :]])
    twice = [line.replace("sent_id = 2", "pair_id = tea") for line in lines]
    with pytest.raises(DataError, match=r":19: id tea is that of .*pairs\.conllu:12, too"):
        load_conllu_pairs(EXAMPLE, twice)
