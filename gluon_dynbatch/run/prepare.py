"""Prepare a plan to be run: assemble the programs of both directions."""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import Dict, Iterator, Optional, Tuple

from ..kernel.step import Kernel, Wanted
from ..native import assembling
from ..native.recording import untrack
from ..plan.plan import Plan
from ..plan.transpose import Heads, Reach, find_reach, read_outside, transpose
from .assemble import Assembled, assemble

#: An array that native code trains: the number of its gradient among the backward bases; its own
#: number, among external arrays or else among forward bases; whether it is an external array; and
#: whether its gradient is known to be dense.
Trained = Tuple[int, int, bool, bool]


class Prepared:
    """A plan with its programs, forward and, if there are heads, backward."""

    def __init__(self, plan: Plan, heads: Optional[Heads]):
        self._plan, self.heads = plan, heads
        trained: Dict[int, Tuple[Kernel, ...]] = {}
        if heads is not None:
            self.backward_plan = transpose(plan, heads)
            untrack(self.backward_plan)
            order = self.backward_plan.order.tolist()
            for number, wanted in zip(order, _wanted(plan, self.backward_plan, heads)):
                parts = slice(*plan.members.part0[number : number + 2])
                kernels = [plan.kernels[k] for k in plan.members.segment[parts].tolist()]
                backward = tuple(k.backward(wanted) for k in kernels if not isinstance(k, str))
                if backward:
                    trained[number] = backward
            #: Launches that MXNet's operators run backward, by number.
            recorded = (number for number in order if number not in trained)
            self.recorded = {number: self.backward_plan.launch(number) for number in recorded}
        assembler = assembling.Forward(plan, trained)
        self.forward = assemble(assembler)
        #: Needed until the backward pass is assembled: it knows where forward values are.
        self._assembler = None if heads is None else assembler
        untrack((heads, self.forward))

    @cached_property
    def backward(self) -> Tuple[Assembled, Tuple[Trained, ...], Reach]:
        """The backward program, the arrays that it trains, and the other arrays with a gradient.

        It is assembled on first use, when the engine already runs the first forward pass.
        """
        assert self.heads is not None and self._assembler is not None
        assembler = assembling.Backward(self.backward_plan, self._assembler)
        assembled = assemble(assembler)
        trained = tuple(
            (gradient, number, is_external, not is_external and parameter._grad_stype == "default")
            for gradient, (number, is_external, parameter) in assembler.trained.items()
        )
        self._assembler = None
        prepared = assembled, trained, find_reach(self._plan, self.backward_plan, self.heads)
        untrack(prepared)
        return prepared


def _wanted(plan: Plan, backward: Plan, heads: Heads) -> Iterator[Wanted]:
    """Yield, per launch of a transposed plan, the gradients that it reads and those it computes."""
    read = backward.operands[:, 0] > 0
    computed = read_outside(plan, heads.in_graph) | (backward.regions[: len(plan.operands), 0] > 0)
    sides = [
        (marks.tolist(), ports.first.tolist())
        for marks, ports in ((read, plan.outputs), (computed, plan.inputs))
    ]
    parameters = [
        tuple(j for j, p in enumerate(segment.parameters) if p.grad_req != "null")
        for segment in plan.graph.segments
    ]
    for number in backward.order.tolist():
        ports = (marks[first[number] : first[number + 1]] for marks, first in sides)
        results, inputs = (tuple(compress(range(len(marks)), marks)) for marks in ports)
        yield Wanted(results, inputs, parameters[plan.segment[number]])
