"""An operator of a segment, as its handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Tuple, Union

import numpy as np

from ..rules.site import Site
from .expression import Expressions, Place, Slot
from .tensor import Tensor, require


@dataclass(frozen=True)
class Call(Site):
    """One operator of a segment; axis 0 of what has rows is counted per row of the launch."""

    build: Expressions
    tensors: Tuple[Tensor, ...]

    def matrix(self, number: int, like: int = 0) -> Place:
        """Return a variable that all rows share, of the type of some input."""
        value = self.tensors[number]
        require(isinstance(value.source, Slot) and not value.rows, "a factor is computed")
        require(value.dtype == self.tensors[like].dtype, "dtypes differ")
        assert isinstance(value.source, Slot)
        return Place(value.source)

    def number(self, name: str, default: float = 1, single: bool = True) -> float:
        """Read a number, which MXNet keeps in single precision."""
        text = self.attrs.get(name, "None")
        value = default if text == "None" else float(text)
        return float(np.float32(value)) if single else value

    def own_axis(self, name: str = "axis", default: int = -1) -> int:
        """Read an axis of the first input that is not that of rows."""
        axis = self.axis(name, default)
        self.tensors[0].own_axes(axis)
        return axis


#: Returns the result, or several.
Handler = Callable[[Call], Union[Tensor, List[Tensor]]]
