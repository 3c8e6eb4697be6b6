"""Values that stay in their arenas while their scope is open: the next flush reads them there."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List

import numpy as np
from mxnet.ndarray import NDArray

from ..native import recording
from ..record.lazy import LazyNDArray
from .execute import Buffers, take_out
from .memory import address_of


class Kept(recording.Keeper):  # type: ignore[misc]
    """What computed arrays belong to, in place of a tape, until somebody wants them for good.

    The value of such a lazy array is the number of an arena, its offset the first element there.
    Nobody writes to arenas any more: who asks for a handle gets a copy.

    Parameters
    ----------
    buffers : Buffers
        The arenas.
    held : list of weak references
        The lazy arrays of the flush.
    """

    open = False
    detached: Dict[int, Any] = {}

    def __init__(self, buffers: Buffers, held: List[Any]):
        super().__init__(
            [array.handle.value for array in buffers.arrays],
            list(map(address_of, buffers.arrays)),
            [np.dtype(array.dtype).itemsize for array in buffers.arrays],
        )
        self._buffers = buffers
        self._held = held
        self._numbers: Dict[int, np.ndarray[Any, Any]] = {}

    @property
    def recorder(self) -> Kept:
        """Who makes arrays real."""
        return self

    @property
    def bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(array.size * np.dtype(array.dtype).itemsize for array in self._buffers.arrays)

    def realise(self, lazy: LazyNDArray) -> None:
        """Copy an array out of its arena."""
        lazy.become(take_out(self._buffers, lazy._value, lazy.shape, [lazy._offset])[0])

    def read(self, lazy: LazyNDArray) -> np.ndarray[Any, Any]:
        """Return the values of an array; one wait, or one transfer, serves all of an arena."""
        numbers = self._numbers.get(lazy._value)
        if numbers is None:
            numbers = self._numbers[lazy._value] = _numbers(self._buffers.arrays[lazy._value])
        first = lazy._offset
        return numbers[first : first + lazy.size].reshape(lazy.shape).copy()

    def hand_out(self) -> None:
        """Copy all arrays that somebody still holds, and let go of the arenas."""
        groups: Dict[Any, List[LazyNDArray]] = {}
        for reference in self._held:
            lazy = reference()
            if lazy is not None and lazy._tape is self:
                groups.setdefault((lazy._value, lazy.shape), []).append(lazy)
        for (arena, shape), lazies in groups.items():
            starts = [lazy._offset for lazy in lazies]
            for lazy, array in zip(lazies, take_out(self._buffers, arena, shape, starts)):
                lazy.become(array)


def _numbers(array: NDArray) -> np.ndarray[Any, Any]:
    """Return the elements of an arena, once they are computed."""
    array.wait_to_read()
    if array.context.device_type != "cpu":
        return array.asnumpy().reshape(-1)  # type: ignore[no-any-return]
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address_of(array))
    return np.frombuffer(memory, dtype)
