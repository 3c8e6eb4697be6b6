"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import dis
import functools
import os
from typing import Any, Tuple

import mxnet as mx

from ..errors import Where
from ..native import recording


def library_directories() -> Tuple[str, ...]:
    """Return the directories of what stands between the user's code and the recorder."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    roots = [os.path.dirname(mx.__file__), package]
    site = os.path.dirname(roots[0])
    return tuple(os.path.join(r, "") for r in [*roots, os.path.join(site, "gluonnlp")])


@functools.lru_cache(maxsize=10_000)
def where_of(place: Tuple[Any, int]) -> Where:
    """Make a readable place out of a code object and an instruction."""
    code, instruction = place
    number = code.co_firstlineno
    for start, line in dis.findlinestarts(code):
        if start > instruction:
            break
        number = line or number
    return Where(code.co_filename, number, code.co_name)


def user_line() -> Where:
    """Return the nearest place outside the libraries."""
    return where_of(recording.user_place())
