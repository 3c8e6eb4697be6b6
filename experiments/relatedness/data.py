"""What a task is, and the way from its items to minibatches: encoding, shuffling, word vectors."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

from .corpora import DataError

#: An item's number, its word indices end to end, and its target, in NumPy.
Coded = Tuple[int, np.ndarray, np.ndarray]


class Task:
    """What a model is trained for; a subclass has the methods that raise `NotImplementedError`.

    Attributes
    ----------
    unit : str
        What an item is, in the plural.
    best_by : str
        The metric that the best epoch has the most of.
    defaults : dict
        Options of the program whose default differs.
    """

    unit = ""
    best_by = ""
    defaults: Dict[str, Any] = {}

    def read(self, args: argparse.Namespace, splits: Sequence[str]) -> Dict[str, List[Any]]:
        """Read the items of some splits."""
        raise NotImplementedError

    def words(self, item: Any) -> Sequence[str]:
        """List the words of an item."""
        raise NotImplementedError

    def target(self, item: Any) -> np.ndarray:
        """Give what the model should say of an item, along axis 0; float32."""
        raise NotImplementedError

    def sample(self, item: Any, tokens: mx.nd.NDArray, target: mx.nd.NDArray) -> Any:
        """Put together what the model takes."""
        raise NotImplementedError

    def model(self, vocab_size: int, settings: Dict[str, Any], sparse: bool = False) -> gluon.Block:
        """Make a model, whose word vectors are its ``embedding``; their gradient may be sparse."""
        raise NotImplementedError

    def workload(
        self, model: gluon.Block, trainer: gluon.Trainer, samples: Sequence[Any] = ()
    ) -> Any:
        """Say how a model that is initialized scores samples, and what its losses are."""
        raise NotImplementedError

    def answers(self, outputs: np.ndarray, items: Sequence[Any]) -> np.ndarray:
        """Turn the model's results for some items into an answer for each."""
        raise NotImplementedError

    def measure(self, answers: np.ndarray, items: Sequence[Any]) -> Dict[str, Optional[float]]:
        """Compare answers with what is right; None for a figure that is not defined."""
        raise NotImplementedError

    def vocab(self, items: Iterable[Any]) -> gluonnlp.Vocab:
        """Collect the words of all items; index 0 is the unknown word."""
        counter = gluonnlp.data.count_tokens(word for item in items for word in self.words(item))
        return gluonnlp.Vocab(counter, padding_token=None, bos_token=None, eos_token=None)

    def unknown(self, items: Iterable[Any], vocab: gluonnlp.Vocab) -> Tuple[int, int]:
        """Count the words that a vocabulary lacks, and all words; repeated ones each time."""
        words = [word for item in items for word in self.words(item)]
        return sum(word not in vocab for word in words), len(words)

    def encode(self, items: Sequence[Any], vocab: gluonnlp.Vocab, ctx: mx.Context) -> List[Any]:
        """Turn items into samples, with their arrays in `ctx`."""
        coder = _Coder(self, items, vocab)
        return self.samples([coder[i] for i in range(len(items))], items, ctx) if items else []

    def samples(self, coded: Sequence[Coded], items: Sequence[Any], ctx: mx.Context) -> List[Any]:
        """Make samples; their arrays are views of two, since making one is slow in MXNet."""
        numbers, each_tokens, each_target = zip(*coded)
        tokens = mx.nd.array(np.concatenate(each_tokens), ctx=ctx, dtype="int32")
        targets = mx.nd.array(np.concatenate(each_target), ctx=ctx)
        samples = []
        token = row = 0
        for number, own, target in zip(numbers, each_tokens, each_target):
            words, rows = tokens[token : token + len(own)], targets[row : row + len(target)]
            samples.append(self.sample(items[number], words, rows))
            token, row = token + len(own), row + len(target)
        return samples


class _Coder(gluon.data.Dataset):
    """Items by number, words turned into indices; uses no MXNet, so it may run anywhere."""

    def __init__(self, task: Task, items: Sequence[Any], vocab: gluonnlp.Vocab) -> None:
        self.task = task
        self.items = items
        self.vocab = vocab

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Coded:
        item = self.items[number]
        tokens = np.array(self.vocab[list(self.task.words(item))], np.int32)
        return number, tokens, self.task.target(item)


class Loader:
    """Encoded minibatches, each a list of samples; may be iterated again and again.

    Parameters
    ----------
    task : Task
    items : sequence
        What the task has read.
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
        task: Task,
        items: Sequence[Any],
        vocab: gluonnlp.Vocab,
        batch_size: int,
        shuffle: bool = False,
        num_workers: int = 0,
    ) -> None:
        self.task = task
        self.items = items
        self.vocab = vocab
        self._loader = gluon.data.DataLoader(
            _Coder(task, items, vocab), batch_size, shuffle, batchify_fn=list,
            num_workers=num_workers,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[List[Any]]:
        for coded in self._loader:
            yield self.task.samples(coded, self.items, mx.cpu())


def read_vectors(path: Path, vocab: gluonnlp.Vocab, seed: int) -> Tuple[np.ndarray, int]:
    """Read word vectors in GloVe's text format for the words of a vocabulary.

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
    return vectors.astype(np.float32), len(known)
