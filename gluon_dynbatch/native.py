"""The native modules, as far as they were built.

``_native.c`` does what runs once per recorded call, ``_planning.c`` what looks at every unit of a
flush.  Without them, or with the environment variable ``GLUON_DYNBATCH_NATIVE=0``, the Python and
NumPy code beside their callers does the same, slower.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def _load(name: str) -> Any:
    if os.environ.get("GLUON_DYNBATCH_NATIVE", "1") == "0":
        return None
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ImportError:  # no C compiler when the package was installed
        return None


NATIVE: Any = _load("_native")
"""The native part of recording, or None."""

PLANNING: Any = _load("_planning")
"""The native part of planning, or None."""
