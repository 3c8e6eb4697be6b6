"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import dis
import os
from typing import Any, Dict, Tuple

import mxnet as mx

from ..errors import Where
from ..native import recording


def _library_directories() -> Tuple[str, ...]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    roots = [os.path.dirname(mx.__file__), package]
    site = os.path.dirname(roots[0])
    return tuple(os.path.join(r, "") for r in [*roots, os.path.join(site, "gluonnlp")])


class _UserCode:
    """Tells the user's code objects from those of the libraries between user and recorder."""

    def __init__(self) -> None:
        self._directories = _library_directories()
        #: By id, because hashing a code object reads all of it; held, so that ids stay unique.
        self.known: Dict[int, Tuple[bool, Any]] = {}

    def __call__(self, code: Any) -> bool:
        known = self.known.get(id(code))
        if known is None:
            name = code.co_filename
            # Functions that MXNet generates have no file.
            user = not (name.startswith(self._directories) or name == "<string>")
            known = self.known[id(code)] = (user, code)
        return known[0]


IS_USER_CODE = _UserCode()


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
    place = recording.user_place()
    key = id(place[0]), place[1]
    known = _LINES.get(key)
    if known is None:
        if len(_LINES) >= MOST_LINES:
            _LINES.clear()
        known = _LINES[key] = where_of(place), place[0]
    return known[0]


#: Lines asked for, by id of code and instruction, with the code, so that ids stay unique.
_LINES: Dict[Tuple[int, int], Tuple[Where, Any]] = {}
MOST_LINES = 10_000
