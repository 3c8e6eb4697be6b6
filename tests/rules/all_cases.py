"""All cases, with several sets of extents."""

from __future__ import annotations

from itertools import chain
from typing import List, Tuple

from . import (
    elementwise_cases,
    index_cases,
    linear_cases,
    reduce_cases,
    sequence_cases,
    shape_cases,
    vision_cases,
)
from .interpreter import Case

FAMILIES = (
    elementwise_cases,
    index_cases,
    linear_cases,
    reduce_cases,
    sequence_cases,
    shape_cases,
    vision_cases,
)
#: Of arrays, such that no axis is taken for another.
EXTENTS = ((4, 3, 2), (2, 3, 4))


def draw(*extents: int) -> List[Case]:
    return list(chain.from_iterable(family.cases(*extents) for family in FAMILIES))


#: Per case, the same operator call with other extents.
CASES: List[Tuple[Case, ...]] = list(zip(*(draw(*extents) for extents in EXTENTS)))
NAMES = [f"{number}-{variants[0].op}" for number, variants in enumerate(CASES)]
EVERY = [variants[0] for variants in CASES]
