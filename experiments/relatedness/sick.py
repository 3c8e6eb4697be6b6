"""The text of SICK as it was released: a line per pair, tab-separated, with a header.

Marelli et al. 2014, *A SICK cure for the evaluation of compositional distributional semantic
models* (LREC). It has sentences and scores but no trees, so parses come from other files and are
matched to it by the number of the pair.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Dict, List

from .reading import Place, Row, read_lines

FILES = {
    "train": "SICK_train.txt",
    "dev": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")


class SickText:
    """The pairs of one file of SICK.

    Parameters
    ----------
    path : Path
    ids_path : Path
        A file that lists, line by line, of which pair the parses are.

    Raises
    ------
    DataError
        If a file cannot be read, a column is missing, or the second file lists a pair twice or one
        that the first does not have.
    """

    def __init__(self, path: Path, ids_path: Path) -> None:
        self.path = path
        self.ids_path = ids_path
        header, *self._lines = read_lines(path) or [""]
        self._header = header.split("\t")
        missing = [column for column in COLUMNS if column not in self._header]
        if missing:
            raise Place(path, 1).error(f"no column {missing[0]} in the header")
        self._columns = [self._header.index(column) for column in COLUMNS]
        self._numbers = self._read_ids()
        self.parses = len(self._numbers)

    def _read_ids(self) -> Dict[str, int]:
        known = {self._fields(line)[self._columns[0]].strip() for line in self._lines}
        numbers: Dict[str, int] = {}
        for number, name in enumerate(map(str.strip, read_lines(self.ids_path))):
            place = Place(self.ids_path, number + 1)
            if name in numbers:
                raise place.error(f"pair {name} stands in line {numbers[name] + 1}, too")
            if name not in known:
                raise place.error(f"pair {name!r} is not in {self.path}")
            numbers[name] = number
        return numbers

    def _fields(self, line: str) -> List[str]:
        fields = line.split("\t")
        return fields + [""] * (len(self._header) - len(fields))

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Row:
        place = Place(self.path, number + 2)
        count = self._lines[number].count("\t") + 1
        if count != len(self._header):
            raise place.error(f"{count} columns, but the header has {len(self._header)}")
        fields = self._fields(self._lines[number])
        name, text_a, text_b, score = (fields[column] for column in self._columns)
        if name.strip() not in self._numbers:
            raise place.error(f"no parse of pair {name.strip()!r}: it is not in {self.ids_path}")
        return Row(name, score, place, place, self._numbers[name.strip()], (text_a, text_b))


def same_text(one: str, other: str) -> bool:
    """Whether two texts differ at most in case, white space and punctuation."""
    return _letters(one) == _letters(other)


def _letters(text: str) -> str:
    # Treebanks write brackets as -LRB-, -RRB- and so on.
    text = re.sub(r"-[LR][RSC]B-", " ", text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum())
