"""The flushes of a scope as one node of MXNet's tape.

Values that a later flush reads stay in their arenas and never become arrays of MXNet.  Gradients
pass from flush to flush in the same way: if an external array of one flush is a head of an earlier
one, its gradient is added to the gradient of that head.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from mxnet.ndarray import NDArray

from ..errors import ShapeError
from ..plan.plan import Plan
from ..plan.transpose import Heads, recorded_segments
from ..record.lazy import Lazy
from ..record.tape import Tape
from ..record.types import TYPES
from ..schedule.dependencies import Array
from .backward import BackwardPass, Piece
from .buffers import view
from .gradient import Request, record_function
from .keep import Kept, Memories, Spots, find_memories, find_spots


def find_heads(plan: Plan, spots: Spots, in_graph: Array) -> Optional[Heads]:
    """Return the ranges at which gradients may arrive, ordered by arena and element; None if none.

    These are ranges of the arrays at `spots`, which are held; `in_graph` is as in `Heads`.
    """
    _, kind = TYPES.columns(spots.kind)
    graph = plan.graph
    terms = graph.value_term[spots.container]
    rows = np.flatnonzero(terms >= 0)
    rows = rows[recorded_segments(graph)[graph.segment[graph.slot_unit[terms[rows]]]]]
    if not rows.size:
        return None
    _, offset, size, _ = (column[rows] for column in spots)
    terms, kind = terms[rows], kind[rows]
    arena, first = plan.locate(terms)
    order, begins, counts = Spots(arena, first + offset, size, kind).merged()
    leading = order[begins]
    return Heads(terms[leading], offset[leading], counts, kind[leading], in_graph)


#: Where the gradient of an input goes: to part of a head of an earlier flush (flush, head, first
#: element within the head), to an array in MXNet's tape, or nowhere.
Route = Union[Tuple[int, int, int], NDArray, None]


class Link(NamedTuple):
    """A flush of a chain."""

    backward: BackwardPass
    #: Its arrays.
    kept: Kept
    #: Per input of the backward pass, where its gradient goes.
    routes: List[Route]


class Chain:
    """The flushes of a scope that are not yet part of MXNet's tape."""

    def __init__(self) -> None:
        self._links: List[Link] = []

    @property
    def open(self) -> bool:
        """Whether there are flushes that still have to become a node."""
        return bool(self._links)

    def routes(self, tape: Tape) -> Dict[int, Route]:
        """Return the routes of the kept arrays that a tape reads, by ids of its externals."""
        lazies = [array for array in tape.externals if isinstance(array, Lazy)]
        spots = find_spots(lazies)
        members_of: Dict[Kept, List[int]] = {}
        for member, lazy in enumerate(lazies):
            members_of.setdefault(lazy._owner, []).append(member)
        # The externals are copies of kept arrays; only the originals may be in MXNet's tape.
        originals: Dict[int, Any] = dict(zip(map(id, tape.externals), tape.originals))
        numbers = {link.kept: number for number, link in enumerate(self._links)}
        route_of: Dict[int, Route] = {}
        for kept, members in members_of.items():
            ids = [id(lazies[member]) for member in members]
            routes: Iterable[Route]
            if kept in numbers:
                number = numbers[kept]
                arenas, firsts, sizes, _ = (column[members] for column in spots)
                heads = self._links[number].backward.heads_at(arenas, firsts, sizes)
                routes = [None if head < 0 else (number, head, offset) for head, offset in heads]
            else:
                routes = [originals[n].real() if kept.recorded else None for n in ids]
            route_of.update(zip(ids, routes))
        return route_of

    def add(self, backward: BackwardPass, kept: Kept, routes: Dict[int, Route]) -> None:
        """Append a flush whose arrays are `kept`, with the routes of the kept arrays it reads."""
        found = [routes.get(id(array), array) for array in backward.inputs]
        self._links.append(Link(backward, kept, found))

    def connect(self) -> None:
        """Make the flushes a node of MXNet's tape; the next flushes begin another one."""
        links, self._links = self._links, []
        if links:
            link(links)


def link(links: Sequence[Link]) -> None:
    """Make flushes one node of MXNet's tape, whose results are the arrays still held."""
    outputs: List[Tuple[int, int, int, int]] = []
    results: List[Tuple[Memories, List[NDArray]]] = []
    for number, (backward, kept, _) in enumerate(links):
        held = kept.held()
        spots = find_spots(held)
        heads = backward.heads_at(spots.container, spots.first, spots.size)
        memories = find_memories(
            [lazy for lazy, (head, _) in zip(held, heads) if head >= 0 and _may_have_gradient(lazy)]
        )
        heads = backward.heads_at(memories.arena, memories.first, memories.size)
        sizes = memories.size.tolist()
        outputs += [(number, *head, size) for head, size in zip(heads, sizes)]
        results.append((memories, kept.copies(memories)))
    node = Node([(backward, routes) for backward, _, routes in links], outputs)
    routes = (route for _, _, routes in links for route in routes)
    inputs = [route for route in routes if isinstance(route, NDArray)]
    arrays = [array for _, copies in results for array in copies]
    if inputs and arrays:
        record_function(inputs, arrays, node.backward)
    for memories, copies in results:
        memories.become(copies, recorded=True)
    for _, kept, _ in links:
        kept.empty()


def _may_have_gradient(lazy: Lazy) -> bool:
    """Return whether MXNet can make a gradient of an array: not of booleans."""
    return TYPES[lazy._type].dtype != "bool"


class Node:
    """The backward passes of a node of MXNet's tape."""

    def __init__(
        self,
        passes: List[Tuple[BackwardPass, List[Route]]],
        outputs: List[Tuple[int, int, int, int]],
    ):
        self._passes = passes
        #: Per result of the node: flush, head, first element within the head, and size.
        self._outputs = outputs

    def backward(
        self, head_gradients: List[NDArray], requests: List[Request]
    ) -> List[Optional[NDArray]]:
        """Return the gradients of the inputs, None where not wanted."""
        pieces: List[List[Piece]] = [[] for _ in self._passes]
        for (number, head, offset, size), gradient in zip(self._outputs, head_gradients):
            if gradient.size < size:  # of a larger one, MXNet reads the first elements
                text = f"a gradient of shape {gradient.shape} for an array of {size} elements"
                raise ShapeError(text)
            pieces[number].append((gradient, head, offset, 0, size))
        given = iter(requests)
        requests_of = [
            [
                next(given) if isinstance(route, NDArray) else Request(route is not None, None)
                for route in routes
            ]
            for _, routes in self._passes
        ]
        results: List[List[Optional[NDArray]]] = []
        for number in reversed(range(len(self._passes))):
            (backward, routes), gradients = self._passes[number], []
            ranges = backward.pull(pieces[number], requests_of[number])
            for route, elements in zip(routes, ranges):
                if isinstance(route, tuple) and elements is not None:
                    earlier, head, offset = route
                    pieces[earlier].append((elements[0], head, offset, *elements[1:]))
                elif isinstance(route, NDArray):
                    gradients.append(elements and _shaped_like(route, *elements))
            results.append(gradients)
        return [gradient for gradients in reversed(results) for gradient in gradients]


def _shaped_like(other: NDArray, array: NDArray, first: int, _: int) -> NDArray:
    """Return elements of an array in the shape of another one, itself if it has that shape."""
    return array if array.shape == other.shape else view(array, first, other.shape)
