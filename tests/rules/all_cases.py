"""All cases, drawn with several sets of extents."""

from __future__ import annotations

from itertools import chain
from typing import List, Tuple

import numpy as np

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
SEEDS = (0, 1, 2)


def draw(*extents: int) -> List[Case]:
    return list(chain.from_iterable(family.cases(*extents) for family in FAMILIES))


def _extents(seed: int) -> List[int]:
    return [int(n) for n in np.random.default_rng(seed).integers(2, 5, size=3)]


#: Per case, the same operator call with the extents of each seed.
CASES: List[Tuple[Case, ...]] = list(zip(*(draw(*_extents(seed)) for seed in SEEDS)))
NAMES = [f"{number}-{variants[0].op}" for number, variants in enumerate(CASES)]
EVERY = [variants[0] for variants in CASES]
