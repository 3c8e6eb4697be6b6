"""From files to minibatches: reading pairs, the vocabulary, word vectors, batches of samples.

The layout read here is that of Stanford's treelstm distribution: for each of ``train``, ``dev``,
``test`` a folder with ``a.toks``, ``b.toks`` (words separated by spaces), ``a.parents``,
``b.parents`` (1-based head of each word, 0 at the root), ``sim.txt`` (scores 1 to 5), ``id.txt``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

from .trees import Corpus, Pair, Tree

SPLITS = ("train", "dev", "test")
FILES = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt", "id.txt")
CLASSES = 5  # scores go from 1 to CLASSES


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
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def load_corpus(
    directory: Path, on_bad_sample: str = "error", splits: Sequence[str] = SPLITS
) -> Corpus:
    """Read pairs in the treelstm layout.

    Parameters
    ----------
    directory : Path
        The folder that holds the splits.
    on_bad_sample : {"error", "skip"}
        Whether a bad pair ends the reading or is left out and listed in ``Corpus.skipped``. Missing
        files and files of different length are always errors: nothing says which lines belong
        together.
    splits : sequence of str
        Which splits to read.

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    if on_bad_sample not in ("error", "skip"):
        raise ValueError(f'on_bad_sample must be "error" or "skip", not {on_bad_sample!r}')
    pairs: Dict[str, List[Pair]] = {}
    skipped: List[str] = []
    for split in splits:
        folder = Path(directory) / split
        columns = _read_columns(folder)
        pairs[split] = []
        for line in range(1, len(columns["sim.txt"]) + 1):
            try:
                pairs[split].append(_read_pair(folder, columns, line))
            except DataError as error:
                if on_bad_sample == "error":
                    raise
                skipped.append(str(error))
    return Corpus(pairs, tuple(skipped))


def _read_columns(folder: Path) -> Dict[str, List[str]]:
    columns = {name: _read_lines(folder / name) for name in FILES}
    count = len(columns["sim.txt"])
    for name, lines in columns.items():
        if len(lines) != count:
            reason = f"{len(lines)} lines, but sim.txt beside it has {count}"
            raise DataError(folder / name, 0, reason)
    if not count:
        raise DataError(folder / "sim.txt", 0, "holds no pairs")
    return columns


def _read_lines(path: Path) -> List[str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(path, 0, error.strerror or str(error)) from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8") from error
    # Not splitlines(): it also breaks at characters such as U+0085 that may stand in a word.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def _read_pair(folder: Path, columns: Dict[str, List[str]], line: int) -> Pair:
    sides = [_read_side(folder, columns, side, line) for side in "ab"]
    text = columns["sim.txt"][line - 1].strip()
    try:
        score = float(text)
    except ValueError:
        raise DataError(folder / "sim.txt", line, f"score {text!r} is not a number") from None
    if not 1 <= score <= CLASSES:  # also refuses NaN
        raise DataError(folder / "sim.txt", line, f"score {text} is not in 1..{CLASSES}")
    name = columns["id.txt"][line - 1].strip()
    if not name:
        raise DataError(folder / "id.txt", line, "empty id")
    return Pair(*sides[0], *sides[1], score, name)


def _read_side(
    folder: Path, columns: Dict[str, List[str]], side: str, line: int
) -> Tuple[Tuple[str, ...], Tree]:
    tokens = [token for token in columns[f"{side}.toks"][line - 1].split(" ") if token]
    if not tokens:
        raise DataError(folder / f"{side}.toks", line, "empty sentence")
    path = folder / f"{side}.parents"
    fields = columns[f"{side}.parents"][line - 1].split()
    if len(fields) != len(tokens):
        raise DataError(path, line, f"{len(fields)} heads for {len(tokens)} tokens")
    try:
        heads = [int(field) - 1 for field in fields]
    except ValueError as error:
        raise DataError(path, line, f"a head is not a number: {error}") from None
    try:
        return tuple(tokens), Tree.from_heads(heads)
    except ValueError as error:
        raise DataError(path, line, str(error)) from None


def build_vocab(pairs: Iterable[Pair]) -> gluonnlp.Vocab:
    """Collect the words of all pairs; index 0 is the unknown word."""
    counter = gluonnlp.data.Counter()
    for pair in pairs:
        counter.update(pair.tokens_a)
        counter.update(pair.tokens_b)
    return gluonnlp.Vocab(counter, padding_token=None, bos_token=None, eos_token=None)


def read_vectors(path: Path, vocab: gluonnlp.Vocab, seed: int) -> np.ndarray:
    """Read word vectors in GloVe's text format for the words of a vocabulary.

    Words that the file lacks get uniform values from -0.05 to 0.05, drawn from `seed`.

    Returns
    -------
    np.ndarray
        Shape (len(vocab), size), float32.

    Raises
    ------
    DataError
        If the file cannot be read or its rows are no vectors of one size.
    """
    if not Path(path).is_file():
        raise DataError(Path(path), 0, "no such file")
    _check_vectors(Path(path))
    source = gluonnlp.embedding.TokenEmbedding.from_file(str(path))
    size = source.idx_to_vec.shape[1]
    vectors = np.random.RandomState(seed).uniform(-0.05, 0.05, (len(vocab), size))
    # The source answers for its own unknown token too, with zeros that are not in the file.
    known = [
        (i, token)
        for i, token in enumerate(vocab.idx_to_token)
        if token in source and token != source.unknown_token
    ]
    if known:
        rows, tokens = zip(*known)
        vectors[list(rows)] = source[list(tokens)].asnumpy()
    return vectors.astype(np.float32)


def _check_vectors(path: Path) -> None:
    """Check what TokenEmbedding.from_file would pass over with a warning or crash on."""
    size = None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip().split(" ")
            size = size or len(fields)
            if len(fields) != size or size < 3:
                reason = f"{len(fields) - 1} values, expected {max(size - 1, 2)}"
                raise DataError(path, number, reason)
            try:
                finite = all(map(math.isfinite, map(float, fields[1:])))
            except ValueError:
                finite = False
            if not finite:
                raise DataError(path, number, "a value is not a finite number")
    if size is None:
        raise DataError(path, 0, "empty file")


class Sample(NamedTuple):
    """A pair as the model takes it.

    Attributes
    ----------
    tokens_a, tokens_b : mx.nd.NDArray
        Word indices. Shape (T,), int32.
    tree_a, tree_b : Tree
    target : mx.nd.NDArray
        Distribution over the scores. Shape (1, CLASSES), float32.
    score : float
    name : str
    """

    tokens_a: mx.nd.NDArray
    tree_a: Tree
    tokens_b: mx.nd.NDArray
    tree_b: Tree
    target: mx.nd.NDArray
    score: float
    name: str

    def to(self, ctx: mx.Context) -> Sample:
        """Move the arrays to a context; a sample that is there already is not copied."""
        return self._replace(
            tokens_a=self.tokens_a.as_in_context(ctx),
            tokens_b=self.tokens_b.as_in_context(ctx),
            target=self.target.as_in_context(ctx),
        )


def target_distribution(score: float) -> np.ndarray:
    """Spread a score over the two whole scores around it, so that its expectation is the score.

    Tai et al. 2015, equation 15. Shape (1, CLASSES), float32.
    """
    target = np.zeros((1, CLASSES), np.float32)
    below = min(int(math.floor(score)), CLASSES - 1)
    target[0, below - 1] = below + 1 - score
    target[0, below] = score - below
    return target


def encode(pairs: Iterable[Pair], vocab: gluonnlp.Vocab, ctx: mx.Context) -> List[Sample]:
    """Turn pairs into samples, with their arrays in `ctx`."""

    def indices(tokens: Sequence[str]) -> mx.nd.NDArray:
        return mx.nd.array(vocab[list(tokens)], ctx=ctx, dtype="int32")

    return [
        Sample(
            indices(pair.tokens_a),
            pair.tree_a,
            indices(pair.tokens_b),
            pair.tree_b,
            mx.nd.array(target_distribution(pair.score), ctx=ctx),
            pair.score,
            pair.name,
        )
        for pair in pairs
    ]


def batches(
    samples: Sequence[Sample], batch_size: int, shuffle: bool = False, limit: Optional[int] = None
) -> gluon.data.DataLoader:
    """Cut samples into minibatches, each a list; shuffling draws from NumPy's global generator."""
    chosen = gluon.data.SimpleDataset(list(samples[:limit]))
    return gluon.data.DataLoader(chosen, batch_size, shuffle=shuffle, batchify_fn=list)
