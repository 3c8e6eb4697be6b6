"""What the readers of all formats share: places in files, and the checks of what stands there.

A format (`treelstm.py`, `conllu_text.py`, `sick.py`) only says where things stand: `Parses` gives
`Draft`s, sentences as they are written, and `Table` gives `Row`s, one per pair. Whatever can be
wrong in every format is found here, so that it is found, and named, in the same way.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import List, NamedTuple, Optional, Protocol, Sequence, Tuple

from .trees import CLASSES, Tree, TreeError

#: A sentence has at most so many words; one of ten thousand takes seconds and most of a gigabyte.
MAX_WORDS = 10_000


class DataError(ValueError):
    """A file of pairs or vectors that cannot be used; the message names file, line and reason.

    Attributes
    ----------
    path : Path
    line : int
        1-based; 0 where the whole file is meant.
    reason : str
    """

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
    """A sentence as a file has it, not checked.

    Attributes
    ----------
    tokens, heads : sequence of str
        The words, and 1-based heads as they are written, "0" at the root.
    text : str
        The sentence as it would be printed, up to white space.
    place : Place
        Of the words.
    head_places : sequence of Place
        Of each head.
    """

    tokens: Sequence[str]
    heads: Sequence[str]
    text: str
    place: Place
    head_places: Sequence[Place]


class Parses(Protocol):
    """The sentences of one file, or of several that belong together; reading one may fail."""

    path: Path

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Draft: ...


class Row(NamedTuple):
    """What is known of a pair besides its parses, not checked.

    Attributes
    ----------
    name : str
        As it is written.
    score : str or None
        As it is written; None if the pair has not been judged.
    name_place, score_place : Place
    parse : int
        Which of the parses are the pair's, from 0.
    texts : tuple of str, optional
        What the two sentences must say.
    """

    name: str
    score: Optional[str]
    name_place: Place
    score_place: Place
    parse: int
    texts: Optional[Tuple[str, str]] = None


class Table(Protocol):
    """The pairs of a split; reading one may fail.

    Attributes
    ----------
    path, ids_path : Path
        Files with the scores, and with the name of the pair of each parse.
    parses : int
        How many parses there have to be on each side.
    """

    path: Path
    ids_path: Path
    parses: int

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row: ...


def read_lines(path: Path) -> List[str]:
    """Read the lines of a UTF-8 file, whichever system's line ends it has.

    Raises
    ------
    DataError
        If it cannot be read, or is not UTF-8 (naming the line).
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(path, 0, error.strerror or str(error)) from error
    return split_lines(content, path)


def split_lines(content: bytes, path: Path) -> List[str]:
    """Decode UTF-8 and cut it into lines; `path` is for the error's message."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8") from error
    # Not splitlines(): it also breaks at characters such as U+0085 that may stand in a word.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def check_length(words: int, place: Place) -> None:
    """Refuse what is too long for a sentence.

    Raises
    ------
    DataError
    """
    if words > MAX_WORDS:
        raise place.error(f"a sentence of more than {MAX_WORDS} words; split it, or leave it out")


def check_sentence(draft: Draft) -> Tuple[Tuple[str, ...], Tree]:
    """Turn a draft into words and tree.

    Raises
    ------
    DataError
        If it has no words or too many, not as many heads as words, or its heads are no tree.
    """
    tokens, heads, places = draft.tokens, draft.heads, draft.head_places
    if not tokens:
        raise draft.place.error("empty sentence")
    check_length(len(tokens), draft.place)
    if len(heads) != len(tokens):
        place = places[0] if places else draft.place
        raise place.error(f"{len(heads)} heads for {len(tokens)} tokens")
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


def check_score(text: Optional[str], place: Place) -> float:
    """Turn what is written for a score into a number from 1 to `CLASSES`, no score into NaN.

    Raises
    ------
    DataError
    """
    if text is None:
        return math.nan
    try:
        score = float(text)
    except ValueError:
        raise place.error(f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise place.error(f"score {text.strip()} is not in 1..{CLASSES}")
    return score


def check_name(text: str, place: Place) -> str:
    """Return a pair's name, which becomes a column of a table.

    Raises
    ------
    DataError
    """
    name = text.strip()
    if not name:
        raise place.error("empty id")
    if "\t" in name:
        raise place.error(f"id {name!r} has a tab in it")
    return name
