"""Read pairs of sentences: which formats a folder holds, and pair by pair what is in them.

A split takes its scores either from files of its own (``{split}/sim.txt``, ``{split}/id.txt``) or
from the text of SICK (`sick.FILES`, beside the splits), and its parses either from
``{split}/{a,b}.toks`` and ``.parents`` or from ``{split}/{a,b}.conllu``. These make four layouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import sick
from .conllu_text import ConlluPairs, ConlluText
from .reading import (
    DataError,
    Parses,
    Place,
    Row,
    Table,
    check_name,
    check_score,
    check_sentence,
)
from .treelstm import ScoresAndIds, ToksAndParents
from .trees import Corpus, Pair

SPLITS = ("train", "dev", "test")
SIDES = ("a", "b")
SCORES = ("sim.txt", "id.txt")


class Layout(NamedTuple):
    """Where a split's scores and parses are.

    Attributes
    ----------
    raw : bool
        Whether scores come from the text of SICK and not from the split's own files.
    parses : tuple of str
        What a file of parses is called, after ``a`` or ``b``.
    read : callable
        From folder and side to `Parses`.
    """

    raw: bool
    parses: Tuple[str, ...]
    read: Callable[[Path, str], Parses]

    def fits(self, directory: Path, split: str) -> bool:
        """Whether a split has some of this layout's files; reading finds what is missing."""
        folder = directory / split
        parsed = any((folder / f"{side}{end}").is_file() for side in SIDES for end in self.parses)
        # A split that has scores of its own does not need the text beside it.
        own = (folder / "sim.txt").is_file()
        scored = (directory / sick.FILES[split]).is_file() and not own if self.raw else own
        return parsed and scored

    def needs(self, split: str) -> str:
        """List what a split needs."""
        parses = [f"{side}{end}" for side in SIDES for end in self.parses]
        if self.raw:
            return f"{sick.FILES[split]} and {split}/{{{','.join([*parses, 'id.txt'])}}}"
        return f"{split}/{{{','.join([*parses, *SCORES])}}}"

    def table(self, directory: Path, split: str) -> Table:
        """Open the list of pairs."""
        if self.raw:
            return sick.SickText(directory / sick.FILES[split], directory / split / "id.txt")
        return ScoresAndIds(directory / split)


def _conllu(folder: Path, side: str) -> Parses:
    return ConlluText(folder / f"{side}.conllu")


_TOKS = ((".toks", ".parents"), ToksAndParents)
_CONLLU = ((".conllu",), _conllu)
LAYOUTS: Dict[str, Layout] = {
    "treelstm": Layout(False, *_TOKS),
    "conllu": Layout(False, *_CONLLU),
    "sick-treelstm": Layout(True, *_TOKS),
    "sick-conllu": Layout(True, *_CONLLU),
}


def find_layout(directory: Path, split: str) -> str:
    """Tell the layout of a split from the files that are there.

    Raises
    ------
    DataError
        If no layout fits, or two do.
    """
    folder = directory / split
    for path in (directory, folder):
        if not path.is_dir():
            reason = "not a folder" if path.exists() else "No such file or directory"
            raise DataError(path, 0, reason)
    found = [name for name, layout in LAYOUTS.items() if layout.fits(directory, split)]
    if not found:
        needed = "; or ".join(f"{name}: {layout.needs(split)}" for name, layout in LAYOUTS.items())
        raise DataError(folder, 0, f"no known layout; expected {needed}")
    if len(found) > 1:
        raise DataError(folder, 0, f"could be {' or '.join(found)}; say which with --layout")
    return found[0]


def load_corpus(
    directory: Path,
    on_bad_sample: str = "error",
    splits: Sequence[str] = SPLITS,
    layout: str = "auto",
) -> Corpus:
    """Read the pairs of some splits.

    Parameters
    ----------
    directory : Path
        The folder that holds the splits.
    on_bad_sample : {"error", "skip"}
        Whether a bad pair ends the reading or is left out and listed in ``Corpus.skipped``. Files
        that are missing or do not fit together are always errors: nothing says which of their
        lines do.
    splits : sequence of str
        Which splits to read.
    layout : str
        A key of `LAYOUTS`, or "auto" to tell it from the files, split by split.

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    _check_policy(on_bad_sample)
    if layout not in ("auto", *LAYOUTS):
        raise ValueError(f"layout must be auto, {', '.join(LAYOUTS)}, not {layout!r}")
    directory = Path(directory)
    pairs: Dict[str, List[Pair]] = {}
    skipped: List[str] = []
    for split in splits:
        chosen = LAYOUTS[find_layout(directory, split) if layout == "auto" else layout]
        table = chosen.table(directory, split)
        sides = [chosen.read(directory / split, side) for side in SIDES]
        for side in sides:
            if len(side) != table.parses:
                reason = f"{len(side)} sentences, but {table.ids_path.name} has {table.parses} ids"
                raise Place(side.path).error(reason)
        pairs[split] = _read_pairs(table, sides, on_bad_sample, skipped)
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
        With one split, ``""``. A pair has the name that a comment ``# pair_id = NAME`` at one of
        its sentences gives, or its number, from 1.
    """
    _check_policy(on_bad_sample)
    table = ConlluPairs(ConlluText(path, lines))
    skipped: List[str] = []
    return Corpus({"": _read_pairs(table, table.sides, on_bad_sample, skipped)}, tuple(skipped))


def _check_policy(on_bad_sample: str) -> None:
    if on_bad_sample not in ("error", "skip"):
        raise ValueError(f'on_bad_sample must be "error" or "skip", not {on_bad_sample!r}')


def _read_pairs(
    table: Table, sides: Sequence[Parses], on_bad_sample: str, skipped: List[str]
) -> List[Pair]:
    """Check pair by pair; every format goes through here."""
    if not len(table):
        raise Place(table.path).error("holds no pairs")
    pairs = []
    seen: Dict[str, Place] = {}
    for number in range(len(table)):
        try:
            row = table[number]
            pair = _check_pair(row, sides)
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


def _check_pair(row: Row, sides: Sequence[Parses]) -> Pair:
    drafts = [side[row.parse] for side in sides]
    (tokens_a, tree_a), (tokens_b, tree_b) = map(check_sentence, drafts)
    for text, draft in zip(row.texts or (), drafts):
        if not sick.same_text(text, draft.text):
            raise draft.place.error(
                f"the parse of pair {row.name.strip()} is of {draft.text!r}, "
                f"but {row.score_place} has {text!r}"
            )
    score = check_score(row.score, row.score_place)
    name = check_name(row.name, row.name_place)
    return Pair(tokens_a, tree_a, tokens_b, tree_b, score, name)
