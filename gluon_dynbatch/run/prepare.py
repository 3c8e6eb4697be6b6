"""Make a plan ready to be run: the code of both directions, and what backward runs read."""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import Dict, Iterator, Optional, Tuple

from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Wanted
from ..lower.segment import Segment
from ..native import assembling
from ..native.recording import untrack
from ..plan.plan import Launch, Plan
from ..plan.transpose import Heads, Reach, find_reach, read_outside, transpose
from .assemble import Assembled, assemble

#: What native code trains: the number of its gradient among the bases backward, and that of the
#: array among the bases forward or, if so, among arrays from outside; at last whether its gradient
#: is known to be dense.
Trained = Tuple[int, int, bool, bool]


class Prepared:
    """A plan made ready to be run forward and, if there are heads, backward.

    Parameters
    ----------
    plan : Plan
        What is run.
    heads : Heads, optional
        Where gradients may arrive.
    kernels : dict of Segment to SegmentKernels or None
        The kernels of each segment, None for what MXNet's operators run.
    """

    def __init__(
        self,
        plan: Plan,
        heads: Optional[Heads],
        kernels: Dict[Segment, Optional[SegmentKernels]],
    ):
        self._plan, self.heads = plan, heads
        trained: Dict[int, Tuple[Kernel, ...]] = {}
        if heads is not None:
            self.backward_plan = transpose(plan, heads)
            untrack(self.backward_plan)
            order = self.backward_plan.order.tolist()
            for number, wanted in zip(order, _wanted(plan, self.backward_plan, heads)):
                own = [kernels[segment] for segment in plan.segments(number)]
                backward = tuple(one.backward(wanted) for one in own if one is not None)
                if backward:
                    trained[number] = backward
            #: Launches that MXNet's operators run backward, by number.
            self.recorded: Dict[int, Launch] = {
                number: self.backward_plan.launch(number)
                for number in order
                if number not in trained
            }
        assembler = assembling.Forward(plan, kernels, trained)
        self.forward = assemble(assembler)
        #: Knows what is where, until there is code for the backward pass.
        self._assembler = None if heads is None else assembler
        untrack((heads, self.forward))

    @cached_property
    def backward(self) -> Tuple[Assembled, Tuple[Trained, ...], Reach]:
        """The code of the backward pass, what it trains, and what else gets a gradient.

        It is made while the engine runs forward for the first time.
        """
        assert self.heads is not None and self._assembler is not None
        assembler = assembling.Backward(self.backward_plan, self._assembler)
        made = assemble(assembler)
        trained = tuple(
            (gradient, number, outside, not outside and parameter._grad_stype == "default")
            for gradient, number, outside, parameter in assembler.trained
        )
        self._assembler = None
        code = made, trained, find_reach(self._plan, self.backward_plan, self.heads)
        untrack(code)
        return code


def _wanted(plan: Plan, backward: Plan, heads: Heads) -> Iterator[Wanted]:
    """Yield what each launch of a transposed plan is given, and what it computes."""
    asked = read_outside(plan, heads.in_graph) | (backward.regions[: len(plan.operands), 0] > 0)
    sides = [
        (marks.tolist(), ports.first.tolist())
        for marks, ports in ((backward.operands[:, 0] > 0, plan.outputs), (asked, plan.inputs))
    ]
    parameters = [
        tuple(j for j, p in enumerate(segment.parameters) if p.grad_req != "null")
        for segment in plan.graph.segments
    ]
    for number in backward.order.tolist():
        own = (marks[first[number] : first[number + 1]] for marks, first in sides)
        given, computed = (tuple(compress(range(len(marks)), marks)) for marks in own)
        yield Wanted(given, computed, parameters[plan.segment[number]])
