"""``debug=True``: run every recorded call by itself, as it was written, and compare its values.

What calls read is watched from their recording on.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Set, Tuple

import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from .errors import MismatchError
from .lower.expand import expand
from .plan.make import Outside, make_plan
from .record.tape import Reads, Tape
from .record.types import TYPES, memory_of
from .run.dispatch import Dispatcher
from .run.execute import Execution
from .run.prepare import Prepared

#: Relative and absolute tolerance by dtype; other dtypes have to agree exactly.
TOLERANCES = {"float16": (1e-2, 1e-2), "float32": (1e-4, 1e-5), "float64": (1e-9, 1e-10)}


def _look(array: NDArray, parameter: Optional[Parameter]) -> Dict[str, Any]:
    """Return what pending calls rely on, by what is said if it changes."""
    gradient = array.grad
    return {
        "was given other arrays": parameter and any(array is own for own in parameter.list_data()),
        "got grad_req {!r}": parameter and parameter.grad_req,
        "was written to": array.asnumpy().tobytes(),
        # Not its address, which MXNet's engine may still have to allocate.
        "was given another gradient": gradient is not None and memory_of(gradient.handle)[0],
    }


class Watch:
    """Notices what happens to arrays that pending calls read, however it is done.

    What is done by way of MXNet makes the pending calls run first.  Anything else, such as a write
    into a NumPy array whose memory an array of MXNet shares, can only be seen by its result.
    """

    def __init__(self) -> None:
        #: By ids: arrays, the parameter of each if it is one's, who reads it, what it was, and
        #: its gradient, held so that its memory stays its own.
        self._seen: Dict[Any, Tuple[NDArray, Optional[Parameter], Any, Dict[str, Any], Any]] = {}
        #: The tape whose calls read them, and what was seen of that.
        self._tape: Any = None
        self._reads = Reads()

    def note(self, tape: Tape) -> None:
        """Look at the arrays and parameters that the last recorded call brought along."""
        if tape is not self._tape:
            self._tape, self._reads = tape, Reads()
        for array, parameter in self._reads.later(tape):
            if (id(array), id(parameter)) not in self._seen:
                look = array, parameter, tape.wheres[-1], _look(array, parameter), array.grad
                self._seen[id(array), id(parameter)] = look

    def check(self) -> None:
        """Raise if an array is not what it was; then begin anew.

        Raises
        ------
        MismatchError
            Names the line of the first call that reads such an array.
        """
        seen, self._seen = self._seen, {}
        for array, parameter, place, before, _ in seen.values():
            now = _look(array, parameter)
            change = next((what for what in before if before[what] != now[what]), None)
            if change is not None:
                change = change.format(parameter and parameter.grad_req)
                name = "an array" if parameter is None else f"parameter {parameter.name!r}"
                raise MismatchError(
                    f"{name} of shape {array.shape}, which a recorded call reads, {change} "
                    "before the call was computed",
                    place.where,
                    advice="call batch.flush() before the change, or pass a copy to the call",
                )


def run_alone(recording: Tape, dispatcher: Dispatcher) -> Execution:
    """Run all recorded calls one by one; return what has their values."""
    units = expand(recording, "unbatched", ())
    one_by_one = np.arange(units.dependencies.size, dtype=np.int32)
    outside = Outside(*TYPES.columns(recording.external_type), TYPES.kinds)
    loop = make_plan(units, one_by_one, outside)
    made = Execution(
        loop,
        recording.externals,
        dispatcher,
        lambda node: recording.wheres[node].where,
        Prepared(loop, None, dispatcher.natives(loop)).forward,
    )
    made.run()
    return made


def compare(recording: Tape, alone: Execution, merged: Execution) -> None:
    """Compare what launches made of recorded calls with what the calls made one by one.

    Raises
    ------
    MismatchError
        Names the first recorded call with another result.
    """
    # The tolerance of the coarsest type is that of all: a cast to a finer one adds nothing.
    found = {TYPES[kind].dtype for kind in recording.value_type} & TOLERANCES.keys()
    tolerance = max((TOLERANCES[dtype] for dtype in found), default=(0, 0))
    graph, launch_of = merged.plan.graph, merged.plan.members.launch
    for node, value in _comparable(recording):
        if graph.value_term[value] < 0:
            continue
        kind = TYPES[recording.value_type[value]]
        wanted, got = _values(alone, value, kind), _values(merged, value, kind)
        relative, absolute = tolerance if kind.dtype in TOLERANCES else (0, 0)
        if not np.allclose(got, wanted, relative, absolute, equal_nan=True):
            number = launch_of[graph.slot_unit[graph.value_term[value]]]
            raise MismatchError(
                f"call {node} has other values in launch {number} than by itself: they "
                f"differ by up to {np.abs(got - wanted).max():g}, in shape {kind.shape}",
                recording.wheres[node].where,
                recording.entries[recording.node_entry[node]].name,
                "please report this with the program; analysis_budget=0 avoids batching",
            )


def _comparable(recording: Tape) -> Iterator[Tuple[int, int]]:
    """Yield calls with their results, but for those that depend on random numbers."""
    random: Set[int] = set()
    for node, call in enumerate(recording.calls()):
        if call.entry.program.draws or any(value in random for value, _ in call.operands):
            random.update(call.results)
            continue
        for value in call.results:
            yield node, value


def _values(execution: Execution, value: int, kind: Any) -> Any:
    arena, element = execution.plan.place(int(execution.plan.graph.value_term[value]))
    return execution.elements(arena, element, kind.shape).asnumpy()
