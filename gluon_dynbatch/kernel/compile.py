"""Compile expressions to steps.

Each value is computed at a time: loops run at even times, other steps at odd times.  A step reads
only values that were stored at an earlier time.  A value that is needed at several times is stored
at the first, unless recomputing it is cheap.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count, zip_longest
from operator import attrgetter
from typing import Any, Callable, DefaultDict, Dict, Iterable, List, Sequence, Set, Tuple

from .expression import LOADED, Node
from .layout import IDENTITY, Columns, Slot
from .step import (
    OF_DRAWS,
    Access,
    Convolved,
    Dots,
    Indexed,
    Instruction,
    Pointwise,
    Product,
    Ranked,
    SlotArray,
    Step,
    Sum,
)

#: Functions that cost no more than loading their stored result.
CHEAP = frozenset(["add", "sub", "mul", "negative", "gate", "select", "relu"])
#: Kinds of nodes that are computed by steps other than loops.
OWN_STEP = frozenset(["product", "dot", "convolved", "gathered", "scattered", "ranked"])
#: Kinds whose arguments must be stored; and the results, but for `LOADED`.
MOVED = OWN_STEP | {"permuted", "repeated"}
OF_STORED = MOVED | LOADED
#: Kinds whose results must be stored.
STORED = MOVED | {"reduced"}

#: What a loop stores: where, which node, and the pattern of the `Access`.
Job = Tuple[Columns, Node, str]
#: A place, and the node that must be stored there.
Store = Tuple[Columns, Node]


class Compiler:
    """Compiles expressions to steps, and adds the work arrays that they use to `arrays`."""

    def __init__(self, arrays: Dict[Slot, SlotArray]):
        self._arrays = arrays
        self._free_numbers = count(sum(slot.kind == "work" for slot in arrays))
        #: Where values are after all steps, except those that are read.
        self.stored: Dict[Node, Columns] = {}
        #: When each value is computed.
        self._time: Dict[Node, int] = {}

    def steps(self, stores: Sequence[Store], sums: Sequence[Sum] = ()) -> Tuple[Step, ...]:
        """Return the steps that perform `stores`, and store what `sums` read."""
        gradients = [s.gradient for s in sums]
        rows = [s.rows for s in sums if s.rows is not None and s.parts > 1]
        order = _reachable([*(node for _, node in stores), *gradients, *rows])
        factors = [(x, _parts(n)) for n in order if n.kind in OF_STORED for x in n.args]
        factors += zip(gradients, (s.parts for s in sums))
        #: Values that are read in several parts, so their rows must be contiguous in memory.
        self.dense = {*rows, *(x for x, parts in factors if parts > 1)}
        self._choose_targets(stores)
        for node in (*gradients, *rows):
            self._store(node)
        self._schedule(order)
        copies: List[Store] = []
        for place, node in stores:
            if self.stored.get(node) != place:
                copies += self._stored_elsewhere(place, node)
        self._store_reused(order, copies)
        return self._emit(copies)

    def place_of(self, node: Node) -> Columns:
        """Return the place of a value that is in memory."""
        if node in self.stored:
            return self.stored[node]
        if node.kind == "read":
            return Columns(node.attrs[0])
        assert node.kind == "columns", f"{node.kind} is not in memory"
        source = self.place_of(node.args[0])
        return source.shifted(node.attrs[0])

    def _choose_targets(self, stores: Sequence[Store]) -> None:
        """Compute values directly in the places where they must be stored, if possible."""
        for place, node in stores:
            source, _, step = node.column_run()
            # Only loops convert numbers: gradients of integers are computed in double precision.
            converts = self._arrays[place.slot].dtype != node.dtype
            if source.kind == "read" or not step or converts:
                continue
            self.stored.setdefault(node, place)
            for target, piece in placed_pieces(place, node):
                if piece.kind in MOVED and _parts(piece) == 1 and piece not in self.dense:
                    self.stored.setdefault(piece, target)

    def _stored_elsewhere(self, place: Columns, node: Node) -> List[Store]:
        """Return the pieces of a value at `place` that are not computed in their places."""
        pieces = placed_pieces(place, node)
        return [(target, piece) for target, piece in pieces if self.stored.get(piece) != target]

    def _add_work(self, node: Node) -> None:
        """Store a value in a new work array."""
        slot = Slot("work", next(self._free_numbers))
        self._arrays[slot] = SlotArray(node.width, node.dtype)
        self.stored[node] = Columns(slot)

    def _store(self, node: Node) -> None:
        """Ensure that a value is in memory; adjacent columns are where their source is."""
        is_part = node.kind == "columns" and node.attrs[1] and node not in self.dense
        if not (is_part or node.kind == "read" or node in self.stored):
            self._add_work(node)

    def _schedule(self, order: Sequence[Node]) -> None:
        """Find the first time at which each value can be computed."""
        for node in order:
            # Casts happen in loads, so their arguments must be stored.
            if node.kind in OF_STORED or (node.kind == "cast" and node.args[0].kind != "columns"):
                for x in node.args:
                    self._store(x)
            # A function can run in the loop that computes its arguments.
            in_loop = node.kind == "function"
            time = max((self._available(x, in_loop) for x in node.args), default=0)
            self._time[node] = time | 1 if node.kind in OWN_STEP else time + (time & 1)
            if node.kind in STORED:
                self._store(node)

    def _available(self, node: Node, in_loop: bool = False) -> int:
        """Return the first time at which a step can use a value; `in_loop` if it may compute it."""
        later = node.kind in STORED or (node in self.stored and not in_loop)
        return self._time[node] + later

    def _store_reused(self, order: Sequence[Node], copies: Sequence[Store]) -> None:
        """Store the values that are needed at several times."""
        needed: DefaultDict[Node, Set[int]] = defaultdict(set)
        for _, node in copies:
            needed[node].add(self._copy_time(node))
        for node in reversed(order):
            times = needed[node]
            if node in self.stored:
                times = {self._time[node]}
            elif node.kind == "function" and len(times) > 1 and not _is_cheap(node):
                self._add_work(node)
                # Not before it is needed, even if it could be computed earlier.
                self._time[node] = min(times)
                times = {min(times)}
            for x in node.args:
                needed[x] |= times

    def _copy_time(self, node: Node) -> int:
        """Return the time of the loop that copies a value to another place."""
        time = self._time[node] + (node in self.stored)
        return time + (time & 1)

    def _emit(self, copies: Sequence[Store]) -> Tuple[Step, ...]:
        #: Per time, width and dtype: the parts of a loop, and its jobs.
        jobs: Dict[Tuple[int, int, str], List[Tuple[int, Job]]] = {}
        steps: Dict[int, List[Step]] = {}

        def add(time: int, place: Columns, node: Node, *reduction: Any) -> None:
            pattern, parts = reduction or ("row", node.parts if node.parts > 1 else 0)
            # A single column is its own sum and maximum.
            job = place, node, pattern if node.width > 1 else "row"
            jobs.setdefault((time, node.width, node.dtype), []).append((parts, job))

        for node, place in self.stored.items():
            time = self._time[node]
            if node.kind in OWN_STEP:
                steps.setdefault(time, []).extend(self._steps_of(node, place))
            elif node.kind == "reduced":
                add(time, place, node.args[0], *node.attrs)
            elif node.kind == "join":
                for target, piece in self._stored_elsewhere(place, node):
                    add(time, target, piece)
            else:
                add(time, place, node)
        for target, piece in copies:
            add(self._copy_time(piece), target, piece)
        for (time, _, dtype), of_width in jobs.items():
            # Jobs that can be done in any parts join the first loop.
            numbers = dict.fromkeys(parts for parts, _ in of_width if parts) or {1: None}
            first = next(iter(numbers))
            for parts in numbers:
                of_loop = [job for own, job in of_width if (own or first) == parts]
                steps.setdefault(time, []).append(self._loop(time, parts, dtype, of_loop))
        return tuple(step for time in sorted(steps) for step in steps[time])

    def _steps_of(self, node: Node, result: Columns) -> List[Step]:
        """Return the steps that compute a node of a kind in `OWN_STEP`."""
        places = [self.place_of(x) for x in node.args]
        if node.kind == "dot":
            left, right = places
            dot = node.attrs[0]
            return [Dots(left=left, right=right, result=result, dot=dot, dtype=node.dtype)]
        if node.kind == "convolved":
            left, right, *biases = places
            step = Convolved(
                left=left,
                right=right,
                result=result,
                bias=biases[0] if biases else None,
                maps=node.attrs[0],
                dtype=node.dtype,
            )
            return [step]
        if node.kind == "ranked":
            source, ranking = node.args[0], node.attrs[0]
            return [Ranked(source=places[0], result=result, ranking=ranking, dtype=source.dtype)]
        if node.kind in ("gathered", "scattered"):
            index, *adds = node.attrs
            chosen = Indexed(
                source=places[0],
                chosen=places[1],
                result=result,
                positions=index,
                operation=(1 if adds[0] else 2) if adds else 0,
                dtype=node.dtype,
            )
            return [chosen]
        weights, biases = node.attrs
        assert len(biases) <= len(weights)
        terms = zip_longest(places, weights, biases)
        return [
            Product(
                left=left,
                weight=weight,
                result=result,
                bias=bias,
                adds=i > 0,
                parts=_parts(node),
                dtype=node.dtype,
            )
            for i, (left, weight, bias) in enumerate(terms)
        ]

    def _loop(self, time: int, parts: int, dtype: str, jobs: Sequence[Job]) -> Pointwise:
        """Return the loop that does jobs of a time."""
        width = jobs[0][1].width // parts

        def args(node: Node) -> Tuple[Node, ...]:
            is_computed = node.kind == "function" and not self._in_memory(node, time)
            return node.args if is_computed else ()

        order = _reachable([node for _, node, _ in jobs], args)
        # They keep their registers: `gdb_loop` in `native/c/steps.h` forbids overwriting them.
        loaded = [node for node in order if not args(node)]
        loads = (self._load(i, x, self._in_memory(x, time), width) for i, x in enumerate(loaded))
        register, registers = {node: i for i, node in enumerate(loaded)}, len(loaded)
        last_use = {x: i for i, node in enumerate(order) for x in args(node)}
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
            # In the order of the arguments, so that equal nodes always get equal registers.
            used = dict.fromkeys(args(node))
            free += [register[x] for x in used if last_use[x] == i and x not in kept]
        stores = tuple(
            Access(register[node], place, pattern, step=width if pattern == "row" else 1)
            for place, node, pattern in jobs
        )
        return Pointwise(
            width=width,
            dtype=dtype,
            registers=registers,
            loads=tuple(loads),
            instructions=tuple(instructions),
            stores=stores,
            parts=parts,
        )

    def _load(self, register: int, node: Node, in_memory: bool, width: int) -> Access:
        if node.kind == "const":
            return Access(register, None, "broadcast", float(node.attrs[0]))
        if node.kind == "iota":
            return Access(register, None, "iota", float(node.attrs[0]), width)
        if node.kind in LOADED and not in_memory:
            place = self.place_of(node.args[0])
            if node.kind == "stretched":
                return Access(register, place, "broadcast", step=1)
            return Access(register, place, "row", step=width if node.kind == "whole" else 0)
        if node.kind == "uniform" and not in_memory:
            self._arrays.update(OF_DRAWS)
            draw, first = node.attrs
            return Access(register, Columns(IDENTITY, first), "uniform", float(draw), width)
        if node.kind == "cast" and not in_memory:
            access = self._load(register, node.args[0], True, width)
            if node.attrs[1] == "row":
                return access
            assert access.pattern == "row", "a cast of indices is not spread"
            return access._replace(pattern=node.attrs[1])
        if node.kind in ("permuted", "repeated") and not in_memory:
            return Access(register, self.place_of(node.args[0]), node.attrs[0])
        source, start, step = node.column_run()
        place = self.place_of(source).shifted(start)
        if not step:
            return Access(register, place, "broadcast")
        return Access(register, place, "row", step=width)

    def _in_memory(self, node: Node, time: int) -> bool:
        """Return whether a loop at a time finds a value in memory."""
        is_stored = node in self.stored and self._time[node] < time
        return node.kind in ("read", "columns") or is_stored


def _reachable(
    roots: Iterable[Node], args: Callable[[Node], Iterable[Node]] = attrgetter("args")
) -> List[Node]:
    """Return the roots and the nodes that they are computed from, in topological order."""
    reached: Set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack += args(node)
    return sorted(reached, key=lambda node: node.number)


def _is_cheap(node: Node) -> bool:
    return node.attrs[0] in CHEAP and all(
        not a.args or a.kind == "columns" or a.kind in LOADED for a in node.args
    )


def placed_pieces(place: Columns, node: Node) -> List[Store]:
    """Return the pieces of a value that is stored at a place, with their places."""
    return [(place.shifted(start), piece) for start, piece in node.pieces()]


def _parts(node: Node) -> int:
    """Return how many rows of a product one row of the launch has, 1 for other kinds."""
    return 1 if node.kind != "product" else int(node.width // node.attrs[0][0].units)
