"""Blocks that override ``forward`` although a call of them could be one recorded call."""

from __future__ import annotations

from itertools import count
from typing import Any, Dict, List, Optional, Tuple
from weakref import WeakSet

from ..errors import Where
from ..native import recording
from ..report.findings import Finding
from .tape import Tape

#: Fewest operators in ``forward`` itself that are worth a finding.
FEW_OPERATORS = 2
#: So many first calls are looked at, then one whenever there are twice as many.
FIRST_LOOKS = 8
#: Classes whose ``forward`` calls hardly any operator itself, or other ones for each sample.
_DYNAMIC: WeakSet[Any] = WeakSet()


class Overridden(recording.ClassCalls):
    """The calls, in one scope, of a class of blocks that override ``forward``.

    Some of them are looked at.  If ``forward`` itself calls operators, and all of these calls
    record the same, its class need not have been dynamic.
    """

    def __init__(self, block: Any):
        self.calls, self.next_look = 0, -1 if type(block) in _DYNAMIC else 1
        self._block_class = type(block)
        self._name = type(block).__name__
        self._is_dynamic = False
        #: What each call records, and where its first operator is; how many operators there are,
        #: and how many calls were looked at.
        self._recorded: Optional[Tuple[Any, ...]] = None
        self._where: Optional[Where] = None
        self._operators = self._looks = 0

    def begin(self) -> bool:
        """Count a call, and return whether it is to be looked at."""
        self.calls += 1
        looks = self.calls == self.next_look
        if looks:
            self.next_look += 1 if self.calls < FIRST_LOOKS else self.calls
        return looks

    def see(self, tape: Tape, first: int) -> None:
        """Look at a call that has recorded the nodes of a tape from `first` on."""
        code = getattr(self._block_class.forward, "__code__", None)
        entries: Dict[int, Any] = tape.entries
        callees = [entries[number] for number in tape.node_entry[first:]]
        own = [
            place.where
            for entry, place in zip(callees, map(tape.place, count(first)))
            if entry.block_id is None and place.code is code
        ]
        recorded = tuple(entry.token for entry in callees)
        if len(own) < FEW_OPERATORS or self._recorded not in (None, recorded):
            _DYNAMIC.add(self._block_class)
            self.give_up()
            return
        self._recorded, self._where, self._operators = recorded, own[0], len(own)
        self._looks += 1

    def give_up(self) -> None:
        """Look at no more calls of this scope."""
        self.next_look, self._is_dynamic = -1, True

    def findings(self) -> List[Finding]:
        """Return what the report says of the calls, if anything."""
        if self._is_dynamic or self._looks < 2 or self._where is None:
            return []
        reason = (
            f"it overrides forward, so its {self._operators} operators are calls of their own; each"
            f" call of {self._name} makes the same ones"
        )
        return [Finding("forward", self._name, reason, self.calls, self._where)]
