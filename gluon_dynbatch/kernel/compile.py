"""Expressions as steps: what is stored where, and which loop computes it when.

Loops run at even times, products at odd times.  What a step reads has been stored at an earlier
time; what is needed at several times is stored at the first, unless it is cheap to compute again.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

from .expression import (
    CAST,
    CONST,
    DOT,
    FUNCTION,
    JOIN,
    PART,
    PLACED,
    PRODUCT,
    RAMP,
    READ,
    SPREAD,
    TOP,
    TOTAL,
    Node,
    Slot,
)
from .step import Access, Array, Dots, Instruction, Place, Pointwise, Product, Step

#: Functions that cost no more than reading what they computed.
CHEAP = frozenset(["add", "sub", "mul", "negative", "copy", "multiplier", "gate", "select", "relu"])
#: Computed by steps other than loops, which run at odd times; by steps that read and write rows.
MULTIPLIED = frozenset([PRODUCT, DOT])
STORED = PLACED - {READ}
#: What is there before any step.
GIVEN = frozenset([READ, CONST, RAMP])
#: Functions that are their argument.
ALIASES = frozenset(["copy", "multiplier"])


class Store(NamedTuple):
    """A value that is wanted in memory."""

    place: Place
    node: Node


class Compiler:
    """Turns expressions into steps.

    Parameters
    ----------
    placed : dict of Node to Place
        What is in memory already.
    works : int
        Number of the first array that steps may leave something in.
    """

    def __init__(self, placed: Dict[Node, Place], works: int):
        self._placed = dict(placed)
        self.arrays: Dict[Slot, Array] = {}
        self._works = works
        #: When each value is computed.
        self._time: Dict[Node, int] = {}
        #: All values down to what is in memory, arguments first.
        self._order: List[Node] = []
        self._stored: Dict[Node, Place] = {}

    def steps(self, stores: Sequence[Store], wanted: Iterable[Node] = ()) -> Tuple[Step, ...]:
        """Return the steps that store what is to be stored, and have `wanted` in memory."""
        wanted = list(wanted)
        self._order = self._reachable([*(s.node for s in stores), *wanted])
        self._choose_targets(stores)
        for node in wanted:
            self._keep(node)
        self._schedule()
        self._keep_what_is_used_twice(stores)
        return self._emit(stores)

    @property
    def stored(self) -> Dict[Node, Place]:
        """Where values are in memory when all steps have run."""
        return {**self._placed, **self._stored}

    def place_of(self, node: Node) -> Place:
        """Return where a value stands that is in memory."""
        found = self._placed.get(node) or self._stored.get(node)
        if found is not None:
            return found
        if node.kind == READ:
            return Place(node.attrs[0])
        assert node.kind in (PART, SPREAD), f"{node.kind} is not in memory"
        source = self.place_of(node.args[0])
        return source._replace(column=source.column + node.attrs[0])

    def _is_in_memory(self, node: Node) -> bool:
        if node in self._placed or node.kind == READ:
            return True
        return node.kind == PART and self._is_in_memory(node.args[0])

    def _args(self, node: Node) -> Tuple[Node, ...]:
        return () if node in self._placed else node.args

    def _reachable(self, roots: Iterable[Node]) -> List[Node]:
        found: Set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += self._args(node)
        return sorted(found, key=lambda node: node.number)

    def _choose_targets(self, stores: Sequence[Store]) -> None:
        """Let values be computed where they are wanted."""
        for place, node in stores:
            if self._is_in_memory(node) or node.kind == SPREAD:
                continue
            self._stored.setdefault(node, place)
            if node.kind == JOIN:
                for target, piece in self._pieces(place, node):
                    product = piece.kind in MULTIPLIED and not self._is_in_memory(piece)
                    if product and _parts(piece) == 1:
                        self._stored.setdefault(piece, target)

    def _pieces(self, place: Place, node: Node) -> List[Store]:
        """Return what stands side by side in a value, and where each belongs."""
        found, at = [], place.column
        for piece in node.args if node.kind == JOIN and node not in self._placed else (node,):
            found.append(Store(Place(place.slot, at), piece))
            at += piece.width
        return found

    def _work(self, node: Node) -> Place:
        slot = Slot("work", self._works)
        self._works += 1
        self.arrays[slot] = Array(node.width, node.dtype)
        return Place(slot)

    def _keep(self, node: Node) -> None:
        """See to it that a value is stored."""
        if not self._is_in_memory(node) and node not in self._stored:
            if node.kind == PART:
                self._keep(node.args[0])
            else:
                self._stored[node] = self._work(node)

    def _schedule(self) -> None:
        """Find the first time at which each value can be computed."""
        for node in self._order:
            if node in self._placed or node.kind in GIVEN:
                self._time[node] = 0
                continue
            if node.kind in MULTIPLIED:
                for x in node.args:
                    if not (self._is_in_memory(x) and self._fits(node, x)):
                        self._keep_for(node, x)
                when = max(self._there(x) for x in node.args) | 1
            else:
                if node.kind == CAST:
                    (source,) = node.args
                    self._keep(source.args[0] if source.kind == SPREAD else source)
                # What the same loop computes it need not read.
                together = node.kind == FUNCTION
                when = max(self._there(x, together) for x in node.args)
                when += when & 1
            self._time[node] = when
            if node.kind in STORED:
                self._keep(node)

    def _fits(self, product: Node, x: Node) -> bool:
        """Whether a product can read rows where they are: of several parts only without gaps."""
        if _parts(product) == 1:
            return True
        return x in self._placed or x.kind in PLACED

    def _keep_for(self, product: Node, x: Node) -> None:
        if x.kind == PART and x.args[0].kind in PLACED and _parts(product) == 1:
            self._keep(x.args[0])
        elif x not in self._stored:
            self._stored[x] = self._work(x)

    def _there(self, node: Node, together: bool = False) -> int:
        """Return from when on a value can be read, or used by the loop that computes it."""
        if node in self._placed:
            return 0
        if node.kind in STORED or (node in self._stored and not together):
            return self._time[node] + 1
        return self._time[node]

    def _keep_what_is_used_twice(self, stores: Sequence[Store]) -> None:
        """Find at which times values are needed, and store those that are needed at several."""
        needed: Dict[Node, Set[int]] = {}
        for place, node in stores:
            if self._stored.get(node) != place:
                for target, piece in self._pieces(place, node):
                    if self._stored.get(piece) != target:
                        needed.setdefault(piece, set()).add(self._when_copied(piece))
        for node in reversed(self._order):
            times = needed.setdefault(node, set())
            if node in self._placed or node.kind in GIVEN:
                continue
            if node in self._stored or node.kind in STORED:
                times = {self._time[node]}
            elif node.kind == FUNCTION and len(times) > 1 and not self._is_cheap(node):
                self._stored[node] = self._work(node)
                times = {min(times)}
                # It may have been possible earlier, but nobody asked.
                self._time[node] = min(times)
            needed[node] = times
            for x in node.args:
                needed.setdefault(x, set()).update(times)

    def _is_cheap(self, node: Node) -> bool:
        given, args = GIVEN | {PART, SPREAD}, list(node.args)
        for k, arg in enumerate(args):
            while arg.kind == FUNCTION and arg.attrs[0] in ALIASES and arg not in self._placed:
                arg = args[k] = arg.args[0]
        leaves = all(a.kind in given or a in self._placed for a in args)
        return leaves and node.attrs[0] in CHEAP

    def _emit(self, stores: Sequence[Store]) -> Tuple[Step, ...]:
        jobs: Dict[Tuple[int, int, str], List[Tuple[Place, Node, str]]] = {}
        steps: Dict[int, List[Step]] = {}

        def add(time: int, place: Place, node: Node, how: str = "row") -> None:
            jobs.setdefault((time, node.width, node.dtype), []).append((place, node, how))

        for node, place in self._stored.items():
            time = self._time[node]
            if node.kind == PRODUCT:
                steps.setdefault(time, []).extend(self._products(node, place))
            elif node.kind == DOT:
                left, right = map(self.place_of, node.args)
                made = Dots(left, right, place, node.attrs[0], node.dtype)
                steps.setdefault(time, []).append(made)
            elif node.kind in (TOTAL, TOP):
                add(time, place, node.args[0], node.kind)
            else:
                for target, piece in self._pieces(place, node):
                    if piece is node or self._stored.get(piece) != target:
                        add(time, target, piece)
        for place, node in stores:
            if self._stored.get(node) != place:
                for target, piece in self._pieces(place, node):
                    if self._stored.get(piece) != target:
                        add(self._when_copied(piece), target, piece)
        for (time, width, dtype), found in jobs.items():
            steps.setdefault(time, []).append(_Loop(self, time, width, dtype).pointwise(found))
        return tuple(step for time in sorted(steps) for step in steps[time])

    def _when_copied(self, node: Node) -> int:
        """Return when a value can be stored that may stand elsewhere, too."""
        time = self._time.get(node, 0)
        if node in self._stored:
            time += 1
        return time + (time & 1)

    def _products(self, node: Node, result: Place) -> List[Step]:
        weights, biases = node.attrs
        made: List[Step] = []
        for i, (x, weight) in enumerate(zip(node.args, weights)):
            bias = biases[i] if i < len(biases) else None
            left = self.place_of(x)
            made.append(Product(left, weight, result, bias, i > 0, _parts(node), node.dtype))
        assert len(biases) <= len(weights)
        return made

    def where(self, node: Node, time: int) -> Tuple[Place, str]:
        """Return where a loop finds a value, and how it reads it; nothing if it computes it."""
        if node.kind == SPREAD and node not in self._placed:
            source = self._memory(node.args[0], time)
            return source._replace(column=source.column + node.attrs[0]), "spread"
        if node.kind == PART and node not in self._placed:
            source = self._memory(node.args[0], time)
            return source._replace(column=source.column + node.attrs[0]), "row"
        return self._memory(node, time), "row"

    def _memory(self, node: Node, time: int) -> Place:
        if node in self._stored and self._time[node] < time:
            return self._stored[node]
        return self.place_of(node)

    def computes(self, node: Node, time: int) -> bool:
        """Whether a loop at some time has to compute a value itself."""
        if node in self._placed or node.kind in (READ, PART, SPREAD):
            return False
        return not (node in self._stored and self._time[node] < time)


def _parts(product: Node) -> int:
    return 1 if product.kind == DOT else int(product.width // product.attrs[0][0].units)


class _Loop:
    """A pointwise step in the making."""

    def __init__(self, compiler: Compiler, time: int, width: int, dtype: str):
        self._compiler, self._time = compiler, time
        self._width, self._dtype = width, dtype
        self._registers = 0
        self._register: Dict[Node, int] = {}

    def pointwise(self, jobs: Sequence[Tuple[Place, Node, str]]) -> Pointwise:
        """Return the step that stores what is asked for."""
        order = self._order([node for _, node, _ in jobs])
        # What is read or constant is in its register from the beginning, so it shares it with none.
        loads, instructions = self._inputs(order)
        last = {x: i for i, node in enumerate(order) for x in map(self._source, self._args(node))}
        kept = {self._source(node) for _, node, _ in jobs}
        free: List[int] = []
        for i, node in enumerate(order):
            if node in self._register:
                continue
            read = [self._source(x) for x in self._args(node)]
            arguments = tuple(self._register[x] for x in read)
            if free:
                self._register[node] = free.pop()
            else:
                self._assign(node)
            name, values = node.attrs
            instructions.append(Instruction(name, self._register[node], arguments, values))
            free += [
                self._register[x]
                for x in set(read)
                if last[x] == i and x not in kept and self._args(x)
            ]
        stores = [
            Access(self._register[self._source(node)], place, how) for place, node, how in jobs
        ]
        return Pointwise(
            self._width,
            self._dtype,
            self._registers,
            tuple(loads),
            tuple(instructions),
            tuple(stores),
        )

    def _inputs(self, order: Sequence[Node]) -> Tuple[List[Access], List[Instruction]]:
        """Give registers to what is read, and to constants."""
        loads, constants = [], []
        for node in order:
            if node.kind in (CONST, RAMP):
                target = self._assign(node)
                constants.append(Instruction(node.kind, target, (), (float(node.attrs[0]),)))
            elif not self._args(node):
                source = node.args[0] if self._casts(node) else node
                loads.append(Access(self._assign(node), *self._compiler.where(source, self._time)))
        return loads, constants

    def _casts(self, node: Node) -> bool:
        return node.kind == CAST and self._compiler.computes(node, self._time)

    def _assign(self, node: Node) -> int:
        self._register[node] = self._registers
        self._registers += 1
        return self._registers - 1

    def _source(self, node: Node) -> Node:
        while (
            node.kind == FUNCTION
            and node.attrs[0] in ALIASES
            and self._compiler.computes(node, self._time)
        ):
            node = node.args[0]
        return node

    def _args(self, node: Node) -> Tuple[Node, ...]:
        computed = node.kind == FUNCTION and self._compiler.computes(node, self._time)
        return node.args if computed else ()

    def _order(self, roots: Iterable[Node]) -> List[Node]:
        """Return all that is read or computed, arguments first: depth first, for few registers."""
        done: Set[Node] = set()
        order: List[Node] = []
        for root in roots:
            stack = [(self._source(root), False)]
            while stack:
                node, ready = stack.pop()
                if node in done:
                    continue
                if ready:
                    done.add(node)
                    order.append(node)
                else:
                    stack.append((node, True))
                    stack += [(self._source(x), False) for x in reversed(self._args(node))]
        return order
