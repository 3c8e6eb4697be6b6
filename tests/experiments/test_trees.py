import pytest

from relatedness.trees import Tree


def test_a_small_tree():
    """The walk of  "a dog is running":  running(dog(a), is)."""
    tree = Tree.from_heads([1, 3, 3, -1])
    assert tree.children == ((), (0,), (), (1, 2))
    assert tree.root == 3
    assert sorted(tree.order) == [0, 1, 2, 3]


@pytest.mark.parametrize("heads", [[-1], [1, 3, 3, -1], [-1, 0, 0, 1, 1, 4], [1, 2, 3, -1]])
def test_children_come_before_their_head(heads):
    order = Tree.from_heads(heads).order
    for word, head in enumerate(heads):
        assert head < 0 or order.index(word) < order.index(head)


def test_a_very_deep_tree_needs_no_recursion():
    count = 20_000
    tree = Tree.from_heads([i - 1 for i in range(count)])
    assert tree.order == tuple(range(count - 1, -1, -1))


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ([], "at least one word"),
        ([1, 0], "no root"),
        ([-1, -1], r"2 roots \(words 1, 2\)"),
        ([-1, 2, 1], "word 2 cannot be reached from the root: a cycle"),
        ([-1, 1], "word 2 cannot be reached from the root: a cycle"),
        ([-1, 2], r"head 3 of word 2 is out of range 0\.\.2"),
        ([-1, -2], r"head -1 of word 2 is out of range"),
    ],
)
def test_what_is_no_tree_is_refused_with_the_reason(heads, reason):
    with pytest.raises(ValueError, match=reason):
        Tree.from_heads(heads)
