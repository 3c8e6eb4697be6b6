"""``debug=True``: run every recorded call by itself, as it was written, and compare.

What calls read is watched from their recording on.
"""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from . import rules
from .analysis import Budget, analyze
from .arrays import TYPES
from .dispatch import Dispatcher
from .errors import MismatchError, user_message
from .execute import Execution
from .expand import expand, read_nodes
from .plan import make_plan
from .record import Recording
from .segment import SegmentTable
from .trace import VARIABLE
from .where import where_of
from .wiring import ABSENT

#: Relative and absolute tolerance by dtype; other dtypes have to agree exactly.
TOLERANCES = {"float16": (1e-2, 1e-2), "float32": (1e-4, 1e-5), "float64": (1e-9, 1e-10)}


class Watch:
    """Notices writes into arrays that pending calls read, however they are made.

    Writes by way of MXNet make the pending calls run first.  Others, such as those into a NumPy
    array whose memory an array of MXNet shares, can only be seen by their result.
    """

    def __init__(self) -> None:
        #: Per array from outside: what it was when a call was first given it, and at which line.
        self._seen: List[Tuple[NDArray, bytes, Tuple[Any, int], str]] = []
        self._entries: Set[int] = set()
        self._externals = 0

    def note(self, recording: Recording) -> None:
        """Look at the arrays and parameters that the last recorded call brought along."""
        where, entry = recording.wheres[-1], recording.entries[recording.node_entry[-1]]
        arrays = [(a, "an array") for a in recording.externals[self._externals :]]
        self._externals = len(recording.externals)
        if entry.id not in self._entries:
            self._entries.add(entry.id)
            for parameter in entry.program.parameters.values():
                name = f"parameter {parameter.name!r}"
                arrays += [(data, name) for data in parameter.list_data()]
        self._seen += [(a, a.asnumpy().tobytes(), where, name) for a, name in arrays]

    def check(self) -> None:
        """Raise if an array is not what it was; then begin anew.

        Raises
        ------
        MismatchError
            Names the line of the first call that reads such an array.
        """
        seen, self._seen = self._seen, []
        self._entries.clear()
        self._externals = 0
        for array, before, where, name in seen:
            if array.asnumpy().tobytes() != before:
                raise MismatchError(
                    user_message(
                        f"{name} of shape {array.shape} that a recorded call reads was written to "
                        "before the call was computed",
                        where_of(where),
                        None,
                        "call batch.flush() before the write, or give the call a copy",
                    )
                )


def compare_with_loop(
    recording: Recording,
    execution: Execution,
    terms: np.ndarray,
    segments: SegmentTable,
    dispatcher: Dispatcher,
) -> None:
    """Compare all results of a flush with those of the same calls one by one.

    Parameters
    ----------
    recording : Recording
        What was recorded.
    execution : Execution
        The run to check.
    terms : numpy.ndarray of int, shape (values,)
        Where the run holds each recorded value; `ABSENT` for what it does not hold.
    segments, dispatcher
        Where segments are kept and compiled.

    Raises
    ------
    MismatchError
        Names the first recorded call with another result.
    """
    nodes = read_nodes(recording)
    weights = np.zeros(len(recording.value_type), dtype=bool)
    units = expand(recording, "alone", weights, segments)
    groups = analyze(units.graph, "depth", Budget(visits=0)).groups
    plan = make_plan(
        units, groups, [TYPES[recording.value_type[v]] for v in recording.external_values]
    )
    loop = Execution(
        plan, recording.externals, dispatcher, lambda node: where_of(recording.wheres[node])
    )
    loop.run()
    random: Set[int] = set()
    tolerances = _tolerances(recording)
    for node, number in enumerate(recording.node_entry):
        entry = recording.entries[number]
        first = int(nodes.operand0[node])
        read = memoryview(recording.sources)[first : first + len(entry.in_types)]
        values = range(
            recording.node_value0[node], recording.node_value0[node] + len(entry.out_types)
        )
        if _draws(entry) or random.intersection(read):
            random.update(values)
            continue
        for value, kind in zip(values, entry.out_array_types):
            if terms[value] == ABSENT:
                continue
            wanted = _values(loop, int(units.value_term[value]), kind)
            got = _values(execution, int(terms[value]), kind)
            relative, absolute = tolerances.get(kind.dtype, (0, 0))
            if not np.allclose(got, wanted, relative, absolute, equal_nan=True):
                raise MismatchError(
                    user_message(
                        f"call {node} gives other values in its batch than alone: off by "
                        f"up to {np.abs(got - wanted).max():g} in shape {kind.shape}",
                        where_of(recording.wheres[node]),
                        entry.name,
                        "please report this with the program; analysis_budget=0 avoids batching",
                    )
                )


def _tolerances(recording: Recording) -> Dict[str, Tuple[float, float]]:
    """Return the tolerance of the coarsest type for all: a cast to a finer one adds nothing."""
    found = {TYPES[kind].dtype for kind in recording.value_type}
    coarsest = max((TOLERANCES[dtype] for dtype in found & TOLERANCES.keys()), default=(0, 0))
    return dict.fromkeys(TOLERANCES, coarsest)


def _draws(entry: Any) -> bool:
    return any(row.op != VARIABLE and rules.is_random(row.op) for row in entry.program.rows)


def _values(execution: Execution, term: int, kind: Any) -> Any:
    arena, element = execution.plan.place(term)
    return execution.buffers.elements(arena, element, kind.shape).asnumpy()
