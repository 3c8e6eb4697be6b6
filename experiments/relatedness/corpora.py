"""Read pairs of sentences: which format a folder holds, and pair by pair what is in it.

A split takes its scores from files of its own or from the text of SICK beside the splits, and its
parses from files of words and heads or from CoNLL-U; see `formats.py`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import formats
from .formats import Draft, Parses, Row, Table
from .reading import DataError, Place, read_lines
from .trees import CLASSES, Corpus, Pair, Tree, TreeError

#: The built-in corpus, drawn from a small grammar: 3,000 pairs whose trees have the shape
#: statistics of SICK's (9.7 words, depth 4.4, half the nodes leaves). Scores follow from meaning.
BUILT_IN = Path(__file__).parents[1] / "corpus"
#: A sentence has at most so many words; one of ten thousand takes seconds and most of a gigabyte.
MAX_WORDS = 10_000
SPLITS = ("train", "dev", "test")
SIDES = ("a", "b")


def _open(directory: Path, split: str) -> Tuple[Table, List[Parses]]:
    """Open the files of a split; which formats they have is told from what is there."""
    folder, raw = directory / split, directory / formats.SICK_FILES[split]
    for path in (directory, folder):
        if not path.is_dir():
            reason = "not a folder" if path.exists() else "No such file or directory"
            raise DataError(path, 0, reason)
    found = {path.suffix for side in SIDES for path in folder.glob(f"{side}.*")}
    read = formats.toks_and_parents if found & {".toks", ".parents"} else formats.conllu
    # A split that has scores of its own does not need the text beside it.
    own = (folder / "sim.txt").is_file()
    if not found & {".toks", ".parents", ".conllu"} or not (own or raw.is_file()):
        needed = "{a,b}.toks and {a,b}.parents, or {a,b}.conllu; sim.txt, or " + str(raw)
        raise DataError(folder, 0, f"no known format; expected id.txt; {needed}")
    table = formats.scores_and_ids(folder) if own else formats.sick_text(raw, folder / "id.txt")
    sides = [read(folder, side) for side in SIDES]
    for side in sides:
        if len(side.drafts) != table.parses:
            reason = (
                f"{len(side.drafts)} sentences, but {table.ids_path.name} has {table.parses} ids"
            )
            raise Place(side.path).error(reason)
    return table, sides


def load_corpus(
    directory: Path = BUILT_IN,
    on_bad_sample: str = "error",
    splits: Sequence[str] = SPLITS,
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
        pairs[split] = _read_pairs(*_open(Path(directory), split), on_bad_sample, skipped)
    return Corpus(pairs, tuple(skipped))


def load_conllu_pairs(
    path: Path, lines: Optional[List[str]] = None, on_bad_sample: str = "error"
) -> Corpus:
    """Read pairs without scores from one text in CoNLL-U, whose sentences come two by two.

    Parameters
    ----------
    path : Path
        Its name in messages.
    lines : list of str, optional
        The text; read from `path` if not given.
    on_bad_sample : {"error", "skip"}
        As in `load_corpus`.

    Returns
    -------
    Corpus
        With one split, ``""``.
    """
    table, sides = formats.conllu_pairs(path, read_lines(path) if lines is None else lines)
    skipped: List[str] = []
    return Corpus({"": _read_pairs(table, sides, on_bad_sample, skipped)}, tuple(skipped))


def _read_pairs(
    table: Table, sides: Sequence[Parses], on_bad_sample: str, skipped: List[str]
) -> List[Pair]:
    """Check pair by pair; every format goes through here."""
    if not table.rows:
        raise Place(table.path).error("holds no pairs")
    pairs = []
    seen: Dict[str, Place] = {}
    for row in table.rows:
        try:
            pair = _check_pair(_read(row), sides)
            if pair.name in seen:
                raise row.name_place.error(f"id {pair.name} is that of {seen[pair.name]}, too")
        except DataError as error:
            if on_bad_sample == "error":
                raise
            skipped.append(str(error))
        else:
            seen[pair.name] = row.name_place
            pairs.append(pair)
    return pairs


def _read(item: Any) -> Any:
    """Return what could be read; else raise why not."""
    if isinstance(item, DataError):
        raise item
    return item


def _check_pair(row: Row, sides: Sequence[Parses]) -> Pair:
    drafts = [_read(side.drafts[row.parse]) for side in sides]
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
    numbers = []
    for head, place in zip(heads, places):
        # int() would take "+1", "1_0" and figures of other scripts, too.
        if not re.fullmatch(r"-?[0-9]{1,9}", head):
            raise place.error(f"a head is not a number: {head!r}")
        numbers.append(int(head) - 1)
    try:
        return tuple(tokens), Tree.from_heads(numbers)
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
