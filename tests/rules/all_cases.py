"""All cases, with several sets of extents."""

from . import elementwise_cases, linear_cases, numpy_cases, shape_cases

#: Different extents, which tell axes apart, and ones, which might be broadcast by mistake.
EXTENTS = ((4, 3, 2), (2, 3, 4), (1, 1, 1))


def draw(a, b, c):
    files = elementwise_cases, linear_cases, shape_cases, numpy_cases
    return [case for file in files for family in file.FAMILIES for case in family(a, b, c)]


EVERY = draw(*EXTENTS[0])
NAMES = [f"{number}-{c.op}" for number, c in enumerate(EVERY)]
