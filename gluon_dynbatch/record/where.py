"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import dis
import os
from typing import Any

import mxnet as mx

from ..errors import Where
from ..native import recording

_MXNET = os.path.dirname(mx.__file__)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GLUONNLP = os.path.join(os.path.dirname(_MXNET), "gluonnlp")
#: What stands between the user's code and the recorder.
recording.libraries = tuple(os.path.join(root, "") for root in (_MXNET, _PACKAGE, _GLUONNLP))


def where_of(place: Any) -> Where:
    """Return the line of a place, `recording.Place`, in the user's program."""
    if place.line is None:
        code, number = place.code, place.code.co_firstlineno
        for start, line in dis.findlinestarts(code):
            if start > place.instruction:
                break
            number = line or number
        place.line = Where(code.co_filename, number, code.co_name)
    return place.line  # type: ignore[no-any-return]


def user_line() -> Where:
    """Return the nearest place outside the libraries."""
    return where_of(recording.user_place())
