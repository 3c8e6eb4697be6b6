"""``debug=True``: run every recorded call by itself, as it was written, and compare every launch.

What calls read is watched from their recording on.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Set, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from . import rules
from .analysis import Budget, analyze
from .arrays import TYPES
from .dispatch import Dispatcher
from .errors import MismatchError, user_message
from .execute import Execution
from .expand import expand, read_nodes
from .plan import Plan, make_plan
from .record import Recording
from .segment import SegmentTable
from .trace import VARIABLE
from .where import where_of

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


class Comparison:
    """All recorded calls, run one by one, against which each launch of a flush is held.

    Parameters
    ----------
    recording : Recording
        What was recorded.
    plan : Plan
        The launches to check.
    terms : numpy.ndarray of int, shape (values,)
        Where their run holds each recorded value; negative for what no launch makes.
    segments, dispatcher
        Where segments are kept and compiled.
    """

    def __init__(
        self,
        recording: Recording,
        plan: Plan,
        terms: np.ndarray,
        segments: SegmentTable,
        dispatcher: Dispatcher,
    ):
        self._recording = recording
        self._terms = terms
        self._tolerances = _tolerances(recording)
        weights = np.zeros(len(recording.value_type), dtype=bool)
        self._units = expand(recording, "alone", weights, segments)
        groups = analyze(self._units.graph, "depth", Budget(visits=0)).groups
        types = [TYPES[recording.value_type[v]] for v in recording.external_values]
        self._loop = Execution(
            make_plan(self._units, groups, types),
            recording.externals,
            dispatcher,
            lambda node: where_of(recording.wheres[node]),
        )
        self._loop.run()
        #: Per launch, what it makes: (call, value), in the order of the calls.
        self._made: Dict[int, List[Tuple[int, int]]] = {}
        launch_of = np.zeros(plan.units.graph.size, dtype=np.int64)
        for number, launch in enumerate(plan.launches):
            launch_of[launch.units] = number
        for node, value in _comparable(recording):
            if terms[value] >= 0:
                number = int(launch_of[plan.units.slot_unit[terms[value]]])
                self._made.setdefault(number, []).append((node, value))

    def check(self, execution: Execution, number: int) -> None:
        """Compare what launch `number` made, as soon as it has run.

        Raises
        ------
        MismatchError
            Names the first recorded call with another result.
        """
        for node, value in self._made.get(number, ()):
            kind = TYPES[self._recording.value_type[value]]
            wanted = _values(self._loop, int(self._units.value_term[value]), kind)
            got = _values(execution, int(self._terms[value]), kind)
            relative, absolute = self._tolerances.get(kind.dtype, (0, 0))
            if not np.allclose(got, wanted, relative, absolute, equal_nan=True):
                raise MismatchError(
                    user_message(
                        f"call {node} gives other values in launch {number} than alone: off by "
                        f"up to {np.abs(got - wanted).max():g} in shape {kind.shape}",
                        where_of(self._recording.wheres[node]),
                        self._recording.entries[self._recording.node_entry[node]].name,
                        "please report this with the program; analysis_budget=0 avoids batching",
                    )
                )


def _comparable(recording: Recording) -> Iterator[Tuple[int, int]]:
    """Yield calls with their results, but for those that depend on random numbers."""
    nodes = read_nodes(recording)
    random: Set[int] = set()
    for node, number in enumerate(recording.node_entry):
        entry = recording.entries[number]
        first = int(nodes.operand0[node])
        read = memoryview(recording.sources)[first : first + len(entry.in_types)]
        low = recording.node_value0[node]
        values = range(low, low + len(entry.out_types))
        if _draws(entry) or random.intersection(read):
            random.update(values)
            continue
        for value in values:
            yield node, value


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
