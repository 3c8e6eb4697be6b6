from array import array
from typing import Any, Dict, Iterable, List, Protocol, Sequence, Tuple, Union

from numpy.typing import NDArray

Array = NDArray[Any]

COPY: int
ADD: int
ZERO: int
WHOLE: int
SLICE: int
TOGETHER: int
PLACE: Tuple[str, ...]
PIECE: Tuple[str, ...]

class Port(Protocol):
    # A `lower.segment.Port`.
    @property
    def row_size(self) -> int: ...
    @property
    def shared(self) -> bool: ...
    @property
    def differentiable(self) -> bool: ...
    @property
    def concat(self) -> bool: ...

class Reads(Protocol):
    # A `plan.plan.Reads`.
    @property
    def operand(self) -> Array: ...
    @property
    def region(self) -> Array: ...
    @property
    def target(self) -> Array: ...
    @property
    def length(self) -> Array: ...
    @property
    def element(self) -> Array: ...

class Inputs(Protocol):
    # A `plan.plan.Ports`.
    @property
    def first(self) -> Array: ...
    @property
    def differentiable(self) -> Array: ...

def port_table(ports: Sequence[Port], kinds: Iterable[int]) -> bytes: ...
def order(graph: Any, ports: List[Tuple[bytes, bytes]], groups: Array) -> Dict[str, Array]: ...
def ancestors(
    offsets: Array, preds: Array, segment: Array, recorded: Array, reached: Array
) -> int: ...
def externals_read(
    units: Array, input0: Array, term0: Array, terms: Array, read: Array
) -> None: ...
def descendants(
    offsets: Array,
    preds: Array,
    segment: Array,
    recorded: Array,
    input0: Array,
    term0: Array,
    terms: Array,
    externals: Array,
    reached: Array,
) -> None: ...
def find_ranges(
    starts: Array, sizes: Array, first: Array, count: Array
) -> Tuple[Array, Array]: ...
def sums_of_heads(given: Array, heads: int, filled: Array, counts: Array) -> Array: ...
def find_heads(
    places: array[int],
    sizes: array[int],
    kinds: array[int],
    graph: Any,
    recorded: Array,
    region_of: Array,
    element_of: Array,
    regions: Array,
) -> Array: ...
def spread_reach(
    inputs: Inputs,
    outputs: Inputs,
    reads: Reads,
    operands: Array,
    segment: Array,
    recorded: Array,
    trained: Array,
    in_graph: Array,
    filled: Tuple[Tuple[Array, Array], ...],
    heads: Array,
) -> Tuple[Array, Array, Array]: ...
def gradients_wanted(
    inputs: Inputs,
    outputs: Inputs,
    forward: Array,
    operands: Array,
    regions: Array,
    in_graph: Array,
    order: Array,
) -> List[Tuple[bytes, bytes]]: ...
def reserve_rows(
    regions: Array, kind: Array, order: Union[array[int], Array]
) -> Dict[Tuple[int, int], int]: ...
def lay_out(
    tables: List[bytes], part0: Array, segment: Array, rows: Array
) -> Tuple[Dict[str, Array], Array]: ...
def resolve(operands: Array, regions: Array, reads: Reads) -> array[int]: ...

class Reader:
    # Up to `outside`, tables of folders that come later.
    def __init__(
        self,
        graph: Any,
        members: Any,
        inputs: Any,
        outputs: Any,
        outside: Any,
        operands: Array,
        places: Array,
    ) -> None: ...
    @property
    def fill_of(self) -> Dict[Tuple[int, int], int]: ...
    @property
    def filled(self) -> List[array[int]]: ...
    @property
    def sizes(self) -> List[int]: ...
    @property
    def reads(self) -> Dict[str, Array]: ...
