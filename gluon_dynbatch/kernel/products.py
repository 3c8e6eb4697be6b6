"""Find the products of one input, which a program can run apart from the rest of a kernel.

If rows of that input are equal, so are their products, whatever else the kernel reads.  Backward,
the gradients of equal rows are added up before they are multiplied.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from .layout import Slot
from .step import Kernel, Product, Step


class InputProducts(NamedTuple):
    """The products of one input, and the rest of each kernel."""

    #: The input, and what the products write: work arrays that the rest reads.
    input: Slot
    results: Tuple[Slot, ...]
    #: Forward, the products run first; backward, after the rest.
    forward: Kernel
    rest: Kernel
    backward: Optional[Kernel] = None
    rest_backward: Optional[Kernel] = None
    #: The gradients of the results, which the backward products read.
    gradients: Tuple[Slot, ...] = ()


def find_products(forward: Kernel, backward: Optional[Kernel]) -> Optional[InputProducts]:
    """Return the products of one input, None if a kernel does not begin with any.

    In the backward kernel, these products have to be all that contributes to the gradient of the
    input, and all sums that read the input have to be sums of gradients that they read.
    """
    first = forward.steps[0]
    if forward.draws or not isinstance(first, Product) or first.left.slot.kind != "in":
        return None
    slot = first.left.slot
    others = [s for s in forward.arrays if s.kind == "in" and s != slot]
    if forward.arrays[slot].every or all(forward.arrays[s].every for s in others):
        return None  # or all rows are equal, or `single` says so
    steps = _while(lambda p: p.left.slot == slot and p.result.slot.kind == "work", forward.steps)
    if not steps:
        return None
    results = tuple(dict.fromkeys(p.result.slot for p in steps))
    early, rest = _split(forward, len(steps))
    if slot in rest.native().slots:
        return None
    found = InputProducts(slot, results, early, rest)
    if backward is None:
        return found
    gradient = Slot("grad", slot.number)
    last = _while(lambda p: p.result.slot == gradient, backward.steps[::-1])
    gradients = tuple(dict.fromkeys(p.left.slot for p in last))
    rest, late = _split(backward, len(backward.steps) - len(last))
    of_input = [s for s in backward.sums if s.rows is not None and s.rows.slot == slot]
    if (
        not last
        or not rest.steps
        or {slot, gradient}.intersection(rest.native().slots)
        or slot in late.native().slots
        or not {s.gradient.slot for s in of_input} <= set(gradients)
        or any(s.parts != 1 or s.columns for s in of_input)
    ):
        return None
    return found._replace(backward=late, rest_backward=rest, gradients=gradients)


def _while(fits: Callable[[Product], bool], steps: Sequence[Step]) -> List[Product]:
    """Return the first steps that are products with a matrix, one row of each, and that fit."""
    found: List[Product] = []
    for step in steps:
        if not isinstance(step, Product) or step.weight.gathered or step.parts != 1:
            break
        if not fits(step):
            break
        found.append(step)
    return found


def _split(kernel: Kernel, count: int) -> Tuple[Kernel, Kernel]:
    """Return the kernels of the first steps, and of all others."""
    return Kernel(kernel.steps[:count], kernel.arrays), Kernel(kernel.steps[count:], kernel.arrays)
