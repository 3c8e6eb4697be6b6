"""Would it help to hybridize a cell?  Asked when a report is read; see `record.idle`."""

from __future__ import annotations

from typing import Any, FrozenSet

from .native.recording import current_mode, set_mode
from .record.idle import IdleCell
from .samples.reach import ProgramReach
from .trace.entry import Library

#: No argument is one array for all calls.
NONE_SHARED: FrozenSet[int] = frozenset()
#: An attribute that each call of MXNet's recurrent layers sets before it is read.
SET_FIRST = {"skip_states"}


def helps(library: Library, cell: IdleCell) -> bool:
    """Return whether calls of a cell could be one recorded call each, and merge.

    It traces the cell as `hybridize` would, with symbols, and leaves no trace of that.  A cell that
    may change an attribute is not traced: it would keep a symbol, or change with each call no more.
    """
    block: Any = cell.block()
    if block is None or cell.arguments is None or _changes(block):
        return False
    mode, spec, types, places = cell.arguments
    before = current_mode()
    try:
        set_mode(mode)
        entry = library.trial(block, mode, spec, types, places, cell.where)
    except Exception:
        return False  # it reads shapes or values, or branches on them
    finally:
        set_mode(before)
    if isinstance(entry, str):
        return False
    variant = entry.variant(NONE_SHARED)
    return variant.layout != "unbatched" and not variant.refused


def _changes(block: Any) -> bool:
    """Return whether a call of a block may change an attribute of anything that it reaches."""
    return any(set(names) - SET_FIRST for names in ProgramReach(block).attributes().values())
