from array import array
from typing import Any, Dict, List, Tuple

from mxnet import Context
from mxnet.gluon import Parameter
from numpy.typing import NDArray

from .recording import FlatTape

Array = NDArray[Any]

SHARED: int
RECURRENT: int
UNEVEN: int
VARIED: int

def survey(
    tape: FlatTape, weights: Tuple[int, ...], by_operator: bool, most_edges: int, entry: Array
) -> List[bytes]: ...
def find_rows(tape: FlatTape, has_rows: bytearray) -> List[int]: ...

class SegmentBrief:
    def __init__(self, parameters: Tuple[Parameter, ...], context: Context, family: str) -> None: ...

# Of a `lower.segment.Cut`, which comes later.
def code_of_cut(cut: Any) -> array[int]: ...

class Cuts:
    # Of `lower.segment`, which comes later: a list of `Cut`, and numbers of `Segment`.
    def __init__(self, cuts: List[Any], entry: Array) -> None: ...
    @property
    def segments(self) -> Dict[Any, int]: ...
    @property
    def sizes(self) -> Tuple[int, int, int, int]: ...
    def wire(
        self,
        tape: FlatTape,
        entry: Array,
        segment: Array,
        unit_node: Array,
        rows: Array,
        slot0: Array,
        input0: Array,
        term0: Array,
        term: Array,
        term_offset: Array,
        term_size: Array,
        slot_unit: Array,
        slot_size: Array,
        value_term: Array,
        pred0: Array,
        preds: Array,
    ) -> int: ...
