"""The flushes of a scope, which become one node of MXNet's tape.

Values that a later flush reads stay in their arenas and never become arrays of MXNet.  Gradients
pass from flush to flush in the same way: if an external array of one flush is a head of an earlier
one, its gradient is added to the gradient of that head.
"""

from __future__ import annotations

import weakref
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import numpy as np
from mxnet.ndarray import NDArray

from ..record.intercept import replace_for_good
from ..record.lazy_base import Lazy
from ..record.tape import Tape
from ..record.types import TYPES
from .backward import BackwardPass
from .engine import FLIGHT
from .gradient import record_function
from .keep import SHARING, Kept, Memories, find_memories, find_spots
from .tape_node import Outputs, Route, Share, TapeNode, Within
from .variables import Variables, find_variables


class Link(NamedTuple):
    """A flush of a chain."""

    backward: BackwardPass
    #: Returns the owner of its arrays, None if none of them is held any more.
    kept: Callable[[], Optional[Kept]]
    #: Per input of the backward pass, where its gradient goes; and how many go to MXNet's tape.
    routes: List[Route]
    inputs: int


class Chain:
    """The flushes of a scope that are not yet part of MXNet's tape.

    They become part of it once MXNet has to know of one of their arrays.  Until then, a backward
    pass can go around MXNet's tape.
    """

    def __init__(self) -> None:
        self._links: List[Link] = []
        #: Whether the scope is closed: it adds no more flushes.
        self.closed = False

    @property
    def open(self) -> bool:
        """Whether there are flushes that still have to become a node."""
        return bool(self._links)

    def routes(self, tape: Tape) -> Dict[int, Route]:
        """Return the routes of the kept arrays that a tape reads, by ids of its externals."""
        places = tape.kept
        if not places:
            return {}
        lazies: List[Any] = [tape.externals[number] for number in places]
        spots = find_spots(lazies)
        members_of: Dict[Kept, List[int]] = {}
        for member, lazy in enumerate(lazies):
            members_of.setdefault(lazy._owner, []).append(member)
        numbers = {link.kept(): number for number, link in enumerate(self._links)}
        route_of: Dict[int, Route] = {}
        for kept, members in members_of.items():
            externals_of = [places[member] for member in members]
            routes: Iterable[Route]
            if kept in numbers:
                number = numbers[kept]
                arenas, firsts, sizes, _ = (column[members] for column in spots)
                heads, offsets = self._links[number].backward.heads_at(arenas, firsts, sizes)
                routes = [
                    None if head < 0 else Within(number, head, offset, external)
                    for head, offset, external in zip(
                        heads.tolist(), offsets.tolist(), externals_of
                    )
                ]
            else:
                # The externals are copies; only the originals may be in MXNet's tape.
                originals: List[Any] = [tape.originals[n] for n in externals_of]
                routes = [each.real() if kept.recorded else None for each in originals]
            route_of.update(zip((id(lazies[member]) for member in members), routes))
        return route_of

    def add(self, backward: BackwardPass, kept: Kept, routes: Dict[int, Route]) -> None:
        """Append a flush whose arrays are `kept`, with the routes of the kept arrays it reads."""
        inputs = backward.inputs
        found = [routes.get(id(array), array) for array in inputs] if routes else [*inputs]
        number = sum([isinstance(route, NDArray) for route in found]) if routes else len(found)
        self._links.append(Link(backward, weakref.ref(kept), found, number))

    def close(self) -> None:
        """Note that the scope is closed."""
        self.closed = True
        if self.open:
            _WAITING[id(self)] = self

    def reads(self, handles: Set[int]) -> bool:
        """Return whether flushes that are no node yet read one of the arrays with these handles."""
        routes = (route for each in self._links for route in each.routes)
        return any(isinstance(each, NDArray) and each.handle.value in handles for each in routes)

    def connect(self) -> None:
        """Make the flushes a node of MXNet's tape; the next flushes begin another one."""
        SHARING.alone(self._connect)

    def _connect(self) -> None:
        links, self._links = self._links, []
        if links:
            link(links)

    def backward(
        self, heads: List[Lazy], given: List[NDArray], retain_graph: bool, training: bool
    ) -> bool:
        """Run backward from arrays of these flushes, whose gradients are given.

        For `training`, see `TapeNode.backward`.

        Returns False if MXNet has to: if an array is no result of these flushes, if not all
        arrays that get gradients are variables, or if none wants one, which MXNet refuses.
        """
        return SHARING.alone(lambda: self._backward(heads, given, retain_graph, training))

    def _backward(
        self, heads: List[Lazy], given: List[NDArray], retain_graph: bool, training: bool
    ) -> bool:
        outputs = self._outputs(heads)
        if outputs is None:
            return False
        node = TapeNode([(each.backward, each.routes) for each in self._links], outputs, [])
        inputs = node.inputs
        variables = find_variables(inputs, node.reached())
        if variables is None or not any(variables.requests.wanted):
            return False
        gradients = node.backward(given, variables.requests, training)
        variables.deliver(inputs, gradients)
        FLIGHT.went_backward(self._one_each(variables))
        if not retain_graph:
            self._free(node)
        return True

    def _one_each(self, variables: Variables) -> Iterator[int]:
        """Yield the handle of a gradient that the backward pass of each flush writes, if any."""
        start = 0
        for link in self._links:
            handle = variables.first_wanted(start, start + link.inputs)
            start += link.inputs
            if handle is not None:
                yield handle

    def _outputs(self, heads: List[Lazy]) -> Optional[Outputs]:
        """Return where arrays are among the results at which gradients may arrive.

        None says that one of them is not there.
        """
        numbers = {each.kept(): number for number, each in enumerate(self._links)}
        flush = np.array([numbers.get(head._owner, -1) for head in heads])
        arena, first, size, _ = find_spots(heads)
        head, offset = np.full((2, len(heads)), -1)
        for number, link in enumerate(self._links):
            at = flush == number
            head[at], offset[at] = link.backward.heads_at(arena[at], first[at], size[at])
        return Outputs(flush, head, offset, size) if (head >= 0).all() else None

    def _free(self, node: TapeNode) -> None:
        """Forget how arrays were computed, except for those that a backward pass left alone."""
        untouched, rest = node.untouched(), False
        owners = [(number, link, link.kept()) for number, link in enumerate(self._links)]
        for number, link, kept in owners:
            if kept is not None and untouched is None:
                kept.recorded = False
            elif kept is not None and untouched is not None:
                held = kept.held()
                spots = find_spots(held)
                found, _ = link.backward.heads_at(spots.container, spots.first, spots.size)
                freed = np.flatnonzero((found < 0) | ~untouched[number][found]).tolist()
                rest = rest or len(freed) < len(held)
                kept.free_graph([held[i] for i in freed])
        if not rest:
            self._links = []


#: By id, the chains of closed scopes; those that have become a node hold no flushes.
_WAITING: weakref.WeakValueDictionary[int, Chain] = weakref.WeakValueDictionary()


def _connect_before_marking(original: Callable[..., int]) -> Callable[..., int]:
    """Let arrays that become variables anew stay what they were to closed scopes that read them."""

    def mark_variables(count: int, variables: Any, *arguments: Any) -> int:
        waiting = [chain for chain in list(_WAITING.values()) if chain.open]
        if waiting:
            # One handle comes as a pointer, several as an array.
            marked = {getattr(variables[i], "value", variables[i]) for i in range(count)}
            for chain in waiting:
                if chain.reads(marked):
                    chain.connect()
        return original(count, variables, *arguments)

    return mark_variables


replace_for_good("MXAutogradMarkVariables", _connect_before_marking)


def link(links: Sequence[Link]) -> None:
    """Make flushes one node of MXNet's tape, whose results are the arrays still held."""
    tables: List[Outputs] = []
    passes = [(backward, routes) for backward, _, routes, _ in links]
    shares: List[Share] = []
    results: List[Tuple[Memories, List[NDArray]]] = []
    alive = [(number, backward, kept()) for number, (backward, kept, _, _) in enumerate(links)]
    # Those that are not recorded any more are in no graph, as a backward pass has freed it.
    owners = [
        (number, backward, kept)
        for number, backward, kept in alive
        if kept is not None and kept.recorded
    ]
    for number, backward, kept in owners:
        held = kept.held()
        spots = find_spots(held)
        heads, _ = backward.heads_at(spots.container, spots.first, spots.size)
        are_results = zip(held, (heads >= 0).tolist())
        memories = find_memories(
            [lazy for lazy, is_one in are_results if is_one and _may_have_gradient(lazy)]
        )
        heads, offsets = backward.heads_at(memories.arena, memories.first, memories.size)
        tables.append(Outputs(np.full_like(heads, number), heads, offsets, memories.size))
        groups = zip(memories.groups(), memories.first.tolist(), memories.single())
        shares += [Share(list(map(weakref.ref, held)), *rest) for held, *rest in groups]
        results.append((memories, kept.copies(memories, recorded=True)))
    if not tables:
        return
    node = TapeNode(passes, Outputs(*map(np.concatenate, zip(*tables))), shares)
    inputs, arrays = node.inputs, [array for _, copies in results for array in copies]
    if inputs and arrays:
        record_function(inputs, arrays, node)
    for memories, copies in results:
        memories.become(copies, recorded=True)
    for *_, kept in owners:
        kept.empty()


def _may_have_gradient(lazy: Lazy) -> bool:
    """Return whether MXNet can make a gradient of an array: not of booleans."""
    return TYPES[lazy._type].dtype != "bool"
