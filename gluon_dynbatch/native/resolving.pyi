from array import array
from typing import Any, Dict, List, Tuple, Union

from numpy.typing import NDArray

Array = NDArray[Any]

COPY: int
ADD: int
ZERO: int
WHOLE: int
SLICE: int
TOGETHER: int

def reserve(
    regions: Array, kind: Array, order: Union[array[int], Array]
) -> Dict[Tuple[int, int], int]: ...
def lay_out(
    tables: List[bytes], part0: Array, segment: Array, rows: Array
) -> Tuple[Tuple[Array, ...], Array]: ...
def resolve(
    operands: Array,
    regions: Array,
    operand: Array,
    region: Array,
    target: Array,
    length: Array,
    element: Array,
) -> array[int]: ...

class Reader:
    # The first five are tables of folders that come later.
    def __init__(
        self,
        graph: Any,
        members: Any,
        inputs: Any,
        outputs: Any,
        outside: Any,
        operands: Array,
        places: Array,
        columns: Array,
    ) -> None: ...
    @property
    def fill_of(self) -> Dict[Tuple[int, int], int]: ...
    @property
    def filled(self) -> List[array[int]]: ...
    @property
    def sizes(self) -> List[int]: ...
    @property
    def reads(self) -> int: ...
