"""Lines of the user's program: the nearest caller outside this package, MXNet and GluonNLP."""

from __future__ import annotations

import os

import mxnet as mx

from ..errors import Where
from ..native import recording

_MXNET = os.path.dirname(mx.__file__)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GLUONNLP = os.path.join(os.path.dirname(_MXNET), "gluonnlp")
recording.libraries = tuple(os.path.join(root, "") for root in (_MXNET, _PACKAGE, _GLUONNLP))


def user_line() -> Where:
    """Return the line of the nearest caller outside the libraries."""
    return recording.user_place().where  # type: ignore[no-any-return]
