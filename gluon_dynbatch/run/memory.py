"""What a program runs on: arrays and their addresses."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..native import executing
from .assemble import Assembled, Base, Item, Stretch

#: Addresses of functions of MXNet.
PUSH = ctypes.cast(_LIB.MXEnginePushSyncND, ctypes.c_void_p).value
GET_DATA = ctypes.cast(_LIB.MXNDArrayGetData, ctypes.c_void_p).value

executing.connect(
    *(ctypes.cast(f, ctypes.c_void_p).value for f in (_LIB.MXNDArrayDetach, _LIB.MXNDArrayFree))
)

#: Kinds of arrays that programs never write to.
READ_ONLY = frozenset(["parameter", "external"])


class Memory:
    """The arrays of one run of a program.

    Parameters
    ----------
    assembled : Assembled
        The program.
    find : callable
        Returns the array at a base that is not memory of the program's own.
    known : dict of Base to NDArray
        Arrays that exist already.
    read_only, without : frozenset of str
        Kinds of arrays that the program does not write to, and that it does not use.
    """

    def __init__(
        self,
        assembled: Assembled,
        find: Callable[[Base], NDArray],
        known: Optional[Dict[Base, NDArray]] = None,
        read_only: FrozenSet[str] = READ_ONLY,
        without: FrozenSet[str] = frozenset(),
    ):
        self._assembled = assembled
        self.arrays: Dict[Base, NDArray] = {}
        read, written = {}, {}
        addresses, known = [], known or {}
        for base in assembled.bases:
            if base[0] in without:
                addresses.append(0)
                continue
            array = known.get(base)
            if array is None and len(base) == 1:
                array = allocate((max(assembled.sizes[base[0]], 1),), "uint8", mx.cpu())
            elif array is None:
                array = find(base)
            self.arrays[base] = array
            addresses.append(address_of(array))
            handles = read if base[0] in read_only else written
            handles[executing.memory_of(array.handle.value)] = array.handle.value
        self._addresses = np.array(addresses, dtype=np.uintp)
        self._written = np.array(list(written.values()), dtype=np.uintp)
        self._read = np.array([read[key] for key in read.keys() - written.keys()], dtype=np.uintp)

    def array(self, *base: Any) -> NDArray:
        """Return the array at a base."""
        return self.arrays[base]

    def items(self, one_by_one: bool) -> List[Item]:
        """Return what is to be run in order; stretches of code are joined, or not."""
        if one_by_one:
            return list(self._assembled.items)
        found: List[Item] = []
        for item in self._assembled.items:
            last = found[-1] if found else None
            if isinstance(item, Stretch) and isinstance(last, Stretch) and last.high == item.low:
                found[-1] = Stretch(last.low, item.high)
            else:
                found.append(item)
        return found

    def push(self, stretch: Stretch, name: str) -> None:
        """Hand some code to the engine."""
        check_call(
            self._assembled.program.push(
                PUSH,
                stretch.low,
                stretch.high,
                self._addresses,
                self._read,
                self._written,
                name.encode(),
            )
        )


def allocate(shape: Tuple[int, ...], dtype: str, context: mx.Context) -> NDArray:
    """Return memory, or say what needs how much."""
    try:
        return mx.nd.empty(shape, ctx=context, dtype=dtype)
    except Exception as error:  # MXNet raises just this for arrays beyond 2^31 elements
        raise LaunchError(
            f"no memory for an array of shape {shape} and type {dtype} on {context}: {error}",
            advice="record less in one scope, for instance smaller minibatches",
        ) from error


def address_of(array: NDArray) -> int:
    """Return where the elements of an array are."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0
