"""Make the kernels of a segment, forward and backward."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..lower.segment import Key, Segment
from ..native import assembling, lowering
from ..record.types import name_of
from ..rules.site import RefuseError
from .compile import Compiler, placed_pieces
from .derivative import Differentiation, gradient_dtype
from .express import express, shape_of
from .expression import Expressions, Node
from .layout import Columns, Slot
from .recipe import make_recipe, only_gathers
from .step import Kernel, SlotArray, Wanted

#: The kernels of a segment, or the reason why there are none.
KernelsOrReason = Union["SegmentKernels", str]

#: In place of the kernels of a segment.
SWITCHED_OFF = "native steps are switched off"

#: Kernels in use, by `_key_of` their segments.
_CACHE: weakref.WeakValueDictionary[Key, SegmentKernels] = weakref.WeakValueDictionary()


def _key_of(segment: Segment) -> Key:
    """Return a key that segments share if only the identities of their parameters differ."""
    parameters = ((shape_of(p), name_of(p.dtype)) for p in segment.parameters)
    return segment.key._replace(parameters=tuple(parameters))


def kernels_of(segment: Segment) -> KernelsOrReason:
    """Make the kernels of a segment, or find those of an equal one that are in use."""
    try:
        key = _key_of(segment)
        kernels = _CACHE.get(key)
        if kernels is None:
            kernels = _CACHE[key] = SegmentKernels(segment, express(segment))
        return kernels
    except RefuseError as error:
        return str(error)


class Kernels:
    """The kernels of segments, made on first use, and how many."""

    def __init__(self) -> None:
        #: Number of kernels made so far.
        self.built = 0
        #: Whether segments run as native steps where possible; tests switch it off.
        self.native = True

    def __call__(self, segment: Segment) -> KernelsOrReason:
        """Return the kernels of `segment`, or the reason why MXNet's operators run it."""
        if not self.native:
            return SWITCHED_OFF
        kernels: Optional[KernelsOrReason] = segment.brief.kernels
        if kernels is None:
            # If two threads make them, the last one wins.
            kernels = segment.brief.kernels = kernels_of(segment)
            self.built += not isinstance(kernels, str)
        return kernels

    def of(self, segments: List[Segment]) -> Tuple[KernelsOrReason, ...]:
        """Return what a call returns for each segment."""
        found = lowering.kernels_found(segments) if self.native else [None] * len(segments)
        return tuple([kernels or self(segment) for kernels, segment in zip(found, segments)])


class SegmentKernels:
    """The kernels of a segment whose results are given as expressions."""

    def __init__(self, segment: Segment, results: Sequence[Node]):
        self._results, self._nodes = results, list(results[0].owner.nodes)
        arrays = {
            Slot("in", i): SlotArray(port.row_size, port.dtype, port.shared)
            for i, port in enumerate(segment.inputs)
        }
        for j, p in enumerate(segment.parameters):
            arrays[Slot("param", j)] = SlotArray(prod(shape_of(p)), name_of(p.dtype), every=True)
        outputs = [Slot("out", k) for k in range(len(results))]
        sizes = zip(outputs, segment.outputs)
        arrays.update((slot, SlotArray(port.row_size, port.dtype)) for slot, port in sizes)
        computed = _rebuilt(Expressions(), self._nodes, {})
        compiler = Compiler(arrays)
        stores = [(Columns(slot), computed[node]) for slot, node in zip(outputs, results)]
        steps, stored = compiler.steps(stores), compiler.stored
        #: The values that the backward pass can read.
        self._stored = {x: stored[computed[x]] for x in self._nodes if computed[x] in stored}
        # A copy of an operand in a result or work array saves keeping the operand itself, unless
        # that is read in several parts.
        pieces = [pair for x, place in self._stored.items() for pair in placed_pieces(place, x)]
        parted = {x for x in self._nodes if computed[x] in compiler.dense}
        copies = (
            (x, place)
            for place, x in pieces
            if x.kind == "read" and not x.attrs[1] and x not in parted
        )
        self._stored.update(copies)
        self.forward = Kernel(steps, arrays)
        #: Whether they do nothing but gather rows of a parameter.
        self.gathers = only_gathers(self.forward)
        self._backward: Dict[Wanted, Kernel] = {}
        self._recipes: Dict[Any, assembling.Recipe] = {}

    def recipe(self, backward: Optional[Kernel], matrices: int) -> assembling.Recipe:
        """Return the recipe of the kernels, made on first use; see `make_recipe`."""
        key = backward, matrices
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = self._recipes[key] = make_recipe(self.forward, backward, matrices)
        return recipe

    def backward(self, wanted: Wanted) -> Kernel:
        """Return the kernel of the backward pass, made on first use."""
        if wanted not in self._backward:
            self._backward[wanted] = self._make_backward(wanted)
        return self._backward[wanted]

    def _make_backward(self, wanted: Wanted) -> Kernel:
        build, results = Expressions(), self._results
        arrays = dict(self.forward.arrays)
        stored = {}
        for node, (slot, column) in self._stored.items():
            whole = build.read(slot, arrays[slot].width, node.dtype)
            stored[node] = build.part(whole, column, node.width)
        heads: List[Tuple[Node, Node]] = []
        for k in wanted.heads:
            slot = Slot("head", k)
            head = arrays[slot] = arrays[Slot("out", k)]
            gradient = build.read(slot, head.width, head.dtype)
            heads.append((results[k], build.cast(gradient, gradient_dtype(results[k].dtype))))
        values = _rebuilt(build, self._nodes, stored)
        gradients, sums = Differentiation(build, values, heads).gradients()
        reached = {Slot("param", j) for j in wanted.parameters}
        stores = []
        for i in wanted.inputs:
            slot, target = Slot("in", i), Slot("grad", i)
            reached.add(slot)
            if not arrays[slot].every:
                array = arrays[target] = arrays[slot]
                dtype = gradient_dtype(array.dtype)
                gradient = gradients.get(slot) or build.const(0, array.width, dtype)
                stores.append((Columns(target), gradient))
        compiler = Compiler(arrays)
        sums = [s for s in sums if s.weight.place.slot in reached]
        steps = compiler.steps(stores, sums)
        place_of = compiler.place_of
        placed = (
            s._replace(gradient=place_of(s.gradient), rows=s.rows and place_of(s.rows))
            for s in sums
        )
        return Kernel(steps, arrays, tuple(placed), wanted)


def _rebuilt(
    build: Expressions, nodes: Sequence[Node], stored: Dict[Node, Node]
) -> Dict[Node, Node]:
    """Rebuild nodes in other expressions, where the nodes of stored values are given.

    Leaves out "multiplier" and "as_if", which only matter to differentiation.
    """
    rebuilt: Dict[Node, Node] = {}
    for node in nodes:
        if node in stored:
            rebuilt[node] = stored[node]
        elif node.kind == "function" and node.attrs[0] in ("multiplier", "as_if"):
            rebuilt[node] = rebuilt[node.args[0]]
        else:
            rebuilt[node] = build.with_args(node, [rebuilt[x] for x in node.args])
    return rebuilt
