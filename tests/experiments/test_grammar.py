"""The built-in corpus has the shape of SICK, means what its scores say, and never changes."""

import hashlib
import random
from collections import Counter

import numpy as np
import pytest

from relatedness import scene
from relatedness.grammar import Speaker, Word, flatten, make_corpus
from relatedness.scene import Event, Thing, difference

SMALL = {"train": 40, "dev": 10, "test": 10}


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


@pytest.fixture(scope="module")
def pairs(corpus):
    return [pair for split in corpus.splits.values() for pair in split]


@pytest.fixture(scope="module")
def trees(pairs):
    return [tree for pair in pairs for tree in (pair.tree_a, pair.tree_b)]


def test_sizes_and_unique_names(corpus, pairs):
    assert {name: len(split) for name, split in corpus.splits.items()} == {
        "train": 2000, "dev": 500, "test": 500,
    }  # fmt: skip
    assert len({pair.name for pair in pairs}) == len(pairs)


def test_sentences_are_as_long_and_deep_as_those_of_sick(trees):
    assert np.mean([len(tree.heads) for tree in trees]) == pytest.approx(9.7, abs=0.4)
    assert np.mean([tree.depth for tree in trees]) == pytest.approx(4.4, abs=0.2)


def test_words_have_as_many_children_as_in_sick(trees):
    counts = Counter(len(children) for tree in trees for children in tree.children)
    share = {children: count / sum(counts.values()) for children, count in counts.items()}
    assert share[0] == pytest.approx(0.51, abs=0.02)
    assert share[1] == pytest.approx(0.28, abs=0.02)
    assert max(counts) == 8


def test_trees_vary(trees):
    assert len({tree.heads for tree in trees}) > 1000


def test_a_tree_belongs_to_its_sentence(pairs):
    """As many nodes as words; articles are leaves and stand before their heads."""
    for pair in pairs[:200]:
        for tokens, tree in ((pair.tokens_a, pair.tree_a), (pair.tokens_b, pair.tree_b)):
            assert len(tokens) == len(tree.heads)
            for i, token in enumerate(tokens):
                if token in ("a", "an", "the", "no"):
                    assert tree.children[i] == () and tree.heads[i] > i


def test_scores_fill_the_scale(pairs):
    scores = np.array([pair.score for pair in pairs])
    assert scores.min() >= 1 and scores.max() <= 5
    assert all(share > 0.01 for share in np.histogram(scores, 8, (1, 5))[0] / len(scores))


def test_equal_seeds_give_equal_corpora_and_others_do_not():
    assert make_corpus(3, SMALL) == make_corpus(3, SMALL)
    assert make_corpus(3, SMALL) != make_corpus(4, SMALL)


def test_the_corpus_is_the_same_everywhere():
    """Figures from different machines and Python versions are about the same pairs."""
    text = repr(make_corpus(1, SMALL).splits)
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "e580079c2c12a54835fd381832f6e2e44079b6297234718fe4b50b0b5cc3b5fd"
    )


DOG, CAT = Thing("dog"), Thing("cat")
CHASE = Event(DOG, "chase", CAT)


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        (CHASE, CHASE._replace(manner="fast")),
        (CHASE._replace(manner="fast"), CHASE._replace(negated=True)),
        (CHASE._replace(manner="fast"), Event(CAT, "chase", DOG)),
        (CHASE._replace(patient=Thing("horse")), CHASE._replace(patient=Thing("man"))),
        (CHASE._replace(verb="run"), CHASE._replace(verb="hug")),
        (CHASE._replace(negated=True), Event(Thing("man"), "sing", negated=True)),
    ],
    ids=["same", "detail-negation", "detail-roles", "kin", "verb", "other"],
)
def test_what_differs_more_in_meaning_differs_more(nearer, farther):
    assert difference(CHASE, nearer) < difference(CHASE, farther)


def test_a_difference_is_symmetric_and_bounded():
    rng = random.Random(5)
    for _ in range(200):
        a, b = scene.random_event(rng), scene.random_event(rng)
        assert 0 <= difference(a, b) == difference(b, a) <= 1
        assert difference(a, a) == 0


def test_swapping_roles_swaps_them():
    assert scene._swap_roles(random.Random(1), CHASE) == Event(CAT, "chase", DOG)


def test_words_come_in_order_with_heads_and_articles():
    """the phrase  "an old dog in snow":  dog(a, old, in(snow))."""
    phrase = Word("dog", [Word("a"), Word("old")], [Word("in", right=[Word("snow")])])
    assert flatten(phrase) == (["an", "old", "dog", "in", "snow"], [2, 2, -1, 2, 3])


def test_every_turn_of_phrase_is_used():
    speaker = Speaker(random.Random(2))
    said = {" ".join(flatten(speaker.sentence(CHASE))[0]) for _ in range(300)}
    assert any(sentence.startswith("there is") for sentence in said)
    assert any("is being chased by" in sentence for sentence in said)
    assert any("hound" in sentence and "pursuing" in sentence for sentence in said)
