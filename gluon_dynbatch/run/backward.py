"""Run a plan backward.

Forward, every launch that takes part in the gradient is recorded on its own: its operands are
variables whose gradients MXNet writes into rows of the transposed plan's arenas.  Backward, the
launches of the transposed plan are run; their operands are the head gradients of the forward runs.
No padded gradients, and none of the additions with which a tape joins them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..modes import FLOATS, RECORDING, TRAINING
from ..native import resolving
from ..plan.plan import Launch, Plan, Whole, pieces_of
from ..plan.transpose import live_units
from ..record.lazy import LazyNDArray
from ..record.types import name_of
from .buffers import put_together, zero
from .dispatch import Executable, go_backward
from .execute import Pass
from .keep import Kept
from .leaves import Leaves, with_dense_gradient
from .left_out import Recorded, all_finite, keep_rows
from .pool import BACKWARD_POOL
from .prepare import Prepared

#: Part of the gradient of a head: an array, the number of the head, the first elements there and in
#: the array, and how many.
Piece = Tuple[NDArray, int, int, int, int]

#: A gradient: consecutive elements of an array, the first one and how many.
Elements = Tuple[NDArray, int, int]


class GradientTape(Pass):
    """What the forward run leaves for the backward run of one flush.

    Parameters
    ----------
    forward : Plan
        What is run forward.
    prepared : Prepared
        What is run backward.
    externals : list of NDArray
        The arrays from outside, by number.
    """

    #: Its arrays, and where the gradients of its inputs go: see `Chain`.
    kept: Kept
    routes: List[Any]

    suffix = " backward"
    pool = BACKWARD_POOL

    def __init__(
        self,
        forward: Plan,
        prepared: Prepared,
        externals: List[NDArray],
    ):
        super().__init__(prepared.backward_plan)
        self.forward = forward
        assert prepared.heads is not None
        #: Results to which gradients may come.
        self.heads = prepared.heads
        self._externals = externals
        self._prepared = prepared
        #: Launches of MXNet's operators that are to be recorded, by number.
        self.recorded = prepared.recorded
        self._leaves = Leaves()
        self._results: Dict[int, Recorded] = {}
        #: Units that a gradient arrives at, if MXNet's operators must not run others backward.
        self._live: Optional[np.ndarray] = None

    @cached_property
    def _bounds(self) -> Tuple[int, np.ndarray]:
        """Elements of the largest arena, and the first of heads, as if all arenas were so large."""
        heads, plan = self.heads, self.forward
        span = max(rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas))
        first = plan.element_of[heads.term] + heads.offset
        return span, plan.arena_of[heads.term] * span + first

    def heads_at(self, name: Any, first: Any, size: Any) -> Iterator[Tuple[int, int]]:
        """Yield the heads in which some elements lie, or -1, and their first element there."""
        span, starts = self._bounds
        place = name * span + first
        number = np.searchsorted(starts, place, "right") - 1
        inside = (number >= 0) & (place + size <= (starts + self.heads.size)[number])
        numbers, offsets = np.where(inside, number, -1), place - starts[number]
        yield from zip(numbers.tolist(), offsets.tolist())

    def begin(self, arrays: Sequence[NDArray]) -> None:
        """Take note of the memory of the forward pass."""
        bases = self._prepared.forward.bases
        #: What is not read as None: there are values, but no parameters, see design page 0011.
        self._before = [
            array if base[0] in ("arena", "saved") else None for base, array in zip(bases, arrays)
        ]
        self._given = arrays

    def arrays(self) -> List[NDArray]:
        """Return what is at each base."""
        trained, gradients = self._trained, self._gradients
        return [
            gradients[trained[number]] if number in trained else self.array_at(*base)
            for number, base in enumerate(self._assembled.bases)
        ]

    def run(
        self,
        launch: Launch,
        executable: Executable,
        operands: List[NDArray],
        results: List[NDArray],
    ) -> None:
        """Run a launch on variables of its own, and remember its results."""
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
                own = parameter.data(segment.context), parameter.grad_req != "null"
                arguments.append(self._leaves.leaf(*own))
        executable.launch(arguments, segment.mode | RECORDING, out=results)
        recorded = self._results[launch.number] = Recorded(executable, arguments, results)
        if executable.mutated:
            _move_states(launch, recorded)

    def _mark(self, launch: Launch, operands: List[NDArray]) -> None:
        """Make variables of operands, with the rows for their gradients."""
        variables, gradients = [], []
        for p, region in enumerate(self.recorded[launch.number].outputs):
            array = operands[p]
            if region is not None:
                # A shared operand has its own shape; its gradient row is seen with that shape.
                variables.append(array)
                gradients.append(_shaped(self.region(region), array.shape))
            elif type(launch.operands[p]) is Whole:
                # Detached, the user's array gets no gradient behind the back of this tape.
                trained = bool(self.heads.in_graph[launch.operands[p].external])
                own = launch.segment.inputs[p].differentiable
                operands[p] = self._leaves.leaf(array, trained) if own else array.detach()
        if variables:
            autograd.mark_variables(variables, gradients, "write")

    def finish(self) -> None:
        """Take note of what gets a gradient: everything outside that the flush has read."""
        self._assembled, trained, self._reach = self._prepared.backward
        train, arrays = self._leaves.train, self._given
        #: What native code trains, by number of its base.
        self._trained = {
            gradient: train((self._externals if outside else arrays)[number], dense)
            for gradient, number, outside, dense in trained
        }
        del self._given
        #: Arrays from outside that get a gradient from a fill: its number, and their first row.
        self._filled = [
            (number, row, self._externals[external]) for number, row, external in self._reach.filled
        ]
        self._idle = self._idle_inputs()
        self.inputs = [*self._leaves.trained, *(a for _, _, a in self._filled), *self._idle]

    def _idle_inputs(self) -> List[NDArray]:
        """Return what the loop would give zeros: no gradient flows there, but it has been read."""
        arrays = [self._externals[number] for number in self._reach.others]
        for number in self._reach.launches:
            segment = self.forward.launch(number).segment
            trained = (p for p in segment.parameters if p.grad_req != "null")
            arrays += (p.data(segment.context) for p in trained)
        found = {
            id(array): array
            for array in arrays
            # What is kept in an arena gets no gradient but that of the flush that has made it.
            if type(array) is not LazyNDArray and array not in self._leaves
        }
        real = (array for array in found.values() if name_of(array.dtype) in FLOATS)
        return list(map(with_dense_gradient, real))

    def pull(
        self, pieces: List[Piece], wanted: List[bool], targets: List[Optional[NDArray]]
    ) -> List[Optional[Elements]]:
        """Run backward: return where the gradients of the inputs are, None where not wanted.

        They may be in their `targets` already.  The gradient of a head is the sum of its pieces.
        """
        self._gradients = self._leaves.gradients(targets)
        self.find_arrays(self._before)
        self._add_up(pieces)
        # Native steps never multiply a gradient of zero with what is infinite; others may.
        live = self._find_live() if self.recorded else None
        self._run()
        fills = self._fill_gradients(wanted)
        if live is not None and not all_finite([*self._gradients, *fills.values()]):
            self._run(live)
            fills = self._fill_gradients(wanted)
        return self._input_gradients(wanted, fills)

    def _add_up(self, pieces: List[Piece]) -> None:
        """Let the gradients of heads be sums of pieces."""
        arrays = {id(piece[0]): piece[0] for piece in pieces}
        number_of = {one: number for number, one in enumerate(arrays)}
        found = [(number_of[id(array)], *numbers) for array, *numbers in pieces]
        number, head, offset, first, count = np.array(found, dtype=np.int64).reshape((-1, 5)).T
        for fill in self.plan.fills:
            start = np.full(len(self.heads.term), -1)
            start[fill.externals] = fill.starts
            own = start[head] >= 0
            columns = (column[own] for column in (start[head] + offset, number, first, count))
            zeros = pieces_of(resolving.ZERO, [0], -1, 0, fill.counts.sum())
            added = np.concatenate((zeros, pieces_of(resolving.ADD, *columns)))
            put_together(self.region(fill.region), list(arrays.values()), added)

    def _find_live(self) -> Optional[np.ndarray]:
        """Mark the units that a gradient other than zero may arrive at; None if all are such."""
        used = [
            fill.externals[self.region(fill.region).asnumpy().any(axis=1)]
            for fill in self.plan.fills
        ]
        live = live_units(self.forward, self.heads.some(np.concatenate(used)))
        launches = self.recorded.values()
        return None if all(live[launch.units].all() for launch in launches) else live

    def _run(self, live: Optional[np.ndarray] = None) -> None:
        """Run all launches backward; of MXNet's operators only what belongs to live units."""
        self._leaves.clear()
        self._live = live
        self.run_launches()

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators backward."""
        recorded, segment = self._results[launch.number], launch.segment
        if self._live is None or self._live[launch.units].all():
            self._go_backward(launch, recorded)
            return
        rows = self.forward.graph.dependencies.rows[launch.units]
        live = np.repeat(self._live[launch.units], rows)
        gradients = {
            p: self.region(region) for p, region in enumerate(launch.outputs) if region is not None
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
        """Give the results that get a gradient theirs, and write those of variables."""
        segment, results, gradients = launch.segment, [], []
        for operand, port, result in zip(launch.operands, segment.outputs, recorded.results):
            if operand is not None:
                gradient = self.operand(operand, port.dtype, segment.context)
                results.append(result)
                gradients.append(_shaped(gradient, result.shape))
        # The graph of a launch lives as long as this tape: the user may go backward twice.
        go_backward(results, gradients, segment.mode)

    def _fill_gradients(self, wanted: List[bool]) -> Dict[int, NDArray]:
        """Return the gradients of fills that are asked for, by number."""
        asked = wanted[len(self._leaves.trained) :]
        fills: Dict[int, NDArray] = {}
        for (number, _, _), want in zip(self._filled, asked):
            if want and number not in fills:
                region = self.forward.fills[number].region
                arena = self.forward.arenas[region.arena]
                found = self.operand(self.plan.results[number], arena.dtype, arena.context)
                fills[number] = _shaped(found, (region.rows, arena.row_size))
        return fills

    def _input_gradients(
        self, wanted: List[bool], fills: Dict[int, NDArray]
    ) -> List[Optional[Elements]]:
        found: List[Optional[Elements]] = [(array, 0, array.size) for array in self._gradients]
        for (number, row, array), want in zip(self._filled, wanted[len(found) :]):
            fill = fills.get(number)
            place = None if fill is None else (fill, row * fill.shape[1], array.size)
            found.append(place if want else None)
        for array, want in zip(self._idle, wanted[len(found) :]):
            found.append((mx.nd.zeros_like(array), 0, array.size) if want else None)
        return found


def _shaped(array: NDArray, shape: Tuple[int, ...]) -> NDArray:
    return array if array.shape == shape else array.reshape(shape)


def _move_states(launch: Launch, recorded: Recorded) -> None:
    """Update running statistics now, by a backward pass whose gradients nobody reads.

    MXNet moves them when it goes backward.  In its own thread, that would be at a time that no
    later reader waits for; so the recorded launch has copies, and they are copied back here.
    """
    segment, (executable, arguments, results) = launch.segment, recorded
    if segment.mode & TRAINING:
        go_backward(results, [mx.nd.zeros_like(r) for r in results], segment.mode)
    for k in executable.mutated:
        kind, number = executable.arguments[k]
        # What is no parameter is only read: operators that write to arrays run at once.
        if kind == "param":
            arguments[k].copyto(segment.parameters[number].data(segment.context))
