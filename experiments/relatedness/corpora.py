"""Read pairs of sentences: Stanford's treelstm layout, the text of SICK, and CoNLL-U.

- Stanford's treelstm layout: ``a.toks`` and ``b.toks`` have a sentence per line, ``a.parents`` and
  ``b.parents`` the 1-based head of each word, 0 at the root, ``sim.txt`` the scores, ``id.txt`` the
  names.
- The text of SICK as it was released (Marelli et al. 2014): a line per pair, tab-separated, with a
  header. It has no trees, and takes the place of ``sim.txt`` alone.
- CoNLL-U (https://universaldependencies.org/format.html), for pairs without scores: a word per line
  with its head, an empty line after each sentence; sentences come two by two.

What is wrong is a `DataError` that names file, line and reason.
"""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .trees import CLASSES, Corpus, Pair, Tree, TreeError

#: The built-in corpus, drawn from a small grammar: 3,000 pairs whose trees have the shape
#: statistics of SICK's (9.7 words, depth 4.4, half the nodes leaves). Scores follow from meaning.
BUILT_IN = Path(__file__).parents[1] / "corpus"
#: A sentence has at most so many words; one of ten thousand takes seconds and most of a gigabyte.
MAX_WORDS = 10_000
SPLITS = ("train", "dev", "test")
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
CONLLU_COLUMNS = 10
#: What reads a pair, or raises `DataError`.
Reader = Callable[[], Pair]
Sentence = Tuple[Tuple[str, ...], Tree]


class DataError(ValueError):
    """A file that cannot be used; `line` is 1-based, and 0 where the whole file is meant."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def read_lines(path: Path, content: Optional[bytes] = None) -> List[str]:
    """Read the lines of a UTF-8 file, whichever system's line ends it has, or of its `content`.

    Raises
    ------
    DataError
        If it cannot be read, or is not UTF-8 (naming the line).
    """
    try:
        content = path.read_bytes() if content is None else content
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise DataError(path, 0, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8") from error
    # Not splitlines(): it also breaks at characters such as U+0085 that may stand in a word.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def load_corpus(
    directory: Path = BUILT_IN,
    on_bad_sample: str = "error",
    splits: Sequence[str] = SPLITS,
    limit: Optional[int] = None,
) -> Corpus:
    """Read the pairs of some splits.

    Parameters
    ----------
    directory : Path
        The folder that holds the splits; the built-in corpus by default.
    on_bad_sample : {"error", "skip"}
        Whether a bad pair ends the reading or is left out and listed in ``Corpus.skipped``. Files
        that are missing or do not fit together are always errors: nothing says which of their
        lines do.
    splits : sequence of str
        Which splits to read.
    limit : int, optional
        Pairs of each split to read at most, the first ones.

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    found: Dict[str, List[Pair]] = {}
    skipped: List[str] = []
    for split in splits:
        folder = Path(directory) / split
        readers = _treelstm(folder, Path(directory) / SICK_FILES[split])
        found[split] = _collect(readers, folder, on_bad_sample, skipped, limit)
    return Corpus(found, tuple(skipped))


def load_conllu_pairs(
    path: Path, lines: Optional[List[str]] = None, on_bad_sample: str = "error"
) -> Corpus:
    """Read pairs without scores from one text in CoNLL-U; the corpus has one split, ``""``.

    A comment ``# pair_id = NAME`` at one of its sentences names a pair; else it has its number.
    `path` is its name in messages, `lines` the text if it has been read.
    """
    placed = enumerate(read_lines(path) if lines is None else lines, 1)
    groups = groupby(placed, lambda item: bool(item[1].strip()))
    blocks = [list(block) for filled, block in groups if filled]
    if len(blocks) % 2:
        reason = f"sentence {len(blocks)} has no partner: sentences come two by two"
        raise DataError(path, blocks[-1][0][0], reason)

    def pair(number: int) -> Pair:
        two = blocks[2 * number : 2 * number + 2]
        (tokens_a, tree_a), (tokens_b, tree_b) = (_conllu_sentence(path, block) for block in two)
        comments = [re.fullmatch(r"#\s*pair_id\s*=\s*(.*\S)\s*", line) for _, line in sum(two, [])]
        names = [match.group(1) for match in comments if match is not None]
        name = names[0] if names else str(number + 1)
        return Pair(tokens_a, tree_a, tokens_b, tree_b, math.nan, name)

    skipped: List[str] = []
    readers = [partial(pair, number) for number in range(len(blocks) // 2)]
    return Corpus({"": _collect(readers, path, on_bad_sample, skipped)}, tuple(skipped))


def _collect(
    readers: Sequence[Reader],
    path: Path,
    on_bad_sample: str,
    skipped: List[str],
    limit: Optional[int] = None,
) -> List[Pair]:
    """Read pair by pair, and check what holds for pairs of every format."""
    if not readers:
        raise DataError(path, 0, "holds no pairs")
    found: Dict[str, Pair] = {}
    for read in readers:
        if len(found) == limit:
            break
        try:
            pair = read()
            if pair.name in found:
                raise DataError(path, 0, f"two pairs have the id {pair.name}")
            if not pair.name or "\t" in pair.name:  # it becomes a column of a table
                raise DataError(path, 0, f"id {pair.name!r} is empty or has a tab in it")
        except DataError as error:
            if on_bad_sample == "error":
                raise
            skipped.append(str(error))
        else:
            found[pair.name] = pair
    return list(found.values())


def _treelstm(folder: Path, raw: Path) -> List[Reader]:
    """Read the parses of a split, and its scores from ``sim.txt`` or else from SICK's text."""
    for path in (folder.parent, folder):
        if not path.is_dir():
            reason = "not a folder" if path.exists() else "No such file or directory"
            raise DataError(path, 0, reason)
    own = (folder / "sim.txt").is_file()
    if not own and not raw.is_file():
        needed = "id.txt, {a,b}.toks, {a,b}.parents and sim.txt"
        raise DataError(folder, 0, f"no known format; expected {needed}, or {raw} for sim.txt")
    names = [name.strip() for name in read_lines(folder / "id.txt")]
    files = [f"{side}.{kind}" for side in "ab" for kind in ("toks", "parents")]
    lines = {name: read_lines(folder / name) for name in [*files, *(["sim.txt"] if own else [])]}
    for name, own_lines in lines.items():
        if len(own_lines) != len(names):
            reason = f"{len(own_lines)} lines, but id.txt has {len(names)}"
            raise DataError(folder / name, 0, reason)
    scores = None if own else _sick_scores(raw, names)

    paths = {name: folder / name for name in files}

    def sentence(side: str, i: int) -> Sentence:
        # Only spaces separate words: there are words with U+00A0 in them.
        tokens = [token for token in lines[f"{side}.toks"][i].split(" ") if token]
        heads = lines[f"{side}.parents"][i].split()
        place, head_place = ((paths[f"{side}.{kind}"], i + 1) for kind in ("toks", "parents"))
        return _check_sentence(tokens, heads, place, [head_place] * len(heads))

    def pair(i: int) -> Pair:
        if scores is None:
            score = _check_score(lines["sim.txt"][i], folder / "sim.txt", i + 1)
        else:
            if names[i] not in scores:
                raise DataError(folder / "id.txt", i + 1, f"pair {names[i]!r} is not in {raw}")
            line, text = scores[names[i]]
            score = _check_score(text, raw, line)
        return Pair(*sentence("a", i), *sentence("b", i), score, names[i])

    return [partial(pair, i) for i in range(len(names))]


def _sick_scores(path: Path, names: Sequence[str]) -> Dict[str, Tuple[int, str]]:
    """Read the line and the score of each pair in a file of SICK; all must have been parsed."""
    header, *rows = [line.split("\t") for line in read_lines(path) or [""]]
    for column in ("pair_ID", "relatedness_score"):
        if column not in header:
            raise DataError(path, 1, f"no column {column} in the header")
    number, score = header.index("pair_ID"), header.index("relatedness_score")
    parsed = set(names)
    found = {}
    for line, fields in enumerate(rows, 2):
        if len(fields) != len(header):
            raise DataError(path, line, f"{len(fields)} columns, the header has {len(header)}")
        if fields[number].strip() not in parsed:
            reason = f"no parse of pair {fields[number].strip()!r}: it is not in id.txt"
            raise DataError(path, line, reason)
        found[fields[number].strip()] = (line, fields[score])
    return found


def _conllu_sentence(path: Path, block: Sequence[Tuple[int, str]]) -> Sentence:
    """Read a sentence; lines of multiword tokens and of empty nodes are no words of the tree."""
    words: List[Tuple[str, str, int]] = []
    for line, text in block:
        fields = text.split("\t")
        if text.startswith("#") or re.fullmatch("[0-9]+[-.][0-9]+", fields[0]):
            continue
        if len(fields) != CONLLU_COLUMNS:
            reason = f"{len(fields)} columns with tabs between, expected {CONLLU_COLUMNS}"
            raise DataError(path, line, reason)
        if fields[0] != str(len(words) + 1):
            raise DataError(path, line, f"word id {fields[0]}, expected {len(words) + 1}")
        if not fields[1].strip():
            raise DataError(path, line, f"id {fields[0]} has no word beside it")
        words.append((fields[1], fields[6], line))
    tokens, heads, lines = zip(*words) if words else ((), (), ())
    places = [(path, line) for line in lines]
    return _check_sentence(tokens, heads, (path, block[0][0]), places)


def _check_sentence(
    tokens: Sequence[str],
    heads: Sequence[str],
    place: Tuple[Path, int],
    head_places: Sequence[Tuple[Path, int]],
) -> Sentence:
    """Turn words and their heads, "0" at the root, into words and tree."""
    if not tokens:
        raise DataError(*place, "empty sentence")
    if len(tokens) > MAX_WORDS:
        reason = f"a sentence of more than {MAX_WORDS} words; split it, or leave it out"
        raise DataError(*place, reason)
    if len(heads) != len(tokens):
        raise DataError(*place, f"{len(heads)} heads for {len(tokens)} tokens")
    for head, head_place in zip(heads, head_places):
        # int() would take "+1", "1_0" and figures of other scripts, too.
        if not re.fullmatch(r"-?[0-9]{1,9}", head):
            raise DataError(*head_place, f"a head is not a number: {head!r}")
    try:
        return tuple(tokens), Tree.from_heads([int(head) - 1 for head in heads])
    except TreeError as error:
        raise DataError(*head_places[error.word or 0], str(error)) from None


def _check_score(text: str, path: Path, line: int) -> float:
    """Turn what is written for a score into a number from 1 to `CLASSES`."""
    try:
        score = float(text)
    except ValueError:
        raise DataError(path, line, f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise DataError(path, line, f"score {text.strip()} is not in 1..{CLASSES}")
    return score
