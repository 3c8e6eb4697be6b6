"""Checks of ``debug=True``: compare launches with calls run one by one, and watch their inputs."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from . import rules
from .errors import MismatchError
from .lower.expand import expand
from .native.recording import Place
from .plan.make import Externals, make_plan
from .record.tape import ExternalReads, Tape
from .record.types import TYPES, memory_of
from .run.buffers import Arenas
from .run.dispatch import Dispatcher
from .run.execute import Execution, execute
from .run.prepare import prepare
from .schedule.dependencies import Array

#: Tolerances by dtype: relative, absolute, and the least absolute one as a share of the largest
#: result of the calls of a kind, as a sum whose terms cancel has the rounding errors of its terms.
#: Values of other dtypes must be equal.
LAUNCH_TOLERANCES = {
    "float16": (1e-2, 1e-2, 1e-2),
    "float32": (1e-4, 1e-5, 1e-5),
    "float64": (1e-9, 1e-10, 1e-13),
}

#: Rounding errors within a call, in those that the last digits of its arguments would cause.
MOST_ROUNDED = 16

#: A call, a result of it that differs, the largest difference, and the type.
Wrong = Tuple[int, int, float, int]

#: Elements that are compared at a time.
MOST_COMPARED = 1 << 20


class ReadArray(NamedTuple):
    """An array that a pending call reads, as it was when the call was recorded."""

    array: NDArray
    #: The parameter that the array belongs to, if any.
    parameter: Optional[Parameter]
    #: The place of the first call that reads the array.
    place: Place
    state: Dict[str, Any]
    #: Referenced so that its chunk of memory is not reused; the state has the address.
    gradient: Optional[NDArray]


def _state_of(array: NDArray, parameter: Optional[Parameter]) -> Dict[str, Any]:
    """Return what must not change while a call is pending, by the text for a change of it."""
    gradient = array.grad
    return {
        "was given other arrays": parameter and any(array is a for a in parameter.list_data()),
        "got grad_req {!r}": parameter and parameter.grad_req,
        "was written to": array.asnumpy().tobytes(),
        # The address of the chunk: that of the data is unknown until the engine allocates it.
        "was given another gradient": gradient is not None and memory_of(gradient.handle)[0],
    }


class Watch:
    """Detects changes of arrays that pending calls read, whatever causes them.

    MXNet's own functions run the pending calls before they change such an array.  Other changes,
    such as a write to a NumPy array that shares memory with an MXNet array, show only afterwards.
    """

    def __init__(self) -> None:
        #: By ids of array and parameter.
        self._snapshots: Dict[Tuple[int, int], ReadArray] = {}
        #: The tape of the pending calls, and how far its reads are covered.
        self._tape: Optional[Tape] = None
        self._reads = ExternalReads()

    def note(self, tape: Tape) -> None:
        """Take a snapshot of the arrays and parameters that the last recorded call added."""
        if tape is not self._tape:
            self._tape, self._reads = tape, ExternalReads()
        for array, parameter in self._reads.later(tape):
            key = id(array), id(parameter)
            if key not in self._snapshots:
                state = _state_of(array, parameter)
                place = tape.place(len(tape.node_entry) - 1)
                self._snapshots[key] = ReadArray(array, parameter, place, state, array.grad)

    def check(self) -> None:
        """Raise `MismatchError` if an array has changed since its snapshot; discard all."""
        snapshots, self._snapshots = self._snapshots, {}
        for snapshot in snapshots.values():
            array, parameter, before = snapshot.array, snapshot.parameter, snapshot.state
            after = _state_of(array, parameter)
            change = next((text for text in before if before[text] != after[text]), None)
            if change is not None:
                change = change.format(parameter and parameter.grad_req)
                name = "an array" if parameter is None else f"parameter {parameter.name!r}"
                raise MismatchError(
                    f"{name} of shape {array.shape}, which a recorded call reads, {change} "
                    "before the call was computed",
                    snapshot.place.where,
                    advice="call batch.flush() before the change, or pass a copy to the call",
                )


def run_alone(recording: Tape, dispatcher: Dispatcher, rounded: bool = False) -> Execution:
    """Run all recorded calls one by one; return the execution, whose arenas hold their values.

    With `rounded`, the last digits of arrays of floats from outside the flush are changed.
    """
    graph = expand(recording, "unbatched", ())
    one_by_one = np.arange(graph.dependencies.size, dtype=np.int32)
    outside = Externals(*TYPES.columns(recording.external_type), TYPES.kinds)
    plan = make_plan(graph, one_by_one, outside, tuple(map(dispatcher.kernels, graph.segments)))
    program, where = prepare(plan, None).forward, lambda node: recording.place(node).where
    externals = recording.externals
    if rounded:
        draw = np.random.default_rng(1)
        externals = [_rounded(array, draw) for array in externals]
    return execute(Arenas(plan), program, externals, dispatcher, where)


def _rounded(array: NDArray, draw: np.random.Generator) -> NDArray:
    """Return a copy of an array, of whose floats some are larger or smaller by a rounding error."""
    values = array.asnumpy()
    if values.dtype.kind == "f":
        steps = draw.integers(-1, 2, values.shape).astype(values.dtype)
        values = values * (1 + steps * np.finfo(values.dtype).eps)
    copy: NDArray = mx.nd.array(values, array.ctx, values.dtype)
    return copy


def compare(
    recording: Tape, alone: Execution, merged: Execution, rounded: Callable[[], Execution]
) -> None:
    """Raise `MismatchError` if results of launches differ from those of calls run one by one.

    If they differ by more than results usually do, `rounded` tells how much rounding errors of
    their arguments change them, as a mean of large numbers is subtracted from each of these.
    """
    # The tolerance of the coarsest dtype applies to all: a cast to a finer one restores nothing.
    dtypes = {TYPES[kind].dtype for kind in recording.value_type} & LAUNCH_TOLERANCES.keys()
    operators = (op.op for segment in alone.plan.graph.segments for op in segment.ops)
    if dtypes and any(rules.of(op).single for op in operators):
        dtypes.add("float32")
    tolerance = max((LAUNCH_TOLERANCES[dtype] for dtype in dtypes), default=(0, 0, 0))
    graph, launch_of = merged.plan.graph, merged.plan.members.launch
    results = np.array(list(_deterministic_results(recording)), np.int64).reshape(-1, 2)
    results = results[graph.value_term[results[:, 1]] >= 0]
    expected, actual = _Values(alone), _Values(merged)
    wrong: List[Wrong] = []
    for kind, of_kind in _by_kind_of_call(recording, results):
        array_type = TYPES[kind]
        limits = tolerance if array_type.dtype in LAUNCH_TOLERANCES else (0, 0, 0)
        most = max(MOST_COMPARED // max(prod(array_type.shape), 1), 1)
        for low in range(0, len(of_kind), most):
            some = of_kind[low : low + most]
            rows = [run.rows(some[:, 1], prod(array_type.shape)) for run in (expected, actual)]
            relative, absolute, of_largest = limits
            if of_largest:
                absolute = max(absolute, of_largest * _largest(rows[0]))
            equal = np.isclose(rows[1], rows[0], relative, absolute, equal_nan=True).all(axis=1)
            for row in np.flatnonzero(~equal).tolist():
                wrong.append((*some[row].tolist(), _distance(rows[0][row], rows[1][row]), kind))
    if wrong:
        wrong = _without_rounding(wrong, expected, _Values(rounded()))
    if wrong:
        node, value, difference, kind = min(wrong)
        number = launch_of[graph.slot_unit[graph.value_term[value]]]
        raise MismatchError(
            f"call {node} has other values in launch {number} than alone: they differ "
            f"by up to {difference:g}, in shape {TYPES[kind].shape}",
            recording.place(node).where,
            recording.entries[recording.node_entry[node]].name,
            "please report this with the program; analysis_budget=0 avoids batching",
        )


def _without_rounding(wrong: List[Wrong], expected: _Values, rounded: _Values) -> List[Wrong]:
    """Leave out the results that rounding errors of arguments change as much."""

    def change(value: int, kind: int) -> float:
        size = prod(TYPES[kind].shape)
        return _distance(*(run.rows(np.array([value]), size) for run in (expected, rounded)))

    return [one for one in wrong if not one[2] <= MOST_ROUNDED * change(one[1], one[3])]


def _distance(some: Array, others: Array) -> float:
    """Return the largest difference of numbers; integers may be unsigned."""
    return float(np.abs(np.subtract(others, some, dtype=np.float64)).max(initial=0))


def _by_kind_of_call(recording: Tape, results: Array) -> Iterator[Tuple[int, Array]]:
    """Yield the type of results of calls of one kind, with these results; each is in a row."""
    kinds = np.asarray(recording.value_type)[results[:, 1]]
    entries = np.asarray(recording.node_entry)[results[:, 0]]
    for kind in np.unique(kinds).tolist():
        for entry in np.unique(entries[kinds == kind]).tolist():
            yield kind, results[(kinds == kind) & (entries == entry)]


def _largest(values: Array) -> float:
    """Return the largest magnitude of finite values."""
    return float(np.abs(np.where(np.isfinite(values), values, 0)).max(initial=0))


def _deterministic_results(recording: Tape) -> Iterator[Tuple[int, int]]:
    """Yield the calls and results that do not depend on random numbers."""
    random: Set[int] = set()
    for node, call in enumerate(recording.calls()):
        if call.entry.draws or any(value in random for value, _ in call.operands):
            random.update(call.results)
        else:
            yield from ((node, value) for value in call.results)


class _Values:
    """The values of an execution.  Each arena is copied to NumPy once."""

    def __init__(self, execution: Execution):
        self._execution = execution
        self._arenas: Dict[int, Any] = {}

    def rows(self, values: Any, size: int) -> Any:
        """Return values of one type, each as a row."""
        plan = self._execution.plan
        arenas, elements = plan.locate(plan.graph.value_term[values])
        parts = []
        for arena in np.unique(arenas):
            if arena not in self._arenas:
                self._arenas[arena] = self._execution.arenas.arrays[arena].asnumpy().reshape(-1)
            chosen = np.flatnonzero(arenas == arena)
            parts.append((chosen, self._arenas[arena][elements[chosen, None] + np.arange(size)]))
        found = np.empty((len(values), size), parts[0][1].dtype)
        for chosen, rows in parts:
            found[chosen] = rows
        return found
