from typing import Optional

from ..context import Context
from .ndarray import NDArray

def randint(low: int, high: int, *, ctx: Optional[Context] = None) -> NDArray: ...
def shuffle(data: NDArray) -> NDArray: ...
