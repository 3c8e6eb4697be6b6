"""Values that stay in their arenas while their scope is open: the next flush reads them there."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from ..native import recording
from ..record.lazy import LazyNDArray
from .buffers import Buffers, address_of, part, take_out


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
    recorded : bool
        Whether gradients may come to them.
    """

    open = False
    detached: Dict[int, Any] = {}

    def __init__(self, buffers: Buffers, held: List[Any], recorded: bool):
        super().__init__(
            [array.handle.value for array in buffers.arrays],
            list(map(address_of, buffers.arrays)),
            [np.dtype(array.dtype).itemsize for array in buffers.arrays],
        )
        self._buffers = buffers
        #: Weak references to all arrays that may belong to this.
        self.lazies = held
        self._numbers: Dict[int, np.ndarray[Any, Any]] = {}
        self.recorded = recorded
        #: The flushes that this one is to be part of MXNet's tape with.
        self.chain: Any = None

    @property
    def recorder(self) -> Kept:
        """Who makes arrays real."""
        return self

    @property
    def bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(array.size * np.dtype(array.dtype).itemsize for array in self._buffers.arrays)

    def realise(self, lazy: LazyNDArray) -> None:
        """Copy an array out of its arena, and with it all that share its memory."""
        if all(reference() is not lazy for reference in self.lazies):
            # It stands for another one, among arrays from outside.
            lazy.become(self.copies(lazy._value, lazy.shape, [lazy._offset])[0])
        elif self.chain is not None:
            self.chain.connect()
        else:
            for sharing in self.sharing():
                if any(one is lazy for one in sharing):
                    self.take_out(lazy._value, [sharing])

    def read(self, lazy: LazyNDArray) -> np.ndarray[Any, Any]:
        """Return the values of an array; one wait, or one transfer, serves all of an arena."""
        numbers = self._numbers.get(lazy._value)
        if numbers is None:
            numbers = self._numbers[lazy._value] = _numbers(self._buffers.arrays[lazy._value])
        first = lazy._offset
        return numbers[first : first + lazy.size].reshape(lazy.shape).copy()

    def hand_out(self) -> None:
        """Copy all arrays that somebody still holds, and let go of the arenas."""
        if self.chain is not None:
            self.chain.connect()
        groups: Dict[Any, List[List[LazyNDArray]]] = {}
        for sharing in self.sharing():
            start, stop = _span(sharing)
            groups.setdefault((sharing[0]._value, stop - start), []).append(sharing)
        for (arena, _), members in groups.items():
            self.take_out(arena, members)

    def sharing(self) -> Iterator[List[LazyNDArray]]:
        """Yield the arrays that belong to this; together those that lie in the same elements."""
        held = [lazy for lazy in (reference() for reference in self.lazies) if lazy is not None]
        held = [lazy for lazy in held if lazy._tape is self]
        sharing: List[LazyNDArray] = []
        at = (-1, 0)
        for lazy in sorted(held, key=lambda one: (one._value, one._offset)):
            if sharing and (lazy._value, lazy._offset) >= at:
                yield sharing
                sharing = []
            end = lazy._value, lazy._offset + lazy.size
            at = max(at, end) if sharing else end
            sharing.append(lazy)
        if sharing:
            yield sharing

    def copies(self, arena: int, shape: Tuple[int, ...], starts: List[int]) -> List[NDArray]:
        """Return copies of the arrays of one shape that start at some elements of an arena."""
        return take_out(self._buffers, arena, shape, starts)

    def take_out(self, arena: int, groups: List[List[LazyNDArray]]) -> None:
        """Copy groups of arrays of one size each out of an arena."""
        spans = [_span(sharing) for sharing in groups]
        shape = (spans[0][1] - spans[0][0],)
        copies = self.copies(arena, shape, [start for start, _ in spans])
        for sharing, copy, (start, _) in zip(groups, copies, spans):
            for lazy in sharing:
                first = lazy._offset - start
                own = copy if lazy.size == copy.size else part(copy, first, first + lazy.size)
                lazy.become(own.reshape(lazy.shape))


def _span(sharing: List[LazyNDArray]) -> Tuple[int, int]:
    """Return the first element, and the one behind the last."""
    return sharing[0]._offset, max(lazy._offset + lazy.size for lazy in sharing)


def _numbers(array: NDArray) -> np.ndarray[Any, Any]:
    """Return the elements of an arena, once they are computed."""
    array.wait_to_read()
    if array.context.device_type != "cpu":
        return array.asnumpy().reshape(-1)  # type: ignore[no-any-return]
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address_of(array))
    return np.frombuffer(memory, dtype)
