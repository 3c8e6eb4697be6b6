from typing import Any, Optional, Tuple

from ..context import Context
from .ndarray import NDArray

def _zeros(
    shape: Tuple[int, ...],
    ctx: Optional[Context] = None,
    dtype: Any = None,
    out: Optional[NDArray] = None,
) -> NDArray: ...

def _random_randint(low: int, high: int, out: NDArray) -> NDArray: ...
