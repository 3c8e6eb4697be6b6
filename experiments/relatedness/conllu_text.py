"""CoNLL-U: a word per line with its head, an empty line after each sentence.

See https://universaldependencies.org/format.html. The nodes of a tree are the syntactic words.
Multiword tokens (ids such as 1-2) only say how words are written, and empty nodes (8.1) are no
words of the basic tree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import conllu

from .reading import Draft, Place, Row, check_length, read_lines

COLUMNS = conllu.parser.DEFAULT_FIELDS
# Only ids are looked into; heads are checked as those of any other format.
PARSERS: Dict[str, Any] = {name: lambda fields, i: fields[i] for name in COLUMNS}
PARSERS["id"] = conllu.parser.DEFAULT_FIELD_PARSERS["id"]


class _Word(NamedTuple):
    form: str
    head: str
    place: Place


class _Token(NamedTuple):
    """A multiword token: its first and last word, how they are written together."""

    first: int
    last: int
    form: str
    place: Place


class ConlluText:
    """The sentences of a text in CoNLL-U.

    Parameters
    ----------
    path : Path
        Its name in messages.
    lines : list of str, optional
        The text; read from `path` if not given.
    """

    def __init__(self, path: Path, lines: Optional[List[str]] = None) -> None:
        self.path = path
        self._lines = read_lines(path) if lines is None else lines
        self._starts = [
            number
            for number, line in enumerate(self._lines)
            if line.strip() and (number == 0 or not self._lines[number - 1].strip())
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, number: int) -> Place:
        """Where a sentence begins, comments included."""
        return Place(self.path, self._starts[number] + 1)

    def __getitem__(self, number: int) -> Draft:
        words: List[_Word] = []
        tokens: List[_Token] = []
        for line, place in self._block(number):
            if not line.startswith("#"):
                _add_line(line, place, words, tokens)
        for token in tokens:
            if token.last > len(words):
                raise token.place.error(
                    f"token {token.first}-{token.last} of a sentence of {len(words)} words"
                )
        return Draft(
            [word.form for word in words],
            [word.head for word in words],
            _written(words, tokens),
            words[0].place if words else self.place(number),
            [word.place for word in words],
        )

    def comment(self, number: int, key: str) -> Optional[Tuple[str, Place]]:
        """Find the value of a sentence's comment ``# key = value``, and where it stands."""
        for line, place in self._block(number):
            if line.startswith("#"):
                value = conllu.parse_token_and_metadata(line).metadata.get(key)
                if value:
                    return value, place
        return None

    def _block(self, number: int) -> List[Tuple[str, Place]]:
        start = stop = self._starts[number]
        while stop < len(self._lines) and self._lines[stop].strip():
            stop += 1
        return [(self._lines[i], Place(self.path, i + 1)) for i in range(start, stop)]


def _add_line(line: str, place: Place, words: List[_Word], tokens: List[_Token]) -> None:
    """Read a line that is no comment; its id must be the one that is due."""
    columns = line.count("\t") + 1
    if columns != len(COLUMNS):
        raise place.error(f"{columns} columns with tabs between, expected {len(COLUMNS)}")
    written, form = line.split("\t")[:2]
    if not form.strip():
        raise place.error(f"id {written!r} has no word beside it")
    try:
        # The package takes two spaces for a tab, but a word may have them.
        fields = conllu.parse_token_and_metadata(re.sub(" +", " ", line), COLUMNS, PARSERS)[0]
    except conllu.exceptions.ParseException:
        fields = {"id": None}
    number, due = fields["id"], len(words) + 1
    if number is None:
        raise place.error(f"{written!r} is no id of a word")
    if isinstance(number, int):
        if number != due:
            raise place.error(f"word id {written}, expected {due}")
        check_length(due, place)  # at once, as reading goes line by line
        words.append(_Word(fields["form"], fields.get("head", ""), place))
    elif number[1] == "-":
        if number[0] != due or (tokens and tokens[-1].last >= due):
            raise place.error(f"token id {written} where word {due} is due")
        tokens.append(_Token(number[0], number[2], fields["form"], place))
    elif number[0] != len(words):
        raise place.error(f"empty node {written} after word {len(words)}")


def _written(words: List[_Word], tokens: List[_Token]) -> str:
    """Put a sentence together from tokens and the words that are not part of one."""
    starts = {token.first: token for token in tokens}
    inside = {number for token in tokens for number in range(token.first, token.last + 1)}
    forms = []
    for number, word in enumerate(words, 1):
        if number in starts:
            forms.append(starts[number].form)
        elif number not in inside:
            forms.append(word.form)
    return " ".join(forms)


class ConlluPairs:
    """The pairs of a text whose sentences come two by two; they have no scores.

    Raises
    ------
    DataError
        If the number of sentences is odd.
    """

    def __init__(self, text: ConlluText) -> None:
        self.path = self.ids_path = text.path
        self.parses = len(text) // 2
        self.sides = [_Every2nd(text, first) for first in (0, 1)]
        self._text = text
        if len(text) % 2:
            raise text.place(len(text) - 1).error(
                f"sentence {len(text)} has no partner: sentences come two by two"
            )

    def __len__(self) -> int:
        return self.parses

    def __getitem__(self, number: int) -> Row:
        first = 2 * number
        given = [self._text.comment(i, "pair_id") for i in (first, first + 1)]
        names = [one for one in given if one is not None]
        if len({name for name, _ in names}) > 1:
            reason = f"pair_id {names[1][0]}, but {names[0][0]} at the sentence before"
            raise names[1][1].error(reason)
        name, place = names[0] if names else (str(number + 1), self._text.place(first))
        return Row(name, None, place, place, number)


class _Every2nd:
    """The first sentences of all pairs, or the second ones."""

    def __init__(self, text: ConlluText, first: int) -> None:
        self.path = text.path
        self._text = text
        self._first = first

    def __len__(self) -> int:
        return len(self._text) // 2

    def __getitem__(self, number: int) -> Draft:
        return self._text[2 * number + self._first]
