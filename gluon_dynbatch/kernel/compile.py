"""Expressions as steps: what is stored where, and which loop or product computes it when.

Loops run at even times, products at odd times.  What a step reads has been stored at an earlier
time; what is needed at several times is stored at the first, unless it is cheap to compute again.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from operator import attrgetter
from typing import Callable, DefaultDict, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .expression import Node
from .layout import Place, Slot
from .step import Access, Array, Convolved, Dots, How, Instruction, Pointwise, Product, Step, Sum

#: Functions that cost no more than reading what they computed.
CHEAP = frozenset(["add", "sub", "mul", "negative", "multiplier", "gate", "select", "relu"])
#: Computed by steps other than loops, which run at odd times.
OWN_STEP = frozenset(["product", "dot", "convolved"])
#: What is computed of values that are in memory.
OF_STORED = OWN_STEP | {"moved"}
#: What no loop computes again.
STORED = OF_STORED | {"reduced"}

#: What a loop stores: where, what, and how (of an `Access`).
Job = Tuple[Place, Node, str]
#: A value that is wanted in memory.
Store = Tuple[Place, Node]


class Compiler:
    """Turns expressions into steps."""

    def __init__(self, works: int = 0):
        #: What steps leave something in; the first number of such arrays is given.
        self.arrays: Dict[Slot, Array] = {}
        #: Where values are in memory when all steps have run, beside those that are read.
        self.stored: Dict[Node, Place] = {}
        self._works = works
        #: When each value is computed.
        self._time: Dict[Node, int] = {}
        #: All values, arguments first, and what is to be copied.
        self._order: List[Node] = []
        self._copies: List[Store] = []

    def steps(self, stores: Sequence[Store], sums: Sequence[Sum] = ()) -> Tuple[Step, ...]:
        """Return the steps that store what is to be stored, and have in memory what adds up."""
        gradients = [found.gradient for found in sums]
        self._order = _reachable([*(node for _, node in stores), *gradients])
        factors = [(x, _parts(n)) for n in self._order if n.kind in OF_STORED for x in n.args]
        factors += zip(gradients, (found.parts for found in sums))
        #: What is read in several parts, so that rows have to lie without gaps.
        self._dense = {x for x, parts in factors if parts > 1}
        self._choose_targets(stores)
        for node in gradients:
            self._keep(node)
        self._schedule()
        for place, node in stores:
            if self.stored.get(node) != place:
                self._copies += self._not_there(place, node)
        self._keep_what_is_used_twice()
        return self._emit()

    def place_of(self, node: Node) -> Place:
        """Return where a value stands that is in memory."""
        if node in self.stored:
            return self.stored[node]
        if node.kind == "read":
            return Place(node.attrs[0])
        assert node.kind == "columns", f"{node.kind} is not in memory"
        source = self.place_of(node.args[0])
        return source.at(node.attrs[0])

    def _choose_targets(self, stores: Sequence[Store]) -> None:
        """Let values be computed where they are wanted."""
        for place, node in stores:
            source, _, follow = node.run()
            if source.kind == "read" or not follow:
                continue
            self.stored.setdefault(node, place)
            for target, piece in pieces(place, node):
                if piece.kind in OF_STORED and _parts(piece) == 1 and piece not in self._dense:
                    self.stored.setdefault(piece, target)

    def _not_there(self, place: Place, node: Node) -> List[Store]:
        """Return what stands side by side in a value, as far as it is stored elsewhere."""
        return [pair for pair in pieces(place, node) if self.stored.get(pair[1]) != pair[0]]

    def _work(self, node: Node) -> None:
        slot = Slot("work", self._works + len(self.arrays))
        self.arrays[slot] = Array(node.width, node.dtype)
        self.stored[node] = Place(slot)

    def _keep(self, node: Node) -> None:
        """See to it that a value is in memory; what columns are of is."""
        is_part = node.kind == "columns" and node.attrs[1] and node not in self._dense
        if not (is_part or node.kind == "read" or node in self.stored):
            self._work(node)

    def _schedule(self) -> None:
        """Find the first time at which each value can be computed."""
        for node in self._order:
            # What is cast is loaded.
            if node.kind in OF_STORED or (node.kind == "cast" and node.args[0].kind != "columns"):
                for x in node.args:
                    self._keep(x)
            # What the same loop computes it need not read.
            together = node.kind == "function"
            when = max((self._there(x, together) for x in node.args), default=0)
            self._time[node] = when | 1 if node.kind in OWN_STEP else when + (when & 1)
            if node.kind in STORED:
                self._keep(node)

    def _there(self, node: Node, together: bool = False) -> int:
        """Return from when on a value can be read, or used by the loop that computes it."""
        later = node.kind in STORED or (node in self.stored and not together)
        return self._time[node] + later

    def _keep_what_is_used_twice(self) -> None:
        """Find at which times values are needed, and store those that are needed at several."""
        needed: DefaultDict[Node, Set[int]] = defaultdict(set)
        for _, node in self._copies:
            needed[node].add(self._when_copied(node))
        for node in reversed(self._order):
            times = needed[node]
            if node in self.stored:
                times = {self._time[node]}
            elif node.kind == "function" and len(times) > 1 and not _is_cheap(node):
                self._work(node)
                times = {min(times)}
                # It may have been possible earlier, but nobody asked.
                self._time[node] = min(times)
            for x in node.args:
                needed[x] |= times

    def _when_copied(self, node: Node) -> int:
        """Return when a value can be stored that may stand elsewhere, too."""
        time = self._time[node] + (node in self.stored)
        return time + (time & 1)

    def _emit(self) -> Tuple[Step, ...]:
        loops: Dict[Tuple[int, int, str], List[Job]] = {}
        steps: Dict[int, List[Step]] = {}

        def add(time: int, place: Place, node: Node, how: str = "row") -> None:
            # What one column adds up to is the column.
            job = place, node, how if node.width > 1 else "row"
            loops.setdefault((time, node.width, node.dtype), []).append(job)

        for node, place in self.stored.items():
            time = self._time[node]
            if node.kind in OWN_STEP:
                steps.setdefault(time, []).extend(self._own_steps(node, place))
            elif node.kind == "reduced":
                add(time, place, node.args[0], *node.attrs)
            elif node.kind == "join":
                for target, piece in self._not_there(place, node):
                    add(time, target, piece)
            else:
                add(time, place, node)
        for target, piece in self._copies:
            add(self._when_copied(piece), target, piece)
        for (time, width, dtype), jobs in loops.items():
            steps.setdefault(time, []).append(self._loop(time, width, dtype, jobs))
        return tuple(step for time in sorted(steps) for step in steps[time])

    def _own_steps(self, node: Node, result: Place) -> List[Step]:
        lefts = [self.place_of(x) for x in node.args]
        if node.kind == "dot":
            return [Dots(lefts[0], lefts[1], result, node.attrs[0], node.dtype)]
        if node.kind == "convolved":
            bias = lefts[2] if len(lefts) > 2 else None
            return [Convolved(lefts[0], lefts[1], result, bias, node.attrs[0], node.dtype)]
        weights, biases = node.attrs
        assert len(biases) <= len(weights)
        terms = zip_longest(lefts, weights, biases)
        return [
            Product(left, weight, result, bias, i > 0, _parts(node), node.dtype)
            for i, (left, weight, bias) in enumerate(terms)
        ]

    def _loop(self, time: int, width: int, dtype: str, jobs: Sequence[Job]) -> Pointwise:
        """Return the step that stores what is asked for."""

        def args(node: Node) -> Tuple[Node, ...]:
            computed = node.kind == "function" and self._computes(node, time)
            return node.args if computed else ()

        order = _reachable([node for _, node, _ in jobs], args)
        # What is loaded is in its register from the beginning, so it shares it with none.
        loaded = [node for node in order if not args(node)]
        loads = (Access(i, *self._load(x, self._computes(x, time))) for i, x in enumerate(loaded))
        register, registers = {node: i for i, node in enumerate(loaded)}, len(loaded)
        last = {x: i for i, node in enumerate(order) for x in args(node)}
        kept = {*loaded, *(node for _, node, _ in jobs)}
        free: List[int] = []
        instructions = []
        for i, node in enumerate(order):
            if not args(node):
                continue
            if not free:
                free.append(registers)
                registers += 1
            register[node] = target = free.pop()
            (name, values), arguments = node.attrs, tuple(register[x] for x in args(node))
            instructions.append(Instruction(name, target, arguments, values))
            free += [register[x] for x in set(args(node)) if last[x] == i and x not in kept]
        stores = tuple(Access(register[node], place, how) for place, node, how in jobs)
        return Pointwise(width, dtype, registers, tuple(loads), tuple(instructions), stores)

    def _load(self, node: Node, computed: bool) -> Tuple[Optional[Place], How, float]:
        """Return where a loop finds a value, or what it computes it of, and how it loads it."""
        if node.kind in ("const", "ramp"):
            return None, "spread" if node.kind == "const" else "ramp", float(node.attrs[0])
        if node.kind == "cast" and computed:
            # Numbers are cast, and moved, when they are loaded.
            return self._load(node.args[0], False)
        if node.kind == "moved" and computed:
            return self.place_of(node.args[0]), node.attrs[0], 0.0
        source, start, follow = node.run()
        return self.place_of(source).at(start), "row" if follow else "spread", 0.0

    def _computes(self, node: Node, time: int) -> bool:
        """Whether a loop at some time has to compute a value itself."""
        is_there = node in self.stored and self._time[node] < time
        return node.kind not in ("read", "columns") and not is_there


def _reachable(
    roots: Iterable[Node], args: Callable[[Node], Iterable[Node]] = attrgetter("args")
) -> List[Node]:
    """Return what values are computed from, arguments first."""
    found: Set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += args(node)
    return sorted(found, key=lambda node: node.number)


def _is_cheap(node: Node) -> bool:
    return node.attrs[0] in CHEAP and all(not a.args or a.kind == "columns" for a in node.args)


def pieces(place: Place, node: Node) -> List[Store]:
    """Return what stands side by side in a value, and where each belongs."""
    return [(place.at(start), piece) for start, piece in node.pieces()]


def _parts(product: Node) -> int:
    return 1 if product.kind != "product" else int(product.width // product.attrs[0][0].units)
