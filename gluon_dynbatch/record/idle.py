"""Idle cells: blocks that are not hybridized, so that their operators are calls of their own."""

from __future__ import annotations

import dis
import weakref
from typing import Any, Callable, List, Optional, Tuple

from mxnet.gluon.block import _flatten

from ..errors import Where
from ..native import recording
from ..report.advice import OWN_PARAMETERS
from ..report.findings import Finding
from .types import TYPES


class IdleCell:
    """The first call, in one scope, of a class of cells that are not hybridized.

    Attributes
    ----------
    block : weakref.ref
        The cell.
    arguments : tuple
        Its mode, the spec of its arguments, and per array its type id and the number of the
        argument that contains it, as `recording.read_key` returns them; None if it has no arrays.
    where : Where
        The line that calls it.
    """

    def __init__(
        self,
        block: Any,
        args: Tuple[Any, ...],
        where: Where,
        outer: Optional[IdleCell],
        helps: Callable[[IdleCell], bool],
    ):
        self.block, self.arguments, self.where = weakref.ref(block), _described(block, args), where
        self._names = type(block).__name__, block.name
        self._code = getattr(type(block).hybrid_forward, "__code__", None)
        #: The cell that was running: hybridizing it, or one around it, is enough.
        self._outer = outer
        self._helps = helps
        self._is_told: Optional[bool] = None

    @property
    def key(self) -> Tuple[Any, ...]:
        """What the calls have in common that are one finding."""
        return "idle", self._names[0], self.where

    def is_told(self, calls: int) -> bool:
        """Return whether a report tells of calls: whether hybridizing it helps, and no other cell.

        A single call has no other one to merge with.
        """
        if calls < 2:
            return False
        if self._is_told is None:
            outer = self._outer
            while outer is not None and not outer.is_told(calls):
                outer = outer._outer
            self._is_told = outer is None and self._helps(self)
        return self._is_told

    def explains(self, other: Finding) -> bool:
        """Return whether the cell is or calls a layer that joins its parameters for each call."""
        if other.kind != "alone" or OWN_PARAMETERS not in other.reason:
            return False
        where, code = other.where, self._code
        if where == self.where or code is None:
            return where == self.where
        lines = [line for _, line in dis.findlinestarts(code) if line]
        return where.filename == code.co_filename and min(lines) <= where.line <= max(lines)

    def finding(self, calls: int) -> Finding:
        """Return the finding for a call that recorded as many calls."""
        kind, name = self._names
        instead = f"its operators are {calls} calls instead of one" if calls else "it runs at once"
        return Finding("idle", kind, f"block {name} is not hybridized: {instead}", 1, self.where)


def _described(block: Any, args: Tuple[Any, ...]) -> Any:
    types: List[int] = []
    places: List[int] = []
    try:
        _, spec = recording.flatten(args)
        if not hasattr(block, "_scope_defaults"):
            _flatten(args, "input")  # hybridized, Gluon's own blocks take no numbers
        for place, arg in enumerate(args):
            leaves, _ = recording.flatten(arg)
            types += [TYPES.of(leaf) for leaf in leaves]
            places += [place] * len(leaves)
    except (TypeError, ValueError):
        return None
    return (recording.current_mode(), spec, types, tuple(places)) if types else None
