"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import dis
import functools
import os
from typing import Any, Tuple

import mxnet as mx

from ..errors import Where
from ..native import recording

_MXNET = os.path.dirname(mx.__file__)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GLUONNLP = os.path.join(os.path.dirname(_MXNET), "gluonnlp")
#: What stands between the user's code and the recorder.
recording.libraries = tuple(os.path.join(root, "") for root in (_MXNET, _PACKAGE, _GLUONNLP))


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
