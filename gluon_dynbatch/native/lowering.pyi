from array import array
from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

from mxnet import Context
from mxnet.gluon import Parameter
from numpy.typing import NDArray

from .recording import FlatTape

Array = NDArray[Any]

SHARED: int
RECURRENT: int
UNEVEN: int
VARIED: int

# Entries are those of `trace.entry`, cuts and segments those of `lower.segment`, which come later.
def find_cuts(
    tape: FlatTape,
    weights: Tuple[int, ...],
    granularity: str,
    most_edges: int,
    entry: Array,
    cut_of: Callable[[Any, str, bytes], Any],
) -> Tuple[List[Any], List[array[int]], List[Tuple[Any, ...]]]: ...
def merge_freely(briefs: List[SegmentBrief]) -> bool: ...
def kernels_found(segments: List[Any]) -> List[Any]: ...
def run_otherwise(briefs: List[SegmentBrief], kernels: Tuple[Any, ...]) -> List[int]: ...
def several_counts(entries: Sequence[Any]) -> Set[Any]: ...
def work_of(tape: FlatTape) -> float: ...
def totals(tape: FlatTape) -> Tuple[int, int]: ...
def any_recorded(tape: FlatTape) -> bool: ...
def find_rows(tape: FlatTape, has_rows: bytearray) -> List[int]: ...
def recorded_in(briefs: List[SegmentBrief]) -> bytearray: ...
def trained_in(briefs: List[SegmentBrief]) -> List[bytes]: ...

class SegmentBrief:
    parameters: Tuple[Parameter, ...]
    context: Context
    family: str
    dense: bytes
    kernels: Any
    def __init__(
        self,
        parameters: Tuple[Parameter, ...],
        context: Context,
        family: str,
        unbatched: bool,
        shares: bool,
        plain: bool,
        recorded: bool,
    ) -> None: ...

class CallBrief:
    def __init__(
        self,
        kind: Any,
        token: Tuple[Any, ...],
        *,
        results: int,
        places: Iterable[int],
        several: Iterable[bool],
        adds: bool,
        of_block: bool,
        recorded: bool,
        is_part: bool,
        operators: int,
        work: float,
    ) -> None: ...

# Of a `lower.segment.Cut`, which comes later.
def code_of_cut(cut: Any) -> array[int]: ...

class Cuts:
    def __init__(
        self, codes: List[array[int]], segments: List[Tuple[Any, ...]], entry: Array
    ) -> None: ...
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
