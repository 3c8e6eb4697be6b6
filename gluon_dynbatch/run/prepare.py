"""Make a plan ready to be run: the code of both directions, and what backward runs read."""

from __future__ import annotations

from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from ..kernel.step import Wanted
from ..plan.plan import Launch, Plan, Whole
from ..plan.reach import find_reach
from ..plan.transpose import Heads, transpose
from ..schedule.dependencies import Array
from .assemble import SAVED, Assembled, Base
from .assemble_backward import Backward
from .assemble_forward import Forward
from .dispatch import Dispatcher


class Prepared(NamedTuple):
    """A plan made ready to be run forward and, if there are heads, backward."""

    forward: Assembled
    heads: Optional[Heads] = None
    #: The transposed plan, and its code.
    plan: Any = None
    backward: Any = None
    reach: Any = None
    #: Launches that MXNet's operators run backward, by number.
    recorded: Dict[int, Launch] = {}
    #: Per base forward whether the backward pass reads it; what there is backward to train.
    kept: Tuple[bool, ...] = ()
    trained: Tuple[Trained, ...] = ()


class Trained(NamedTuple):
    """What native code trains."""

    #: Number of its gradient among the bases backward.
    gradient: int
    #: Number of the array among the bases forward, or among arrays from outside.
    number: int
    outside: bool
    #: Whether its gradient is known to be dense.
    dense: bool


def prepare(plan: Plan, heads: Optional[Heads], dispatcher: Dispatcher) -> Prepared:
    """Assemble the code of a plan, and transpose it for gradients that arrive at heads."""
    kernels, trained = dispatcher.natives(plan), {}
    if heads is None:
        return Prepared(Forward(plan, kernels, {}).assemble())
    transposed = transpose(plan, heads)
    for launch in transposed.launches:
        own = [kernels[part.segment] for part in launch.parts]
        wanted = _wanted(plan, launch, heads.in_graph)
        backward = tuple(one.backward(wanted) for one in own if one is not None)
        if backward:
            trained[launch.number] = backward
    forward = Forward(plan, kernels, trained)
    assembled = forward.assemble()
    made = Backward(transposed, forward).assemble()
    recorded = {one.number: one for one in transposed.launches if one.number not in trained}
    # There are values, but no parameters: see design page 0011.
    kept = tuple(base[0] in ("arena", SAVED) for base in assembled.bases)
    own = tuple(_find_trained(forward.bases, made.bases))
    reach = find_reach(plan, transposed, heads)
    return Prepared(assembled, heads, transposed, made, reach, recorded, kept, own)


def _find_trained(forward: Dict[Base, int], backward: Sequence[Base]) -> Iterator[Trained]:
    for number, (kind, *which) in enumerate(backward):
        if kind == "gradient":
            dense = which[0]._grad_stype == "default"
            yield Trained(number, forward[("parameter", *which)], False, dense)
        elif kind == "external gradient":
            yield Trained(number, which[0], True, False)


def _wanted(plan: Plan, launch: Launch, in_graph: Array) -> Wanted:
    segment, operands = launch.segment, plan.launches[launch.number].operands
    return Wanted(
        tuple(k for k, operand in enumerate(launch.operands) if operand is not None),
        tuple(
            p
            for p, (port, operand) in enumerate(zip(segment.inputs, operands))
            if launch.outputs[p] is not None
            or (isinstance(operand, Whole) and port.differentiable and in_graph[operand.external])
        ),
        tuple(j for j, p in enumerate(segment.parameters) if p.grad_req != "null"),
    )
