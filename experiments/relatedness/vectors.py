"""Word vectors in GloVe's text format, read line by line: the published files exceed memory."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

import gluonnlp
import numpy as np

from workloads.text import DataError


def read_vectors(path: Path, vocab: gluonnlp.Vocab, seed: int) -> Tuple[np.ndarray, int]:
    """Read vectors for the words of a vocabulary.

    Words that the file lacks get uniform values from -0.05 to 0.05, drawn from `seed`.

    Returns
    -------
    np.ndarray
        Shape (len(vocab), size), float32.
    int
        How many words of the vocabulary the file has.

    Raises
    ------
    DataError
        If the file cannot be read or its rows are no vectors of one size.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(path, 0, "no such file")
    found = {}
    size = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, *fields = line.rstrip().split(" ")
            size = size or max(len(fields), 2)
            if len(fields) != size:
                raise DataError(path, number, f"{len(fields)} values, expected {size}")
            try:
                values = np.array(fields, np.float32)
            except ValueError:
                values = np.array([np.nan])
            if not np.isfinite(values).all():
                raise DataError(path, number, "a value is not a finite number")
            # The unknown word is not a word of the text.
            if word in vocab and word != vocab.unknown_token:
                found.setdefault(vocab[word], values)
    if not size:
        raise DataError(path, 0, "empty file")
    vectors = np.random.RandomState(seed).uniform(-0.05, 0.05, (len(vocab), size))
    for number, values in found.items():
        vectors[number] = values
    return vectors.astype(np.float32), len(found)
