"""Sentences as nested phrases with a label each.

With a folder of the Stanford Sentiment Treebank (``train.txt``: a binary tree per line in brackets,
each node with a label from 0 to 4), trees and labels are its own. Without, they are made of the
built-in corpus: dependents join their head one by one, and the label of a phrase is the number of
its words, counted to 5.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import mxnet as mx

from relatedness.trees import Tree

from .base import Sample
from .pairs import sentences
from .text import read_samples

CLASSES = 5
#: A word's number, or the phrases that a phrase is made of.
Shape = Union[int, Tuple["Shape", "Shape"]]


class Phrases(NamedTuple):
    """A sentence as nested phrases; labels are of all of them, those within first."""

    words: Tuple[str, ...]
    shape: Shape
    labels: Tuple[int, ...]

    def target(self) -> Tuple[int, ...]:
        """Give what a model should say of the phrases."""
        return self.labels

    def sample(self, words: mx.nd.NDArray, labels: mx.nd.NDArray) -> Sample:
        """Put together what models take: words, shape (T,), and labels, shape (2T - 1,)."""
        return Sample((words, self.shape), labels, len(self.words))


def read_treebank(
    directory: Optional[Path], limit: Optional[int] = None, split: str = "train"
) -> List[Phrases]:
    """Read the first `limit` trees of a split; see `read_samples` for what is raised.

    Without a folder, they are made of the sentences of the built-in corpus.
    """
    if directory is None:
        return [_of_dependencies(*each) for each in sentences(limit=limit, split=split)]
    return read_samples(directory, "trees", _parse, limit, split)


def _parse(line: str) -> Phrases:
    """Read one tree, such as ``(3 (2 so) (4 good))``; a word may hold anything but " ", "(", ")".

    Raises
    ------
    ValueError
        With the reason.
    """
    words: List[str] = []
    labels: List[int] = []
    stack: List[List[Any]] = [[]]  # the line, and each phrase that is open: its label and parts
    for token in re.findall(r"\([^ ()]*|\)|[^ ()]+", line):
        if token.startswith("("):
            if token[1:] not in map(str, range(CLASSES)):
                raise ValueError(f"label {token[1:]!r} is none of 0 to {CLASSES - 1}")
            stack.append([int(token[1:])])
        elif token != ")":
            stack[-1].append(len(words))
            words.append(token)
        elif len(stack) == 1:
            raise ValueError('a ")" too many')
        else:
            label, *parts = stack.pop()
            if len(parts) not in (1, 2):
                raise ValueError(f"a phrase of {len(parts)} parts; there must be a word or two")
            stack[-1].append(parts[0] if len(parts) == 1 else tuple(parts))
            labels.append(label)
    if len(stack) > 1:
        raise ValueError('a ")" is missing')
    if len(stack[0]) != 1 or len(labels) != 2 * len(words) - 1:
        raise ValueError("is not one binary tree with a label for every word and phrase")
    return Phrases(tuple(words), stack[0][0], tuple(labels))


def _of_dependencies(words: Tuple[str, ...], tree: Tree) -> Phrases:
    """Join each head with its dependents, first those after it and then those before it."""
    shapes: List[Shape] = list(range(len(words)))
    for head in tree.order:
        before = [k for k in tree.children[head] if k < head]
        for child in (k for k in tree.children[head] if k > head):
            shapes[head] = (shapes[head], shapes[child])
        for child in reversed(before):
            shapes[head] = (shapes[child], shapes[head])
    labels: List[int] = []

    def count(shape: Shape) -> int:
        found = 1 if isinstance(shape, int) else sum([count(part) for part in shape])
        labels.append(min(found, CLASSES) - 1)
        return found

    count(shapes[tree.root])
    return Phrases(words, shapes[tree.root], tuple(labels))
