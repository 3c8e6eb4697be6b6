"""The kernels of a segment, forward and backward."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..lower.segment import Segment
from ..native import assembling
from ..rules.site import RefuseError
from .compile import Compiler, pieces
from .derivative import Differentiation
from .express import dtype_of, express, shape_of
from .expression import Expressions, Node
from .layout import Place, Slot
from .recipe import make_recipe
from .step import Array, Kernel, Wanted

#: Kernels by what they depend on: segments that differ in parameters only have the same.
_KNOWN: weakref.WeakValueDictionary[Any, SegmentKernels] = weakref.WeakValueDictionary()


def _kind(segment: Segment) -> Any:
    ops, heads, ports, _, *rest = segment.key
    like = ((shape_of(p), dtype_of(p), p.grad_req != "null") for p in segment.parameters)
    return (ops, heads, ports, tuple(like), *rest)


def kernels_of(segment: Segment) -> Union[SegmentKernels, str]:
    """Return the kernels of a segment, or why there are none."""
    found = segment.kernels
    if found is None:
        try:
            kind = _kind(segment)
            found = _KNOWN.get(kind)
            if found is None:
                found = _KNOWN[kind] = SegmentKernels(segment, express(segment))
        except RefuseError as error:
            found = str(error)
        # Of two threads that make them the last one stays.
        object.__setattr__(segment, "kernels", found)
    return found  # type: ignore[no-any-return]


class SegmentKernels:
    """What runs a segment natively, given what this computes."""

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
        plain = _remade(Expressions(), self._nodes, {})
        compiler = Compiler()
        steps = compiler.steps([(Place(slot), plain[node]) for slot, node in zip(outputs, results)])
        stored = compiler.stored
        #: What the backward pass can read.
        self._stored = {x: stored[plain[x]] for x in self._nodes if plain[x] in stored}
        # Operands that stand there once more need not be kept themselves.
        copies = [pair for x, place in self._stored.items() for pair in pieces(place, x)]
        own = ((x, place) for place, x in copies if x.kind == "read" and not x.attrs[1])
        self._stored.update(own)
        self._arrays.update({**outputs, **compiler.arrays})
        self.forward = Kernel(steps, dict(self._arrays))
        self._backward: Dict[Wanted, Kernel] = {}
        self._recipes: Dict[Any, assembling.Recipe] = {}

    def recipe(self, backward: Optional[Kernel], few: bool) -> assembling.Recipe:
        """Return how the kernel is run, made on first use; see `make_recipe`."""
        found = self._recipes.get((backward, few))
        if found is None:
            found = self._recipes[backward, few] = make_recipe(self.forward, backward, few)
        return found

    def backward(self, wanted: Wanted) -> Kernel:
        """Return the kernel that goes backward, made on first use."""
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
        rows, sums = Differentiation(build, _remade(build, self._nodes, stored), heads).gradients()
        trained = {Slot("param", j) for j in wanted.parameters}
        trained |= {Slot("in", i) for i in wanted.inputs}
        stores = []
        for slot in (Slot("in", i) for i in wanted.inputs):
            array = arrays[slot]
            if not array.every:
                target = Slot("grad", slot.number)
                arrays[target] = array
                node = rows.get(slot) or build.const(0, array.width, array.dtype)
                stores.append((Place(target), node))
        compiler = Compiler(sum(slot.kind == "work" for slot in arrays))
        sums = [found for found in sums if found.weight.place.slot in trained]
        steps = compiler.steps(stores, sums)
        arrays.update(compiler.arrays)
        place = compiler.place_of
        placed = (
            found._replace(gradient=place(found.gradient), rows=found.rows and place(found.rows))
            for found in sums
        )
        return Kernel(steps, arrays, tuple(placed), wanted)


def _remade(build: Expressions, nodes: Sequence[Node], known: Dict[Node, Node]) -> Dict[Node, Node]:
    """Return what nodes are in other expressions, where some are known.

    Nobody will differentiate these: what gradients are multiplied with is left out.
    """
    found: Dict[Node, Node] = {}
    for node in nodes:
        if node in known:
            found[node] = known[node]
        elif node.kind == "function" and node.attrs[0] == "multiplier":
            found[node] = found[node.args[0]]
        else:
            found[node] = build.again(node, [found[x] for x in node.args])
    return found
