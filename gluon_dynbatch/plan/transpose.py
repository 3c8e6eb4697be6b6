"""The backward pass of a plan, as a plan: what is read there is written here.

A launch that takes part reads the gradients of its results and writes those of its operands.  Reads
change sides: wherever a piece of a result was read forward, its gradient is read from the gradient
of the operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..modes import RECORDING
from ..schedule.dependencies import Array, ragged_range
from .plan import Arena, Fill, Plan, Reads, Region, Rows, Slice, Whole
from .resolve import Layout, resolve

if TYPE_CHECKING:
    from mxnet import Context


class Head(NamedTuple):
    """A result that the user still holds."""

    term: int
    offset: int
    shape: Tuple[int, ...]
    dtype: str
    context: Context


def transpose(plan: Plan, heads: Sequence[Head]) -> Plan:
    """Plan the backward pass of `plan` for gradients that arrive at `heads`.

    Parameters
    ----------
    plan : Plan
        The launches forward.
    heads : sequence of Head
        Results that the user still holds.

    Returns
    -------
    Plan
        Fills have the gradients of heads; launches are those that take part, in reverse; results
        are the gradients of the fills of `plan`.
    """
    return _Transposition(plan, heads).plan()


class _Transposition:
    def __init__(self, plan: Plan, heads: Sequence[Head]):
        self._forward = plan
        self._heads = heads
        self._layout = Layout()
        launches = plan.launches
        #: Per launch, one more at the end: number of its first operand, and of its first result.
        self._operand0 = np.cumsum([0, *(len(launch.operands) for launch in launches)])
        self._result0 = np.cumsum([0, *(len(launch.outputs) for launch in launches)])
        #: What gradients are found for: results of launches, then fills.
        self._targets = [region for launch in launches for region in launch.regions]
        self._targets += [fill.region for fill in plan.fills]
        slot_unit, slot0 = plan.graph.slot_unit, plan.graph.slot0
        self._maker = plan.launch_of()[slot_unit]
        slot_target = self._result0[self._maker] + np.arange(len(slot_unit)) - slot0[slot_unit]
        external_target = np.full(len(plan.arena_of) - len(slot_unit), -1)
        for number, fill in enumerate(plan.fills, int(self._result0[-1])):
            external_target[list(fill.externals)] = number
        #: Per term number, as in the tables of places: the target that it is part of.
        self._target_of = np.concatenate([slot_target, external_target[::-1]])

    def plan(self) -> Plan:
        """Find out what takes part, give every gradient its rows, and resolve what reads them."""
        live = self._live()
        fills, from_heads = self._place_heads()
        outputs = self._place_operands(live)
        reads = self._reads(live, *from_heads, self._from_operands(outputs))
        arenas, results = self._forward.arenas, int(self._result0[-1])
        operands, pieces = resolve(
            np.array([region.rows for region in self._targets], dtype=np.int64),
            np.array([arenas[region.arena].row_size for region in self._targets], dtype=np.int64),
            reads,
        )
        launches = []
        for number in sorted(live, reverse=True):
            launch, own = self._forward.launches[number], slice(*self._result0[number : number + 2])
            regions = tuple(outputs.get((number, p)) for p in range(len(launch.operands)))
            launches.append(launch._replace(operands=tuple(operands[own]), outputs=regions))
        return Plan(
            self._forward.graph,
            tuple(launches),
            fills,
            tuple(self._layout.arenas),
            tuple(self._layout.sizes),
            pieces,
            reads,
            np.zeros(0, dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            tuple(operands[results:]),
        )

    def _makers(self) -> List[List[int]]:
        """Return per operand the launches that make what it reads; -1 for what is from outside."""
        operand, at = self._forward.reads.operand, self._forward.reads.term
        term = self._forward.graph.term[at]
        maker = np.where(term < 0, -1, self._maker[np.maximum(term, 0)])
        some = np.flatnonzero(
            np.diff(operand, prepend=-1).astype(bool) | np.diff(maker, prepend=-2).astype(bool)
        )
        # As one number, so that each is told once.
        several = len(self._forward.launches) + 1
        pairs = np.unique(operand[some] * several + maker[some] + 1)
        makers: List[List[int]] = [[] for _ in range(int(self._operand0[-1]))]
        for number, launch in zip((pairs // several).tolist(), (pairs % several - 1).tolist()):
            makers[number].append(launch)
        return makers

    def _live(self) -> Dict[int, List[int]]:
        """Return the launches that take part, each with the inputs that pass a gradient on.

        They have been recorded, have something to train behind them, and a head reads them.
        """
        makers = self._makers()
        flowing: Dict[int, List[int]] = {}
        for number, launch in enumerate(self._forward.launches):
            if not launch.segment.mode & RECORDING:
                continue
            passing = []
            trained = any(p.grad_req != "null" for p in launch.segment.parameters)
            for p, (port, operand) in enumerate(zip(launch.segment.inputs, launch.operands)):
                if port.differentiable and type(operand) is Whole:
                    trained = True
                elif port.differentiable and any(
                    maker < 0 or maker in flowing for maker in makers[self._operand0[number] + p]
                ):
                    passing.append(p)
            if passing or trained:
                flowing[number] = passing
        reached = {int(self._maker[head.term]) for head in self._heads if head.term >= 0}
        live = {}
        for number in sorted(flowing, reverse=True):
            if number in reached:
                live[number] = flowing[number]
                for p in flowing[number]:
                    reached.update(makers[self._operand0[number] + p])
        return live

    def _place_heads(self) -> Tuple[Tuple[Fill, ...], List[Reads]]:
        """Place the gradients of heads; return which results read them, too."""
        groups: Dict[Any, List[int]] = {}
        for i, head in enumerate(self._heads):
            groups.setdefault((head.shape, head.dtype, head.context), []).append(i)
        fills, columns = [], []
        for (shape, dtype, context), members in groups.items():
            size, count = int(np.prod(shape)), len(members)
            region = self._layout.reserve(Arena(size, dtype, context), count)
            fills.append(Fill(region, tuple(members), np.full(count, size)))
            term = np.array([self._heads[i].term for i in members])
            place = self._forward.element_of[term] + [self._heads[i].offset for i in members]
            source, like = (region.start + np.arange(count)) * size, np.ones(count, dtype=np.int64)
            columns.append(
                Reads(self._target_of[term], -like, place, size * like, region.arena * like, source)
            )
        return tuple(fills), columns

    def _place_operands(self, live: Dict[int, List[int]]) -> Dict[Tuple[int, int], Region]:
        """Give the gradient of every input of every launch its rows.

        What is read in place, side by side, gets gradients side by side, so that these are read in
        place as well.
        """
        placed = {}
        inputs = sorted((number, p) for number in live for p in live[number])
        for number, p in sorted(inputs, key=self._rank):
            launch = self._forward.launches[number]
            port, operand = launch.segment.inputs[p], launch.operands[p]
            rows, size = 1, port.row_size
            if isinstance(operand, (Slice, Rows)):
                rows, size = operand.rows, operand.row_size
            arena = Arena(size, port.dtype, launch.segment.context)
            placed[number, p] = self._layout.reserve(arena, rows)
        return placed

    def _rank(self, numbered: Tuple[int, int]) -> Tuple[int, int, int]:
        number, p = numbered
        operand = self._forward.launches[number].operands[p]
        return (0, *operand[:2]) if type(operand) is Slice else (1, number, p)

    def _from_operands(self, outputs: Dict[Tuple[int, int], Region]) -> Reads:
        """Return what results read from gradients of operands, arena by arena.

        So far, targets are places in the arenas of the forward plan.
        """
        reads = self._forward.reads
        placed = sorted(outputs.items(), key=lambda item: item[1].arena)
        numbers = np.array([self._operand0[number] + p for (number, p), _ in placed], dtype=int)
        low, high = np.searchsorted(reads.operand, [numbers, numbers + 1])
        at = np.repeat(low, high - low) + ragged_range(high - low)
        regions = [region for _, region in placed]
        start = np.repeat(_starts(regions, self._layout.arenas), high - low)
        return Reads(
            self._target_of[self._forward.graph.term[reads.term[at]]],
            reads.term[at],
            reads.element[at],
            reads.length[at],
            np.repeat(np.array([region.arena for region in regions], dtype=np.int64), high - low),
            start + reads.target[at],
        )

    def _reads(self, live: Iterable[int], *parts: Reads) -> Reads:
        """Return what those targets read that anybody asks for."""
        reads = Reads(*map(np.concatenate, zip(*parts)))
        wanted = np.zeros(len(self._targets) + 1, dtype=bool)
        wanted[self._result0[-1] : -1] = True
        for launch in live:
            wanted[self._result0[launch] : self._result0[launch + 1]] = True
        # What is no part of any target has number -1.
        reads = Reads(*(column[wanted[reads.operand]] for column in reads))
        start = _starts(self._targets, self._forward.arenas)
        return reads._replace(target=reads.target - start[reads.operand])


def _starts(regions: Sequence[Region], arenas: Sequence[Arena]) -> Array:
    """Return the first element of each region."""
    return np.array([r.start * arenas[r.arena].row_size for r in regions], dtype=np.int64)
