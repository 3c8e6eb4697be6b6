"""All cases, with several sets of extents."""

from . import elementwise_cases, linear_cases, shape_cases

#: Of arrays, such that no axis is taken for another; and what may be taken for an axis to spread.
EXTENTS = ((4, 3, 2), (2, 3, 4), (1, 1, 1))


def draw(a, b, c):
    files = elementwise_cases, linear_cases, shape_cases
    return [case for file in files for family in file.FAMILIES for case in family(a, b, c)]


EVERY = draw(*EXTENTS[0])
NAMES = [f"{number}-{c.op}" for number, c in enumerate(EVERY)]
