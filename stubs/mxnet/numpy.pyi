from typing import Any, Optional

from .context import Context
from .ndarray import NDArray

class ndarray(NDArray):
    def as_nd_ndarray(self) -> NDArray: ...
    def reshape_view(self, *shape: Any, **kwargs: Any) -> ndarray: ...

def array(object: Any, dtype: Any = None, ctx: Optional[Context] = None) -> ndarray: ...
