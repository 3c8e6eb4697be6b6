"""The built-in corpus: sentence pairs with dependency trees and relatedness scores, from a seed.

A small probabilistic grammar puts scenes (`scene.py`) into words (`lexicon.py`). Its trees follow
Stanford's basic dependencies, where a preposition is a node of its own, and have the shape
statistics of SICK: about 9.7 words, depth 4.4, half the nodes leaves.
"""

from __future__ import annotations

import random
from typing import Dict, List, Optional, Sequence, Tuple

from .lexicon import ADJECTIVES, ADVERBS, NOUNS, NUMBERS, PREPOSITIONS, VERBS
from .scene import Event, Thing, difference, edited, random_event
from .trees import Corpus, Pair, Tree

SIZES = {"train": 2000, "dev": 500, "test": 500}
NOISE = 0.12  # standard deviation of the score, in points of the scale 1 to 5


class Word:
    """A node of a dependency tree under construction: children in word order, left and right."""

    def __init__(self, text: str, left: Sequence[Word] = (), right: Sequence[Word] = ()) -> None:
        self.text = text
        self.left = list(left)
        self.right = list(right)


def flatten(root: Word) -> Tuple[List[str], List[int]]:
    """Put a tree into word order: its words, and the 0-based head of each (-1 at the root)."""
    words: List[Word] = []
    head_of: Dict[int, Word] = {}

    def visit(word: Word) -> None:  # as deep as the grammar nests, under 10
        for child in word.left:
            visit(child)
        words.append(word)
        for child in word.right:
            visit(child)
        for child in word.left + word.right:
            head_of[id(child)] = word

    visit(root)
    position = {id(word): i for i, word in enumerate(words)}
    heads = [-1 if word is root else position[id(head_of[id(word)])] for word in words]
    texts = [word.text for word in words]
    for i, (text, following) in enumerate(zip(texts, texts[1:])):
        if text == "a" and following[0] in "aeiou":
            texts[i] = "an"
    return texts, heads


class Speaker:
    """Puts scenes into words; every choice among synonyms and turns of phrase is drawn."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def sentence(self, event: Event) -> Word:
        """Say a scene: "a man is ...", "... is being ... by a man", or "there is a man ..."."""
        plain = event.also is None
        turn = self.rng.choices(
            (self._active, self._passive, self._existential),
            weights=(75, 13 * (plain and event.patient is not None), 12 * plain),
        )[0]
        root = turn(event)
        if event.also is not None:
            agent, verb = event.also
            other = Word(self._form(verb), [self.thing(agent), Word(self._be(agent))])
            root.right += [Word("and"), other]
        return root

    def thing(self, thing: Thing, determiner: Optional[str] = None) -> Word:
        """Say a thing: "two small dogs", "a group of kids", "a man in a red coat"."""
        noun = NOUNS[thing.noun]
        single = thing.number == "one"
        adjectives = [Word(self.rng.choice(ADJECTIVES[name])) for name in thing.adjectives]
        head = Word(self.rng.choice(noun.singular if single else noun.plural), adjectives)
        if thing.garment is not None:
            head.right.append(self._garment(thing))
        if thing.number == "many" and determiner is None and self.rng.random() < 0.4:
            return Word("group", [Word("a")], [Word("of", right=[head])])
        word = determiner or self.rng.choice(NUMBERS[thing.number])
        if word:
            head.left.insert(0, Word(word))
        return head

    def _garment(self, thing: Thing) -> Word:
        name, adjective = thing.garment or ("", "")
        single = thing.number == "one"
        noun = NOUNS[name]
        garment = Word(
            self.rng.choice(noun.singular if single else noun.plural),
            [Word(word) for word in (["a"] if single else [])],
        )
        garment.left.append(Word(self.rng.choice(ADJECTIVES[adjective])))
        turn = self.rng.random()
        if turn < 0.4:
            return Word("in", right=[garment])
        if turn < 0.7:
            return Word("wearing", right=[garment])
        return Word("wearing", [Word("who"), Word(self._be(thing))], [garment])

    def _be(self, thing: Thing) -> str:
        return "is" if thing.number == "one" else "are"

    def _form(self, verb: str) -> str:
        return self.rng.choice(VERBS[verb].present)

    def _circumstances(self, event: Event) -> List[Word]:
        words = []
        if event.manner is not None:
            words.append(Word(self.rng.choice(ADVERBS[event.manner])))
        if event.place is not None and event.preposition is not None:
            phrase = self.thing(event.place)
            for word in reversed(self.rng.choice(PREPOSITIONS[event.preposition]).split()):
                phrase = Word(word, right=[phrase])
            words.append(phrase)
        return words

    def _active(self, event: Event) -> Word:
        left = [self.thing(event.agent), Word(self._be(event.agent))]
        if event.negated:
            left.append(Word("not"))
        right = [self.thing(event.patient)] if event.patient is not None else []
        return Word(self._form(event.verb), left, right + self._circumstances(event))

    def _passive(self, event: Event) -> Word:
        assert event.patient is not None
        left = [self.thing(event.patient), Word(self._be(event.patient))]
        left += [Word("not")] if event.negated else []
        by = Word("by", right=[self.thing(event.agent)])
        verb = Word(self.rng.choice(VERBS[event.verb].past), left + [Word("being")], [by])
        verb.right += self._circumstances(event)
        return verb

    def _existential(self, event: Event) -> Word:
        number = "one" if event.negated else event.agent.number
        agent = self.thing(event.agent._replace(number=number), "no" if event.negated else None)
        right = [self.thing(event.patient)] if event.patient is not None else []
        target = agent.right[0].right[0] if agent.text == "group" else agent
        target.right.append(Word(self._form(event.verb), [], right + self._circumstances(event)))
        verb = "is" if agent.text == "group" or number == "one" else "are"
        return Word(verb, [Word("there")], [agent])


def make_pair(rng: random.Random, name: str) -> Pair:
    """Draw one pair: a scene, an edit of it, both said, and the score that follows."""
    scenes = [random_event(rng)]
    scenes.append(edited(rng, scenes[0]))
    rng.shuffle(scenes)
    speaker = Speaker(rng)
    sides = []
    for scene in scenes:
        words, heads = flatten(speaker.sentence(scene))
        sides.append((tuple(words), Tree.from_heads(heads)))
    score = 5.0 - 4.0 * difference(*scenes) + rng.gauss(0.0, NOISE)
    score = round(min(max(score, 1.0), 5.0), 2)
    return Pair(sides[0][0], sides[0][1], sides[1][0], sides[1][1], score, name)


def make_corpus(seed: int = 1, sizes: Optional[Dict[str, int]] = None) -> Corpus:
    """Make the built-in corpus.

    Parameters
    ----------
    seed : int
        Equal seeds give equal corpora, on every machine and Python version.
    sizes : dict, optional
        Number of pairs for ``train``, ``dev`` and ``test``; `SIZES` by default.

    Returns
    -------
    Corpus
    """
    rng = random.Random(seed)
    splits = {
        split: [make_pair(rng, f"{split}-{i}") for i in range(count)]
        for split, count in (sizes or SIZES).items()
    }
    return Corpus(splits, skipped=())
