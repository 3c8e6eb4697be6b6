"""Read pairs of sentences: Stanford's treelstm layout, the text of SICK, and lines of JSON.

- Stanford's treelstm layout: ``a.toks`` and ``b.toks`` have a sentence per line, ``a.parents`` and
  ``b.parents`` the 1-based head of each word, 0 at the root, ``sim.txt`` the scores, ``id.txt`` the
  names.
- The text of SICK as it was released (Marelli et al. 2014): a line per pair, tab-separated, with a
  header. It has no trees, and takes the place of ``sim.txt`` alone.
- For pairs without scores, what ``examples/serve.py`` takes, a pair per line:
  ``{"a": {"words": "it rains", "heads": [2, 0]}, "b": {...}}``, and a ``"name"`` if there is one.

What is wrong is a `DataError` that names file, line and reason.
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

#: The built-in corpus, drawn from a small grammar: 3,000 pairs whose trees have the shape
#: statistics of SICK's (9.7 words, depth 4.4, half the nodes leaves). Scores follow from meaning.
BUILT_IN = Path(__file__).parents[1] / "corpus"
#: A sentence has at most so many words; one of ten thousand takes seconds and most of a gigabyte.
MAX_WORDS = 10_000
SPLITS = ("train", "dev", "test")
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}


class Pair(NamedTuple):
    """Two sentences with their trees, how related they are, and a name for the pair."""

    tokens_a: Tuple[str, ...]
    tree_a: Tree
    tokens_b: Tuple[str, ...]
    tree_b: Tree
    score: float  # from 1 to `CLASSES`; NaN if nobody has judged the pair
    name: str

    @property
    def words(self):
        """The words of both sentences."""
        return (*self.tokens_a, *self.tokens_b)

    def target(self):
        """Spread the score over the two whole scores around it, so that it is their expectation.

        Tai et al. 2015, equation 15. Shape (1, CLASSES); NaN for a pair without score, which can be
        judged but not learned from.
        """
        distance = np.abs(np.arange(1, CLASSES + 1) - self.score)
        return np.maximum(0, 1 - distance)[None]

    def sample(self, words, target):
        """Put together what the model takes: indices of all words, and the target."""
        middle = len(self.tokens_a)
        return Sample((words[:middle], self.tree_a, words[middle:], self.tree_b), target)


def load_corpus(directory=None, splits=SPLITS, limit=None, skip=False):
    """Read the pairs of some splits, the first `limit` of each, from the folder that holds them.

    Without a folder, they are those of the built-in corpus. With `skip`, a pair that cannot be used
    is left out, with its reason on standard error, instead of ending the reading. Files that are
    missing or do not fit together are always errors: nothing says which of their lines do.
    """
    found, directory = {}, Path(directory or BUILT_IN)
    for split in splits:
        folder = directory / split
        read, count = _treelstm(folder, directory / SICK_FILES[split])
        found[split] = _collect(read, count, folder, limit, skip)
    return found


def read_requests(path, lines, limit=None, skip=False):
    """Read pairs without scores from lines of JSON; `path` is what messages call them."""

    def sentence(asked, place):
        words, heads = asked["words"], asked["heads"]
        if not (isinstance(words, str) and isinstance(heads, list)):
            raise TypeError
        return _check_sentence(words.split(), list(map(str, heads)), place, place)

    def read(number):
        place = (path, number + 1)
        try:
            asked = json.loads(lines[number])
            sides = [sentence(asked[side], place) for side in "ab"]
            name = str(asked.get("name", number + 1))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            wanted = '{"a": {"words": "it rains", "heads": [2, 0]}, "b": {...}}'
            raise DataError(*place, f"not a pair such as {wanted}") from None
        return Pair(*sides[0], *sides[1], math.nan, name)

    return _collect(read, len(lines), path, limit, skip)


def _collect(read, count, path, limit, skip):
    """Read pair by pair, and check what holds for pairs of every format."""
    found, skipped = {}, 0
    for number in range(count):
        if len(found) == limit:
            break
        try:
            pair = read(number)
            if pair.name in found:
                raise DataError(path, 0, f"two pairs have the id {pair.name}")
            if not pair.name or "\t" in pair.name:  # it becomes a column of a table
                raise DataError(path, 0, f"id {pair.name!r} is empty or has a tab in it")
            found[pair.name] = pair
        except DataError as error:
            if not skip:
                raise
            skipped += 1
            print(f"skipped: {error}", file=sys.stderr)
    if skipped:
        print(f"skipped {skipped} pairs of {path}", file=sys.stderr)
    if not found:
        raise DataError(path, 0, "holds no usable pairs")
    return list(found.values())


def _treelstm(folder, raw):
    """Read the parses of a split, and its scores from ``sim.txt`` or else from SICK's text.

    Returns what makes a pair of its number, and how many there are.
    """
    for path in (folder.parent, folder):
        try:
            os.listdir(path)
        except OSError as error:
            raise DataError(path, 0, error.strerror) from None
    own = (folder / "sim.txt").is_file()
    if not own and not raw.is_file():
        needed = "id.txt, {a,b}.toks, {a,b}.parents and sim.txt"
        raise DataError(folder, 0, f"no known format; expected {needed}, or {raw} for sim.txt")
    names = [name.strip() for name in read_lines(folder / "id.txt")]
    files = [f"{side}.{kind}" for side in "ab" for kind in ("toks", "parents")]
    lines = {name: read_lines(folder / name) for name in [*files, *(["sim.txt"] if own else [])]}
    for name, own_lines in lines.items():
        if len(own_lines) != len(names):
            there = f"{len(own_lines)} lines, but id.txt has {len(names)}"
            raise DataError(folder / name, 0, there)
    if own:
        scores = [(folder / "sim.txt", i, text) for i, text in enumerate(lines["sim.txt"], 1)]
    else:
        scores = _sick_scores(raw, names, folder / "id.txt")

    def sentence(i, toks, parents):
        # Only spaces separate words: there are words with U+00A0 in them.
        tokens = [token for token in lines[toks][i].split(" ") if token]
        places = (folder / toks, i + 1), (folder / parents, i + 1)
        return _check_sentence(tokens, lines[parents][i].split(), *places)

    def read(i):
        both = [sentence(i, *files[:2]), sentence(i, *files[2:])]
        return Pair(*both[0], *both[1], _check_score(*scores[i]), names[i])

    return read, len(names)


def _sick_scores(path, names, ids):
    """Find line and text of each pair's score in a file of SICK; all must have been parsed."""
    header, *rows = [line.split("\t") for line in read_lines(path) or [""]]
    for column in ("pair_ID", "relatedness_score"):
        if column not in header:
            raise DataError(path, 1, f"no column {column} in the header")
    number, score = header.index("pair_ID"), header.index("relatedness_score")
    parsed, found = set(names), {}
    for line, fields in enumerate(rows, 2):
        if len(fields) != len(header):
            raise DataError(path, line, f"{len(fields)} columns, the header has {len(header)}")
        name = fields[number].strip()
        if name not in parsed:
            raise DataError(path, line, f"no parse of pair {name!r}: it is not in id.txt")
        found[name] = (path, line, fields[score])
    for line, name in enumerate(names, 1):
        if name not in found:
            raise DataError(ids, line, f"pair {name!r} is not in {path}")
    return [found[name] for name in names]


def _check_sentence(tokens, heads, place, head_place):
    """Turn words and their heads, "0" at the root, into words and tree."""
    if not tokens:
        raise DataError(*place, "empty sentence")
    if len(tokens) > MAX_WORDS:
        raise DataError(*place, f"a sentence of more than {MAX_WORDS} words; split it")
    if len(heads) != len(tokens):
        raise DataError(*place, f"{len(heads)} heads for {len(tokens)} tokens")
    for head in heads:
        # int() would take "+1", "1_0" and figures of other scripts, too.
        if not re.fullmatch(r"-?[0-9]{1,9}", head):
            raise DataError(*head_place, f"a head is not a number: {head!r}")
    try:
        return tuple(tokens), Tree.from_heads([int(head) - 1 for head in heads])
    except TreeError as error:
        raise DataError(*head_place, str(error)) from None


def _check_score(path, line, text):
    """Turn what is written for a score into a number from 1 to `CLASSES`."""
    try:
        score = float(text)
    except ValueError:
        raise DataError(path, line, f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise DataError(path, line, f"score {text.strip()} is not in 1..{CLASSES}")
    return score
