"""What a report finds: why calls ran alone, and which lines forced a flush.

Findings are collected while a scope is open, so they are plain data; `advice.py` has their texts.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import (
    Any,
    Callable,
    DefaultDict,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Tuple,
)

from ..errors import Where

#: In place of a line that is not known.
NO_LINE = Where("", 0, "")
#: Kinds of lines that force a flush.
READS = ("backward", "index", "change", "value", "map")
#: Kinds of which each line is one finding; others are one per name and reason.
BY_LINE = (*READS, "turn", "split", "idle", "forward")


class Finding(NamedTuple):
    """Calls of one block or operator that are worth a look, and what to do about them.

    Attributes
    ----------
    kind : str
        A key of `advice.KINDS`.  ``alone``: they did not merge.  ``split``: not all merged with
        each other.  ``value``, ``index``, ``change``, ``backward``: they forced a flush.
        ``map``: samples of ``map`` wait there for each other.  ``turn``: samples wait there for
        earlier ones.  ``ordinary``: they were not recorded.  ``idle``: they would be one recorded
        call each if their block was hybridized, ``forward``: if it did not override ``forward``.
        ``chain``: each waits for the one before.  ``unkept``: they are not traced once.  Of all
        calls of a scope: ``at once``, they were not recorded; ``one by one``, no two shared a
        launch; ``at best``, fewer launches may be possible; ``none``, there was no call.  Other
        kinds are found only by ``explain``.
    name : str
        The block, operator, function or attribute; empty if it is not known.
    reason : str
        The reason, as one sentence.
    calls : int
        Number of calls.
    where : Where
        The line of one of the calls; that of the scope, if it is about all of its calls.
    advice : str
        What to do; empty if there is nothing to do.
    """

    kind: str
    name: str
    reason: str
    calls: int
    where: Where
    advice: str = ""

    @property
    def key(self) -> Tuple[Any, ...]:
        """What findings have in common that are one."""
        if self.kind in READS:
            return "line", self.where
        if self.kind == "chain":
            return "chain", self.where
        return (self.kind, self.name, self.where if self.kind in BY_LINE else self.reason)

    def lines(self, place: Callable[[Where], str] = str) -> List[str]:
        """Return the finding as lines of text, with the user's line as `place` writes it."""
        calls = f"{self.calls} x {self.name}"
        if not self.name:
            calls = f"{self.calls} call" + "s" * (self.calls != 1)
        lines = [calls if self.where == NO_LINE else f"{calls} at {place(self.where)}"]
        return lines + [self.reason] * bool(self.reason)

    def __str__(self) -> str:
        """Return the finding in one line."""
        return ": ".join(self.lines()) + f"; {self.advice}" * bool(self.advice)


class Condition(Protocol):
    """What has to hold for calls to be a finding, and what this explains."""

    def is_told(self, calls: int) -> bool:
        """Return whether so many calls are a finding."""

    def explains(self, other: Finding) -> bool:
        """Return whether another finding has the same cause, if this one is told."""


class Findings:
    """Adds up findings, in the order of their first calls."""

    def __init__(self) -> None:
        self._first: Dict[Any, Finding] = {}
        self._calls: DefaultDict[Any, int] = defaultdict(int)
        #: Conditions of findings, which are asked when somebody reads these.
        self._conditions: Dict[Any, Condition] = {}
        #: Functions that return more findings when somebody reads these.
        self.sources: List[Callable[[], Iterable[Finding]]] = []

    def count(
        self,
        key: Any,
        make: Callable[[], Finding],
        condition: Optional[Condition] = None,
    ) -> None:
        """Count one call, for a finding that `make` returns for the first one."""
        if key not in self._first:
            self._first[key] = make()
            if condition is not None:
                self._conditions[key] = condition
        self._calls[key] += 1

    def is_explained(self, other: Finding) -> bool:
        """Return whether a finding that is told has the same cause as another one."""
        return any(
            condition.explains(other) and condition.is_told(self._calls[key])
            for key, condition in self._conditions.items()
        )

    def count_again(self, key: Any, calls: int) -> None:
        """Count more calls of a finding that `count` has counted before."""
        self._calls[key] += calls

    def add(self, findings: Iterable[Finding]) -> Findings:
        """Add all calls of other findings, and return itself."""
        for finding in findings:
            self._first.setdefault(finding.key, finding)
            self._calls[finding.key] += finding.calls
        return self

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over the findings with the numbers of their calls, most frequent first."""
        for key, calls in sorted(self._calls.items(), key=itemgetter(1), reverse=True):
            if key not in self._conditions or self._conditions[key].is_told(calls):
                yield self._first[key]._replace(calls=calls)
        for source in self.sources:
            yield from source()

    def __contains__(self, finding: Finding) -> bool:
        return finding.key in self._first


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


def read_by(function: str, changes: bool, in_map: bool) -> Tuple[str, str]:
    """Return kind and name of a finding for a line that forces a flush.

    Takes the name of the function that the line calls, whether that may change arrays, and whether
    samples of ``map`` wait there for each other, so that one flush serves all of them.
    """
    if function in ("backward", "grad"):
        kind = "backward"
    elif function in ("_index", "__getitem__"):
        kind = "index"
    elif changes and function != "waitall" or function in CHANGES:
        kind = "change"
    else:
        kind = "map" if in_map else "value"
    plain = function.strip("_")
    return kind, WRITTEN.get(function, f"{plain}()" if plain else "")


class Traced:
    """Counts calls of blocks that are traced once per structure."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        #: Calls that reused a piece of the tape; calls that ran ``forward`` and were traced; and
        #: those that were not, as structures hardly ever come again.
        self.known = self.new = self.left = 0
        #: Milliseconds in ``forward``; a nested call counts in its own time and in its caller's.
        self.new_ms = 0.0

    @property
    def refused(self) -> List[Finding]:
        """Calls from which no piece was kept."""
        return [finding for finding in self._found if finding.kind == "unkept"]
