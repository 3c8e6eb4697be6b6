"""What a sentence of the built-in corpus means: scenes, edits to them, how far they differ.

The score of a pair follows from the two scenes alone and never from their words, so what the model
is asked to learn is there to be learned: synonyms, who does what to whom, and negation.
"""

from __future__ import annotations

import random
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from .lexicon import ADVERBS, NOUNS, NUMBERS, PREPOSITIONS, SUITS, VERBS


class Thing(NamedTuple):
    """One or more of a noun, described by adjectives, perhaps wearing a garment."""

    noun: str
    number: str = "one"
    adjectives: Tuple[str, ...] = ()
    garment: Optional[Tuple[str, str]] = None  # noun, adjective


class Event(NamedTuple):
    """Someone does something, perhaps to something, somehow, somewhere; or does not."""

    agent: Thing
    verb: str
    patient: Optional[Thing] = None
    manner: Optional[str] = None
    preposition: Optional[str] = None
    place: Optional[Thing] = None
    negated: bool = False
    also: Optional[Tuple[Thing, str]] = None  # who else does what, "and a dog is running"


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def _nouns_of(kinds: Sequence[str]) -> Sequence[str]:
    return [name for name, noun in NOUNS.items() if noun.kind in kinds]


def random_thing(rng: random.Random, kinds: Sequence[str], garment: float = 0.0) -> Thing:
    """Draw a thing of one of `kinds`, which wears something with probability `garment`."""
    noun = rng.choice(_nouns_of(kinds))
    kind = NOUNS[noun].kind
    count = rng.choices((0, 1, 2), weights=(83, 15, 2))[0]
    wears = None
    if kind == "person" and _chance(rng, garment):
        wears = (rng.choice(_nouns_of(("garment",))), rng.choice(SUITS["garment"]))
    number = "one"
    if kind != "place":
        number = rng.choices(tuple(NUMBERS), weights=(66, 8, 4, 22))[0]
    return Thing(noun, number, tuple(rng.sample(SUITS[kind], count)), wears)


def random_event(rng: random.Random) -> Event:
    """Draw a scene; the probabilities give sentences the shape statistics of SICK's."""
    verb = rng.choice(tuple(VERBS))
    frame = VERBS[verb]
    event = Event(
        agent=random_thing(rng, frame.agents, garment=0.3),
        verb=verb,
        patient=random_thing(rng, frame.objects) if "" not in frame.objects else None,
        manner=rng.choice(tuple(ADVERBS)) if _chance(rng, 0.16) else None,
        negated=_chance(rng, 0.1),
    )
    if _chance(rng, 0.46):
        event = add_place(rng, event)
    return add_other(rng, event) if _chance(rng, 0.14) else event


def add_place(rng: random.Random, event: Event) -> Event:
    """Put the event somewhere else than now."""
    place = random_thing(rng, ("place",))
    return event._replace(place=place, preposition=rng.choice(tuple(PREPOSITIONS)))


def add_other(rng: random.Random, event: Event) -> Event:
    """Add a second, intransitive event: "and a dog is running"."""
    verb = rng.choice([name for name, verb in VERBS.items() if "" in verb.objects])
    return event._replace(also=(random_thing(rng, VERBS[verb].agents), verb))


# Edits. Each gives another scene, or the same one where it does not apply.


def _say_again(rng: random.Random, event: Event) -> Event:
    return event


def _change_detail(rng: random.Random, event: Event) -> Event:
    """Add or drop one thing that the sentence could do without."""
    kind = NOUNS[event.agent.noun].kind
    described = () if event.agent.adjectives else (rng.choice(SUITS[kind]),)
    variants = [
        event._replace(agent=event.agent._replace(adjectives=described)),
        event._replace(manner=None if event.manner else rng.choice(tuple(ADVERBS))),
        event._replace(place=None, preposition=None) if event.place else add_place(rng, event),
        event._replace(also=None) if event.also else add_other(rng, event),
    ]
    return rng.choices(variants, weights=(4, 3, 3, 1))[0]


def _swap_roles(rng: random.Random, event: Event) -> Event:
    patient = event.patient
    if patient is None or NOUNS[patient.noun].kind not in VERBS[event.verb].agents:
        return _change_patient(rng, event)
    return event._replace(agent=patient, patient=event.agent._replace(garment=None))


def _negate(rng: random.Random, event: Event) -> Event:
    return event._replace(negated=not event.negated)


def _change_verb(rng: random.Random, event: Event) -> Event:
    """Let the same agent do something else to the same patient."""
    kind = NOUNS[event.agent.noun].kind
    patient = NOUNS[event.patient.noun].kind if event.patient else ""
    fits = [name for name, verb in VERBS.items() if kind in verb.agents and patient in verb.objects]
    return event._replace(verb=rng.choice(fits))


def _change_agent(rng: random.Random, event: Event) -> Event:
    noun = rng.choice(_nouns_of((NOUNS[event.agent.noun].kind,)))
    return event._replace(agent=event.agent._replace(noun=noun))


def _change_patient(rng: random.Random, event: Event) -> Event:
    if event.patient is None:
        return _change_agent(rng, event)
    return event._replace(patient=random_thing(rng, VERBS[event.verb].objects))


def _change_two(rng: random.Random, event: Event) -> Event:
    first, second = rng.sample((_change_verb, _change_agent, _change_patient, _change_detail), 2)
    return second(rng, first(rng, event))


def _unrelated(rng: random.Random, event: Event) -> Event:
    return random_event(rng)


Edit = Callable[[random.Random, Event], Event]
EDITS: Dict[Edit, float] = {
    _say_again: 12,
    _change_detail: 12,
    _swap_roles: 10,
    _negate: 10,
    _change_verb: 12,
    _change_agent: 7,
    _change_patient: 7,
    _change_two: 16,
    _unrelated: 14,
}


def edited(rng: random.Random, event: Event) -> Event:
    """Apply one edit, drawn by the weights in `EDITS`."""
    edit = rng.choices(tuple(EDITS), weights=tuple(EDITS.values()))[0]
    return edit(rng, event)


# How far two scenes differ: 0 for the same meaning, 1 or more for nothing in common.


def _noun_gap(a: str, b: str) -> float:
    if a == b:
        return 0.0
    return 0.5 if NOUNS[a].kind == NOUNS[b].kind else 1.0


def _verb_gap(a: str, b: str) -> float:
    if a == b:
        return 0.0
    return 0.6 if VERBS[a].kind == VERBS[b].kind else 1.0


def _thing_gap(a: Optional[Thing], b: Optional[Thing]) -> float:
    if a is None or b is None:
        return 0.0 if a is b else 0.7
    details = len(set(a.adjectives) ^ set(b.adjectives)) + (a.garment != b.garment)
    gap = _noun_gap(a.noun, b.noun) + 0.12 * details + 0.1 * (a.number != b.number)
    return min(gap, 1.0)


def _other_gap(a: Optional[Tuple[Thing, str]], b: Optional[Tuple[Thing, str]]) -> float:
    if a is None or b is None:
        return 0.0 if a is b else 1.0
    return (_thing_gap(a[0], b[0]) + _verb_gap(a[1], b[1])) / 2


def difference(a: Event, b: Event) -> float:
    """How far two scenes differ, from 0 (the same) to 1 (nothing in common)."""
    gap = (
        0.32 * _thing_gap(a.agent, b.agent)
        + 0.36 * _verb_gap(a.verb, b.verb)
        + 0.26 * _thing_gap(a.patient, b.patient)
        + 0.14 * _thing_gap(a.place, b.place)
        + 0.03 * (a.preposition != b.preposition)
        + 0.05 * (a.manner != b.manner)
        + 0.10 * _other_gap(a.also, b.also)
        + 0.28 * (a.negated != b.negated)
    )
    return min(gap, 1.0)
