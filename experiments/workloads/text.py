"""Text for workloads: files with a sample per line, vocabularies, and samples."""

from pathlib import Path

import gluonnlp
import mxnet as mx
import numpy as np

from command import UsageError

from .base import Sample


class DataError(UsageError):
    """An unusable file; `line` is 1-based, or 0 for the whole file."""

    def __init__(self, path, line, reason):
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path, self.line, self.reason = path, line, reason

    def __reduce__(self):  # as a worker sends it
        return type(self), (self.path, self.line, self.reason)


def read_lines(path, content=None):
    """Read the lines of a UTF-8 file, or of its `content`, with Unix or Windows line ends."""
    try:
        content = path.read_bytes() if content is None else content
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise DataError(path, 0, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8") from error
    # Not splitlines(): it also splits at characters such as U+0085, which occur in words.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_samples(directory, unit, parse, limit, split="train"):
    """Read the first `limit` samples of a split, such as ``train.txt``, one per line.

    `parse` returns the sample of a line, or None for an empty line, and raises ValueError with the
    reason if the line is invalid. Messages call samples by the plural noun `unit`.
    """
    path = Path(directory) / f"{split}.txt"
    samples = []
    for number, line in enumerate(read_lines(path), 1):
        if len(samples) == limit:
            break
        try:
            sample = parse(line)
        except ValueError as error:
            raise DataError(path, number, str(error)) from None
        if sample is not None:
            samples.append(sample)
    if not samples:
        raise DataError(path, 0, f"has no {unit}")
    return samples


def read_vectors(path, vocab, seed):
    """Read word vectors in GloVe's text format for the words of a vocabulary.

    The file is read line by line, because published files exceed memory. Words without a vector get
    uniform random values from -0.05 to 0.05. Returns the vectors, shape (len(vocab), size),
    float32, and the number of words that are in the file.
    """
    if not path.is_file():
        raise DataError(path, 0, "no such file")
    from_file, size = {}, 0
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
            # A word of the file that looks like the unknown token is another word.
            if word in vocab and word != vocab.unknown_token:
                from_file.setdefault(vocab[word], values)
    if not size:
        raise DataError(path, 0, "empty file")
    vectors = np.random.RandomState(seed).uniform(-0.05, 0.05, (len(vocab), size))
    for number, values in from_file.items():
        vectors[number] = values
    return vectors.astype(np.float32), len(from_file)


def build_vocab(sentences):
    """Make the vocabulary of sentences; index 0 is the unknown word."""
    counter = gluonnlp.data.count_tokens(word for words in sentences for word in words)
    return gluonnlp.Vocab(counter, padding_token=None, bos_token=None, eos_token=None)


def numbered(names):
    """Assign numbers to distinct names in sorted order."""
    return {name: i for i, name in enumerate(sorted(set(names)))}


def indices(numbers):
    """Make an array of indices for an embedding."""
    return mx.nd.array(numbers, dtype="int32")


def word_sample(vocab, words, target, *more):
    """Make a sample of words, `more` inputs, and a target; its size is the number of words."""
    return Sample((indices(vocab[list(words)]), *more), mx.nd.array(target), len(words))


def encode(items, vocab, ctx=None):
    """Make samples of items, which have ``words``, ``target()`` and ``sample(words, target)``.

    The samples' arrays are views of two large ones, because creating an array is slow in MXNet.
    """
    words = _views([vocab[list(item.words)] for item in items], ctx, "int32")
    targets = _views([item.target() for item in items], ctx, "float32")
    return [item.sample(*arrays) for item, *arrays in zip(items, words, targets)]


def _views(parts, ctx, dtype):
    whole = mx.nd.array(np.concatenate(parts), ctx, dtype)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [whole[end - len(part) : end] for part, end in zip(parts, ends)]
