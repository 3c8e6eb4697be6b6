"""Native code: what runs once per recorded call, and what looks at every unit of a flush.

`recording` is a part of `record`, `lowering` of `lower`, `scheduling` of `schedule`, `planning` of
`plan`, `assembling` of `run`, `posting` of `serve`, and `recency` of `cache`; other folders call
them, too.  `executing` runs programs in MXNet's engine, with the kernels in them; the C behind it
is in `c`.  The types of all are in `.pyi` files.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

__all__ = [
    "assembling",
    "executing",
    "lowering",
    "planning",
    "posting",
    "recency",
    "recording",
    "scheduling",
]


def _what_to_do(error: ImportError) -> str:
    """Say why native code was not imported, and what to do about it."""
    folder = Path(__file__).resolve().parent
    source = folder.parents[1]  # of a clone, or the folder of installed packages
    is_clone = (source / "setup.py").is_file()
    what = f"the {'clone' if is_clone else 'package'} in {source}"
    again = f"run `pip install -e .` in {source}" if is_clone else "install the package again"
    if all(any((folder / f"{m}{end}").exists() for end in EXTENSION_SUFFIXES) for m in __all__):
        return f"the native code of {what} does not load ({error}); {again}"
    said = (
        "the native code of gluon_dynbatch is not compiled for this Python "
        f"({sys.version_info[0]}.{sys.version_info[1]}), which imports it from {what}; "
    )
    if not is_clone:
        return said + again
    others = [p for p in sys.path if Path(p).resolve() != source]
    installed = PathFinder.find_spec("gluon_dynbatch", others)
    if installed is None or installed.origin is None:
        return (
            f"{said}to compile it there, {again}; or run `pip install .` there, and then start "
            "Python in another folder"
        )
    return (
        f"{said}to use the package that is installed in {Path(installed.origin).parents[1]}, start "
        f"Python in another folder; to compile the clone, {again}"
    )


try:
    from . import (
        assembling,
        executing,
        lowering,
        planning,
        posting,
        recency,
        recording,
        scheduling,
    )
except ImportError as error:
    raise ImportError(_what_to_do(error)) from error
