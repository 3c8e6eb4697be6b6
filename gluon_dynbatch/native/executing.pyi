from array import array
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from mxnet.ndarray import NDArray
from numpy.typing import NDArray as _NumPyArray

Array = _NumPyArray[Any]

DTYPES: Dict[str, int]
CODES: Dict[str, Tuple[int, int]]
LAYOUTS: Dict[str, Dict[str, Tuple[int, int]]]
#: The address of the function that gives a notice.
GIVE: int

# Kinds of records, and what a DISTINCT record does.
LAUNCH: int
ROWS: int
PACK: int
MATRIX: int
ROW: int
SCATTER: int
DISTINCT: int
PICK: int
LOOK_UP: int
TOTAL: int
REPEAT: int
SINGLE: int

class NativeKernel:
    # Of `kernel.step`, which comes later: slots, and an array for each.
    def __init__(
        self, steps: array[int], slots: Tuple[Any, ...], arrays: Mapping[Any, Any]
    ) -> None: ...
    @property
    def slots(self) -> Tuple[Any, ...]: ...
    @property
    def packs(self) -> Tuple[Any, ...]: ...
    @property
    def address(self) -> int: ...
    @property
    def work(self) -> int: ...

class Notice:
    def __init__(self, handles: Optional[Iterable[int]] = None) -> None: ...
    @property
    def given(self) -> bool: ...
    def wait(self) -> None: ...

class OneAtATime:
    def __init__(self, function: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any) -> Any: ...

class Bases:
    def __init__(
        self,
        arrays: List[NDArray],
        addresses: array[int],
        handles: array[int],
        uses: bytes,
        placed: Optional[array[int]] = None,
    ) -> None: ...
    @property
    def addresses(self) -> array[int]: ...
    @property
    def handles(self) -> array[int]: ...
    @property
    def read(self) -> array[int]: ...
    @property
    def written(self) -> array[int]: ...

class Code:
    def __init__(self, numbers: Optional[Union[array[int], Array]] = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def words(self) -> List[int]: ...

class Program:
    def __init__(
        self,
        code: Union[Code, array[int], Array],
        kernels: Iterable[NativeKernel] = (),
        scratch: int = 0,
        together: bool = True,
    ) -> None: ...
    def push(
        self,
        bases: Bases,
        name: bytes,
        low: int = 0,
        high: int = -1,
        forward: bool = True,
        notice: Optional[Notice] = None,
        here: bool = False,
    ) -> int: ...
    @property
    def groups(self) -> List[List[Tuple[int, int]]]: ...
    def run(self, bases: Any) -> None: ...

def instruction_sets() -> List[str]: ...
def use_instruction_set(name: Optional[str] = None) -> None: ...
def count_failures() -> int: ...
def give_back(handles: List[int]) -> int: ...
def can_fail() -> bool: ...
def use_mxnet(
    push: int,
    detach: int,
    release: int,
    data: int,
    invoke: int,
    reorder: int,
    release_counted: int,
    throw: int,
) -> None: ...
def use_threads(count: int, processors: int = 0) -> None: ...
def packed_bytes(dtype: int, inputs: int, units: int) -> int: ...
def sum_scratch(dtype: int, rows: int, columns: int, chunks: int) -> int: ...
