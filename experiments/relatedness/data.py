"""From pairs of sentences to minibatches: the vocabulary, encoding, shuffling, worker processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

from .corpora import DataError
from .trees import CLASSES, Pair, Tree


def build_vocab(pairs: Iterable[Pair]) -> gluonnlp.Vocab:
    """Collect the words of all pairs; index 0 is the unknown word."""
    words = (word for pair in pairs for word in (*pair.tokens_a, *pair.tokens_b))
    counter = gluonnlp.data.count_tokens(words)
    return gluonnlp.Vocab(counter, padding_token=None, bos_token=None, eos_token=None)


def unknown_words(pairs: Iterable[Pair], vocab: gluonnlp.Vocab) -> Tuple[int, int]:
    """Count the words that a vocabulary does not have, and all words; repeated ones each time."""
    words = [word for pair in pairs for word in (*pair.tokens_a, *pair.tokens_b)]
    return sum(word not in vocab for word in words), len(words)


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
        """Move the arrays to a context; a sample that is there already is given as it is."""
        if self.target.context == ctx:
            return self
        return self._replace(
            tokens_a=self.tokens_a.as_in_context(ctx),
            tokens_b=self.tokens_b.as_in_context(ctx),
            target=self.target.as_in_context(ctx),
        )


def target_distribution(score: float) -> np.ndarray:
    """Spread a score over the two whole scores around it, so that its expectation is the score.

    Tai et al. 2015, equation 15. Shape (1, CLASSES), float32; NaN for a pair without score, which
    can be judged but not learned from.
    """
    if math.isnan(score):
        return np.full((1, CLASSES), np.nan, np.float32)
    target = np.zeros((1, CLASSES), np.float32)
    below = min(int(math.floor(score)), CLASSES - 1)
    target[0, below - 1] = below + 1 - score
    target[0, below] = score - below
    return target


def expected_scores(outputs: mx.nd.NDArray) -> np.ndarray:
    """Turn log-probabilities of the scores, shape (N, CLASSES), into scores, shape (N,)."""
    return np.exp(outputs.asnumpy()) @ np.arange(1, CLASSES + 1)


#: A pair's number, word indices of both sentences end to end, and target, in NumPy.
Coded = Tuple[int, np.ndarray, np.ndarray]


class _Coder(gluon.data.Dataset):
    """Pairs by number, with words turned into indices; uses no MXNet, so it may run anywhere."""

    def __init__(self, pairs: Sequence[Pair], vocab: gluonnlp.Vocab) -> None:
        self.pairs = pairs
        self.vocab = vocab

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> Coded:
        pair = self.pairs[number]
        tokens = self.vocab[[*pair.tokens_a, *pair.tokens_b]]
        return number, np.array(tokens, np.int32), target_distribution(pair.score)


def _samples(coded: Sequence[Coded], pairs: Sequence[Pair], ctx: mx.Context) -> List[Sample]:
    """Make samples of pairs; their arrays are views of two, since making one is slow in MXNet."""
    numbers, each_tokens, each_target = zip(*coded)
    tokens = mx.nd.array(np.concatenate(each_tokens), ctx=ctx, dtype="int32")
    targets = mx.nd.array(np.concatenate(each_target), ctx=ctx)
    samples = []
    end = 0
    for i, pair in enumerate(pairs[number] for number in numbers):
        start, middle = end, end + len(pair.tokens_a)
        end = middle + len(pair.tokens_b)
        samples.append(
            Sample(tokens[start:middle], pair.tree_a, tokens[middle:end], pair.tree_b,
                   targets[i : i + 1], pair.score, pair.name)
        )  # fmt: skip
    return samples


def encode(pairs: Iterable[Pair], vocab: gluonnlp.Vocab, ctx: mx.Context) -> List[Sample]:
    """Turn pairs into samples, with their arrays in `ctx`."""
    pairs = list(pairs)
    coder = _Coder(pairs, vocab)
    return _samples([coder[i] for i in range(len(pairs))], pairs, ctx) if pairs else []


class Loader:
    """Encoded minibatches of pairs, each a list of `Sample`; may be iterated again and again.

    Parameters
    ----------
    pairs : sequence of Pair
    vocab : gluonnlp.Vocab
    batch_size : int
        The last minibatch has what is left.
    shuffle : bool
        Whether each iteration draws an order from NumPy's global generator, when it begins.
    num_workers : int
        Processes that encode ahead; 0 encodes in this one. The minibatches are the same. They
        compute in NumPy alone: MXNet's engine survives a fork, but arrays made in a worker would
        take a file descriptor and a shared memory segment each.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        vocab: gluonnlp.Vocab,
        batch_size: int,
        shuffle: bool = False,
        num_workers: int = 0,
    ) -> None:
        self.pairs = pairs
        self.vocab = vocab
        self._loader = gluon.data.DataLoader(
            _Coder(pairs, vocab), batch_size, shuffle, batchify_fn=list, num_workers=num_workers
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[List[Sample]]:
        for coded in self._loader:
            yield _samples(coded, self.pairs, mx.cpu())


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
    path = Path(path)
    if not path.is_file():
        raise DataError(path, 0, "no such file")
    vectors = np.zeros((0, 0), np.float32)
    known = set()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, *fields = line.rstrip().split(" ")
            if number == 1:
                shape = (len(vocab), max(len(fields), 2))
                vectors = np.random.RandomState(seed).uniform(-0.05, 0.05, shape)
            if len(fields) != vectors.shape[1]:
                reason = f"{len(fields)} values, expected {vectors.shape[1]}"
                raise DataError(path, number, reason)
            try:
                values = np.array(fields, float)
            except ValueError:
                values = np.array([math.nan])
            if not np.isfinite(values).all():
                raise DataError(path, number, "a value is not a finite number")
            # The unknown word is not a word of the text.
            if word in vocab and word not in known and word != vocab.unknown_token:
                known.add(word)
                vectors[vocab[word]] = values
    if not len(vectors):
        raise DataError(path, 0, "empty file")
    return vectors.astype(np.float32)
