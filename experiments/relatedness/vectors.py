"""Word vectors from a file."""

from __future__ import annotations

import math
from pathlib import Path

import gluonnlp
import numpy as np

from .reading import DataError


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
