"""Several flushes of a scope as one node of MXNet's tape.

Arrays that a later flush reads stay in their arenas, so MXNet never sees them.  Gradients go from
flush to flush in the same way: what the backward pass of one flush leaves for an array from
outside is added to the gradient of the head that it is.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from ..plan.plan import Plan
from ..plan.transpose import Head
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from .backward import GradientTape, Piece
from .gradient import record_function
from .keep import Kept


class Inner(NamedTuple):
    """An array from outside that is a part of a head of an earlier flush."""

    link: int
    head: int
    offset: int


class Standing(NamedTuple):
    """What stands among arrays from outside for one that is kept in an arena."""

    original: LazyNDArray
    kept: Kept
    arena: int
    first: int
    count: int


def find_standing(tape: Tape) -> Dict[int, Standing]:
    """Return what stands for kept arrays on a tape, by id."""
    places = (one for one in tape.externals if type(one) is LazyNDArray)
    return {
        id(place): Standing(lazy, place._tape, place._value, place._offset, place.size)
        for place, lazy in zip(places, tape.kept)
    }


class Link(NamedTuple):
    """One flush."""

    tape: GradientTape
    kept: Optional[Kept]
    heads: Sequence[Head]
    #: Arena, first element, and number of each head, in this order.
    places: List[Tuple[int, int, int]]
    #: Per input of the flush where its gradient goes: to an earlier flush, to an array of MXNet's
    #: tape, or nowhere.
    routes: List[Union[Inner, NDArray, None]]


class Chain:
    """The flushes of a scope that are not yet part of MXNet's tape."""

    def __init__(self) -> None:
        self._links: List[Link] = []
        #: Per result of the node: flush and head.
        self._outputs: List[Tuple[int, int]] = []
        #: Whether they have become one.
        self.done = False

    @property
    def open(self) -> bool:
        """Whether there are flushes that are to become one node."""
        return bool(self._links) and not self.done

    def add(
        self,
        plan: Plan,
        tape: GradientTape,
        kept: Kept,
        heads: Sequence[Head],
        standing: Dict[int, Standing],
    ) -> None:
        """Add a flush, whose arrays stay in `kept`."""
        routes = [self._route(array, standing) for array in tape.inputs]
        places = []
        for number, head in enumerate(heads):
            arena, element = plan.place(head.term)
            places.append((arena, element + head.offset, number))
        self._links.append(Link(tape, kept, heads, sorted(places), routes))
        kept.chain = self

    def connect_one(
        self,
        tape: GradientTape,
        heads: Sequence[Head],
        arrays: List[NDArray],
        standing: Dict[int, Standing],
    ) -> None:
        """Make one flush a node of MXNet's tape; the arrays of its heads are the results."""
        routes = [_real_of(array, standing) for array in tape.inputs]
        self._links.append(Link(tape, None, heads, [], routes))
        self._outputs = [(0, number) for number in range(len(heads))]
        self._record(arrays)

    def _record(self, arrays: List[NDArray]) -> None:
        routes = (route for link in self._links for route in link.routes)
        inputs = [route for route in routes if isinstance(route, NDArray)]
        if inputs and arrays:
            record_function(inputs, arrays, self.backward)

    def _route(self, array: NDArray, standing: Dict[int, Standing]) -> Union[Inner, NDArray, None]:
        place = standing.get(id(array))
        if place is None or place.kept.chain is not self:
            return _real_of(array, standing)
        number = next(i for i, link in enumerate(self._links) if link.kept is place.kept)
        head = _head_at(self._links[number], place.arena, place.first, place.count)
        return None if head is None else Inner(number, *head)

    def connect(self) -> None:
        """Make the flushes one node of MXNet's tape; what is still held becomes its results."""
        self.done = True
        made: List[Tuple[NDArray, int, List[LazyNDArray]]] = []
        for number, link in enumerate(self._links):
            assert link.kept is not None
            link.kept.chain = None
            for head, first, array, sharing in _taken_out(link):
                self._outputs.append((number, head))
                made.append((array, first, sharing))
        self._record([array for array, _, _ in made])
        previous = mx.autograd.set_recording(True)
        try:
            for array, first, sharing in made:
                for lazy in sharing:
                    lazy.become(_view(array, lazy, lazy._offset - first))
        finally:
            mx.autograd.set_recording(previous)

    def backward(
        self,
        head_gradients: List[NDArray],
        wanted: List[bool],
        targets: List[Optional[NDArray]],
    ) -> List[Optional[NDArray]]:
        """Return the gradients of the inputs; None where `wanted` is false."""
        pieces: List[List[Piece]] = [[] for _ in self._links]
        whole: List[Dict[int, NDArray]] = [{} for _ in self._links]
        for (number, head), gradient in zip(self._outputs, head_gradients):
            whole[number][head] = gradient
        asked = [
            [wanted.pop(0) if isinstance(route, NDArray) else route is not None for route in routes]
            for routes in (link.routes for link in self._links)
        ]
        where = [
            [targets.pop(0) if isinstance(route, NDArray) else None for route in link.routes]
            for link in self._links
        ]
        results: List[List[Optional[NDArray]]] = []
        for number in reversed(range(len(self._links))):
            link, own = self._links[number], []
            found = link.tape.pull(whole[number], pieces[number], asked[number], where[number])
            for route, place in zip(link.routes, found):
                if isinstance(route, Inner) and place is not None:
                    array, first, count = place
                    inner = Piece(route.head, route.offset, array, first, count)
                    pieces[route.link].append(inner)
                elif isinstance(route, NDArray):
                    own.append(None if place is None else place.of_shape(route.shape))
            results.append(own)
        return [gradient for own in reversed(results) for gradient in own]


def _real_of(array: NDArray, standing: Dict[int, Standing]) -> Optional[NDArray]:
    """Return the array of MXNet's tape that one from outside is; None if it has no gradient."""
    place = standing.get(id(array))
    if place is None:
        return array
    return place.original.real() if place.kept.recorded else None


def _head_at(link: Link, arena: int, first: int, count: int) -> Optional[Tuple[int, int]]:
    """Return the head in which some elements lie, and from where on."""
    at = bisect_right(link.places, (arena, first, len(link.heads))) - 1
    if at < 0 or link.places[at][0] != arena:
        return None
    _, start, number = link.places[at]
    inside = first + count <= start + _size(link.heads[number])
    return (number, first - start) if inside else None


def _size(head: Head) -> int:
    count = 1
    for size in head.shape:
        count *= size
    return count


def _taken_out(link: Link) -> List[Tuple[int, int, NDArray, List[LazyNDArray]]]:
    """Take everything out of the arenas; return heads, their first elements, arrays, and views."""
    found: Dict[Any, Dict[int, Tuple[int, List[LazyNDArray]]]] = {}
    for sharing in link.kept.sharing():
        first = sharing[0]
        at = _head_at(link, first._value, first._offset, first.size)
        if at is None:
            link.kept.take_out(first._value, [sharing])
        else:
            head, offset = at
            key = first._value, link.heads[head].shape
            start = first._offset - offset
            # Of a head of which only parts are held, there may be several.
            found.setdefault(key, {}).setdefault(head, (start, []))[1].extend(sharing)
    made = []
    for (arena, shape), members in found.items():
        arrays = link.kept.copies(arena, shape, [start for start, _ in members.values()])
        made += [
            (head, start, array, sharing)
            for (head, (start, sharing)), array in zip(members.items(), arrays)
        ]
    return made


def _view(array: NDArray, lazy: LazyNDArray, first: int) -> NDArray:
    if array.shape == lazy.shape:
        return array
    flat = array.reshape((-1,))
    return (flat if flat.size == lazy.size else flat[first : first + lazy.size]).reshape(lazy.shape)
