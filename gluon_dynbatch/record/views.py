"""Rows of an array in place, as MXNet's indexing gives them, without what makes that slow."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional

from mxnet.base import _LIB, MXNetError, NDArrayHandle, check_call
from mxnet.ndarray import NDArray

from ..native import recording


def part(array: NDArray, start: int, stop: int) -> NDArray:
    """Return ``array[start:stop]``, for numbers that are within the array."""
    handle = NDArrayHandle()
    check_call(
        _LIB.MXNDArraySlice(
            array.handle, ctypes.c_uint32(start), ctypes.c_uint32(stop), ctypes.byref(handle)
        )
    )
    return recording.untracked(NDArray(handle))


def row(array: NDArray, number: int) -> NDArray:
    """Return ``array[number]``, for a number that is within the array."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArrayAt(array.handle, ctypes.c_uint32(number), ctypes.byref(handle)))
    return recording.untracked(NDArray(handle))


def rows_of(array: NDArray) -> List[NDArray]:
    """Return all rows."""
    return [row(array, number) for number in range(len(array))]


def plain_view(array: NDArray, key: Any) -> Optional[NDArray]:
    """Return ``array[key]`` for a number or a slice of rows; None if MXNet is to look closer."""
    if type(array) is not NDArray or not array.writable:
        return None
    try:
        if type(key) is int:
            return row(array, key) if 0 <= key < MOST else None
        if type(key) is slice and key.step is None and type(key.start) is type(key.stop) is int:
            return part(array, key.start, key.stop) if 0 <= key.start < key.stop < MOST else None
    except MXNetError:  # MXNet's indexing cuts slices to the array, and has an error of its own
        pass
    return None


#: What MXNet's library takes for a number of rows is less.
MOST = 2**32
