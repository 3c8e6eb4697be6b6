"""Calls of operators that join or add up any number of arrays: many arrays are recorded in parts.

A call is traced once for each number of arrays, which takes some 30 microseconds per array.  A loop
may join another number of results for each minibatch.  There are few sizes of parts, so most calls
of parts are known.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import mxnet as mx

from ..native import recording
from .operators import PART, OperatorInfo
from .state import ThreadRecorder

#: Calls of up to so many arrays are recorded as they are; and the most arrays of a part.
MOST_WHOLE, MOST_PART = 128, 1024
#: Operators that do the same to joined parts as to all arrays.
JOINS = frozenset(
    ["Concat", "_npi_concatenate", "_npi_vstack", "_npi_hstack", "_npi_dstack", "_npi_column_stack"]
)
#: Operators that give each array a place on a new axis; parts are joined along that axis.
STACKS: Dict[str, Callable[..., Any]] = {
    "stack": lambda parts, axis: mx.nd.concat(*parts, dim=axis),
    "_npi_stack": lambda parts, axis: vars(mx.np)["concatenate"](parts, axis=axis),
}
ADD_N = "add_n"
WIDE = frozenset([*JOINS, *STACKS, ADD_N])

#: The results of a call, or why it runs at once.
CallResults = Union[List[Any], str]


def part_sizes(count: int) -> List[int]:
    """Split a number of arrays into powers of two, the largest first, and a rest."""
    sizes = []
    while count > MOST_WHOLE:
        sizes.append(min(1 << (count.bit_length() - 1), MOST_PART))
        count -= sizes[-1]
    return sizes + [count] * (count > 0)


def record_in_parts(
    recorder: ThreadRecorder, info: OperatorInfo, token: Tuple[Any, ...], arrays: Sequence[Any]
) -> CallResults:
    """Record the call of an operator in parts."""
    of_part = *token, PART
    callee = recorder.operators.get(of_part) or recorder.library.operator(of_part, info)
    record = partial(recording.call, recorder, callee)
    if info.name == ADD_N:
        return _sum(record, arrays)
    if info.name in STACKS:
        axis = int(dict(zip(*token[2:])).get("axis", "0"))
        parts = _parts(record, arrays)
        whole = isinstance(parts, str) or len(parts) == 1
        return parts if whole else [STACKS[info.name](parts, axis)]
    joined: CallResults = list(arrays)
    while not isinstance(joined, str) and len(joined) > 1:
        joined = _parts(record, joined)
    return joined


def _parts(record: Callable[[Sequence[Any]], CallResults], arrays: Sequence[Any]) -> CallResults:
    """Record a call for each part; return the results."""
    parts, first = [], 0
    for size in part_sizes(len(arrays)):
        part = record(arrays[first : first + size])
        if isinstance(part, str):
            return part
        parts += part
        first += size
    return parts


def _sum(record: Callable[[Sequence[Any]], CallResults], arrays: Sequence[Any]) -> CallResults:
    """Add up the first arrays, and then more of them to the sum: the order is that of one call."""
    while True:
        size = part_sizes(len(arrays))[0]
        total = record(arrays[:size])
        if isinstance(total, str) or size == len(arrays):
            return total
        arrays = [*total, *arrays[size:]]
