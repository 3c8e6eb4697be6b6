"""Types of arrays: what is known of an array without running anything."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.ndarray import NDArray

from ..modes import FLOATS


class ArrayType(NamedTuple):
    """What is known of an array without running anything."""

    shape: Tuple[int, ...]
    #: NumPy's name of the element type, e.g. ``"float32"``.
    dtype: str
    context: mx.Context

    @property
    def elements(self) -> int:
        """Number of elements."""
        return elements(self.shape)


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of this `shape`."""
    count = 1
    for size in shape:
        count *= size
    return count


_WORD = ctypes.c_size_t
_PAIR = ctypes.c_size_t * 2


class Memory(NamedTuple):
    """Where the values of an array lie, to tell whether two arrays have some in common."""

    #: The same number for an array and its views.
    chunk: int
    #: Addresses, 0 before MXNet has allocated it; arrays made from one buffer of NumPy's or of
    #: DLPack's have these in common only.
    start: int
    stop: int


def memory_of(handle: Any) -> Memory:
    """Return the memory of an array, given its handle.

    An array of MXNet's begins with the pointer to its memory, which begins with address and size;
    no function of its library tells all of it.
    """
    chunk = _WORD.from_address(handle.value).value
    if not chunk:
        return Memory(0, 0, 0)
    start, size = _PAIR.from_address(chunk)
    return Memory(chunk, start, start + size if start else 0)


class TypeTable:
    """Interns array types: equal types get the same small integer."""

    def __init__(self) -> None:
        self._ids: Dict[ArrayType, int] = {}
        self._types: List[ArrayType] = []
        #: Per type, whether it is one of floats in several rows, as a weight is.
        self.several = bytearray()
        #: What `view` has returned.
        self.views: Dict[Tuple[int, Any, Any], Tuple[int, int]] = {}
        self._lock = threading.Lock()

    def __getitem__(self, type_id: int) -> ArrayType:
        return self._types[type_id]

    def id_of(self, array_type: ArrayType) -> int:
        """Return the id of `array_type`, a new one if it was not seen before."""
        known = self._ids.get(array_type)
        if known is None:
            with self._lock:
                known = self._ids.setdefault(array_type, len(self._types))
                if known == len(self._types):
                    rows = elements(array_type.shape[:1])
                    self.several.append(rows > 1 and array_type.dtype in FLOATS)
                    self._types.append(array_type)
        return known

    def view(self, type_id: int, start: Any, stop: Any) -> Optional[Tuple[int, int]]:
        """Return offset in elements and type of ``x[start]`` or, with a stop, of ``x[start:stop]``.

        None stands for a view that is empty.  Remembered, as it is asked for once per node.

        Raises
        ------
        IndexError
            There is no row `start`.
        """
        view = self.views.get((type_id, start, stop))
        if view is None:
            whole = self._types[type_id]
            count, row = whole.shape[0], elements(whole.shape[1:])
            if stop is ROW:
                if not -count <= start < count:
                    raise IndexError(f"index {start} is out of bounds for axis 0 with size {count}")
                first, shape = start % count, whole.shape[1:] or (1,)
            else:
                first, last, _ = slice(start, stop).indices(count)
                shape = (last - first,) + whole.shape[1:]
                if last <= first:
                    return None
            view = first * row, self.id_of(whole._replace(shape=shape))
            if len(self.views) > MOST_VIEWS:
                self.views.clear()
            # What an element is depends on MXNet's np_shape: not for native code to tell.
            if stop is not ROW or len(whole.shape) > 1:
                self.views[type_id, start, stop] = view
        return view

    def of(self, value: NDArray) -> int:
        """Return the id of the type of a real array."""
        dtype = value.dtype
        return self.id_of(
            ArrayType(value.shape, getattr(dtype, "__name__", str(dtype)), value.context)
        )


#: In the place of a stop: one row is meant, not a range.
ROW = "row"

#: Views remembered before all are forgotten.
MOST_VIEWS = 100_000

#: Array types of this process.  Types are values: sharing them between scopes shares no state.
TYPES = TypeTable()
