"""The flushes of a scope as one node of MXNet's tape.

Arrays that a later flush reads stay in their arenas, so MXNet never sees them.  Gradients go from
flush to flush in the same way: what the backward pass of one flush leaves for an array from
outside is added to the gradient of the head that it is.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from mxnet.ndarray import NDArray

from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import elements
from .backward import GradientTape, Piece
from .gradient import record_function
from .keep import Kept, Memory


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


def find_standing(tape: Tape) -> Dict[int, Standing]:
    """Return what stands for kept arrays on a tape, by id."""
    places = (one for one in tape.externals if type(one) is LazyNDArray)
    return {
        id(place): Standing(lazy, place._tape, place._value, place._offset)
        for place, lazy in zip(places, tape.kept)
    }


class Link(NamedTuple):
    """One flush."""

    tape: GradientTape
    kept: Kept
    #: First element and number of each head, in order, by arena.
    places: Dict[int, List[Tuple[int, int]]]
    #: Per input of the flush where its gradient goes: to an earlier flush, to an array of MXNet's
    #: tape, or nowhere.
    routes: List[Union[Inner, NDArray, None]]

    def head_at(self, arena: int, first: int, count: int) -> Optional[Tuple[int, int]]:
        """Return the head in which some elements lie, and the first element of that."""
        places = self.places.get(arena, [])
        at = bisect_right(places, (first, len(self.tape.heads))) - 1
        if at < 0:
            return None
        start, number = places[at]
        stop = start + elements(self.tape.heads[number].shape)
        return (number, start) if first + count <= stop else None

    def results(self) -> Dict[int, Memory]:
        """Return the heads of which somebody holds any part."""
        found: Dict[int, Memory] = {}
        for lazy in self.kept.held():
            place = self.head_at(lazy._value, lazy._offset, lazy.size)
            if place is not None:
                number, start = place
                if number not in found:
                    shape = self.tape.heads[number].shape
                    found[number] = Memory(lazy._value, start, shape, [])
                found[number].arrays.append(lazy)
        return found


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

    def add(self, tape: GradientTape, kept: Kept, standing: Dict[int, Standing]) -> None:
        """Add a flush, whose arrays are `kept`."""
        places: Dict[int, List[Tuple[int, int]]] = {}
        terms, plan = [head.term for head in tape.heads], tape.forward
        at = zip(plan.arena_of[terms].tolist(), plan.element_of[terms].tolist())
        for number, (head, (arena, element)) in enumerate(zip(tape.heads, at)):
            places.setdefault(arena, []).append((element + head.offset, number))
        for own in places.values():
            own.sort()
        routes = [self._route(array, standing.get(id(array))) for array in tape.inputs]
        self._links.append(Link(tape, kept, places, routes))
        kept.chain = self

    def _route(self, array: NDArray, standing: Optional[Standing]) -> Union[Inner, NDArray, None]:
        if standing is None:
            return array
        original, kept, arena, first = standing
        if not kept.recorded:
            return None
        if kept.chain is not self:
            return original.real()
        number = next(i for i, link in enumerate(self._links) if link.kept is kept)
        head = self._links[number].head_at(arena, first, array.size)
        return None if head is None else Inner(number, head[0], first - head[1])

    def connect(self) -> None:
        """Make the flushes one node of MXNet's tape; what is still held becomes its results."""
        self.done = True
        made: List[Tuple[Memory, NDArray]] = []
        for number, link in enumerate(self._links):
            link.kept.chain = None
            results = link.results()
            self._outputs += [(number, head) for head in results]
            made += zip(results.values(), link.kept.copies(list(results.values())))
        routes = (route for link in self._links for route in link.routes)
        inputs = [route for route in routes if isinstance(route, NDArray)]
        if inputs and made:
            record_function(inputs, [array for _, array in made], self.backward)
        for memory, array in made:
            memory.become(array, recorded=True)
        for link in self._links:
            link.kept.hand_out()

    def backward(
        self,
        head_gradients: List[NDArray],
        wanted: List[bool],
        targets: List[Optional[NDArray]],
    ) -> List[Optional[NDArray]]:
        """Return the gradients of the inputs; None where `wanted` is false."""
        pieces: List[List[Piece]] = [[] for _ in self._links]
        for (number, head), gradient in zip(self._outputs, head_gradients):
            count = elements(self._links[number].tape.heads[head].shape)
            pieces[number].append(Piece(head, 0, gradient, 0, count))
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
            found = link.tape.pull(pieces[number], asked[number], where[number])
            for route, place in zip(link.routes, found):
                if isinstance(route, Inner) and place is not None:
                    inner = Piece(route.head, route.offset, *place.stretch())
                    pieces[route.link].append(inner)
                elif isinstance(route, NDArray):
                    own.append(None if place is None else place.of_shape(route))
            results.append(own)
        return [gradient for own in reversed(results) for gradient in own]
