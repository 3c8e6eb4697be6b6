"""A node of MXNet's tape: the backward passes of flushes, from its results to its inputs.

Gradients arrive at ranges of the flushes' arenas.  The flushes run backward from the last to the
first, and a gradient of what one has read from an earlier one is added to those that arrive there.
"""

from __future__ import annotations

from typing import (
    Callable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..errors import GradientError, ShapeError
from ..native import recording
from ..plan.transpose import externals_of
from ..record.lazy_base import Lazy
from ..record.where import user_line
from ..schedule.dependencies import Array
from .backward import BackwardPass, Elements, HeadGradients
from .buffers import view
from .keep import view_in
from .variables import Requests, Target


class Within(NamedTuple):
    """Part of a head of an earlier flush of the chain."""

    flush: int
    head: int
    #: The first element within the head.
    offset: int
    #: Number of the external array that reads it.
    external: int


#: Where the gradient of an input goes: to an earlier flush, an array in MXNet's tape, or nowhere.
Route = Union[Within, NDArray, None]


class Outputs(NamedTuple):
    """Results of a node: columns, with one row per result."""

    #: The flush that computes it, and the head that it is a part of.
    flush: Array
    head: Array
    #: Its first element within the head, and its number of elements.
    offset: Array
    size: Array

    def some(self, rows: Union[List[int], slice]) -> Outputs:
        """Return some of the results."""
        return Outputs(*(column[rows] for column in self))

    def split(self, flushes: int, head_gradients: List[NDArray]) -> List[HeadGradients]:
        """Return the gradients of the heads of each flush, given one array per result."""
        arrays, numbers = recording.distinct(head_gradients)  # most are the same ones
        pieces = np.zeros((len(numbers), 5), dtype=np.int64)
        for i, column in enumerate((numbers, self.head, self.offset, 0, self.size)):
            pieces[:, i] = column
        if flushes == 1:
            return [HeadGradients(arrays, pieces)]
        return [HeadGradients(arrays, pieces[self.flush == flush]) for flush in range(flushes)]


class Share(NamedTuple):
    """The lazy arrays that share the memory of a result."""

    references: List[Callable[[], Optional[Lazy]]]
    #: Where the memory begins in the arena that it was copied from.
    first: int
    #: Whether one array is all of it; otherwise, each of them is a view.
    single: bool

    def alive(self) -> List[Lazy]:
        """Return the arrays that are still held."""
        arrays = (reference() for reference in self.references)
        return [array for array in arrays if array is not None]

    def copied(self, size: int) -> NDArray:
        """Return an array in no graph that has all values of held arrays, of some size.

        If one of them is all of the memory, this is shared.
        """
        alive = self.alive()
        with autograd.pause(autograd.is_training()):
            flat = [recording.plain_array(x.real()).detach().reshape((-1,)) for x in alive]
            for array in flat:
                if array.size == size:
                    return array
            whole = mx.nd.empty((size,), flat[0].context, flat[0].dtype)
            for lazy, array in zip(alive, flat):
                start = lazy._offset - self.first
                whole[start : start + array.size] = array
        return whole

    def become_views(self, array: NDArray) -> None:
        """Let all arrays that are still held be views of an array, also for autograd."""
        alive = self.alive()
        with autograd.record(autograd.is_training()):
            recording.become(alive, [view_in(array, self.first, lazy) for lazy in alive])


class Live(NamedTuple):
    """Per flush, a mark per unit: whether gradients arrive there; and whether at all that may."""

    units: List[Array]
    are_all: bool


class TapeNode:
    """The backward passes of a node of MXNet's tape."""

    def __init__(
        self,
        passes: List[Tuple[BackwardPass, List[Route]]],
        outputs: Outputs,
        shares: List[Share],
    ):
        self._passes = passes
        self._outputs = outputs
        #: Whether MXNet's operators run launches, from which calls without a gradient are left out.
        self.leaves_out = any(backward.operators.launches for backward, _ in passes)
        #: Per result, its lazy arrays.
        self._shares = shares
        #: The results that backward passes started from; None if they started elsewhere, too.
        self._started: Optional[Set[int]] = set()
        #: Those that the latest one started from.
        self._latest: Optional[Set[int]] = None
        #: Whether MXNet has freed the node: backward passes that start later reach other ones.
        self._is_freed = False
        #: The results for which `_live_units` was called last, and what it returned.
        self._live: Optional[Tuple[Optional[List[int]], Live]] = None

    @property
    def inputs(self) -> List[NDArray]:
        """The arrays that get gradients."""
        routes = (route for _, routes in self._passes for route in routes)
        return [route for route in routes if isinstance(route, NDArray)]

    def starts(self, heads: Set[int]) -> bool:
        """Note that a backward pass starts from the arrays with these handles.

        If all of them are results of this node, no gradient arrives at other results.  Returns
        whether they are.
        """
        if self._is_freed:
            return False
        numbers = {
            array.handle.value: number
            for number, share in enumerate(self._shares)
            for array in share.alive()
        }
        all_known = heads <= numbers.keys()
        self._latest = {numbers[head] for head in heads} if all_known else None
        if self._latest is None:
            self._started = None
        elif self._started is not None:
            self._started |= self._latest
        return all_known

    def reached(self) -> Optional[List[bool]]:
        """Return per input whether a gradient may reach it; None if this is not known, or all."""
        live = self._live_units(self._starts())
        if live.are_all:
            return None
        return [
            is_reached
            for (backward, routes), units in zip(self._passes, live.units)
            for is_reached, route in zip(backward.reached(units), routes)
            if isinstance(route, NDArray)
        ]

    def untouched(self) -> Optional[List[Array]]:
        """Return per flush which heads share nothing with what the latest backward pass reached.

        Returns None if it reached all.
        """
        starts = self._starts() if self._latest is None else sorted(self._latest)
        live = self._live_units(starts)
        if live.are_all:
            return None
        untouched: List[Array] = []
        for (backward, routes), units in zip(self._passes, live.units):
            externals = np.zeros(len(backward.heads.in_graph), dtype=bool)
            for route in routes:
                if isinstance(route, Within) and not untouched[route.flush][route.head]:
                    externals[route.external] = True
            untouched.append(backward.untouched_heads(units, externals))
        return untouched

    def record_rest(self, record: Callable[[List[NDArray], List[NDArray], TapeNode], None]) -> None:
        """Record anew what is held and shares nothing with what is reached: this node is freed."""
        untouched, self._is_freed = self.untouched(), True
        if untouched is None:
            return
        results: List[NDArray] = []
        numbers: List[int] = []
        flushes, heads, _, sizes = (column.tolist() for column in self._outputs)
        for number, share in enumerate(self._shares):
            alive = share.alive()
            if alive and untouched[flushes[number]][heads[number]]:
                results.append(alive[0].real() if share.single else share.copied(sizes[number]))
                numbers.append(number)
        if not results:
            return
        shares = [self._shares[number] for number in numbers]
        node = TapeNode(self._passes, self._outputs.some(numbers), shares)
        record(node.inputs, results, node)
        for share, result in zip(shares, results):
            if not share.single:
                share.become_views(result)

    def _starts(self) -> Optional[List[int]]:
        """Return the results that a gradient may arrive at; None if it may arrive at any."""
        return sorted(self._started) if self._started else None

    def backward(
        self, head_gradients: List[NDArray], requests: Requests, training: bool
    ) -> List[Optional[Target]]:
        """Return the gradients of the inputs, None where not wanted.

        Raises ``GradientError`` if a call would have another gradient because of `training`.
        """
        if not training and any(backward.operators.has_statistics for backward, _ in self._passes):
            raise GradientError(
                "backward was called with train_mode=False, but BatchNorm or another call that has "
                "running statistics was recorded in training mode",
                user_line(),
                advice="record the scope with autograd.record(train_mode=False)",
            )
        self._check(head_gradients)
        arriving = self._outputs.split(len(self._passes), head_gradients)
        requests_of = self._split(requests)
        live: Sequence[Optional[Array]] = [None] * len(self._passes)
        if self.leaves_out:
            live = self._live_units(self._starts()).units
        results: List[List[Optional[Target]]] = []
        for number in reversed(range(len(self._passes))):
            backward, routes = self._passes[number]
            gradients: List[Optional[Target]] = []
            ranges = backward.pull(arriving[number], requests_of[number], live[number])
            for route, target, found in zip(routes, requests_of[number].targets, ranges):
                if found is target or found is None:
                    # Without a gradient, there is no target; most gradients are their targets.
                    if isinstance(route, NDArray):
                        gradients.append(target)
                    continue
                assert not isinstance(found, int), "only targets are given by their handles"
                if isinstance(route, Within):
                    elements = found if isinstance(found, tuple) else (found, 0, found.size)
                    arriving[route.flush].add(elements, route.head, route.offset)
                elif isinstance(route, NDArray):
                    gradients.append(_shaped_like(route, found))
            results.append(gradients)
        return [gradient for gradients in reversed(results) for gradient in gradients]

    def _split(self, requests: Requests) -> List[Requests]:
        """Return the requests of each flush; a gradient that goes to another flush is wanted."""
        if len(self._passes) == 1 and len(requests.wanted) == len(self._passes[0][1]):
            return [requests]
        given, found = zip(*requests), []
        for _, routes in self._passes:
            rows = [
                next(given) if isinstance(route, NDArray) else (route is not None, None)
                for route in routes
            ]
            found.append(Requests([row[0] for row in rows], [row[1] for row in rows]))
        return found

    def _check(self, head_gradients: List[NDArray]) -> None:
        """Raise for one that is too small; of a larger one, MXNet reads the first elements, too."""
        arrays, numbers = recording.distinct(head_gradients)
        given_sizes = np.array(recording.sizes_of(arrays))[numbers]
        for number in np.flatnonzero(given_sizes < self._outputs.size)[:1].tolist():
            shape, size = head_gradients[number].shape, self._outputs.size[number]
            raise ShapeError(f"a gradient of shape {shape} for an array of {size} elements")

    def _live_units(self, starts: Optional[List[int]]) -> Live:
        """Return at which units gradients arrive that arrive at some results, or at any."""
        if self._live is None or self._live[0] != starts:
            self._live = starts, self._find_live_units(starts)
        return self._live[1]

    def _find_live_units(self, starts: Optional[List[int]]) -> Live:
        #: Per flush, the heads at which gradients arrive.
        heads = [np.zeros(len(backward.heads.term), dtype=bool) for backward, _ in self._passes]
        flushes, numbers, *_ = self._outputs.some(slice(None) if starts is None else starts)
        for flush, arriving in enumerate(heads):
            arriving[numbers[flushes == flush]] = True
        live, are_all = [], True
        for (backward, routes), arriving in zip(reversed(self._passes), reversed(heads)):
            units, count = backward.live_units(arriving)
            within = [route for route in routes if isinstance(route, Within)]
            if within:
                externals = len(backward.heads.in_graph)
                reads = externals_of(backward.forward.graph, units, externals)
                for route in within:
                    heads[route.flush][route.head] |= reads[route.external]
            live.append(units)
            are_all = are_all and count == backward.most_live
        return Live(live[::-1], are_all)


def _shaped_like(other: NDArray, found: Union[NDArray, Elements]) -> NDArray:
    """Return a gradient in the shape of another array; its array, if that has that shape."""
    array, first, _ = found if isinstance(found, tuple) else (found, 0, 0)
    return array if array.shape == other.shape else view(array, first, other.shape)
