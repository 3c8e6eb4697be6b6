"""Words of the built-in corpus, by concept.

A concept is what a scene is made of; its words are synonyms, so that a pair may say the same thing
differently. Concepts of one kind are related (a flute and a piano more than a flute and a potato).
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple

Words = Tuple[str, ...]


class Noun(NamedTuple):
    """A thing: its kind, and its synonyms in the singular and, in the same order, the plural."""

    kind: str
    singular: Words
    plural: Words


class Verb(NamedTuple):
    """An action: who does it to what (kinds of noun, "" for no object), and how it is said."""

    agents: Words
    objects: Words
    kind: str
    present: Words
    past: Words = ()


def _nouns(kind: str, *entries: str) -> Dict[str, Noun]:
    """Read entries "man/men guy/guys"; the first singular names the concept."""
    nouns = {}
    for entry in entries:
        pairs = [form.split("/") for form in entry.split()]
        nouns[pairs[0][0]] = Noun(kind, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    return nouns


NOUNS: Dict[str, Noun] = {
    **_nouns(
        "person",
        "man/men guy/guys",
        "woman/women lady/ladies",
        "boy/boys lad/lads",
        "girl/girls",
        "child/children kid/kids",
        "player/players athlete/athletes",
        "cook/cooks chef/chefs",
        "soldier/soldiers",
    ),
    **_nouns(
        "animal",
        "dog/dogs hound/hounds",
        "cat/cats",
        "horse/horses pony/ponies",
        "monkey/monkeys ape/apes",
        "panda/pandas",
        "lion/lions",
    ),
    **_nouns(
        "instrument",
        "guitar/guitars",
        "piano/pianos",
        "flute/flutes",
        "drum/drums",
        "violin/violins fiddle/fiddles",
    ),
    **_nouns(
        "food",
        "potato/potatoes",
        "onion/onions",
        "tomato/tomatoes",
        "egg/eggs",
        "carrot/carrots",
        "cucumber/cucumbers",
    ),
    **_nouns(
        "vehicle",
        "bicycle/bicycles bike/bikes",
        "car/cars automobile/automobiles",
        "motorcycle/motorcycles motorbike/motorbikes",
        "cart/carts wagon/wagons",
        "boat/boats",
    ),
    **_nouns(
        "toy",
        "ball/balls",
        "frisbee/frisbees disc/discs",
        "stick/sticks branch/branches",
        "rope/ropes cord/cords",
        "doll/dolls",
    ),
    **_nouns(
        "garment",
        "shirt/shirts",
        "jacket/jackets coat/coats",
        "hat/hats cap/caps",
        "scarf/scarves",
        "dress/dresses",
    ),
    **_nouns(
        "place",
        "park/parks",
        "garden/gardens yard/yards",
        "street/streets road/roads",
        "field/fields meadow/meadows",
        "beach/beaches shore/shores",
        "river/rivers",
        "kitchen/kitchens",
        "stage/stages",
        "forest/forests wood/woods",
        "hall/halls",
    ),
}

_ALIVE = ("person", "animal")

VERBS: Dict[str, Verb] = {
    "play": Verb(("person",), ("instrument",), "music", ("playing",), ("played",)),
    "tune": Verb(
        ("person",), ("instrument",), "music", ("tuning", "adjusting"), ("tuned", "adjusted")
    ),
    "cut": Verb(("person",), ("food",), "cooking", ("cutting", "slicing"), ("cut", "sliced")),
    "peel": Verb(("person",), ("food",), "cooking", ("peeling",), ("peeled",)),
    "fry": Verb(("person",), ("food",), "cooking", ("frying",), ("fried",)),
    "eat": Verb(_ALIVE, ("food",), "eating", ("eating",), ("eaten",)),
    "push": Verb(("person",), ("vehicle",), "moving", ("pushing", "shoving"), ("pushed", "shoved")),
    "repair": Verb(
        ("person",),
        ("vehicle", "instrument"),
        "mending",
        ("repairing", "fixing"),
        ("repaired", "fixed"),
    ),
    "wash": Verb(
        ("person",),
        ("vehicle", "food", "garment"),
        "mending",
        ("washing", "cleaning"),
        ("washed", "cleaned"),
    ),
    "throw": Verb(("person",), ("toy",), "game", ("throwing", "tossing"), ("thrown", "tossed")),
    "catch": Verb(_ALIVE, ("toy",), "game", ("catching", "grabbing"), ("caught", "grabbed")),
    "chase": Verb(_ALIVE, _ALIVE, "moving", ("chasing", "pursuing"), ("chased", "pursued")),
    "watch": Verb(_ALIVE, _ALIVE, "seeing", ("watching", "observing"), ("watched", "observed")),
    "hug": Verb(_ALIVE, _ALIVE, "touching", ("hugging", "embracing"), ("hugged", "embraced")),
    "bite": Verb(("animal",), _ALIVE, "touching", ("biting",), ("bitten",)),
    "run": Verb(_ALIVE, ("",), "moving", ("running", "jogging")),
    "jump": Verb(_ALIVE, ("",), "moving", ("jumping", "leaping")),
    "sleep": Verb(_ALIVE, ("",), "resting", ("sleeping", "napping")),
    "sit": Verb(_ALIVE, ("",), "resting", ("sitting",)),
    "dance": Verb(("person",), ("",), "music", ("dancing",)),
    "sing": Verb(("person",), ("",), "music", ("singing",)),
    "talk": Verb(("person",), ("",), "seeing", ("talking", "speaking")),
    "swim": Verb(_ALIVE, ("",), "moving", ("swimming",)),
}

ADJECTIVES: Dict[str, Words] = {
    "big": ("big", "large"),
    "small": ("small", "little"),
    "young": ("young",),
    "old": ("old",),
    "happy": ("happy", "cheerful"),
    "brown": ("brown",),
    "black": ("black",),
    "white": ("white",),
    "red": ("red",),
    "blue": ("blue",),
    "green": ("green",),
}

# Which adjectives suit which kind of noun; a place has only what every kind has.
_COLOURS = ("brown", "black", "white", "red", "blue", "green")
SUITS: Dict[str, Words] = {
    "person": ("big", "small", "young", "old", "happy"),
    "animal": ("big", "small", "young", "old", "brown", "black", "white"),
    "place": ("big", "small", "green"),
}
SUITS.update(
    {
        kind: ("big", "small", "old") + _COLOURS
        for kind in ("instrument", "food", "vehicle", "toy", "garment")
    }
)

ADVERBS: Dict[str, Words] = {
    "fast": ("quickly", "rapidly"),
    "slow": ("slowly",),
    "glad": ("happily", "cheerfully"),
    "quiet": ("quietly", "silently"),
    "careful": ("carefully",),
    "outdoors": ("outdoors", "outside"),
}

# No word at all is a bare plural, "dogs are running".
NUMBERS: Dict[str, Words] = {
    "one": ("a", "the"),
    "two": ("two",),
    "three": ("three",),
    "many": ("some", "several", ""),
}

# Several words are a chain in the tree, each the head of the next.
PREPOSITIONS: Dict[str, Words] = {
    "in": ("in", "inside"),
    "near": ("near", "next to"),
    "front": ("in front of", "before"),
    "behind": ("behind",),
}
