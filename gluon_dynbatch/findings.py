"""What a report finds: why calls ran alone, and why batches ended early.

Findings are collected while a scope is open, so they are plain data; `advice.py` has the texts.
"""

from __future__ import annotations

import itertools
from typing import Dict, Iterable, List, NamedTuple, Tuple, TypeVar

from .errors import Where

Key = TypeVar("Key")


class Alone(NamedTuple):
    """Calls of one block or operator that did not merge, or not all with each other, and why.

    Attributes
    ----------
    name : str
        Name of the block or operator.
    reason : str
        The reason, as one sentence.
    calls : int
        Number of calls.
    where : Where
        The line of one of the calls.
    """

    name: str
    reason: str
    calls: int
    where: Where

    def __str__(self) -> str:
        """Return the calls and the reason, and on a second line the place."""
        return f"{self.calls} x {self.name}: {self.reason}\n{'':12}{self.where}"


def add_calls(totals: Dict[Key, Alone], key: Key, added: Alone) -> None:
    """Add calls to the total of `key`, which keeps the line of its first call."""
    total = totals.get(key)
    totals[key] = added if total is None else total._replace(calls=total.calls + added.calls)


def by_frequency(*groups: Iterable[Alone]) -> List[Alone]:
    """Add up calls of equal name and reason, and sort them, the most frequent first."""
    totals: Dict[Tuple[str, str], Alone] = {}
    for calls in itertools.chain(*groups):
        add_calls(totals, (calls.name, calls.reason), calls)
    return sorted(totals.values(), key=lambda total: -total.calls)


#: Functions that change an array, as users write them.
CHANGES = {
    "__setitem__": "an assignment to elements",
    "__iadd__": "+=",
    "__isub__": "-=",
    "__imul__": "*=",
    "__idiv__": "/=",
    "__itruediv__": "/=",
    "__imod__": "%=",
    "attach_grad": "attach_grad()",
}
#: How users write the functions that read values, if not by their names.
WRITTEN = {
    **CHANGES,
    "_index": "an index array",
    "__getitem__": "an index array",
    "__bool__": "if or bool()",
    "__nonzero__": "if or bool()",
    "__array__": "numpy",
    "__reduce__": "pickle or copy",
    "__repr__": "print()",
    "__str__": "print()",
}


class Cause(NamedTuple):
    """Why a line ends a batch early.

    Attributes
    ----------
    kind : str
        A key of `advice.KINDS`.
    call : str
        The function that the line calls, as the user writes it; empty if it is not known.
    in_map : bool
        Whether samples of ``map`` wait there for each other, so that one flush serves all of them.
    """

    kind: str = "value"
    call: str = ""
    in_map: bool = False

    @classmethod
    def of(cls, function: str, changes: bool, in_map: bool) -> Cause:
        """Return the cause for the name of a function, which may change arrays."""
        if function in ("backward", "grad"):
            kind = "backward"
        elif function in ("_index", "__getitem__"):
            kind = "index"
        else:
            changes = changes and function != "waitall" or function in CHANGES
            kind = "change" if changes else "value"
        plain = function.strip("_")
        return cls(kind, WRITTEN.get(function, f"{plain}()" if plain else ""), in_map)


class Origin(NamedTuple):
    """The first call of an operator on ordinary arrays, which is not recorded."""

    where: Where
    #: Name of the outermost block around it that is not hybridized; or empty.
    inactive: str


class Reasons(NamedTuple):
    """Why the launches of a scope were narrow."""

    forced: Dict[Where, int]
    causes: Dict[Where, Cause]
    alone: Tuple[Alone, ...]
    split: Tuple[Alone, ...]


class Traced:
    """Counts calls of blocks that are traced once per structure."""

    def __init__(self) -> None:
        #: Calls that reused a piece of the tape, and calls that ran ``forward``.
        self.known = self.new = 0
        #: Milliseconds in ``forward``; a nested call counts in its own time and in its caller's.
        self.new_ms = 0.0
        #: Calls from which no piece was kept, by block and reason.
        self.refused: Dict[Tuple[str, str], Alone] = {}
