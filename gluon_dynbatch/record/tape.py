"""The flat arrays of one recording, native if the native code was built (see `native.py`)."""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, Tuple

from ..native import NATIVE


class PythonTape:
    """Flat arrays that grow by appending; positions are ids."""

    __slots__ = (
        "open",
        "node_entry",
        "node_value0",
        "sources",
        "offsets",
        "value_type",
        "entries",
        "wheres",
        "lazies",
        "externals",
        "handles",
        "external_values",
        "external_ids",
    )

    def __init__(self) -> None:
        #: Whether calls may still be recorded.
        self.open = True
        #: Per node: id of its entry, and its first output value.
        self.node_entry = array("i")
        self.node_value0 = array("i")
        #: Per operand, nodes one after another: value and offset in elements.
        self.sources = array("i")
        self.offsets = array("q")
        #: Per value: type id.
        self.value_type = array("i")
        #: Entries used, by id.
        self.entries: Dict[int, Any] = {}
        #: Per node: code object and instruction of the user's call.
        self.wheres: List[Tuple[Any, int]] = []
        #: Weak references to all lazy arrays handed out.
        self.lazies: List[Any] = []
        #: Arrays from outside, their handles when they were recorded, their values, and these
        #: values by id of the array.
        self.externals: List[Any] = []
        self.handles: List[Any] = []
        self.external_values = array("i")
        self.external_ids: Dict[int, int] = {}

    def held(self) -> List[Any]:
        """Return the lazy arrays that somebody still holds and that are not computed yet."""
        alive = [reference() for reference in self.lazies]
        return [lazy for lazy in alive if lazy is not None and lazy._real is None]


Tape: Any = PythonTape if NATIVE is None else NATIVE.Tape
