"""Run a plan backward.

Launches with kernels run natively.  Those of MXNet's operators are recorded in the forward pass and
run backward one by one, see `operators.py`.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, Dict, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ..native import planning
from ..plan.launch import Launch
from ..plan.plan import Plan
from ..plan.transpose import Reach, externals_of, live_units, touched_units
from ..record.lazy_base import Lazy
from ..schedule.dependencies import Array
from .buffers import bases_of, shaped, write_pieces
from .execute import Execution, Pass
from .operators import OperatorTape, Targets, with_dense_gradient
from .prepare import Prepared
from .variables import Requests, Target

#: The kinds of forward bases that the backward pass reads.
KEPT_BASES = frozenset(["arena", "saved", "key", "identities"])

#: A gradient, as elements of an array: the array, the first element, and their number.
Elements = Tuple[NDArray, int, int]
#: The gradient of an input, if it is wanted: all of an array, also of a target, or some elements.
Found = Union[Target, Elements, None]


class HeadGradients:
    """Gradients that arrive at heads: for each head, the sum of the pieces that belong to it."""

    def __init__(self, arrays: List[NDArray], pieces: Array):
        """Begin with pieces of some arrays.

        `pieces` has a row per piece: the number of the array, the number of the head, the first
        element within the head, the first element within the array, and the number of elements.
        """
        self.arrays = list(arrays)
        self._pieces = [pieces]

    def add(self, elements: Elements, head: int, offset: int) -> None:
        """Add elements of an array to a head, from one of its elements on."""
        array, first, count = elements
        self._pieces.append(np.array([[len(self.arrays), head, offset, first, count]]))
        self.arrays.append(array)

    @property
    def pieces(self) -> Array:
        """All pieces."""
        return self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)


class BackwardPass:
    """The backward pass of a flush, and what it needs of the forward pass.

    `execution` ran forward and wrote `operators`.
    """

    def __init__(self, prepared: Prepared, execution: Execution, operators: OperatorTape):
        assert prepared.transposed is not None and prepared.backward is not None
        self.forward: Plan = execution.plan
        self.plan, self.operators = prepared.transposed.plan, operators
        #: The results at which gradients may arrive.
        self.heads = prepared.transposed.heads
        self._span, self._head_starts = _starts(self.forward, self.heads)
        #: The arrays at the bases of the forward program; None where the backward pass must not
        #: read, such as parameters: see design page 0003.
        self.forward_arrays = [
            array if base[0] in KEPT_BASES else None
            for base, array in zip(prepared.forward.bases, execution.arrays)
        ]
        self.program, trained, reach = prepared.backward
        self.targets, externals = Targets(operators.leaves.targets), execution.externals
        own, outside = execution.arrays, list(compress(trained.numbers, trained.external))
        arrays = [
            externals[number] if is_external else own[number]
            for number, is_external in zip(trained.numbers, trained.external)
        ]
        #: The bases of gradients that native code computes, and the numbers of their targets.
        self.trained = trained.gradients, self.targets.add_all(arrays, trained.dense)
        #: Which units lie on a path to a head, and how many do.
        self._live, self.most_live = reach.live, reach.units
        filled, idle = reach.filled, self._idle_inputs(reach, externals)
        #: By id of an input, the number of an external array that it is.
        self._numbers = {id(externals[n]): n for n in (*(n for *_, n in filled), *reach.others)}
        self._numbers.update({id(externals[number]): number for number in outside})
        if operators.leaves.targets.arrays:
            self._numbers.update({id(array): n for n, array in enumerate(externals)})
        #: All arrays that get a gradient.
        self.inputs = [*self.targets.arrays, *(externals[n] for *_, n in filled), *idle]
        #: Per input that is no target, the fill and the row where its gradient begins, or None
        #: if no gradient reaches it.
        self.places = [*((fill, row) for fill, row, _ in filled), *[None] * len(idle)]

    def _idle_inputs(self, reach: Reach, externals: List[NDArray]) -> List[NDArray]:
        """Return the arrays that are read but not differentiated: the loop gives them zeros."""
        arrays = [externals[number] for number in reach.others]
        for number in reach.launches:
            segment = self.forward.launch(number).segment
            trained = (p for p in segment.parameters if p.grad_req != "null")
            arrays += (p.data(segment.context) for p in trained)
        idle = {
            id(array): array
            for array in arrays
            # A kept array needs no zeros: the flush that computed it gives zeros to its own inputs.
            if not isinstance(array, Lazy) and array not in self.targets
        }
        return list(map(with_dense_gradient, idle.values()))

    def heads_at(self, arena: Array, first: Array, size: Array) -> Tuple[Array, Array]:
        """Return, per range of elements, the head that contains it or -1, and its offset there."""
        columns = self._head_starts, self.heads.size, arena * self._span + first, size
        return planning.find_ranges(*columns)

    def live_units(self, heads: Array) -> Tuple[Array, int]:
        """Return which units pass gradients on that arrive at marked heads, and how many do."""
        if heads.all():
            return self._live, self.most_live
        return live_units(self.forward, self.heads.some(heads))

    def reached(self, units: Array) -> List[bool]:
        """Return per input whether it is read by a marked unit, or not known not to be read."""
        graph = self.forward.graph
        live = np.zeros(len(graph.segments), dtype=bool)
        live[graph.segment[units]] = True
        # By id of an array.
        reached: Dict[int, bool] = {}
        for segment, is_live in zip(graph.segments, live.tolist()):
            for parameter in segment.parameters:
                identity = id(parameter.data(segment.context))
                reached[identity] = is_live or reached.get(identity, False)
        read = externals_of(graph, units, len(self.heads.in_graph))
        for identity, number in self._numbers.items():
            reached[identity] = bool(read[number]) or reached.get(identity, False)
        return [reached.get(id(array), True) for array in self.inputs]

    def untouched_heads(self, units: Array, externals: Array) -> Array:
        """Return which heads have graphs of their own, without marked units and externals."""
        graph, plan = self.forward.graph, self.forward
        of_heads = graph.slot_unit[self.heads.term]
        touched = touched_units(plan, units, externals)[of_heads]
        runs = np.zeros(len(plan.order), dtype=bool)
        runs[self.plan.order] = True
        untouched: Array = runs[plan.members.launch[of_heads]] & ~touched
        return untouched

    def pull(
        self, arriving: HeadGradients, requests: Requests, live: Optional[Array]
    ) -> List[Found]:
        """Run backward from the gradients of heads; return the gradients of inputs.

        Launches of MXNet's operators run for `live` units only, for all units if this is None.
        """
        return Pull(self, requests, live).run(arriving)


def _zeros_like(array: NDArray) -> NDArray:
    return mx.nd.zeros(array.shape, array.ctx, array.dtype)


def _starts(plan: Plan, heads: Any) -> Tuple[int, Array]:
    """Return the size of the largest arena, and each head's start if all arenas had that size."""
    span = max(rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas))
    arena, first = plan.locate(heads.term)
    return span, arena * span + first + heads.offset


class Pull(Pass):
    """One run of a backward pass, for the wanted gradients."""

    suffix = " backward"

    def __init__(self, backward: BackwardPass, requests: Requests, live: Optional[Array]):
        super().__init__(backward.operators.gradients, backward.program)
        self._backward = backward
        self._wanted = requests.wanted
        #: The gradients of targets.
        self._gradients = backward.targets.gradients(requests)
        earlier, bases = backward.forward_arrays, self._assembled.bases
        arrays: List[Any] = [None] * len(bases)
        for number, target in zip(*backward.trained):
            arrays[number] = self._gradients[target]
        for number, array in enumerate(arrays):
            if array is None:
                arrays[number] = self.array_at(*bases[number])
        uses = b"".join([b"-" if array is None else b"r" for array in earlier])
        # They follow those of the forward pass.
        self.bases = bases_of([*earlier, *arrays], uses + self._assembled.uses)
        self._live = live

    def run(self, arriving: HeadGradients) -> List[Found]:
        """Run backward from the gradients of heads; return the gradients of inputs."""
        self._add_up(arriving)
        self._backward.targets.clear()
        self.run_launches()
        return self._input_gradients(self._fill_gradients())

    def _add_up(self, arriving: HeadGradients) -> None:
        """Fill the arenas with the gradients of heads."""
        pieces, heads = arriving.pieces, len(self._backward.heads.term)
        for fill in self.plan.fills:
            sums = planning.sums_of_heads(pieces, heads, fill.externals, fill.counts)
            write_pieces(self.arenas.region(fill.region), arriving.arrays, sums)

    def launch(self, launch: Launch) -> None:
        """Run a launch of MXNet's operators backward."""
        self._backward.operators.run_backward(launch, self._live)

    def _fill_gradients(self) -> Dict[int, NDArray]:
        """Return the gradients of the fills that have wanted inputs, by number of the fill."""
        forward, fills = self._backward.forward, {}
        places = compress(self._backward.places, self._wanted[len(self._gradients) :])
        for number in dict.fromkeys(place[0] for place in places if place is not None):
            region = forward.fills[number].region
            arena = forward.arenas[region.arena]
            gradient = self.arenas.operand(self.plan.results[number], arena.dtype, arena.context)
            fills[number] = shaped(gradient, (region.rows, arena.row_size))
        return fills

    def _input_gradients(self, fills: Dict[int, NDArray]) -> List[Found]:
        """Return the gradient of each input, in the order of `inputs`."""
        gradients: List[Found] = [*self._gradients]
        others = slice(len(gradients), None)
        inputs, places = self._backward.inputs[others], self._backward.places
        for array, is_wanted, place in zip(inputs, self._wanted[others], places):
            if not is_wanted:
                gradients.append(None)
            elif place is None:
                gradients.append(_zeros_like(array))
            else:
                fill = fills[place[0]]
                gradients.append((fill, place[1] * fill.shape[1], array.size))
        return gradients
