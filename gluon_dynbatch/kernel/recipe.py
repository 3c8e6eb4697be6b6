"""Make recipes: what programs must know to run a kernel, as tables of numbers."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Tuple

from ..native import assembling, executing
from .layout import CLIP, IDENTITY, KEY, WRAP, Place, Slot, Weight
from .step import Kernel, Product, Sum

#: Operations per byte of a row, from which on it pays to look for equal rows.
WORTH = 16
TEMPORARY, KEPT, SAVED = assembling.TEMPORARY, assembling.KEPT, assembling.SAVED

#: Numbers of the arrays (by slot) and packed matrices (by weight) that a kernel works on.
Numbers = Dict[Any, int]
#: Entries of a table of a recipe; `native/recipes.pxi` defines their members.
Entries = Iterable[Tuple[int, ...]]
#: Tables by name, or by name and direction: 0 is forward, 1 backward.
Tables = Dict[Any, Entries]


def make_recipe(forward: Kernel, backward: Optional[Kernel], few: bool) -> assembling.Recipe:
    """Return the recipe of kernels; `few` as for `Kernel.native`."""
    last, natives = backward or forward, [forward.native(few)]
    used: FrozenSet[Slot] = frozenset()
    if backward is not None:
        natives.append(backward.native())
        used = backward.used
    use = KEPT if backward is None else SAVED
    packs = dict.fromkeys(chain.from_iterable(native.packs for native in natives), use)
    # Work arrays come last, because they may differ between the parts of a launch.
    slots = sorted(last.arrays, key=lambda slot: slot.kind == "work")
    numbers: Numbers = {key: number for number, key in enumerate((*slots, *packs))}
    kinds = "in", "out", "param", "work"
    inputs, outputs, parameters, works = (_slots_of(forward, kind) for kind in kinds)
    gathers = _only_gathers(forward)
    operand_use = KEPT if gathers else TEMPORARY
    of_parameters = {w: use for w, use in packs.items() if w.place.slot.kind == "param"}
    of_operands = {w: use for w, use in packs.items() if w not in of_parameters}
    # The key is the same in both directions.
    shared = (s for native in natives[1:] for s in native.slots if s in last.arrays and s != KEY)
    single = _find_single(forward, natives[0])
    equal = (Slot("in", single), *outputs, *works) if single >= 0 else ()
    records = dict.fromkeys(("out", "work"), executing.REPEAT)
    tables: Tables = {
        "bytes": ((last.row_bytes.get(key, 0),) for key in numbers),
        ("operands", 0): (
            (numbers[slot], *_type(last, slot), SAVED if slot in used else operand_use)
            for slot in inputs
        ),
        ("results", 0): ((numbers[slot],) for slot in outputs),
        ("apart", 0): _apart(forward, equal, records, numbers),
        "draws": ((numbers[KEY], numbers[IDENTITY]),) if forward.draws else (),
        "saved": ((numbers[slot],) for slot in works if slot in used),
        "parameters": ((numbers[slot],) for slot in parameters),
        "packs": (_pack(last, *item, numbers) for item in of_parameters.items()),
        "operand_packs": (_pack(last, *item, numbers) for item in of_operands.items()),
        "shared": (_shared(last, slot, numbers) for slot in shared if last.arrays[slot].every),
        **({} if backward is None else _backward_tables(backward, numbers)),
    }
    return assembling.Recipe(
        {name: array("q", chain.from_iterable(entries)) for name, entries in tables.items()},
        tuple(natives),
        tuple(array("q", [numbers[slot] for slot in native.slots]) for native in natives),
        gathers,
        single,
    )


def _backward_tables(kernel: Kernel, numbers: Numbers) -> Tables:
    wanted, arrays = kernel.wanted, kernel.arrays
    assert wanted is not None
    heads = [Slot("head", k) for k in range(len(_slots_of(kernel, "out")))]
    inputs = [Slot("in", p) for p in wanted.inputs]
    gradients = [Slot("grad", p) for p in range(len(_slots_of(kernel, "in")))]
    parameters = [Slot("param", j) for j in wanted.parameters]
    per_row = [slot for slot, array in arrays.items() if not array.every and slot in kernel.used]
    records = {"grad": executing.SINGLE, "head": executing.TOTAL}
    return {
        ("operands", 1): (
            (numbers[slot], *_type(kernel, slot), _use(kernel, slot))
            if slot in numbers
            else (-1, 0, 0, TEMPORARY)
            for slot in heads
        ),
        ("results", 1): ((numbers.get(slot, -1),) for slot in gradients),
        ("apart", 1): _apart(kernel, per_row, records, numbers),
        "added": ((numbers[slot],) for slot in _slots_of(kernel, "work") if slot in kernel.summed),
        "sums": (_sum(kernel, s, numbers) for s in kernel.sums),
        "trained": ((slot.number, arrays[slot].row_bytes) for slot in parameters),
        "reached": ((slot.number, arrays[slot].row_bytes) for slot in inputs),
    }


def _slots_of(kernel: Kernel, kind: str) -> List[Slot]:
    """Return the slots of a kind."""
    return [slot for slot in kernel.arrays if slot.kind == kind]


def _type(kernel: Kernel, slot: Slot) -> Tuple[int, int]:
    dtype = kernel.arrays[slot].dtype
    return assembling.kind_of(dtype), assembling.itemsize(dtype)


def _pack(kernel: Kernel, weight: Weight, use: int, numbers: Numbers) -> Tuple[int, ...]:
    (slot, first), (kind, size) = weight.place, _type(kernel, weight.place.slot)
    shape = weight.columns, 1, weight.rows, weight.columns
    if weight.transposed:
        shape = 1, weight.columns, weight.columns, weight.rows
    return (numbers[weight], numbers[slot], first * size, kind, *shape, use)


def _shared(kernel: Kernel, slot: Slot, numbers: Numbers) -> Tuple[int, ...]:
    operand = slot.number if slot.kind == "in" else -1
    return numbers[slot], operand, kernel.arrays[slot].row_bytes


def _apart(
    kernel: Kernel, slots: Iterable[Slot], records: Dict[str, int], numbers: Numbers
) -> Iterator[Tuple[int, ...]]:
    """Yield how the equal rows of each slot are treated: by the record of its kind, or PICK."""
    for slot in slots:
        array, use = kernel.arrays[slot], _use(kernel, slot)
        record = records.get(slot.kind, executing.PICK)
        yield record, numbers[slot], assembling.kind_of(array.dtype), array.width, use, slot.number


def _use(kernel: Kernel, slot: Slot) -> Any:
    return KEPT if slot in kernel.summed else TEMPORARY


def _sum(kernel: Kernel, s: Sum, numbers: Numbers) -> Tuple[int, ...]:
    weight = s.weight

    def read(place: Place, width: int) -> Tuple[int, int, int]:
        array = kernel.arrays[place.slot]
        first = place.column * assembling.itemsize(array.dtype)
        return numbers[place.slot], first, width if s.parts > 1 else array.width

    kind, size = _type(kernel, s.gradient.slot)
    (slot_kind, number), first = weight.place.slot, size * weight.place.column
    target = (number, -1, first) if slot_kind == "param" else (-1, number, first)
    gradient = read(s.gradient, weight.units)
    if s.rows is None:
        record, last, reads = executing.ROW, 0, (gradient, (gradient[0], 0, 0))
    elif weight.gathered:
        record, last = executing.SCATTER, int(weight.gathered == WRAP)
        last += 2 * assembling.kind_of(kernel.arrays[s.rows.slot].dtype)
        reads = gradient, read(s.rows, weight.inputs)
    else:
        record, last = executing.MATRIX, int(not weight.transposed) + 2 * s.columns
        reads = gradient, read(s.rows, weight.inputs)
        reads = reads if weight.transposed else reads[::-1]
    return (*target, record, kind, weight.rows, weight.columns, last, s.parts, *chain(*reads))


def _find_single(kernel: Kernel, native: executing.Kernel) -> int:
    """Return the only operand that differs from row to row, or -1.

    Also -1 if the kernel computes too little for equal rows to be worth looking for, or if it draws
    other random numbers for each of them.
    """
    if kernel.draws:
        return -1
    inputs = [slot for slot in _slots_of(kernel, "in") if not kernel.arrays[slot].every]
    copied = sum(kernel.row_bytes.values())
    if len(inputs) != 1 or inputs[0] not in native.slots or native.work < WORTH * copied:
        return -1
    return inputs[0].number


def _only_gathers(kernel: Kernel) -> bool:
    """Return whether a kernel only gathers rows of a parameter, by indices that it clips."""
    step, index, result = kernel.steps[0], Slot("in", 0), Slot("out", 0)
    return (
        len(kernel.steps) == 1
        and isinstance(step, Product)
        and step.weight.gathered == CLIP
        and step.weight.place.slot.kind == "param"
        and (step.left, step.result, step.parts) == (Place(index), Place(result), 1)
        and not step.adds
        and (kernel.arrays[index].width, kernel.arrays[index].every) == (1, False)
        and kernel.arrays[result].width == step.weight.columns
    )
