"""Trees over the words of a sentence, as plain data."""

from typing import NamedTuple, Tuple

CLASSES = 5  # scores go from 1 to CLASSES


def phrases_of(shape):
    """List the phrases of a nested shape in post-order: words, or pairs of numbers of phrases."""
    phrases = []

    def visit(shape):
        phrases.append(shape if isinstance(shape, int) else tuple(map(visit, shape)))
        return len(phrases) - 1

    visit(shape)
    return phrases


class TreeError(ValueError):
    """Heads that do not form a tree."""


class Tree(NamedTuple):
    """A dependency tree as word numbers."""

    heads: Tuple[int, ...]  # 0-based head of each word, -1 at the root
    children: Tuple[Tuple[int, ...], ...]  # dependents of each word, in word order
    order: Tuple[int, ...]  # all words, children before their heads; the root comes last

    @property
    def root(self):
        """The word without a head."""
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
        while stack:  # not recursive, because trees may be deep
            order.append(stack.pop())
            stack.extend(children[order[-1]])
        if len(order) < count:
            word = min(set(range(count)) - set(order))
            raise TreeError(f"word {word + 1} cannot be reached from the root: a cycle")
        return cls(tuple(heads), tuple(map(tuple, children)), tuple(reversed(order)))
