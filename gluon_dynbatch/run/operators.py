"""Launches of MXNet's operators that are recorded one by one, to run backward.

The operands of such a launch are variables, and MXNet writes their gradients into rows of the
transposed plan's arenas.  In the backward pass, the operands of the transposed launch are its head
gradients.  Unlike with one tape over all launches, no gradients are padded with zeros and added up.

MXNet runs a backward pass in a thread of its own, while the user's thread goes on, for instance to
the optimizer, which writes the parameters once their gradients are computed.  If the backward pass
read the parameters themselves, it could queue a read behind that write: the read would wait for the
write, the write for the gradients, and the gradients for the read.  So it reads leaf copies of
parameters and shared arrays, which the forward pass makes.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..lower.segment import Segment
from ..modes import RECORDING, TRAINING
from ..plan.launch import Launch, Whole
from ..record.lazy_base import Lazy
from ..schedule.dependencies import Array
from .buffers import Arenas, shaped, zero
from .dispatch import Executable
from .left_out import Recorded, keep_rows
from .pool import BACKWARD_POOL
from .prepare import Transposed
from .variables import Requests, Target


class Targets:
    """The arrays whose gradients are added up, numbered, and where they are added up."""

    def __init__(self, others: Optional[Targets] = None) -> None:
        """Begin with no arrays, or with those of others."""
        self.arrays: List[NDArray] = [] if others is None else list(others.arrays)
        #: Per array, the buffer in which MXNet's operators add up its gradient; None if only native
        #: code computes it, which can write to where it is wanted directly.
        self._buffers: List[Optional[NDArray]] = [] if others is None else list(others._buffers)
        #: By id of an array, its number.
        self._numbers: Dict[int, int] = {} if others is None else dict(others._numbers)

    def __contains__(self, array: NDArray) -> bool:
        return id(array) in self._numbers

    def add(self, array: NDArray, dense: bool = False) -> int:
        """Add an array, if it is not there yet, and return its number.

        `dense` says that its gradient is known to be dense, which saves a look at it.
        """
        number = self._numbers.setdefault(id(array), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array if dense else with_dense_gradient(array))
            self._buffers.append(None)
        return number

    def add_all(self, arrays: List[NDArray], dense: bytes) -> List[int]:
        """Do as `add` for each array, given a byte for each that says if its gradient is dense."""
        if not all(dense):
            return list(map(self.add, arrays, map(bool, dense)))
        numbers, first = self._numbers, len(self.arrays)
        found = [numbers.setdefault(id(array), len(numbers)) for array in arrays]
        new = len(numbers) - first
        if new == len(arrays):
            self.arrays += arrays
        else:
            self.arrays += {n: a for n, a in zip(found, arrays) if n >= first}.values()
        self._buffers += [None] * new
        return found

    def buffer(self, array: NDArray) -> NDArray:
        """Return the buffer of the gradient of an array, which is added if necessary."""
        number = self.add(array)
        buffer = self._buffers[number]
        if buffer is None:
            buffer = self._buffers[number] = _empty_like(array)
        return buffer

    def clear(self) -> None:
        """Set the buffers to zero."""
        for buffer in self._buffers:
            if buffer is not None:
                zero(buffer)

    def gradients(self, requests: Requests) -> List[Target]:
        """Return the array of each gradient: its buffer, where it is wanted, or a new array."""
        return [
            buffer if buffer is not None else target if target is not None else _empty_like(array)
            for buffer, target, array in zip(self._buffers, requests.targets, self.arrays)
        ]


class Leaves:
    """The leaf copies of one flush."""

    def __init__(self) -> None:
        #: By id of the original array: its copy.
        self._leaves: Dict[int, NDArray] = {}
        #: The arrays whose copies are variables.
        self.targets = Targets()

    def leaf(self, array: NDArray, trained: bool) -> NDArray:
        """Return the leaf copy of an array, a variable if it is trained."""
        leaf = self._leaves.get(id(array))
        if leaf is None:
            leaf = self._leaves[id(array)] = array.copy()
            if trained:
                autograd.mark_variables([leaf], [self.targets.buffer(array)], "add")
        return leaf


def _empty_like(array: NDArray) -> NDArray:
    return mx.nd.empty(array.shape, ctx=array.ctx, dtype=array.dtype)


def with_dense_gradient(array: NDArray) -> NDArray:
    """Return an array, or a view of it if it has a sparse gradient.

    A custom function cannot return a sparse gradient; a recorded view takes a dense one.
    """
    # An array that is kept in an arena has no gradient attached.
    gradient = None if isinstance(array, Lazy) else array.grad
    if gradient is None or gradient.stype == "default":
        return array
    with autograd.record(autograd.is_training()):
        return array.reshape(array.shape)


class OperatorTape:
    """The recorded launches of a flush, and the copies of parameters that they read."""

    def __init__(self, transposed: Transposed):
        #: The transposed launches that run here, by number.
        self.launches = transposed.recorded
        self.leaves = Leaves()
        self._in_graph = transposed.heads.in_graph
        #: The arenas of the transposed plan.
        self.gradients = Arenas(transposed.plan, BACKWARD_POOL)
        self._graphs: Dict[int, Recorded] = {}
        #: Launches that update running statistics, in training.
        self._updates: List[Tuple[Launch, Recorded]] = []

    @property
    def has_statistics(self) -> bool:
        """Whether launches update running statistics, as in training."""
        return bool(self._updates)

    def record(
        self,
        launch: Launch,
        executable: Executable,
        operands: List[NDArray],
        results: List[NDArray],
    ) -> None:
        """Run a launch forward, and record it on variables of its own."""
        segment = launch.segment
        self._mark(launch, operands)
        arguments = []
        for k, (kind, i) in enumerate(executable.arguments):
            if kind == "in":
                arguments.append(operands[i])
            elif k in executable.mutated:
                arguments.append(segment.parameters[i].data(segment.context).copy())
            else:
                parameter = segment.parameters[i]
                array, trained = parameter.data(segment.context), parameter.grad_req != "null"
                arguments.append(self.leaves.leaf(array, trained))
        executable.launch(arguments, segment.mode | RECORDING, out=results)
        recorded = self._graphs[launch.number] = Recorded(executable, arguments, results)
        if executable.mutated and segment.mode & TRAINING:
            self._updates.append((launch, recorded))

    def update_statistics(self) -> None:
        """Update running statistics, once all launches have read them as they were."""
        for launch, recorded in self._updates:
            _update_statistics(launch.segment, recorded)

    def _mark(self, launch: Launch, operands: List[NDArray]) -> None:
        """Make the operands variables, whose gradients are rows of the backward arenas."""
        variables, gradients = [], []
        for p, region in enumerate(self.launches[launch.number].outputs):
            array, operand = operands[p], launch.operands[p]
            if region is not None:
                variables.append(array)
                gradients.append(shaped(self.gradients.region(region), array.shape))
            elif isinstance(operand, Whole):
                if launch.segment.inputs[p].differentiable:
                    trained = bool(self._in_graph[operand.external])
                    operands[p] = self.leaves.leaf(array, trained)
                else:
                    # Detached, so that MXNet adds nothing to the gradient of the user's array.
                    operands[p] = array.detach()
        if variables:
            autograd.mark_variables(variables, gradients, "write")

    def run_backward(self, launch: Launch, live_units: Optional[Array]) -> None:
        """Run a transposed launch, for live units only; None if all units are live."""
        recorded, segment = self._graphs[launch.number], launch.segment
        if live_units is None or live_units[launch.units].all():
            self._go_backward(launch, recorded)
            return
        rows = self.gradients.plan.graph.dependencies.rows[launch.units]
        live = np.repeat(live_units[launch.units], rows)
        gradients = {
            p: self.gradients.region(region)
            for p, region in enumerate(launch.outputs)
            if region is not None
        }
        if not live.any():
            for gradient in gradients.values():
                zero(gradient)
        elif recorded.repeatable(segment):
            self._go_backward(launch, recorded.again(segment, live, gradients))
        else:
            self._go_backward(launch, recorded)
            for p, gradient in gradients.items():
                if not segment.inputs[p].shared:
                    keep_rows(gradient, live)

    def _go_backward(self, launch: Launch, recorded: Recorded) -> None:
        """Run a recorded launch backward: read gradients of results, write those of operands."""
        segment, results, gradients = launch.segment, [], []
        for operand, port, result in zip(launch.operands, segment.outputs, recorded.results):
            if operand is not None:
                gradient = self.gradients.operand(operand, port.dtype, segment.context)
                results.append(result)
                gradients.append(shaped(gradient, result.shape))
        if not recorded.executable.go_backward(results, gradients, segment.mode):
            for region in launch.outputs:
                if region is not None:
                    zero(self.gradients.region(region))


def _update_statistics(segment: Segment, recorded: Recorded) -> None:
    """Update running statistics by a backward pass whose gradients are not used.

    MXNet updates them in the backward pass.  In its own thread, that would be at a time for which a
    later reader does not wait; so a recorded launch works on copies, which are copied back here.
    """
    executable, arguments, results = recorded
    # Other arrays are only read: a call that writes to them is not recorded, but runs at once.
    copies = [
        (arguments[k], segment.parameters[number].data(segment.context))
        for k, (kind, number) in enumerate(executable.arguments)
        if k in executable.mutated and kind == "param"
    ]
    for copy, statistics in copies:
        statistics.copyto(copy)
    executable.go_backward(results, [mx.nd.zeros_like(r) for r in results], segment.mode)
    for copy, statistics in copies:
        copy.copyto(statistics)
