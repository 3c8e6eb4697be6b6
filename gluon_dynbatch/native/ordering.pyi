from typing import Any, List, Tuple

from numpy.typing import NDArray

Array = NDArray[Any]

def ancestors(offsets: Array, preds: Array, through: Array, reached: Array) -> None: ...
def externals_read(
    units: Array, input0: Array, term0: Array, terms: Array, read: Array
) -> None: ...
def flow(
    first: Array,
    differentiable: Array,
    recorded: Array,
    operand: Array,
    source: Array,
    maker: Array,
    passing: Array,
    flowing: Array,
    reached: Array,
) -> None: ...
def order(
    columns: List[Tuple[bytes, bytes]],
    groups: Array,
    segment: Array,
    unit_rows: Array,
    input0: Array,
    term0: Array,
    term: Array,
    slot_unit: Array,
) -> Tuple[Array, ...]: ...
