"""Run a plan backward.

Launches with kernels run natively.  A launch of MXNet's operators that takes part in the gradient
is recorded on its own in the forward pass: its operands are variables, and MXNet writes their
gradients into rows of the transposed plan's arenas.  In the backward pass, the operands of the
transposed launch are its head gradients.  Unlike with one tape over all launches, no gradients are
padded with zeros and added up.
"""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..modes import RECORDING, TRAINING
from ..native import resolving
from ..plan.plan import Launch, Plan, Whole, pieces_of
from ..plan.transpose import Reach, live_units
from ..record.lazy import LazyNDArray
from .buffers import bases_of, shaped, write_pieces, zero
from .dispatch import Executable
from .execute import Pass
from .gradient import Request
from .keep import Kept
from .leaves import Leaves, with_dense_gradient
from .left_out import Recorded, all_finite, keep_rows
from .pool import BACKWARD_POOL
from .prepare import Prepared

#: Part of the gradient of a head: an array, the number of the head, the first element within the
#: head, the first element within the array, and the number of elements.
Piece = Tuple[NDArray, int, int, int, int]

#: A gradient, as elements of an array: the array, the first element, and their number.
Elements = Tuple[NDArray, int, int]


class GradientTape(Pass):
    """The backward run of a flush, and what it needs of the forward run."""

    #: Set by `Chain`: the arrays of the flush, and where the gradient of each input goes.
    kept: Kept
    routes: List[Any]

    suffix = " backward"
    pool = BACKWARD_POOL

    def __init__(self, forward: Plan, prepared: Prepared, externals: List[NDArray]):
        super().__init__(prepared.backward_plan)
        self.forward = forward
        assert prepared.heads is not None
        #: The results at which gradients may arrive.
        self.heads = prepared.heads
        self._externals = externals
        self._prepared = prepared
        #: The launches that MXNet's operators run backward, by number.
        self.recorded = prepared.recorded
        self._leaves = Leaves()
        self._graphs: Dict[int, Recorded] = {}
        #: Per unit, whether a gradient arrives there; None as long as all units run backward.
        self._live: Optional[np.ndarray] = None

    @cached_property
    def _head_starts(self) -> Tuple[int, np.ndarray]:
        """The size of the largest arena, and the start of each head if all arenas had that size."""
        heads, plan = self.heads, self.forward
        span = max(rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas))
        arena, first = plan.locate(heads.term)
        return span, arena * span + first + heads.offset

    def heads_at(self, arena: Any, first: Any, size: Any) -> Iterator[Tuple[int, int]]:
        """Yield, per range of elements, the head that contains it or -1, and its offset there."""
        span, head_starts = self._head_starts
        start = arena * span + first
        head = np.searchsorted(head_starts, start, "right") - 1
        inside = (head >= 0) & (start + size <= (head_starts + self.heads.size)[head])
        heads, offsets = np.where(inside, head, -1), start - head_starts[head]
        yield from zip(heads.tolist(), offsets.tolist())

    def run(
        self,
        launch: Launch,
        executable: Executable,
        operands: List[NDArray],
        results: List[NDArray],
    ) -> None:
        """Run a launch of MXNet's operators forward, and record it on variables of its own."""
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
                arguments.append(self._leaves.leaf(array, trained))
        executable.launch(arguments, segment.mode | RECORDING, out=results)
        recorded = self._graphs[launch.number] = Recorded(executable, arguments, results)
        if executable.mutated:
            _update_statistics(launch, recorded)

    def _mark(self, launch: Launch, operands: List[NDArray]) -> None:
        """Make the operands variables, whose gradients are rows of the backward arenas."""
        variables, gradients = [], []
        for p, region in enumerate(self.recorded[launch.number].outputs):
            array = operands[p]
            if region is not None:
                variables.append(array)
                gradients.append(shaped(self.region(region), array.shape))
            elif type(launch.operands[p]) is Whole:
                if launch.segment.inputs[p].differentiable:
                    trained = bool(self.heads.in_graph[launch.operands[p].external])
                    operands[p] = self._leaves.leaf(array, trained)
                else:
                    # Detached, so that MXNet adds nothing to the gradient of the user's array.
                    operands[p] = array.detach()
        if variables:
            autograd.mark_variables(variables, gradients, "write")

    def finish(self, arrays: Sequence[NDArray]) -> None:
        """Find the inputs of the flush, the arrays that get a gradient from it.

        `arrays` are those at the bases of the forward program, which now runs.
        """
        #: None where the backward pass must not read, such as parameters: see design page 0003.
        self._forward_arrays = [
            array if base[0] in ("arena", "saved") else None
            for base, array in zip(self._prepared.forward.bases, arrays)
        ]
        self._assembled, trained, reach = self._prepared.backward
        train = self._leaves.train
        #: By base of a gradient that native code computes, the number of its array in `_leaves`.
        self._trained = {
            gradient: train((self._externals if is_external else arrays)[number], dense)
            for gradient, number, is_external, dense in trained
        }
        filled, idle = reach.filled, self._idle_inputs(reach)
        #: All arrays that get a gradient.
        self.inputs = [*self._leaves.trained, *(self._externals[n] for *_, n in filled), *idle]
        #: Per input that is not trained, the fill and the row where its gradient begins, or None
        #: if no gradient reaches it.
        self._places = [*((fill, row) for fill, row, _ in filled), *[None] * len(idle)]

    def _idle_inputs(self, reach: Reach) -> List[NDArray]:
        """Return the arrays that are read but not differentiated: the loop gives them zeros."""
        arrays = [self._externals[number] for number in reach.others]
        for number in reach.launches:
            segment = self.forward.launch(number).segment
            trained = (p for p in segment.parameters if p.grad_req != "null")
            arrays += (p.data(segment.context) for p in trained)
        idle = {
            id(array): array
            for array in arrays
            # A kept array needs no zeros: the flush that computed it gives zeros to its own inputs.
            if type(array) is not LazyNDArray and array not in self._leaves
        }
        return list(map(with_dense_gradient, idle.values()))

    def pull(self, pieces: List[Piece], requests: List[Request]) -> List[Optional[Elements]]:
        """Run backward from head gradients, the sums of pieces; return the gradients of inputs."""
        wanted = [request.wanted for request in requests]
        gradients = self._gradients = self._leaves.gradients(requests)
        self._find_arrays(gradients)
        self._add_up(pieces)
        # A native step never multiplies a zero gradient with infinity; MXNet's operators may.
        live = self._find_live() if self.recorded else None
        self._run()
        fills = self._fill_gradients(wanted)
        if live is not None and not all_finite([*self._gradients, *fills.values()]):
            self._run(live)
            fills = self._fill_gradients(wanted)
        return self._input_gradients(wanted, fills)

    def _find_arrays(self, gradients: List[NDArray]) -> None:
        """Find or allocate the arrays of all bases, which follow those of the forward pass."""
        trained, assembled, earlier = self._trained, self._assembled, self._forward_arrays
        arrays = [
            gradients[trained[number]] if number in trained else self.array_at(*base)
            for number, base in enumerate(assembled.bases)
        ]
        uses = b"".join([b"-" if array is None else b"r" for array in earlier])
        self.bases = bases_of([*earlier, *arrays], uses + assembled.uses)

    def _add_up(self, pieces: List[Piece]) -> None:
        """Fill the arenas with the gradients of heads, which are sums of pieces."""
        arrays = {id(piece[0]): piece[0] for piece in pieces}
        number_of = {identity: number for number, identity in enumerate(arrays)}
        rows = [(number_of[id(array)], *numbers) for array, *numbers in pieces]
        number, head, offset, first, count = np.array(rows, dtype=np.int64).reshape((-1, 5)).T
        for fill in self.plan.fills:
            # The first element of each head in the region of the fill, -1 for heads of other fills.
            start = np.full(len(self.heads.term), -1)
            start[fill.externals] = fill.starts
            inside = start[head] >= 0
            columns = (column[inside] for column in (start[head] + offset, number, first, count))
            zeros = pieces_of(resolving.ZERO, [0], -1, 0, fill.counts.sum())
            additions = pieces_of(resolving.ADD, *columns)
            region, table = self.region(fill.region), np.concatenate((zeros, additions))
            write_pieces(region, list(arrays.values()), table)

    def _find_live(self) -> Optional[np.ndarray]:
        """Mark units at which nonzero gradients may arrive; None if all recorded ones are such."""
        nonzero = [
            fill.externals[self.region(fill.region).asnumpy().any(axis=1)]
            for fill in self.plan.fills
        ]
        live = live_units(self.forward, self.heads.some(np.concatenate(nonzero)))
        launches = self.recorded.values()
        return None if all(live[launch.units].all() for launch in launches) else live

    def _run(self, live: Optional[np.ndarray] = None) -> None:
        """Run all launches backward, those of MXNet's operators for live units only."""
        self._leaves.clear()
        self._live = live
        self.run_launches()

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators backward."""
        recorded, segment = self._graphs[launch.number], launch.segment
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
        """Run a recorded launch backward: read gradients of results, write those of operands."""
        segment, results, gradients = launch.segment, [], []
        for operand, port, result in zip(launch.operands, segment.outputs, recorded.results):
            if operand is not None:
                gradient = self.operand(operand, port.dtype, segment.context)
                results.append(result)
                gradients.append(shaped(gradient, result.shape))
        recorded.executable.go_backward(results, gradients, segment.mode)

    def _fill_gradients(self, wanted: List[bool]) -> Dict[int, NDArray]:
        """Return the gradients of the fills that have wanted inputs, by number of the fill."""
        places = compress(self._places, wanted[len(self._gradients) :])
        fills: Dict[int, NDArray] = {}
        for number in dict.fromkeys(place[0] for place in places if place is not None):
            region = self.forward.fills[number].region
            arena = self.forward.arenas[region.arena]
            gradient = self.operand(self.plan.results[number], arena.dtype, arena.context)
            fills[number] = shaped(gradient, (region.rows, arena.row_size))
        return fills

    def _input_gradients(
        self, wanted: List[bool], fills: Dict[int, NDArray]
    ) -> List[Optional[Elements]]:
        """Return the gradient of each input, in the order of `inputs`."""
        gradients: List[Optional[Elements]] = [(array, 0, array.size) for array in self._gradients]
        others = slice(len(gradients), None)
        for array, is_wanted, place in zip(self.inputs[others], wanted[others], self._places):
            if not is_wanted:
                gradients.append(None)
            elif place is None:
                gradients.append((mx.nd.zeros_like(array), 0, array.size))
            else:
                fill = fills[place[0]]
                gradients.append((fill, place[1] * fill.shape[1], array.size))
        return gradients


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
