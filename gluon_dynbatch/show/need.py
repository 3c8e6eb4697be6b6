"""Optional packages and programs, asked for when they are needed."""

from __future__ import annotations

import importlib
import shutil
from typing import Any

from ..errors import MissingError


def package(name: str) -> Any:
    """Import a package of the extra ``draw``."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the picture needs {name.split('.')[0]}, which is not installed",
            advice="pip install 'gluon-dynbatch[draw]'",
        ) from None


def program(name: str, advice: str) -> None:
    """Raise unless a program is on the path."""
    if shutil.which(name) is None:
        what = f"the picture needs the program {name!r}, which is not on the path"
        raise MissingError(what, advice=advice)
