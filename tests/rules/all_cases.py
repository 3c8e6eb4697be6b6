"""All cases, with several sets of extents."""

from __future__ import annotations

from typing import List

from . import elementwise_cases, linear_cases, shape_cases
from .interpreter import Case

#: Of arrays, such that no axis is taken for another; and what may be taken for an axis to spread.
EXTENTS = ((4, 3, 2), (2, 3, 4), (1, 1, 1))


def draw(a: int, b: int, c: int) -> List[Case]:
    files = elementwise_cases, linear_cases, shape_cases
    return [case for file in files for family in file.FAMILIES for case in family(a, b, c)]


EVERY = draw(*EXTENTS[0])
NAMES = [f"{number}-{c.op}" for number, c in enumerate(EVERY)]
