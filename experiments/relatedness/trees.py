"""Trees over the words of a sentence: plain data that models walk."""

from typing import NamedTuple, Tuple

CLASSES = 5  # scores go from 1 to CLASSES


def phrases_of(shape):
    """List the phrases of a nest of words, those within first: words, or numbers of two phrases."""
    found = []

    def read(shape):
        found.append(shape if isinstance(shape, int) else tuple(map(read, shape)))
        return len(found) - 1

    read(shape)
    return found


class TreeError(ValueError):
    """Heads that are no tree."""


class Tree(NamedTuple):
    """A dependency tree, flat: word numbers instead of linked nodes, ready to be walked."""

    heads: Tuple[int, ...]  # 0-based head of each word, -1 at the root
    children: Tuple[Tuple[int, ...], ...]  # words that each word is the head of, in word order
    order: Tuple[int, ...]  # all words, children before their heads; the root comes last

    @property
    def root(self):
        """The word that has no head."""
        return self.order[-1]

    @classmethod
    def from_heads(cls, heads):
        """Build a tree from 0-based heads, -1 at the root."""
        count = len(heads)
        if not count:
            raise TreeError("a tree needs at least one word")
        children = [[] for _ in range(count)]
        roots = []
        for word, head in enumerate(heads):
            if not -1 <= head < count:
                raise TreeError(f"head {head + 1} of word {word + 1} is out of range 0..{count}")
            (roots if head < 0 else children[head]).append(word)
        if not roots:
            raise TreeError("no root")
        if len(roots) > 1:
            words = ", ".join(str(word + 1) for word in roots)
            raise TreeError(f"{len(roots)} roots (words {words})")
        order, stack = [], [roots[0]]
        while stack:  # deep trees need no recursion
            order.append(stack.pop())
            stack.extend(children[order[-1]])
        if len(order) < count:
            word = min(set(range(count)) - set(order))
            raise TreeError(f"word {word + 1} cannot be reached from the root: a cycle")
        return cls(tuple(heads), tuple(map(tuple, children)), tuple(reversed(order)))
