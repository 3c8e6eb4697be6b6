"""Launches of MXNet's operators that are recorded one by one, to run backward.

The operands of such a launch are variables, and MXNet writes their gradients into rows of the
transposed plan's arenas.  In the backward pass, the operands of the transposed launch are its head
gradients.  Unlike with one tape over all launches, no gradients are padded with zeros and added up.
"""

from __future__ import annotations

from typing import Dict, List, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..modes import RECORDING, TRAINING
from ..plan.launch import Launch, Whole
from ..schedule.dependencies import Array
from .arenas import Arenas
from .buffers import shaped, zero
from .dispatch import Executable
from .leaves import Leaves
from .left_out import Recorded, keep_rows
from .pool import BACKWARD_POOL
from .prepare import Transposed


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
        if executable.mutated:
            _update_statistics(launch, recorded)

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
        recorded.executable.go_backward(results, gradients, segment.mode)


def _update_statistics(launch: Launch, recorded: Recorded) -> None:
    """Update running statistics now, by a backward pass whose gradients are not used.

    MXNet updates them in the backward pass.  In its own thread, that would be at a time for which a
    later reader does not wait; so a recorded launch works on copies, which are copied back here.
    """
    segment, (executable, arguments, results) = launch.segment, recorded
    if segment.mode & TRAINING:
        executable.go_backward(results, [mx.nd.zeros_like(r) for r in results], segment.mode)
    for k in executable.mutated:
        kind, number = executable.arguments[k]
        # Other arrays are only read: a call that writes to them is not recorded, but runs at once.
        if kind == "param":
            arguments[k].copyto(segment.parameters[number].data(segment.context))
