from typing import Any, Sequence

from ..numpy import ndarray

_api_internal: Any
_internal: Any

def copy(a: ndarray) -> ndarray: ...
def transpose(a: ndarray, axes: Sequence[int]) -> ndarray: ...
