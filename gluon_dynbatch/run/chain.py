"""The flushes of a scope as one node of MXNet's tape.

Arrays that a later flush reads stay in their arenas, so MXNet never sees them.  Gradients go from
flush to flush in the same way: what the backward pass of one flush leaves for an array from
outside is added to the gradient of the head that it is.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
from mxnet.ndarray import NDArray

from ..modes import FLOATS
from ..plan.plan import Arena, Plan
from ..plan.transpose import Heads
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from .backward import GradientTape, Pieces
from .gradient import record_function
from .keep import Kept, Memory, Spots, find_memories, find_spots


class Standing(NamedTuple):
    """What stands among arrays from outside for those that are kept in arenas."""

    #: By id, in this order.
    numbers: Dict[int, int]
    originals: List[LazyNDArray]
    owners: List[Kept]
    spots: Spots


def find_standing(tape: Tape) -> Standing:
    """Return what stands for kept arrays on a tape."""
    places = [one for one in tape.externals if type(one) is LazyNDArray]
    numbers = {id(place): number for number, place in enumerate(places)}
    return Standing(numbers, list(tape.kept), [one._tape for one in places], find_spots(places))


def find_heads(plan: Plan, spots: Spots, recorded: np.ndarray, term: np.ndarray) -> Optional[Heads]:
    """Return where gradients may arrive, in the order of their places; None if nowhere.

    Parameters
    ----------
    plan : Plan
        What is run.
    spots : Spots
        Where the arrays that are held are among recorded values.
    recorded, term : numpy.ndarray
        Per value, whether it is recorded for a backward pass, and the term that stands for it.
    """
    numbers, kind = np.unique(spots.kind, return_inverse=True)
    types = [TYPES[number] for number in numbers.tolist()]
    floats = np.array([one.dtype in FLOATS for one in types], dtype=bool)[kind]
    own = np.flatnonzero(recorded[spots.name] & floats)
    if not own.size:
        return None
    value, offset, size, _ = (column[own] for column in spots)
    terms, kind = term[value], kind[own]
    first = plan.element_of[terms] + offset
    order, begins, counts = Spots(plan.arena_of[terms], first, size, kind).merged()
    at = order[begins]
    # Those of equal type and size are of one kind.
    found, kinds = np.unique(counts * len(types) + kind[at], return_inverse=True)
    pairs = (divmod(number, len(types)) for number in found.tolist())
    arenas = tuple(Arena(count, *types[number][1:]) for count, number in pairs)
    return Heads(terms[at], offset[at], kinds, arenas)


#: Where a gradient goes: to a part of a head of an earlier flush (numbers of flush and head, and
#: the first element there), to an array of MXNet's tape, or nowhere.
Route = Union[Tuple[int, int, int], NDArray, None]


class Link:
    """One flush.

    Parameters
    ----------
    tape : GradientTape
        Its backward pass.
    kept : Kept
        Its arrays.
    """

    def __init__(self, tape: GradientTape, kept: Kept):
        self.tape, self.kept = tape, kept
        #: Per input of the flush.
        self.routes: List[Route] = []
        heads, plan = tape.heads, tape.forward
        arenas = zip(plan.sizes, plan.arenas)
        self._span = max(rows * arena.row_size for rows, arena in arenas)
        first = plan.element_of[heads.term] + heads.offset
        #: Heads, which are in this order, as if each arena took as much room as the largest one.
        self._starts = plan.arena_of[heads.term] * self._span + first
        self._stops = self._starts + heads.size

    def heads_at(self, name: Any, first: Any, size: Any) -> Iterator[Tuple[int, int]]:
        """Yield the heads in which some elements lie, or -1, and their first element there."""
        place = name * self._span + first
        number = np.searchsorted(self._starts, place, "right") - 1
        inside = (number >= 0) & (place + size <= self._stops[number])
        numbers, offsets = np.where(inside, number, -1), place - self._starts[number]
        yield from zip(numbers.tolist(), offsets.tolist())


class Chain:
    """The flushes of a scope that are not yet part of MXNet's tape."""

    def __init__(self) -> None:
        self._links: List[Link] = []
        #: Per result of the node: flush, head, and its first element there.
        self._outputs: List[Tuple[int, int, int]] = []
        #: Whether they have become one.
        self.done = False

    @property
    def open(self) -> bool:
        """Whether there are flushes that are to become one node."""
        return bool(self._links) and not self.done

    def add(self, tape: GradientTape, kept: Kept, standing: Standing) -> None:
        """Add a flush, whose arrays are `kept`."""
        link = Link(tape, kept)
        link.routes = self._routes(tape.inputs, standing)
        self._links.append(link)
        kept.chain = self

    def _routes(self, inputs: List[NDArray], standing: Standing) -> List[Route]:
        routes: List[Route] = list(inputs)
        groups: Dict[Kept, List[Tuple[int, int]]] = {}
        for i, array in enumerate(inputs):
            number = standing.numbers.get(id(array))
            if number is not None:
                groups.setdefault(standing.owners[number], []).append((i, number))
        for kept, pairs in groups.items():
            found: Iterable[Route]
            own = [number for _, number in pairs]
            if kept.chain is self:
                link = next(i for i, link in enumerate(self._links) if link.kept is kept)
                places = self._links[link].heads_at(*(column[own] for column in standing.spots[:3]))
                found = [None if head < 0 else (link, head, offset) for head, offset in places]
            else:
                found = [standing.originals[n].real() if kept.recorded else None for n in own]
            for (i, _), route in zip(pairs, found):
                routes[i] = route
        return routes

    def connect(self) -> None:
        """Make the flushes one node of MXNet's tape; what is still held becomes its results."""
        self.done = True
        made: List[Tuple[Memory, NDArray]] = []
        for number, link in enumerate(self._links):
            link.kept.chain = None
            memories = find_memories(link.kept.held())
            places = np.array([memory.place for memory in memories]).reshape(-1, 3)
            heads = list(link.heads_at(*places.T))
            memories = [memory for memory, (head, _) in zip(memories, heads) if head >= 0]
            self._outputs += [(number, *place) for place in heads if place[0] >= 0]
            made += zip(memories, link.kept.copies(memories))
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
        pieces = [Pieces() for _ in self._links]
        for (number, head, offset), gradient in zip(self._outputs, head_gradients):
            pieces[number].add(head, offset, gradient, 0, gradient.size)
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
                if isinstance(route, tuple) and place is not None:
                    earlier, head, offset = route
                    pieces[earlier].add(head, offset, *place.stretch())
                elif isinstance(route, NDArray):
                    own.append(None if place is None else place.of_shape(route))
            results.append(own)
        return [gradient for own in reversed(results) for gradient in own]
