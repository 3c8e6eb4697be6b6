"""Read pairs of sentences. A split takes its scores and its parses from one of two places each.

- Stanford's treelstm layout: ``a.toks`` and ``b.toks`` have a sentence per line, ``a.parents`` and
  ``b.parents`` the 1-based head of each word, 0 at the root, ``sim.txt`` the scores, ``id.txt`` the
  names.
- The text of SICK as it was released (Marelli et al. 2014): a line per pair, tab-separated, with a
  header. It has no trees; parses come from other files and are matched by the number of the pair.
- CoNLL-U (https://universaldependencies.org/format.html): a word per line with its head, an empty
  line after each sentence. Lines of multiword tokens and of empty nodes are no words of the tree.

What is wrong is a `DataError` that names file, line and reason; one in a single pair stands in its
place, so that the others can be used.
"""

from __future__ import annotations

import math
import re
import unicodedata
from itertools import groupby
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from .trees import CLASSES, Corpus, Pair, Tree, TreeError

#: The built-in corpus, drawn from a small grammar: 3,000 pairs whose trees have the shape
#: statistics of SICK's (9.7 words, depth 4.4, half the nodes leaves). Scores follow from meaning.
BUILT_IN = Path(__file__).parents[1] / "corpus"
#: A sentence has at most so many words; one of ten thousand takes seconds and most of a gigabyte.
MAX_WORDS = 10_000
SPLITS = ("train", "dev", "test")
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")
CONLLU_COLUMNS = 10


class DataError(ValueError):
    """A file that cannot be used; `line` is 1-based, and 0 where the whole file is meant."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{Place(path, line)}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Place(NamedTuple):
    """A line of a file, from 1; line 0 is the whole file."""

    path: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    def error(self, reason: str) -> DataError:
        """Make the error that names this place."""
        return DataError(self.path, self.line, reason)


class Draft(NamedTuple):
    """A sentence as it is written: words, heads ("0" at the root), their places."""

    tokens: Sequence[str]
    heads: Sequence[str]
    place: Place
    head_places: Sequence[Place]


class Row(NamedTuple):
    """What is written of a pair beside its parses.

    Attributes
    ----------
    name, score : str
        The score is None if the pair has not been judged.
    name_place, score_place : Place
    parse : int
        Which of the parses are the pair's, from 0.
    texts : tuple of str
        What the two sentences must say, if that is known.
    """

    name: str
    score: Optional[str]
    name_place: Place
    score_place: Place
    parse: int
    texts: Tuple[str, ...] = ()


Rows = List[Union[Row, DataError]]
Drafts = List[Union[Draft, DataError]]


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


def _each(read: Callable[..., Any], items: Sequence[Sequence[Any]]) -> List[Any]:
    """Read item by item; what goes wrong is kept."""
    found: List[Any] = []
    for item in items:
        try:
            found.append(read(*item))
        except DataError as error:
            found.append(error)
    return found


def _side_by_side(path: Path, other: Path) -> List[Tuple[str, str]]:
    """Read two files that belong together line by line."""
    lines, others = read_lines(path), read_lines(other)
    if len(others) != len(lines):
        raise Place(other).error(f"{len(others)} lines, but {path.name} has {len(lines)}")
    return list(zip(lines, others))


def _treelstm(folder: Path, side: str) -> Drafts:
    """Read words and heads of one side."""
    path, heads_path = folder / f"{side}.toks", folder / f"{side}.parents"
    drafts: Drafts = []
    for number, (text, parents) in enumerate(_side_by_side(path, heads_path), 1):
        # Only spaces separate words: there are words with U+00A0 in them.
        tokens = [token for token in text.split(" ") if token]
        heads = parents.split()
        places = [Place(heads_path, number)] * max(len(heads), 1)
        drafts.append(Draft(tokens, heads, Place(path, number), places))
    return drafts


def _own_scores(folder: Path) -> Rows:
    """Read scores and names, in the parses' order."""
    path, ids_path = folder / "sim.txt", folder / "id.txt"
    return [
        Row(name, score, Place(ids_path, i + 1), Place(path, i + 1), i)
        for i, (score, name) in enumerate(_side_by_side(path, ids_path))
    ]


def _sick_text(path: Path, ids_path: Path) -> Rows:
    """Read a file of SICK; the other file lists, line by line, of which pair the parses are."""
    header, *lines = [line.split("\t") for line in read_lines(path) or [""]]
    for column in SICK_COLUMNS:
        if column not in header:
            raise Place(path, 1).error(f"no column {column} in the header")
    columns = [header.index(column) for column in SICK_COLUMNS]
    known = {fields[columns[0]].strip() for fields in lines if columns[0] < len(fields)}
    parses: Dict[str, int] = {}
    for number, name in enumerate(map(str.strip, read_lines(ids_path))):
        place = Place(ids_path, number + 1)
        if name in parses:
            raise place.error(f"pair {name} stands in line {parses[name] + 1}, too")
        if name not in known:
            raise place.error(f"pair {name!r} is not in {path}")
        parses[name] = number

    def row(place: Place, fields: Sequence[str]) -> Row:
        if len(fields) != len(header):
            raise place.error(f"{len(fields)} columns, but the header has {len(header)}")
        name, text_a, text_b, score = (fields[column] for column in columns)
        if name.strip() not in parses:
            raise place.error(f"no parse of pair {name.strip()!r}: it is not in {ids_path}")
        return Row(name, score, place, place, parses[name.strip()], (text_a, text_b))

    return _each(row, [(Place(path, number), line) for number, line in enumerate(lines, 2)])


Block = List[Tuple[Place, str]]


def _conllu_blocks(path: Path, lines: Sequence[str]) -> List[Block]:
    """Cut a text in CoNLL-U into sentences, with the place of each line."""
    placed = [(Place(path, number), line) for number, line in enumerate(lines, 1)]
    groups = groupby(placed, lambda item: bool(item[1].strip()))
    return [list(block) for filled, block in groups if filled]


def _conllu_sentence(*block: Tuple[Place, str]) -> Draft:
    words = []
    for place, line in block:
        fields = line.split("\t")
        if line.startswith("#") or re.fullmatch("[0-9]+[-.][0-9]+", fields[0]):
            continue
        if len(fields) != CONLLU_COLUMNS:
            reason = f"{len(fields)} columns with tabs between, expected {CONLLU_COLUMNS}"
            raise place.error(reason)
        if fields[0] != str(len(words) + 1):
            raise place.error(f"word id {fields[0]}, expected {len(words) + 1}")
        if not fields[1].strip():
            raise place.error(f"id {fields[0]} has no word beside it")
        words.append((fields[1], fields[6], place))
    tokens, heads, places = zip(*words) if words else ((), (), ())
    return Draft(tokens, heads, (places or block[0])[0], places)


def load_corpus(
    directory: Path = BUILT_IN, on_bad_sample: str = "error", splits: Sequence[str] = SPLITS
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

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    pairs: Dict[str, List[Pair]] = {}
    skipped: List[str] = []
    for split in splits:
        rows, sides, path = _open(Path(directory), split)
        pairs[split] = _read_pairs(rows, sides, path, on_bad_sample, skipped)
    return Corpus(pairs, tuple(skipped))


def _open(directory: Path, split: str) -> Tuple[Rows, List[Drafts], Path]:
    """Open the files of a split; which formats they have is told from what is there."""
    folder, raw = directory / split, directory / SICK_FILES[split]
    for path in (directory, folder):
        if not path.is_dir():
            raise DataError(
                path, 0, "not a folder" if path.exists() else "No such file or directory"
            )
    found = {path.suffix for side in "ab" for path in folder.glob(f"{side}.*")}
    plain = bool(found & {".toks", ".parents"})
    # A split that has scores of its own does not need the text beside it.
    own = (folder / "sim.txt").is_file()
    if not (plain or ".conllu" in found) or not (own or raw.is_file()):
        needed = "{a,b}.toks and {a,b}.parents, or {a,b}.conllu; sim.txt, or " + str(raw)
        raise DataError(folder, 0, f"no known format; expected id.txt; {needed}")
    rows = _own_scores(folder) if own else _sick_text(raw, folder / "id.txt")
    count = len(rows) if own else len(read_lines(folder / "id.txt"))
    sides = []
    for side in "ab":
        path = folder / f"{side}{'.toks' if plain else '.conllu'}"
        drafts = (
            _treelstm(folder, side)
            if plain
            else _each(_conllu_sentence, _conllu_blocks(path, read_lines(path)))
        )
        if len(drafts) != count:
            raise Place(path).error(f"{len(drafts)} sentences, but id.txt has {count} ids")
        sides.append(drafts)
    return rows, sides, folder / "sim.txt" if own else raw


def load_conllu_pairs(
    path: Path, lines: Optional[List[str]] = None, on_bad_sample: str = "error"
) -> Corpus:
    """Read pairs without scores from one text in CoNLL-U, whose sentences come two by two.

    A comment ``# pair_id = NAME`` at one of its sentences names a pair; else it has its number. The
    corpus has one split, ``""``.

    Parameters
    ----------
    path : Path
        Its name in messages.
    lines : list of str, optional
        The text; read from `path` if not given.
    on_bad_sample : {"error", "skip"}
        As in `load_corpus`.
    """
    blocks = _conllu_blocks(path, read_lines(path) if lines is None else lines)
    if len(blocks) % 2:
        place = blocks[-1][0][0]
        raise place.error(f"sentence {len(blocks)} has no partner: sentences come two by two")

    def row(number: int, pair: Block) -> Row:
        found = [(re.fullmatch(r"#\s*pair_id\s*=\s*(.*\S)\s*", line), at) for at, line in pair]
        names = [(match.group(1), at) for match, at in found if match is not None]
        if len({name for name, _ in names}) > 1:
            reason = f"pair_id {names[1][0]}, but {names[0][0]} at the sentence before"
            raise names[1][1].error(reason)
        name, place = names[0] if names else (str(number + 1), pair[0][0])
        return Row(name, None, place, place, number)

    pairs = [first + second for first, second in zip(blocks[::2], blocks[1::2])]
    sides = [_each(_conllu_sentence, blocks[side::2]) for side in (0, 1)]
    skipped: List[str] = []
    rows = _each(row, list(enumerate(pairs)))
    return Corpus({"": _read_pairs(rows, sides, path, on_bad_sample, skipped)}, tuple(skipped))


def _read_pairs(
    rows: Rows, sides: Sequence[Drafts], path: Path, on_bad_sample: str, skipped: List[str]
) -> List[Pair]:
    """Check pair by pair; every format goes through here."""
    if not rows:
        raise Place(path).error("holds no pairs")
    seen: Dict[str, Place] = {}

    def check(row: Union[Row, DataError]) -> Pair:
        if isinstance(row, DataError):
            raise row
        pair = _check_pair(row, [side[row.parse] for side in sides])
        if pair.name in seen:
            raise row.name_place.error(f"id {pair.name} is that of {seen[pair.name]}, too")
        seen[pair.name] = row.name_place
        return pair

    found = _each(check, [(row,) for row in rows])
    bad = [item for item in found if isinstance(item, DataError)]
    if bad and on_bad_sample == "error":
        raise bad[0]
    skipped += map(str, bad)
    return [item for item in found if isinstance(item, Pair)]


def _check_pair(row: Row, drafts: Sequence[Any]) -> Pair:
    for draft in drafts:
        if isinstance(draft, DataError):
            raise draft
    (tokens_a, tree_a), (tokens_b, tree_b) = map(_check_sentence, drafts)
    for text, draft in zip(row.texts, drafts):
        parsed = " ".join(draft.tokens)
        if not same_text(text, parsed):
            raise draft.place.error(
                f"the parse of pair {row.name.strip()} is of {parsed!r}, "
                f"but {row.score_place} has {text!r}"
            )
    score = _check_score(row.score, row.score_place)
    name = row.name.strip()
    if not name:
        raise row.name_place.error("empty id")
    if "\t" in name:  # it becomes a column of a table
        raise row.name_place.error(f"id {name!r} has a tab in it")
    return Pair(tokens_a, tree_a, tokens_b, tree_b, score, name)


def _check_sentence(draft: Draft) -> Tuple[Tuple[str, ...], Tree]:
    """Turn a draft into words and tree."""
    tokens, heads, places = draft.tokens, draft.heads, draft.head_places
    if not tokens:
        raise draft.place.error("empty sentence")
    if len(tokens) > MAX_WORDS:
        reason = f"a sentence of more than {MAX_WORDS} words; split it, or leave it out"
        raise draft.place.error(reason)
    if len(heads) != len(tokens):
        raise places[0].error(f"{len(heads)} heads for {len(tokens)} tokens")
    for head, place in zip(heads, places):
        # int() would take "+1", "1_0" and figures of other scripts, too.
        if not re.fullmatch(r"-?[0-9]{1,9}", head):
            raise place.error(f"a head is not a number: {head!r}")
    try:
        return tuple(tokens), Tree.from_heads([int(head) - 1 for head in heads])
    except TreeError as error:
        raise places[error.word or 0].error(str(error)) from None


def _check_score(text: Optional[str], place: Place) -> float:
    """Turn what is written for a score into a number from 1 to `CLASSES`, no score into NaN."""
    if text is None:
        return math.nan
    try:
        score = float(text)
    except ValueError:
        raise place.error(f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise place.error(f"score {text.strip()} is not in 1..{CLASSES}")
    return score


def same_text(one: str, other: str) -> bool:
    """Whether two texts differ at most in case, white space and punctuation."""
    return _letters(one) == _letters(other)


def _letters(text: str) -> str:
    # Treebanks write brackets as -LRB-, -RRB- and so on.
    text = re.sub(r"-[LR][RSC]B-", " ", text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum())
