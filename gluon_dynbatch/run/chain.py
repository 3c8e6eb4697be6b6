"""The flushes of a scope as one node of MXNet's tape.

Arrays that a later flush reads stay in their arenas, so MXNet never sees them.  Gradients go from
flush to flush in the same way: what the backward pass of one flush leaves for an array from
outside is added to the gradient of the head that it is.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Tuple, Union

import numpy as np
from mxnet.ndarray import NDArray

from ..modes import FLOATS
from ..native.recording import part
from ..plan.plan import Plan
from ..plan.transpose import Heads, recorded_segments
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from .backward import GradientTape, Piece
from .gradient import record_function
from .keep import Kept, Memories, Spots, find_memories, find_spots


def find_heads(plan: Plan, spots: Spots, in_graph: np.ndarray) -> Optional[Heads]:
    """Return where gradients may arrive, in the order of their places; None if nowhere.

    Parameters
    ----------
    plan : Plan
        What is run.
    spots : Spots
        Where the arrays that are held are among recorded values.
    in_graph : numpy.ndarray
        Per array from outside, whether a gradient may go on to it.
    """
    _, kind = TYPES.columns(spots.kind)
    floats = np.array([dtype in FLOATS for dtype, _ in TYPES.kinds], dtype=bool)[kind]
    graph = plan.graph
    terms = graph.value_term[spots.name]
    own = np.flatnonzero(floats & (terms >= 0))
    own = own[recorded_segments(graph)[graph.segment[graph.slot_unit[terms[own]]]]]
    if not own.size:
        return None
    _, offset, size, _ = (column[own] for column in spots)
    terms, kind = terms[own], kind[own]
    first = plan.element_of[terms] + offset
    order, begins, counts = Spots(plan.arena_of[terms], first, size, kind).merged()
    at = order[begins]
    return Heads(terms[at], offset[at], counts, kind[at], in_graph)


#: Where a gradient goes: to a part of a head of an earlier flush (numbers of flush and head, and
#: the first element there), to an array of MXNet's tape, or nowhere.
Route = Union[Tuple[int, int, int], NDArray, None]


class Chain:
    """The flushes of a scope that are not yet part of MXNet's tape."""

    def __init__(self) -> None:
        #: What runs each of them backward.
        self._tapes: List[GradientTape] = []
        #: Per result of the node: flush, head, and its first element there.
        self._outputs: List[Tuple[int, int, int]] = []
        #: Whether they have become one.
        self.done = False

    @property
    def open(self) -> bool:
        """Whether there are flushes that are to become one node."""
        return bool(self._tapes) and not self.done

    def routes(self, tape: Tape) -> Dict[int, Route]:
        """Return the routes of kept arrays, by id of what stands for each on a tape."""
        places = [one for one in tape.externals if type(one) is LazyNDArray]
        spots, groups = find_spots(places), {}
        for number, place in enumerate(places):
            groups.setdefault(place._owner, []).append(number)
        given = dict(zip(map(id, tape.externals), tape.given))
        found: Dict[int, Route] = {}
        for kept, own in groups.items():
            routes: Iterable[Route]
            if kept.chain is self:
                number = next(i for i, one in enumerate(self._tapes) if one.kept is kept)
                heads = self._tapes[number].heads_at(*(column[own] for column in spots[:3]))
                routes = [None if head < 0 else (number, head, offset) for head, offset in heads]
            else:
                routes = [given[id(places[n])].real() if kept.recorded else None for n in own]
            found.update(zip((id(places[n]) for n in own), routes))
        return found

    def add(self, tape: GradientTape, kept: Kept, routes: Dict[int, Route]) -> None:
        """Add a flush, whose arrays are `kept`, and the routes of arrays kept before."""
        tape.kept, tape.routes = kept, [routes.get(id(array), array) for array in tape.inputs]
        self._tapes.append(tape)
        kept.chain = self

    def connect(self) -> None:
        """Make the flushes one node of MXNet's tape; what is still held becomes its results."""
        self.done = True
        results: List[Tuple[Memories, List[NDArray]]] = []
        for number, tape in enumerate(self._tapes):
            tape.kept.chain = None
            held = tape.kept.held()
            heads = tape.heads_at(*find_spots(held)[:3])
            memories = find_memories([lazy for lazy, (head, _) in zip(held, heads) if head >= 0])
            places = tape.heads_at(memories.name, memories.first, memories.size)
            self._outputs += [(number, *place) for place in places]
            results.append((memories, tape.kept.copies(memories)))
        routes = (route for tape in self._tapes for route in tape.routes)
        inputs = [route for route in routes if isinstance(route, NDArray)]
        outputs = [array for _, made in results for array in made]
        if inputs and outputs:
            record_function(inputs, outputs, self.backward)
        for memories, made in results:
            memories.become(made, recorded=True)
        for tape in self._tapes:
            tape.kept.hand_out()

    def backward(
        self,
        head_gradients: List[NDArray],
        wanted: List[bool],
        targets: List[Optional[NDArray]],
    ) -> List[Optional[NDArray]]:
        """Return the gradients of the inputs; None where `wanted` is false."""
        pieces: List[List[Piece]] = [[] for _ in self._tapes]
        for (number, head, offset), gradient in zip(self._outputs, head_gradients):
            pieces[number].append((gradient, head, offset, 0, gradient.size))
        asked = [
            [wanted.pop(0) if isinstance(route, NDArray) else route is not None for route in routes]
            for routes in (tape.routes for tape in self._tapes)
        ]
        where = [
            [targets.pop(0) if isinstance(route, NDArray) else None for route in tape.routes]
            for tape in self._tapes
        ]
        results: List[List[Optional[NDArray]]] = []
        for number in reversed(range(len(self._tapes))):
            tape, own = self._tapes[number], []
            found = tape.pull(pieces[number], asked[number], where[number])
            for route, place in zip(tape.routes, found):
                if isinstance(route, tuple) and place is not None:
                    earlier, head, offset = route
                    pieces[earlier].append((place[0], head, offset, *place[1:]))
                elif isinstance(route, NDArray):
                    own.append(None if place is None else _shaped(*place, route))
            results.append(own)
        return [gradient for own in reversed(results) for gradient in own]


def _shaped(array: NDArray, first: int, count: int, like: NDArray) -> NDArray:
    """Return elements of an array in place, in the shape of another one."""
    if array.shape == like.shape:
        return array
    return part(array.reshape((-1,)), first, first + count).reshape(like.shape)
