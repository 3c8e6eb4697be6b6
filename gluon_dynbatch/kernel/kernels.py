"""Make the kernels of a segment, forward and backward."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..lower.segment import Segment
from ..native import assembling
from ..rules.site import RefuseError
from .compile import Compiler, placed_pieces
from .derivative import Differentiation
from .express import dtype_of, express, shape_of
from .expression import Expressions, Node
from .layout import Place, Slot
from .recipe import make_recipe
from .step import Array, Kernel, Wanted

#: Kernels in use, by `_key_of` their segments.
_CACHE: weakref.WeakValueDictionary[Any, SegmentKernels] = weakref.WeakValueDictionary()


def _key_of(segment: Segment) -> Any:
    """Return a key that segments share if only the identities of their parameters differ."""
    ops, heads, ports, _, *rest = segment.key
    parameters = ((shape_of(p), dtype_of(p), p.grad_req != "null") for p in segment.parameters)
    return (ops, heads, ports, tuple(parameters), *rest)


def kernels_of(segment: Segment) -> Union[SegmentKernels, str]:
    """Return the kernels of a segment, or the reason why there are none."""
    kernels = segment.kernels
    if kernels is None:
        try:
            key = _key_of(segment)
            kernels = _CACHE.get(key)
            if kernels is None:
                kernels = _CACHE[key] = SegmentKernels(segment, express(segment))
        except RefuseError as error:
            kernels = str(error)
        # If two threads make them, the last one wins.
        object.__setattr__(segment, "kernels", kernels)
    return kernels  # type: ignore[no-any-return]


class SegmentKernels:
    """The kernels of a segment whose results are given as expressions."""

    def __init__(self, segment: Segment, results: Sequence[Node]):
        self._results, self._nodes = results, list(results[0].owner.nodes)
        self._arrays = {
            Slot("in", i): Array(port.row_size, port.dtype, port.shared)
            for i, port in enumerate(segment.inputs)
        }
        self._arrays.update(
            (Slot("param", j), Array(prod(shape_of(p)), dtype_of(p), True))
            for j, p in enumerate(segment.parameters)
        )
        outputs = {
            Slot("out", k): Array(port.row_size, port.dtype)
            for k, port in enumerate(segment.outputs)
        }
        computed = _rebuilt(Expressions(), self._nodes, {})
        compiler = Compiler()
        stores = [(Place(slot), computed[node]) for slot, node in zip(outputs, results)]
        steps, stored = compiler.steps(stores), compiler.stored
        #: The values that the backward pass can read.
        self._stored = {x: stored[computed[x]] for x in self._nodes if computed[x] in stored}
        # A copy of an operand in a result or work array saves keeping the operand itself.
        pieces = [pair for x, place in self._stored.items() for pair in placed_pieces(place, x)]
        copies = ((x, place) for place, x in pieces if x.kind == "read" and not x.attrs[1])
        self._stored.update(copies)
        self._arrays.update({**outputs, **compiler.arrays})
        self.forward = Kernel(steps, dict(self._arrays))
        self._backward: Dict[Wanted, Kernel] = {}
        self._recipes: Dict[Any, assembling.Recipe] = {}

    def recipe(self, backward: Optional[Kernel], few: bool) -> assembling.Recipe:
        """Return the recipe of the kernels, made on first use; see `make_recipe`."""
        recipe = self._recipes.get((backward, few))
        if recipe is None:
            recipe = self._recipes[backward, few] = make_recipe(self.forward, backward, few)
        return recipe

    def backward(self, wanted: Wanted) -> Kernel:
        """Return the kernel of the backward pass, made on first use."""
        if wanted not in self._backward:
            self._backward[wanted] = self._make_backward(wanted)
        return self._backward[wanted]

    def _make_backward(self, wanted: Wanted) -> Kernel:
        build, results = Expressions(), self._results
        arrays = dict(self._arrays)
        stored = {}
        for node, (slot, column) in self._stored.items():
            whole = build.read(slot, arrays[slot].width, node.dtype)
            stored[node] = build.part(whole, column, node.width)
        heads: List[Tuple[Node, Node]] = []
        for k in wanted.heads:
            slot = Slot("head", k)
            head = arrays[slot] = arrays[Slot("out", k)]
            heads.append((results[k], build.read(slot, head.width, head.dtype)))
        values = _rebuilt(build, self._nodes, stored)
        gradients, sums = Differentiation(build, values, heads).gradients()
        reached = {Slot("param", j) for j in wanted.parameters}
        reached |= {Slot("in", i) for i in wanted.inputs}
        stores = []
        for slot in (Slot("in", i) for i in wanted.inputs):
            array = arrays[slot]
            if not array.every:
                target = Slot("grad", slot.number)
                arrays[target] = array
                gradient = gradients.get(slot) or build.const(0, array.width, array.dtype)
                stores.append((Place(target), gradient))
        compiler = Compiler(sum(slot.kind == "work" for slot in arrays))
        sums = [s for s in sums if s.weight.place.slot in reached]
        steps = compiler.steps(stores, sums)
        arrays.update(compiler.arrays)
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

    Leaves out "multiplier", which only matters to differentiation.
    """
    rebuilt: Dict[Node, Node] = {}
    for node in nodes:
        if node in stored:
            rebuilt[node] = stored[node]
        elif node.kind == "function" and node.attrs[0] == "multiplier":
            rebuilt[node] = rebuilt[node.args[0]]
        else:
            rebuilt[node] = build.with_args(node, [rebuilt[x] for x in node.args])
    return rebuilt
