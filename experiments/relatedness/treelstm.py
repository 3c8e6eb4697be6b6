"""Files of Stanford's treelstm distribution: a sentence per line, words and heads apart.

``a.toks`` and ``b.toks`` have the words with spaces between, ``a.parents`` and ``b.parents`` the
1-based head of each word, 0 at the root; ``sim.txt`` has the scores and ``id.txt`` the names of
the pairs.
"""

from __future__ import annotations

from pathlib import Path

from .reading import Draft, Place, Row, read_lines


class ToksAndParents:
    """The sentences of one side (``a`` or ``b``) of a split.

    Raises
    ------
    DataError
        If a file cannot be read or the two differ in length: nothing says then which lines belong
        together.
    """

    def __init__(self, folder: Path, side: str) -> None:
        self.path = folder / f"{side}.toks"
        self.heads_path = folder / f"{side}.parents"
        self._tokens = read_lines(self.path)
        self._heads = read_lines(self.heads_path)
        if len(self._heads) != len(self._tokens):
            reason = f"{len(self._heads)} lines, but {self.path.name} has {len(self._tokens)}"
            raise Place(self.heads_path).error(reason)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> Draft:
        # Only spaces separate words: there are words with U+00A0 in them.
        tokens = [token for token in self._tokens[number].split(" ") if token]
        heads = self._heads[number].split()
        places = [Place(self.heads_path, number + 1)] * max(len(heads), 1)
        return Draft(tokens, heads, " ".join(tokens), Place(self.path, number + 1), places)


class ScoresAndIds:
    """The pairs of a split as ``sim.txt`` and ``id.txt`` list them, in the order of the parses."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sim.txt"
        self.ids_path = folder / "id.txt"
        self._scores = read_lines(self.path)
        self._ids = read_lines(self.ids_path)
        if len(self._ids) != len(self._scores):
            reason = f"{len(self._ids)} lines, but {self.path.name} has {len(self._scores)}"
            raise Place(self.ids_path).error(reason)
        self.parses = len(self._ids)

    def __len__(self) -> int:
        return len(self._scores)

    def __getitem__(self, number: int) -> Row:
        line = number + 1
        return Row(
            self._ids[number],
            self._scores[number],
            Place(self.ids_path, line),
            Place(self.path, line),
            number,
        )
