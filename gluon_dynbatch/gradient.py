"""Run a plan backward.

Forward, every launch that takes part in the gradient is recorded on its own: its operands are
variables whose gradients MXNet writes into rows of *gradient arenas*.  Backward, launches are
walked in reverse; the head gradient of a launch is *pulled* from the rows that the readers of its
results wrote.  A gather is its own transpose if a row is read once; a row read n times pulls n
rows.  A sum costs nothing at all: its terms pull from the row of the sum.  No padded gradients, and
none of the additions with which a tape joins them.

The whole flush is one node in MXNet's own tape, so that ``backward``, ``grad`` and whatever comes
before and after the scope work as ever.  MXNet runs such a node's backward pass in a thread of its
own, while the user's thread goes on, for instance to the optimizer, which writes the parameters
once their gradients are there.  Were the backward pass to read the parameters themselves, it could
queue a read behind that write, which waits for the gradients, which wait for the read.  So it reads
copies made in the forward pass.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, MXCallbackList, NDArrayHandle, c_array, c_handle_array, check_call
from mxnet.ndarray import NDArray

from .execute import Buffers, zero
from .graph import ragged_range
from .plan import Arena, Fetches, Plan, Region, Scatter, Sum, Whole
from .record import RECORDING, TRAINING

LOGGER = logging.getLogger("gluon_dynbatch")

FLOATS = ("float16", "float32", "float64")
#: Beyond this many readers of one row, rows are added up by index instead of level by level.
MOST_LEVELS = 12


class Head(NamedTuple):
    """A result that the user still holds."""

    term: int
    offset: int
    shape: Tuple[int, ...]
    dtype: str
    context: Any


class HeadFill(NamedTuple):
    """Head gradients of one type, side by side in a gradient arena."""

    region: Region
    heads: Tuple[int, ...]


class Pull(NamedTuple):
    """The gradient of some rows: the sum of these fetches."""

    parts: Tuple[Any, ...]


class GradientPlan(NamedTuple):
    """How a plan is run backward; inert data."""

    #: Launches to record, in forward order.
    launches: Tuple[int, ...]
    #: Per launch and operand: rows for its gradient, or None.
    regions: Dict[int, Tuple[Optional[Region], ...]]
    #: Per launch: per result its pull, or None.
    pulls: Dict[int, Tuple[Optional[Pull], ...]]
    #: Per fill of the plan: pull of its rows, or None.
    fills: Tuple[Optional[Pull], ...]
    heads: Tuple[HeadFill, ...]
    arenas: Tuple[Arena, ...]
    sizes: Tuple[int, ...]
    indices: np.ndarray


def plan_gradient(plan: Plan, heads: Sequence[Head]) -> GradientPlan:
    """Plan the backward pass of `plan` for gradients that arrive at `heads`."""
    return _Backward(plan, heads).plan()


class _Operand(NamedTuple):
    """An operand through which a gradient can flow."""

    port: int
    #: Terms it is made of, and for each the member that reads it.
    terms: np.ndarray
    members: np.ndarray
    #: Launches that make them.
    makers: Tuple[int, ...]


class _Backward:
    """Finds out what takes part, gives every gradient its rows, and names the pulls."""

    def __init__(self, plan: Plan, heads: Sequence[Head]):
        self._plan = plan
        self._heads = heads
        self._fetches = Fetches()
        #: Per source arena and gradient arena: lists of (source element, gradient element, length).
        self._pairs: Dict[Tuple[int, int], List[Tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        units = plan.units
        owner = np.zeros(units.graph.size, dtype=np.int64)
        for number, launch in enumerate(plan.launches):
            owner[launch.units] = number
        self._maker = owner[units.slot_unit] if len(units.slot_unit) else owner[:0]

    def plan(self) -> GradientPlan:
        operands = self._flowing_operands()
        live = self._live(operands)
        heads = self._place_heads()
        regions = {number: self._place_operands(number, operands[number]) for number in live}
        self._rows = {key: self._sorted_rows(key) for key in self._pairs}
        launches = self._plan.launches
        pulls = {
            number: tuple(self._pull(region) for region in launches[number].outputs)
            for number in live
        }
        fills = tuple(self._pull(fill.region) for fill in self._plan.fills)
        return GradientPlan(
            tuple(live),
            regions,
            pulls,
            fills,
            heads,
            tuple(self._fetches.arenas),
            tuple(self._fetches.sizes),
            self._fetches.indices(),
        )

    def _flowing_operands(self) -> Dict[int, List[_Operand]]:
        """Per recorded launch with anything to train behind it: operands that lead there."""
        flowing: Dict[int, List[_Operand]] = {}
        for number, launch in enumerate(self._plan.launches):
            if not launch.segment.mode & RECORDING:
                continue
            found = []
            for p, port in enumerate(launch.segment.inputs):
                if port.differentiable and type(launch.operands[p]) is not Whole:
                    operand = self._operand(launch, p, port.shared)
                    outside = (self._plan.units.term[operand.terms] < 0).any()
                    if outside or any(maker in flowing for maker in operand.makers):
                        found.append(operand)
            whole = any(
                type(operand) is Whole and port.differentiable
                for operand, port in zip(launch.operands, launch.segment.inputs)
            )
            if found or whole or any(p.grad_req != "null" for p in launch.segment.parameters):
                flowing[number] = found
        return flowing

    def _operand(self, launch: Any, p: int, shared: bool) -> _Operand:
        units = self._plan.units
        inputs = units.input0[launch.units[:1] if shared else launch.units] + p
        first = units.term0[inputs]
        counts = units.term0[inputs + 1] - first
        terms = np.repeat(first, counts) + ragged_range(counts)
        made = units.term[terms]
        makers = np.unique(self._maker[made[made >= 0]])
        return _Operand(p, terms, np.repeat(np.arange(len(inputs)), counts), tuple(makers.tolist()))

    def _live(self, operands: Dict[int, List[_Operand]]) -> List[int]:
        """Return the launches that a gradient reaches from the heads, in forward order."""
        reached = {int(self._maker[head.term]) for head in self._heads if head.term >= 0}
        for number in sorted(operands, reverse=True):
            if number in reached:
                for operand in operands[number]:
                    reached.update(operand.makers)
        return sorted(reached.intersection(operands))

    def _place_heads(self) -> Tuple[HeadFill, ...]:
        groups: Dict[Any, List[int]] = {}
        for i, head in enumerate(self._heads):
            arena = self._plan.place(head.term)[0]
            groups.setdefault((head.shape, head.dtype, head.context, arena), []).append(i)
        fills = []
        for (shape, dtype, context, arena), members in groups.items():
            unit = int(np.prod(shape))
            region = self._fetches.reserve(Arena(unit, dtype, context), len(members))
            source = np.array(
                [self._plan.place(self._heads[i].term)[1] + self._heads[i].offset for i in members]
            )
            target = (region.start + np.arange(len(members))) * unit
            self._add_pairs(arena, region.arena, source, target, np.full(len(members), unit))
            fills.append(HeadFill(region, tuple(members)))
        return tuple(fills)

    def _add_pairs(
        self, arena: int, gradient: int, source: np.ndarray, target: np.ndarray, length: np.ndarray
    ) -> None:
        self._pairs.setdefault((arena, gradient), []).append((source, target, length))

    def _place_operands(
        self, number: int, operands: List[_Operand]
    ) -> Tuple[Optional[Region], ...]:
        launch = self._plan.launches[number]
        segment = launch.segment
        rows = self._plan.units.graph.rows[launch.units]
        placed: List[Optional[Region]] = [None] * len(segment.inputs)
        for operand in operands:
            port = segment.inputs[operand.port]
            members = np.ones(1, dtype=np.int64) if port.shared else rows
            region = self._fetches.reserve(
                Arena(port.unit, port.dtype, segment.context), int(members.sum())
            )
            placed[operand.port] = region
            start = (region.start + np.cumsum(members) - members) * port.unit
            self._add_terms(
                operand.terms,
                start[operand.members],
                members[operand.members] * port.unit,
                region.arena,
            )
        return tuple(placed)

    def _add_terms(
        self, terms: np.ndarray, target: np.ndarray, length: np.ndarray, gradient: int
    ) -> None:
        arena, element = self._plan.term_arena[terms], self._plan.term_element[terms]
        for a in np.unique(arena).tolist():
            at = slice(None) if arena[0] == a and (arena == a).all() else arena == a
            self._add_pairs(a, gradient, element[at], target[at], length[at])

    def _sorted_rows(self, key: Tuple[int, int]) -> Tuple[int, np.ndarray, np.ndarray]:
        """Return pairs as rows of one length, sorted by source."""
        source, target, length = (np.concatenate(part) for part in zip(*self._pairs[key]))
        grain = int(np.gcd(self._plan.arenas[key[0]].unit, self._fetches.arenas[key[1]].unit))
        if (source % grain).any() or (target % grain).any() or (length % grain).any():
            grain = int(np.gcd.reduce(np.concatenate([[grain], source, target, length])))
        source, target, length = source // grain, target // grain, length // grain
        if length.max() > 1:
            steps = ragged_range(length)
            source, target = np.repeat(source, length) + steps, np.repeat(target, length) + steps
        order = np.argsort(source, kind="stable")
        return grain, source[order], target[order]

    def _pull(self, region: Region) -> Optional[Pull]:
        """Name the gradient rows whose sum is the gradient of `region`."""
        unit = self._plan.arenas[region.arena].unit
        parts = []
        for key, (grain, source, target) in self._rows.items():
            if key[0] != region.arena:
                continue
            first, last = region.start * unit // grain, (region.start + region.rows) * unit // grain
            low, high = np.searchsorted(source, [first, last])
            if low < high:
                parts.append(
                    self._part(
                        key[1], source[low:high] - first, target[low:high], last - first, grain
                    )
                )
        return Pull(tuple(parts)) if parts else None

    def _part(
        self, gradient: int, local: np.ndarray, target: np.ndarray, rows: int, grain: int
    ) -> Any:
        counts = np.bincount(local, minlength=rows)
        most = int(counts.max())
        if most == 1 and len(local) == rows:
            return self._fetches.fetch(gradient, target * grain, grain)
        if most > MOST_LEVELS:
            source = self._fetches.fetch(gradient, target * grain, grain)
            return Scatter(source, self._fetches.index(local), rows)
        nth = np.arange(len(local)) - np.repeat(np.cumsum(counts) - counts, counts)
        levels = []
        for level in range(most):
            at = nth == level
            # Rows without so many readers add the zero row.
            elements = np.zeros(rows, dtype=np.int64)
            elements[local[at]] = target[at] * grain
            levels.append(self._fetches.fetch(gradient, elements, grain))
        return levels[0] if most == 1 else Sum(tuple(levels))


class _StandIn(NamedTuple):
    array: NDArray
    accumulator: Optional[NDArray]
    #: Whether the stand-in has memory of its own.
    copied: bool


class GradientTape:
    """What the forward run leaves for the backward run of one flush."""

    def __init__(self, plan: Plan, gradient: GradientPlan, externals: List[NDArray]):
        self._plan = plan
        self._gradient = gradient
        self._externals = externals
        self._wanted = frozenset(gradient.launches)
        self._buffers = Buffers(gradient.arenas, gradient.sizes, gradient.indices)
        #: What stands for parameters and shared arrays, by id of the original.
        self._stand_ins: Dict[int, _StandIn] = {}
        self._accumulators: List[NDArray] = []
        self._results: Dict[int, List[NDArray]] = {}
        #: Inputs of the node in MXNet's tape.
        self.inputs: List[NDArray] = []

    def wants(self, number: int) -> bool:
        """Whether a launch is to be recorded."""
        return number in self._wanted

    def run(
        self, number: int, executable: Any, operands: List[NDArray], results: List[NDArray]
    ) -> None:
        """Run a launch on variables of its own, and remember its results."""
        launch = self._plan.launches[number]
        segment = launch.segment
        variables, buffers = [], []
        for p, region in enumerate(self._gradient.regions[number]):
            if region is not None:
                variables.append(operands[p])
                # A shared operand has its own shape; its gradient row is seen with that shape.
                rows = self._buffers.region(region)
                buffers.append(
                    rows if rows.shape == operands[p].shape else rows.reshape(operands[p].shape)
                )
            elif type(launch.operands[p]) is Whole and segment.inputs[p].differentiable:
                operands[p] = self._variable(
                    self._externals[launch.operands[p].external], True, True
                )
        if variables:
            autograd.mark_variables(variables, buffers, "write")
        arguments = [
            operands[i]
            if kind == "in"
            else self._parameter(segment.parameters[i], segment.context, executable, k)
            for k, (kind, i) in enumerate(executable.arguments)
        ]
        previous = autograd.set_recording(True)
        try:
            executable.run(*arguments, out=results)
        finally:
            autograd.set_recording(previous)
        self._results[number] = results

    def _parameter(self, parameter: Any, context: Any, executable: Any, argument: int) -> NDArray:
        data = parameter.data(context)
        if argument in executable.mutated:
            return data
        return self._variable(data, parameter.grad_req != "null", argument in executable.read_back)

    def _variable(self, array: NDArray, trained: bool, read_back: bool) -> NDArray:
        """Return a stand-in for an array from outside; if it is trained, gradients add up."""
        stand_in = self._stand_ins.get(id(array))
        if stand_in is None or (read_back and not stand_in.copied):
            made = array.copy() if read_back else array.detach()
            accumulator = None if stand_in is None else stand_in.accumulator
            if trained and stand_in is None:
                accumulator = mx.nd.empty(array.shape, ctx=array.context, dtype=array.dtype)
                self.inputs.append(array)
                self._accumulators.append(accumulator)
            if accumulator is not None:
                autograd.mark_variables([made], [accumulator], "add")
            stand_in = self._stand_ins[id(array)] = _StandIn(made, accumulator, read_back)
        return stand_in.array

    def connect(self, heads: List[NDArray]) -> None:
        """Make the flush a node of MXNet's tape, from everything outside to the `heads`."""
        self._filled: List[Tuple[int, int, int]] = []
        for number, fill in enumerate(self._plan.fills):
            if self._gradient.fills[number] is not None:
                row = 0
                unit = self._plan.arenas[fill.region.arena].unit
                for external in fill.externals:
                    self._filled.append((number, row, external))
                    self.inputs.append(self._externals[external])
                    row += self._externals[external].size // unit
        if self.inputs:
            record_function(self.inputs, heads, self.backward)

    def backward(
        self, head_gradients: List[NDArray], wanted: List[bool]
    ) -> List[Optional[NDArray]]:
        """Return the gradients of `inputs`; None where `wanted` is false."""
        for accumulator in self._accumulators:
            zero(accumulator)
        for fill in self._gradient.heads:
            target = self._buffers.region(fill.region)
            arrays = [head_gradients[h] for h in fill.heads]
            if target.shape[1:] != arrays[0].shape[1:]:
                target = target.reshape((-1,) + arrays[0].shape[1:])
            mx.nd.concat(*arrays, dim=0, out=target)
        for number in reversed(self._gradient.launches):
            self._backward_launch(number)
        return self._input_gradients(wanted)

    def _backward_launch(self, number: int) -> None:
        heads, gradients = [], []
        for result, pull in zip(self._results[number], self._gradient.pulls[number]):
            if pull is not None:
                heads.append(result)
                gradients.append(self._pulled(pull, result.shape))
        training = bool(self._plan.launches[number].segment.mode & TRAINING)
        # The graph of a launch lives as long as this tape: the user may go backward twice.
        autograd.backward(heads, gradients, retain_graph=True, train_mode=training)

    def _pulled(self, pull: Pull, shape: Tuple[int, ...]) -> NDArray:
        parts = [self._buffers.fetch(part) for part in pull.parts]
        parts = [part if part.shape == shape else part.reshape(shape) for part in parts]
        return parts[0] if len(parts) == 1 else mx.nd.add_n(*parts)

    def _input_gradients(self, wanted: List[bool]) -> List[Optional[NDArray]]:
        found: List[Optional[NDArray]] = list(self._accumulators)
        fills: Dict[int, NDArray] = {}
        for (number, row, external), want in zip(self._filled, wanted[len(found) :]):
            if not want:
                found.append(None)
                continue
            if number not in fills:
                region = self._plan.fills[number].region
                unit = self._plan.arenas[region.arena].unit
                fills[number] = self._pulled(self._gradient.fills[number], (region.rows, unit))
            array = self._externals[external]
            rows = array.size // fills[number].shape[1]
            found.append(fills[number]._slice(row, row + rows).reshape(array.shape))
        return found


_BACKWARD = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.c_void_p,
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
#: Callbacks that MXNet may still call, by number.  C code holds only their addresses.
_ALIVE: Dict[int, Any] = {}
_WRITE, _WRITE_INPLACE, _ADD = 1, 2, 3

Backward = Callable[[List[NDArray], List[bool]], List[Optional[NDArray]]]


def record_function(inputs: List[NDArray], outputs: List[NDArray], backward: Backward) -> None:
    """Make `outputs` results of a function of `inputs` in MXNet's tape.

    Unlike ``mx.autograd.Function`` this honours ``grad_req`` ``"add"`` and ``"null"`` per input.

    Parameters
    ----------
    inputs, outputs : list of NDArray
        Arrays; the outputs must not be part of a graph yet.
    backward : callable
        ``backward(head_gradients, wanted)`` returns a gradient per input, None where not wanted.
    """

    def run(heads: int, count: int, pointers: Any, requests: Any, training: int, state: Any) -> int:
        del training, state
        arrays = [
            NDArray(ctypes.cast(p, NDArrayHandle), writable=True) for p in pointers[: heads + count]
        ]
        try:
            asked = [requests[i] for i in range(count)]
            made = backward(arrays[:heads], [bool(request) for request in asked])
            for target, gradient, request in zip(arrays[heads:], made, asked):
                if request in (_WRITE, _WRITE_INPLACE):
                    gradient.copyto(target)
                elif request == _ADD:
                    mx.nd.elemwise_add(target, gradient, out=target)
        except Exception:
            # This is a thread of MXNet's: the exception cannot travel on from here.
            LOGGER.exception("the backward pass of a batching scope failed")
            return 0
        return 1

    key = id(run)

    def delete(state: Any) -> int:
        del state
        _ALIVE.pop(key, None)
        return 1

    callbacks = [
        ctypes.cast(f, ctypes.CFUNCTYPE(ctypes.c_int)) for f in (_BACKWARD(run), _DELETE(delete))
    ]
    functions = c_array(ctypes.CFUNCTYPE(ctypes.c_int), callbacks)
    listed = MXCallbackList(
        ctypes.c_int(2),
        ctypes.cast(functions, ctypes.POINTER(ctypes.CFUNCTYPE(ctypes.c_int))),
        ctypes.cast(c_array(ctypes.c_void_p, [None, None]), ctypes.POINTER(ctypes.c_void_p)),
    )
    _ALIVE[key] = (run, delete, callbacks, functions, listed)
    previous = autograd.set_recording(True)
    try:
        check_call(
            _LIB.MXCustomFunctionRecord(
                len(inputs),
                c_handle_array(inputs),
                len(outputs),
                c_handle_array(outputs),
                ctypes.byref(listed),
            )
        )
    finally:
        autograd.set_recording(previous)
