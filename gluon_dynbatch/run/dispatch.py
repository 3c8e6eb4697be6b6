"""From a segment to an executable: one ``CachedOp`` per segment, whatever the width of a launch."""

from __future__ import annotations

import threading
from typing import Any, FrozenSet, List, NamedTuple, Set, Tuple

import mxnet as mx

from .. import rules
from ..lower.segment import Segment
from ..trace.program import load_symbol

#: Held while a ``CachedOp`` is run forward or backward: it is not made for two threads, and MXNet
#: goes backward in a thread of its own while the user's may already go forward again.
ONE_AT_A_TIME = threading.Lock()

#: Operators that may fail on the values they get, which MXNet tells whoever reads a result first,
#: and nobody else.
FAIL_ON_VALUES = frozenset(["Custom"]) | {
    f"_linalg_{name}" for name in ("gelqf", "gesvd", "inverse", "potrf", "potri", "syevd")
}


class Executable(NamedTuple):
    """A compiled segment."""

    run: Any
    #: What each input of `run` is: ("in", input of the segment) or ("param", parameter of it).
    arguments: Tuple[Tuple[str, int], ...]
    #: Arguments that running changes, such as running means.
    mutated: FrozenSet[int]
    #: Arguments whose values the backward pass may read.
    read_back: FrozenSet[int]
    #: Whether running may fail, depending on values.
    fallible: bool


class Dispatcher:
    """Compiles segments on first use and counts how often that happened."""

    def __init__(self) -> None:
        #: Number of ``CachedOp`` objects built so far.
        self.built = 0

    def executable(self, segment: Segment) -> Executable:
        """Return the executable of `segment`."""
        if segment.compiled is None:
            symbol = load_symbol(segment.nodes, segment.heads)
            order = symbol.list_inputs()
            known = {f"{kind}{number}": (kind, number) for kind, number in segment.arguments}
            arguments = tuple(known[name] for name in order)
            data = [i for i, (kind, _) in enumerate(arguments) if kind == "in"]
            rest = [i for i, (kind, _) in enumerate(arguments) if kind != "in"]
            flags: List[Tuple[str, Any]] = [("data_indices", data), ("param_indices", rest)]
            if len(segment.heads) > 1:
                # MXNet takes small graphs apart when it records them; a result that depends on no
                # variable would then not be in a graph, and could not be differentiated.
                flags.append(("inline_limit", 0))
            auxiliary = set(symbol.list_auxiliary_states())
            mutated = frozenset(i for i, name in enumerate(order) if name in auxiliary)
            read = _read_back(segment)
            read_back = frozenset(i for i, name in enumerate(order) if name in read)
            fallible = any(node["op"] in FAIL_ON_VALUES for node in segment.nodes)
            segment.compiled = Executable(
                mx.nd.CachedOp(symbol, flags), arguments, mutated, read_back, fallible
            )
            self.built += 1
        return segment.compiled  # type: ignore[no-any-return]


def _read_back(segment: Segment) -> Set[str]:
    """Name the nodes whose values some operator's gradient may need."""
    found = set()
    for node in segment.nodes:
        unread = rules.UNREAD_IN_BACKWARD.get(node["op"], ())
        for place, (row, _, _) in enumerate(node["inputs"]):
            if place not in unread:
                found.add(segment.nodes[row]["name"])
    return found
