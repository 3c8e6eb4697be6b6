"""Read pairs of sentences: Stanford's treelstm layout, the text of SICK, and lines of JSON.

- Stanford's treelstm layout: ``a.toks`` and ``b.toks`` have a sentence per line, ``a.parents`` and
  ``b.parents`` the 1-based head of each word, 0 at the root, ``sim.txt`` the scores, ``id.txt`` the
  names.
- The released text of SICK (Marelli et al. 2014): a line per pair, tab-separated, with a header. It
  has no trees, and replaces only ``sim.txt``.
- Pairs without scores, one per line, in the format of ``examples/serve.py``:
  ``{"a": {"words": "it rains", "heads": [2, 0]}, "b": {...}}``, with an optional ``"name"``.
"""

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple, Tuple

import numpy as np

from workloads.base import Sample
from workloads.text import DataError, read_lines

from .trees import CLASSES, Tree, TreeError

#: The built-in corpus, generated from a small grammar: 3,000 pairs with scores by meaning. Trees
#: have the statistics of SICK's: 9.7 words, depth 4.4, half of the nodes are leaves.
BUILT_IN = Path(__file__).parents[1] / "corpus"
#: Longest sentence, which takes seconds and most of a gigabyte.
MAX_WORDS = 10_000
SPLITS = ("train", "dev", "test")
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}


class Pair(NamedTuple):
    """Two sentences with their trees, a relatedness score, and a name."""

    tokens_a: Tuple[str, ...]
    tree_a: Tree
    tokens_b: Tuple[str, ...]
    tree_b: Tree
    score: float  # from 1 to `CLASSES`; NaN if unknown
    name: str

    @property
    def words(self):
        """The words of both sentences."""
        return (*self.tokens_a, *self.tokens_b)

    def target(self):
        """Return a distribution over the two nearest integers whose mean is the score.

        Tai et al. 2015, equation 15. Shape (1, CLASSES); NaN for a pair without a score, which
        cannot be used for training.
        """
        distance = np.abs(np.arange(1, CLASSES + 1) - self.score)
        return np.maximum(0, 1 - distance)[None]

    def sample(self, words, target):
        """Make a sample of the indices of all words and the target."""
        middle = len(self.tokens_a)
        return Sample((words[:middle], self.tree_a, words[middle:], self.tree_b), target)


def load_corpus(directory=None, splits=SPLITS, limit=None, skip=False):
    """Read the first `limit` pairs of each split from a folder, or from the built-in corpus.

    With `skip`, an invalid pair is skipped, with its reason on standard error. Missing files, and
    files with different numbers of lines, are always errors.
    """
    corpus, directory = {}, Path(directory or BUILT_IN)
    for split in splits:
        folder = directory / split
        read, count = _treelstm(folder, directory / SICK_FILES[split])
        corpus[split] = collect(read, count, folder, limit, skip)
    return corpus


def read_requests(path, lines, limit=None, skip=False):
    """Read pairs without scores from lines of JSON; messages call the file `path`."""
    return collect(request_reader(path, lines), len(lines), path, limit, skip)


def request_reader(path, lines, first=0):
    """Return a function from the number of a line to its pair; `first` lines precede."""

    def sentence(record, location):
        words, heads = record["words"], record["heads"]
        if not (isinstance(words, str) and isinstance(heads, list)):
            raise TypeError
        return _check_sentence(words.split(), list(map(str, heads)), location, location)

    def read(number):
        location = (path, first + number + 1)
        try:
            record = json.loads(lines[number])
            sides = [sentence(record[side], location) for side in "ab"]
            name = str(record.get("name", first + number + 1))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            example = '{"a": {"words": "it rains", "heads": [2, 0]}, "b": {...}}'
            raise DataError(*location, f"not a pair such as {example}") from None
        return Pair(*sides[0], *sides[1], math.nan, name)

    return read


def collect(read, count, path, limit, skip):
    """Read pairs one by one, and check their names, which are columns of `predict`'s output."""
    pairs, skipped = {}, 0
    for number in range(count):
        if len(pairs) == limit:
            break
        try:
            pair = read(number)
            if pair.name in pairs:
                raise DataError(path, 0, f"two pairs have the id {pair.name}")
            if not pair.name or "\t" in pair.name:
                raise DataError(path, 0, f"id {pair.name!r} is empty or contains a tab")
            pairs[pair.name] = pair
        except DataError as error:
            if not skip:
                raise
            skipped += 1
            print(f"skipped: {error}", file=sys.stderr)
    if skipped:
        print(f"skipped {skipped} pairs of {path}", file=sys.stderr)
    if not pairs:
        raise DataError(path, 0, "has no valid pairs")
    return list(pairs.values())


def _treelstm(folder, raw):
    """Read the trees of a split, and its scores from ``sim.txt`` or else from SICK's text.

    Returns a function from the number of a pair to the pair, and the number of pairs.
    """
    for path in (folder.parent, folder):
        try:
            os.listdir(path)
        except OSError as error:
            raise DataError(path, 0, error.strerror) from None
    has_scores = (folder / "sim.txt").is_file()
    if not has_scores and not raw.is_file():
        layout = "id.txt, {a,b}.toks, {a,b}.parents and sim.txt"
        raise DataError(folder, 0, f"no known format; expected {layout}, or {raw} for sim.txt")
    names = [name.strip() for name in read_lines(folder / "id.txt")]
    files = [f"{side}.{kind}" for side in "ab" for kind in ("toks", "parents")]
    lines = {name: read_lines(folder / name) for name in files + ["sim.txt"] * has_scores}
    for name, content in lines.items():
        if len(content) != len(names):
            reason = f"{len(content)} lines, but id.txt has {len(names)}"
            raise DataError(folder / name, 0, reason)
    if has_scores:
        scores = [(folder / "sim.txt", i, text) for i, text in enumerate(lines["sim.txt"], 1)]
    else:
        scores = _sick_scores(raw, names, folder / "id.txt")

    def sentence(i, toks, parents):
        # Only spaces separate words: some words contain U+00A0.
        tokens = [token for token in lines[toks][i].split(" ") if token]
        locations = (folder / toks, i + 1), (folder / parents, i + 1)
        return _check_sentence(tokens, lines[parents][i].split(), *locations)

    def read(i):
        sides = [sentence(i, *files[:2]), sentence(i, *files[2:])]
        return Pair(*sides[0], *sides[1], _check_score(*scores[i]), names[i])

    return read, len(names)


def _sick_scores(path, names, ids):
    """Return file, line and text of each pair's score in SICK; all its pairs must have trees."""
    header, *rows = [line.split("\t") for line in read_lines(path) or [""]]
    for column in ("pair_ID", "relatedness_score"):
        if column not in header:
            raise DataError(path, 1, f"no column {column} in the header")
    number, score = header.index("pair_ID"), header.index("relatedness_score")
    with_tree, scores = set(names), {}
    for line, fields in enumerate(rows, 2):
        if len(fields) != len(header):
            raise DataError(path, line, f"{len(fields)} columns, the header has {len(header)}")
        name = fields[number].strip()
        if name not in with_tree:
            raise DataError(path, line, f"pair {name!r} has no tree: it is not in id.txt")
        scores[name] = (path, line, fields[score])
    for line, name in enumerate(names, 1):
        if name not in scores:
            raise DataError(ids, line, f"pair {name!r} is not in {path}")
    return [scores[name] for name in names]


def _check_sentence(tokens, heads, location, head_location):
    """Convert words and their heads, "0" at the root, to words and tree."""
    if not tokens:
        raise DataError(*location, "empty sentence")
    if len(tokens) > MAX_WORDS:
        raise DataError(*location, f"a sentence of more than {MAX_WORDS} words; split it")
    if len(heads) != len(tokens):
        raise DataError(*location, f"{len(heads)} heads for {len(tokens)} tokens")
    for head in heads:
        # int() also accepts "+1", "1_0" and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]{1,9}", head):
            raise DataError(*head_location, f"a head is not a number: {head!r}")
    try:
        return tuple(tokens), Tree.from_heads([int(head) - 1 for head in heads])
    except TreeError as error:
        raise DataError(*head_location, str(error)) from None


def _check_score(path, line, text):
    """Convert a score to a number from 1 to `CLASSES`."""
    try:
        score = float(text)
    except ValueError:
        raise DataError(path, line, f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise DataError(path, line, f"score {text.strip()} is not in 1..{CLASSES}")
    return score
