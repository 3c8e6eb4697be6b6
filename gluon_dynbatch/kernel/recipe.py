"""Make recipes: what programs must know to run a kernel, in numbers."""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Tuple

from ..native import assembling, executing
from .endings import with_endings
from .layout import CLIP, IDENTITY, KEY, STRICT, Columns, Slot, Weight
from .products import InputProducts, find_products
from .step import MODES, Kernel, Product, Sum, Wanted

#: Operations per byte of a row, from which on it pays to look for equal rows.
WORTH = 16
#: Bytes of a row, from which on it takes longer to copy it to its neighbours than to run the kernel
#: once more.
FAR = 4096
TEMPORARY, KEPT, SAVED = assembling.TEMPORARY, assembling.KEPT, assembling.SAVED

#: Numbers of the arrays (by slot) and packed matrices (by weight) that a kernel works on.
Numbers = Dict[Any, int]
#: An entry of a recipe, with the names of a struct in `native/recipes.pxi`.
Fields = Dict[str, Any]


def make_recipe(forward: Kernel, backward: Optional[Kernel], matrices: int) -> assembling.Recipe:
    """Return the recipe of kernels; `matrices` as for `Kernel.native`."""
    last = backward or forward
    used: FrozenSet[Slot] = frozenset()
    wanted = Wanted((), (), ())
    if backward is not None:
        assert backward.wanted is not None
        used, wanted = backward.used, backward.wanted
    natives = [with_endings(forward, used).native(matrices)]
    if backward is not None:
        natives.append(backward.native())
    use = KEPT if backward is None else SAVED
    packs = dict.fromkeys(chain.from_iterable(native.packs for native in natives), use)
    # Work arrays come last, because they may differ between the parts of a launch.
    slots = sorted(last.arrays, key=lambda slot: slot.kind == "work")
    numbers: Numbers = {key: number for number, key in enumerate((*slots, *packs))}
    of_parameters = [w for w in packs if w.place.slot.kind == "param"]
    of_operands = [w for w in packs if w.place.slot.kind != "param"]
    # The key is the same in both directions.
    shared = (s for native in natives[1:] for s in native.slots if s in last.arrays and s != KEY)
    gathers, single = only_gathers(forward), _find_single(forward, natives[0])
    products = find_products(forward, backward) if single < 0 else None
    return assembling.Recipe(
        _forward(forward, natives[0], used, gathers, single, numbers),
        None if backward is None else _backward(backward, natives[1], numbers),
        row_bytes=[last.row_bytes.get(key, 0) for key in numbers],
        parameters=[numbers[slot] for slot in _slots_of(forward, "param")],
        saved=[numbers[slot] for slot in _slots_of(forward, "work") if slot in used],
        added=[numbers[slot] for slot in _slots_of(last, "work") if slot in last.summed],
        packs=[_pack(last, weight, use, numbers) for weight in of_parameters],
        operand_packs=[_pack(last, weight, use, numbers) for weight in of_operands],
        shared=[_shared(last, slot, numbers) for slot in shared if last.arrays[slot].every],
        sums=[_sum(last, s, numbers) for s in last.sums],
        trained=[_gradient(last, Slot("param", j)) for j in wanted.parameters],
        reached=[_gradient(last, Slot("in", p)) for p in wanted.inputs],
        far=[] if backward else [numbers[slot] for slot in _find_far(forward)],
        draws=[numbers[KEY], numbers[IDENTITY]] if forward.draws else [],
        gathers=gathers,
        table_rows=_table_rows(forward) if gathers else 0,
        single=single,
        products=products and _products(products, last, matrices, use, numbers),
    )


def _forward(
    kernel: Kernel,
    native: executing.NativeKernel,
    used: FrozenSet[Slot],
    gathers: bool,
    single: int,
    numbers: Numbers,
) -> assembling.Direction:
    """Return what a recipe says of a forward kernel; the backward one needs the `used` slots."""
    outputs, use = _slots_of(kernel, "out"), KEPT if gathers else TEMPORARY
    equal = (Slot("in", single), *outputs) if single >= 0 else ()
    return assembling.Direction(
        native,
        order=[numbers[slot] for slot in native.slots],
        operands=[
            _operand(kernel, slot, SAVED if slot in used else use, numbers)
            for slot in _slots_of(kernel, "in")
        ],
        results=[numbers[slot] for slot in outputs],
        apart=_apart(kernel, equal, {"out": executing.REPEAT}, numbers),
    )


def _backward(
    kernel: Kernel, native: executing.NativeKernel, numbers: Numbers
) -> assembling.Direction:
    """Return what a recipe says of a backward kernel."""
    arrays = kernel.arrays
    heads = [Slot("head", k) for k in range(len(_slots_of(kernel, "out")))]
    gradients = [Slot("grad", p) for p in range(len(_slots_of(kernel, "in")))]
    # Nothing else reads what the forward kernel leaves, so that stays compact.
    per_row = [
        slot
        for slot, array in arrays.items()
        if not array.every and slot in kernel.used and slot.kind != "work"
    ]
    records = {"grad": executing.SINGLE, "head": executing.TOTAL}
    unread = {"number": -1, "kind": 0, "size": 0, "use": TEMPORARY}
    return assembling.Direction(
        native,
        order=[numbers[slot] for slot in native.slots],
        operands=[
            _operand(kernel, slot, _use(kernel, slot), numbers) if slot in numbers else unread
            for slot in heads
        ],
        results=[numbers.get(slot, -1) for slot in gradients],
        apart=_apart(kernel, per_row, records, numbers),
    )


def _products(
    found: InputProducts, last: Kernel, matrices: int, use: int, numbers: Numbers
) -> Optional[assembling.Products]:
    """Return what a recipe says of the products of one input, None if copies take as long."""
    native, moved = found.forward.native(matrices), (found.input, *found.results)
    if native.work < WORTH * sum(last.row_bytes[slot] for slot in moved):
        return None

    def direction(native: executing.NativeKernel, *apart: Fields) -> assembling.Direction:
        order = [numbers[slot] for slot in native.slots]
        return assembling.Direction(native, order=order, operands=[], results=[], apart=list(apart))

    def entries(what: int, slots: Iterable[Slot], use: int) -> List[Fields]:
        more = {"what": what, "use": use, "port": -1}
        return [{**entry, **more} for entry in _apart(last, slots, {}, numbers)]

    backward: Tuple[Optional[assembling.Direction], ...] = (None, None)
    if found.backward is not None and found.rest_backward is not None:
        gradient = [Slot("grad", found.input.number)]
        totals = entries(executing.TOTAL, found.gradients, KEPT)
        singles = entries(executing.SINGLE, gradient, TEMPORARY)
        products = direction(found.backward.native(), *totals, *singles)
        backward = direction(found.rest_backward.native()), products
    picked = entries(executing.PICK, [found.input], SAVED if use == SAVED else TEMPORARY)
    repeated = entries(executing.REPEAT, found.results, TEMPORARY)
    return assembling.Products(
        direction(native, *picked, *repeated),
        direction(found.rest.native(matrices)),
        *backward,
        input=numbers[found.input],
        results=[numbers[slot] for slot in found.results],
        gradients=[numbers[slot] for slot in found.gradients],
    )


def _slots_of(kernel: Kernel, kind: str) -> List[Slot]:
    """Return the slots of a kind."""
    return [slot for slot in kernel.arrays if slot.kind == kind]


def _kind(kernel: Kernel, slot: Slot) -> int:
    return assembling.kind_of(kernel.arrays[slot].dtype)


def _size(kernel: Kernel, slot: Slot) -> int:
    return assembling.itemsize(kernel.arrays[slot].dtype)


def _use(kernel: Kernel, slot: Slot) -> int:
    return KEPT if slot in kernel.summed else TEMPORARY


def _operand(kernel: Kernel, slot: Slot, use: int, numbers: Numbers) -> Fields:
    return {
        "number": numbers[slot],
        "kind": _kind(kernel, slot),
        "size": _size(kernel, slot),
        "use": use,
    }


def _pack(kernel: Kernel, weight: Weight, use: int, numbers: Numbers) -> Fields:
    slot, first = weight.place
    transposed = weight.transposed
    return {
        "number": numbers[weight],
        "source": numbers[slot],
        "first": first * _size(kernel, slot),
        "kind": _kind(kernel, slot),
        "row_stride": 1 if transposed else weight.columns,
        "column_stride": weight.columns if transposed else 1,
        "rows": weight.columns if transposed else weight.rows,
        "columns": weight.rows if transposed else weight.columns,
        "use": use,
    }


def _shared(kernel: Kernel, slot: Slot, numbers: Numbers) -> Fields:
    return {
        "number": numbers[slot],
        "input": slot.number if slot.kind == "in" else -1,
        "bytes": kernel.arrays[slot].row_bytes,
    }


def _gradient(kernel: Kernel, slot: Slot) -> Fields:
    return {"number": slot.number, "bytes": kernel.arrays[slot].row_bytes}


def _apart(
    kernel: Kernel, slots: Iterable[Slot], records: Dict[str, int], numbers: Numbers
) -> List[Fields]:
    """Return how the equal rows of each slot are treated: by the record of its kind, or PICK."""
    return [
        {
            "what": records.get(slot.kind, executing.PICK),
            "number": numbers[slot],
            "kind": _kind(kernel, slot),
            "width": kernel.arrays[slot].width,
            "use": _use(kernel, slot),
            "port": slot.number,
        }
        for slot in slots
    ]


def _sum(kernel: Kernel, s: Sum, numbers: Numbers) -> Fields:
    weight, target = s.weight, s.weight.place

    def read(place: Columns, width: int) -> Fields:
        slot, whole = place.slot, kernel.arrays[place.slot].width
        assert s.parts == 1 or whole == s.parts * width, "parts of a row do not follow each other"
        width = width if s.parts > 1 else whole
        first = place.column * _size(kernel, slot)
        return {"number": numbers[slot], "first": first, "pitch": width}

    left = read(s.gradient, weight.units)
    if s.rows is None:
        record, last, right = executing.ROW, 0, {"number": left["number"], "first": 0, "pitch": 0}
    elif weight.gathered:
        record, right = executing.SCATTER, read(s.rows, weight.inputs)
        last = MODES.index(weight.gathered) + len(MODES) * _kind(kernel, s.rows.slot)
    else:
        record, right = executing.MATRIX, read(s.rows, weight.inputs)
        last = int(not weight.transposed) + 2 * s.columns
        if not weight.transposed:
            left, right = right, left
    return {
        "parameter": target.slot.number if target.slot.kind == "param" else -1,
        "input": -1 if target.slot.kind == "param" else target.slot.number,
        "first": _size(kernel, s.gradient.slot) * target.column,
        "record": record,
        "kind": _kind(kernel, s.gradient.slot),
        "rows": weight.rows,
        "columns": weight.columns,
        "last": last,
        "parts": s.parts,
        "left": left,
        "right": right,
    }


def _find_single(kernel: Kernel, native: executing.NativeKernel) -> int:
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


def _find_far(kernel: Kernel) -> List[Slot]:
    """Return the operands of which rows may lie apart: long rows, which no product reads."""
    if any(isinstance(step, Product) for step in kernel.steps):
        return []
    return [slot for slot in _slots_of(kernel, "in") if kernel.row_bytes[slot] >= FAR]


def only_gathers(kernel: Kernel) -> bool:
    """Return whether a kernel only gathers rows of a parameter, by indices that do not wrap."""
    step, index, result = kernel.steps[0], Slot("in", 0), Slot("out", 0)
    return (
        len(kernel.steps) == 1
        and isinstance(step, Product)
        and step.weight.gathered in (CLIP, STRICT)
        and step.weight.place.slot.kind == "param"
        and (step.left, step.result, step.parts) == (Columns(index), Columns(result), 1)
        and not step.adds
        and (kernel.arrays[index].width, kernel.arrays[index].every) == (1, False)
        and kernel.arrays[result].width == step.weight.columns
    )


def _table_rows(kernel: Kernel) -> int:
    """Return the rows of the table of a kernel that only gathers; 0 if indices have to fit."""
    step = kernel.steps[0]
    assert isinstance(step, Product)
    return 0 if step.weight.gathered == STRICT else step.weight.rows
