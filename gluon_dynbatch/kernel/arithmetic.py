"""Python's operators for expressions and arrays of expressions."""

from __future__ import annotations

from typing import Callable, Tuple, TypeVar, Union

T = TypeVar("T", bound="Arithmetic")


def _operator(name: str, swapped: bool = False) -> Callable[[T, Union[T, float]], T]:
    def method(self: T, other: Union[T, float]) -> T:
        return self.apply(name, *((other, self) if swapped else (self, other)))

    return method


class Arithmetic:
    """Operators for classes whose objects combine with each other and with numbers."""

    __slots__ = ()
    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)

    def apply(self: T, name: str, *args: Union[T, float], values: Tuple[float, ...] = ()) -> T:
        """Apply a function to objects of this class and numbers."""
        raise NotImplementedError

    def __neg__(self: T) -> T:
        return self.apply("negative", self)
