"""What programs need to know of a kernel to run it: all that it works on, by number."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Tuple

from ..native import assembling, executing
from .layout import Place, Slot, Weight
from .step import Kernel, Product, Sum

#: Operations of products for each byte that is copied, from which on rows are worth comparing.
WORTH = 16
TEMPORARY, KEPT, SAVED = assembling.TEMPORARY, assembling.KEPT, assembling.SAVED

#: Numbers of all that a kernel works on: arrays, and matrices that are packed.
Numbers = Dict[Any, int]
#: Entries of a table of a recipe.
Entries = Iterable[Tuple[int, ...]]
#: All of them, by name and maybe direction: 0 is forward.
Tables = Dict[Any, Entries]


def make_recipe(forward: Kernel, backward: Optional[Kernel], few: bool) -> assembling.Recipe:
    """Return how a kernel is run.

    Parameters
    ----------
    forward : Kernel
        What is run.
    backward : Kernel, optional
        What runs it backward, if anything does.
    few : bool
        Whether there are so few rows that matrices are not packed.
    """
    last, natives = backward or forward, [forward.native(few)]
    packs = dict.fromkeys(natives[0].packs, KEPT if backward is None else SAVED)
    read: FrozenSet[Slot] = frozenset()
    if backward is not None:
        natives.append(backward.native())
        packs.update(dict.fromkeys(natives[1].packs, SAVED))
        read = backward.read
    # Works come last: the parts of a launch may differ in them.
    slots = sorted(last.arrays, key=lambda slot: slot.kind == "work")
    n: Numbers = {key: number for number, key in enumerate((*slots, *packs))}
    chooses = _chooses(forward)
    put = KEPT if chooses else TEMPORARY
    ours = [pair for pair in packs.items() if pair[0].place.slot.kind == "param"]
    shared = (s for one in natives[1:] for s in one.slots if s in last.arrays)
    single = _find_single(forward, natives[0])
    equal = (Slot("in", single), *_of(forward, "out"), *_of(forward, "work")) if single >= 0 else ()
    tables: Tables = {
        "bytes": ((last.row_bytes.get(key, 0),) for key in n),
        ("operands", 0): (
            (n[s], *_type(last, s), SAVED if s in read else put) for s in _of(last, "in")
        ),
        ("results", 0): ((n[slot],) for slot in _of(forward, "out")),
        ("apart", 0): _apart(forward, equal, dict.fromkeys(("out", "work"), executing.REPEAT), n),
        "saved": ((n[slot],) for slot in _of(forward, "work") if slot in read),
        "parameters": ((n[slot],) for slot in _of(last, "param")),
        "packs": (_pack(last, *pair, n) for pair in ours),
        "operand_packs": (_pack(last, *pair, n) for pair in packs.items() if pair not in ours),
        "shared": (_shared(last, slot, n) for slot in shared if last.arrays[slot].every),
        **({} if backward is None else _backward_tables(backward, n)),
    }
    return assembling.Recipe(
        {name: array("q", chain.from_iterable(entries)) for name, entries in tables.items()},
        tuple(natives),
        tuple(array("q", [n[slot] for slot in native.slots]) for native in natives),
        chooses,
        single,
    )


def _backward_tables(kernel: Kernel, n: Numbers) -> Tables:
    wanted, arrays = kernel.wanted, kernel.arrays
    assert wanted is not None
    heads = [Slot("head", k) for k in range(len(_of(kernel, "out")))]
    inputs = [Slot("in", p) for p in wanted.inputs]
    gradients = [Slot("grad", p) for p in range(len(_of(kernel, "in")))]
    parameters = [Slot("param", j) for j in wanted.parameters]
    own = [slot for slot, array in arrays.items() if not array.every and slot in kernel.read]
    done = {"grad": executing.SINGLE, "head": executing.TOTAL}
    return {
        ("operands", 1): (
            (n[s], *_type(kernel, s), _use(kernel, s)) if s in n else (-1, 0, 0, TEMPORARY)
            for s in heads
        ),
        ("results", 1): ((n.get(slot, -1),) for slot in gradients),
        ("apart", 1): _apart(kernel, own, done, n),
        "added": ((n[slot],) for slot in _of(kernel, "work") if slot in kernel.summed),
        "sums": (_sum(kernel, found, n) for found in kernel.sums),
        "trained": ((slot.number, arrays[slot].row_bytes) for slot in parameters),
        "reached": ((slot.number, arrays[slot].row_bytes) for slot in inputs),
    }


def _of(kernel: Kernel, kind: str) -> List[Slot]:
    """Return the slots of a kind."""
    return [slot for slot in kernel.arrays if slot.kind == kind]


def _type(kernel: Kernel, slot: Slot) -> Tuple[int, int]:
    dtype = kernel.arrays[slot].dtype
    return assembling.kind_of(dtype), assembling.itemsize(dtype)


def _pack(kernel: Kernel, weight: Weight, use: int, n: Numbers) -> Tuple[int, ...]:
    (slot, first), (kind, size) = weight.place, _type(kernel, weight.place.slot)
    shape = weight.columns, 1, weight.rows, weight.columns
    if weight.transposed:
        shape = 1, weight.columns, weight.columns, weight.rows
    return (n[weight], n[slot], first * size, kind, *shape, use)


def _shared(kernel: Kernel, slot: Slot, n: Numbers) -> Tuple[int, ...]:
    given = slot.number if slot.kind == "in" else -1
    return (n[slot], given, *_type(kernel, slot), kernel.arrays[slot].width)


def _apart(
    kernel: Kernel, slots: Iterable[Slot], done: Dict[str, int], n: Numbers
) -> Iterator[Tuple[int, ...]]:
    for slot in slots:
        own, use = kernel.arrays[slot], _use(kernel, slot)
        what = done.get(slot.kind, executing.PICK)
        yield what, n[slot], assembling.kind_of(own.dtype), own.width, use, slot.number


def _use(kernel: Kernel, slot: Slot) -> Any:
    return KEPT if slot in kernel.summed else TEMPORARY


def _sum(kernel: Kernel, found: Sum, n: Numbers) -> Tuple[int, ...]:
    weight, parts = found.weight, found.parts

    def rows(place: Place, width: int) -> Tuple[int, int, int]:
        own = kernel.arrays[place.slot]
        first = place.column * assembling.itemsize(own.dtype)
        return n[place.slot], first, width if parts > 1 else own.width

    kind, size = _type(kernel, found.gradient.slot)
    (where, number), first = weight.place.slot, size * weight.place.column
    target = (number, -1, first) if where == "param" else (-1, number, first)
    gradient = rows(found.gradient, weight.units)
    if found.rows is None:
        # All that is added is the gradient.
        record, last, both = executing.ROW, 0, (gradient, (gradient[0], 0, 0))
    elif weight.chosen:
        record, last = executing.CHOSEN, assembling.kind_of(kernel.arrays[found.rows.slot].dtype)
        both = gradient, rows(found.rows, weight.inputs)
    else:
        record, last = executing.MATRIX, int(not weight.transposed) + 2 * found.columns
        both = gradient, rows(found.rows, weight.inputs)
        both = both if weight.transposed else both[::-1]
    return (*target, record, kind, weight.rows, weight.columns, last, parts, *both[0], *both[1])


def _find_single(kernel: Kernel, native: executing.Kernel) -> int:
    inputs = [slot for slot in _of(kernel, "in") if not kernel.arrays[slot].every]
    copied = sum(kernel.row_bytes.values())
    if len(inputs) != 1 or inputs[0] not in native.slots or native.work < WORTH * copied:
        return -1
    return inputs[0].number


def _chooses(kernel: Kernel) -> bool:
    step, given, made = kernel.steps[0], Slot("in", 0), Slot("out", 0)
    return (
        len(kernel.steps) == 1
        and isinstance(step, Product)
        and step.weight.chosen
        and step.weight.place.slot.kind == "param"
        and (step.left, step.result, step.parts) == (Place(given), Place(made), 1)
        and not step.adds
        and (kernel.arrays[given].width, kernel.arrays[given].every) == (1, False)
        and kernel.arrays[made].width == step.weight.columns
    )
