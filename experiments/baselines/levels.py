"""What a hand-batched Tree-LSTM computes when: planned in NumPy, for each minibatch anew."""

from itertools import chain
from typing import NamedTuple, Tuple

import numpy as np


class Levels(NamedTuple):
    """The nodes of several trees, divided into *inner* nodes by level, and leaves.

    Leaves need no other node and are one group.  All others are inner nodes; their level is their
    distance from the root, so that a child of level d is a leaf or stands in level d + 1, and no
    level reads any inner node but those of the level computed just before.  Roots are inner nodes
    even if they have no children: they are level 0, in the order of the trees.
    """

    #: Where the word of each node stands among the words of all trees, one tree after the other:
    #: inner nodes by level, then leaves. Shape (nodes,), int32.
    words: np.ndarray
    #: Parent of each node, in the same order, as a number among the inner nodes; 0 for roots.
    #: Shape (nodes,), int64.
    parents: np.ndarray
    #: Number of the first inner node of each level, and at the end how many inner nodes there are.
    starts: Tuple[int, ...]


def divide(trees):
    """Plan a minibatch of the heads of trees; nothing is kept for the next time."""
    sizes = np.fromiter(map(len, trees), np.int64, len(trees))
    heads = np.fromiter(chain.from_iterable(trees), np.int64, sizes.sum())
    is_root = heads < 0
    parents = heads + np.repeat(np.cumsum(sizes) - sizes, sizes)
    parents[is_root] = -1
    is_inner = is_root.copy()
    is_inner[parents[~is_root]] = True
    inner, leaves = np.flatnonzero(is_inner), np.flatnonzero(~is_inner)
    depths = np.zeros(len(inner), np.int64)
    places, above = np.arange(len(inner)), parents[inner]
    while len(places):  # one step up, for all that are not above their root
        goes_on = above >= 0
        places, above = places[goes_on], parents[above[goes_on]]
        depths[places] += 1
    words = np.concatenate([inner[np.argsort(depths, kind="stable")], leaves])
    number = np.empty(len(words), np.int64)
    number[words] = np.arange(len(words))
    above = np.where(is_root, 0, number[parents])[words]
    starts = np.cumsum(np.bincount(depths)).tolist()
    return Levels(words.astype(np.int32), above, (0, *starts))
