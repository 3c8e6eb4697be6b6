from array import array as Places
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from numpy.typing import NDArray

from .executing import Code, NativeKernel, Program
from .lowering import SegmentBrief

Array = NDArray[Any]

MEMORY: Tuple[str, ...]
TEMPORARY: int
KEPT: int
SAVED: int

def itemsize(dtype: str) -> int: ...
def kind_of(dtype: str) -> int: ...
def code_of_pieces(dtype: str, pieces: Array, first: int, base: int, offset: int) -> Code: ...
def code_of_copies(dtype: str, starts: Array, elements: Array) -> Code: ...

# Entries of a recipe, with the names of the structs in `recipes.pxi`.
Entries = List[Dict[str, Any]]

class Direction:
    def __init__(
        self,
        kernel: NativeKernel,
        *,
        order: Iterable[int],
        operands: Entries,
        results: Iterable[int],
        apart: Entries,
    ) -> None: ...

class Products:
    def __init__(
        self,
        products: Direction,
        rest: Direction,
        rest_backward: Optional[Direction],
        products_backward: Optional[Direction],
        *,
        input: int,
        results: Iterable[int],
        gradients: Iterable[int],
    ) -> None: ...

class Recipe:
    def __init__(
        self,
        forward: Direction,
        backward: Optional[Direction],
        *,
        row_bytes: Iterable[int],
        parameters: Iterable[int],
        saved: Iterable[int],
        added: Iterable[int],
        packs: Entries,
        operand_packs: Entries,
        shared: Entries,
        sums: Entries,
        trained: Entries,
        reached: Entries,
        far: List[int],
        draws: List[int],
        gathers: bool,
        table_rows: int,
        single: int,
        products: Optional[Products],
    ) -> None: ...

class Addressing:
    def __init__(self, first: int = 0) -> None: ...
    @property
    def bases(self) -> List[Tuple[Any, ...]]: ...
    @property
    def uses(self) -> bytearray: ...
    @property
    def stop(self) -> int: ...
    @property
    def sizes(self) -> Dict[str, int]: ...

class Assembler(Addressing):
    # A `Plan`, which comes later.
    def __init__(self, plan: Any, briefs: List[SegmentBrief], first: int = 0) -> None: ...
    @property
    def items(self) -> List[Tuple[int, Optional[int], bool, bool]]: ...
    @property
    def distinct(self) -> Dict[int, Tuple[int, int]]: ...
    @property
    def looked_up(self) -> Set[int]: ...
    @property
    def plan(self) -> Any: ...
    @property
    def externals(self) -> List[int]: ...
    @property
    def gathered_fills(self) -> List[int]: ...
    @property
    def device_fills(self) -> List[int]: ...
    @property
    def identities(self) -> bytes: ...
    def assemble(self) -> None: ...
    def program(self) -> Program: ...

class Fills(Assembler):
    def __init__(self, plan: Any, on_host: Tuple[bool, ...], kept: FrozenSet[int]) -> None: ...

class Stretches(Fills): ...

class DistinctRows(Stretches):
    def __init__(
        self, plan: Any, on_host: Tuple[bool, ...], kept: FrozenSet[int], unread: FrozenSet[int]
    ) -> None: ...
    @property
    def apart(self) -> Dict[int, Tuple[int, int]]: ...
    @property
    def unneeded(self) -> Set[int]: ...
    def keys_of(self, launch: int, port: int) -> List[int]: ...

class Forward(DistinctRows):
    # The kernels of backward launches, of `kernel`, which comes later.
    def __init__(
        self,
        plan: Any,
        trained: Dict[int, Any],
        unread: FrozenSet[int],
        on_host: Tuple[bool, ...],
        kept: FrozenSet[int],
    ) -> None: ...
    @property
    def identities(self) -> bytes: ...

class Backward(Assembler):
    def __init__(self, plan: Any, forward: Forward) -> None: ...
    @property
    def gradients(self) -> Places[int]: ...
    @property
    def arrays(self) -> Places[int]: ...
    @property
    def external(self) -> bytearray: ...
    @property
    def dense(self) -> bytearray: ...
