"""Formats of sentence pairs; each only says what is written where, `corpora.py` checks it.

- Stanford's treelstm layout: ``a.toks`` and ``b.toks`` have a sentence per line, ``a.parents`` and
  ``b.parents`` the 1-based head of each word, 0 at the root, ``sim.txt`` the scores, ``id.txt`` the
  names.
- The text of SICK as it was released (Marelli et al. 2014): a line per pair, tab-separated, with a
  header. It has no trees; parses come from other files and are matched by the number of the pair.
- CoNLL-U (https://universaldependencies.org/format.html): a word per line with its head, an empty
  line after each sentence. Lines of multiword tokens and of empty nodes are no words of the tree.

A sentence or pair that cannot be read is a `DataError` in the list of those that can.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from .reading import DataError, Place, read_lines

SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")
CONLLU_COLUMNS = 10


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


class Table(NamedTuple):
    """The pairs of a split, and the files with their scores and with the pair of each parse."""

    path: Path
    ids_path: Path
    parses: int
    rows: List[Union[Row, DataError]]


class Parses(NamedTuple):
    """The sentences of one side of all pairs."""

    path: Path
    drafts: List[Union[Draft, DataError]]


def _each(read: Callable[..., Union[Draft, Row]], items: Sequence[Sequence[object]]) -> List:
    """Read item by item; what goes wrong is kept."""
    found: List[Union[Draft, Row, DataError]] = []
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


def toks_and_parents(folder: Path, side: str) -> Parses:
    """Read one side of a split of the treelstm layout."""
    path, heads_path = folder / f"{side}.toks", folder / f"{side}.parents"
    drafts = []
    for number, (text, parents) in enumerate(_side_by_side(path, heads_path), 1):
        # Only spaces separate words: there are words with U+00A0 in them.
        tokens = [token for token in text.split(" ") if token]
        heads = parents.split()
        places = [Place(heads_path, number)] * max(len(heads), 1)
        drafts.append(Draft(tokens, heads, Place(path, number), places))
    return Parses(path, drafts)


def scores_and_ids(folder: Path) -> Table:
    """Read the pairs of a split as ``sim.txt`` and ``id.txt`` list them, in the parses' order."""
    path, ids_path = folder / "sim.txt", folder / "id.txt"
    rows = [
        Row(name, score, Place(ids_path, i + 1), Place(path, i + 1), i)
        for i, (score, name) in enumerate(_side_by_side(path, ids_path))
    ]
    return Table(path, ids_path, len(rows), rows)


def sick_text(path: Path, ids_path: Path) -> Table:
    """Read a file of SICK; the other file lists, line by line, of which pair the parses are.

    Raises
    ------
    DataError
        If a file cannot be read, a column is missing, or the second file lists a pair twice or one
        that the first does not have.
    """
    header, *lines = [line.split("\t") for line in read_lines(path) or [""]]
    missing = [column for column in SICK_COLUMNS if column not in header]
    if missing:
        raise Place(path, 1).error(f"no column {missing[0]} in the header")
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

    rows = _each(row, [(Place(path, number), line) for number, line in enumerate(lines, 2)])
    return Table(path, ids_path, len(parses), rows)


Block = List[Tuple[Place, str]]


def _conllu_blocks(path: Path, lines: Sequence[str]) -> List[Block]:
    """Cut a text in CoNLL-U into sentences, with the place of each line."""
    placed = [(Place(path, number), line) for number, line in enumerate(lines, 1)]
    groups = groupby(placed, lambda item: bool(item[1].strip()))
    return [list(block) for filled, block in groups if filled]


def _conllu_sentence(block: Block) -> Draft:
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


def conllu(folder: Path, side: str) -> Parses:
    """Read one side of a split whose parses are in CoNLL-U."""
    path = folder / f"{side}.conllu"
    blocks = _conllu_blocks(path, read_lines(path))
    return Parses(path, _each(_conllu_sentence, [(block,) for block in blocks]))


def conllu_pairs(path: Path, lines: Sequence[str]) -> Tuple[Table, List[Parses]]:
    """Read pairs without scores from one text in CoNLL-U, whose sentences come two by two.

    A comment ``# pair_id = NAME`` at one of its sentences names a pair; else it has its number.

    Raises
    ------
    DataError
        If the number of sentences is odd.
    """
    blocks = _conllu_blocks(path, lines)
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
    sides = [
        Parses(path, _each(_conllu_sentence, [(block,) for block in blocks[side::2]]))
        for side in (0, 1)
    ]
    return Table(path, path, len(pairs), _each(row, list(enumerate(pairs)))), sides
