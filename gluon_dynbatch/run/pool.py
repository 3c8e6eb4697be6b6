"""Allocate arrays, and reuse large buffers: the first write to new memory is slow.

The kernel clears new pages one by one when they are first written.
"""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from math import prod
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX

from ..errors import LaunchError
from ..native import executing, recording
from ..native.assembling import itemsize

#: Buffers of at least so many elements are pooled.
LARGE = 1 << 16
#: The most elements of an array in MXNet.
MOST_ELEMENTS = (1 << 31) - 2
#: A buffer is evicted if it is not among the last so many that were taken, or if the pool exceeds
#: so many bytes.
MOST_IDLE, MOST_BYTES = 64, 1 << 29

_WORD = ctypes.sizeof(ctypes.c_size_t)


def allocate(shape: Tuple[int, ...], dtype: Any, context: mx.Context) -> NDArray:
    """Return an uninitialized array."""
    if prod(shape) > MOST_ELEMENTS:
        reason = f"an array of MXNet has at most {MOST_ELEMENTS} elements"
        raise _explained(reason, shape, dtype, context)
    try:
        device = context.device_typeid, context.device_id
        return recording.empty(shape, _number_of(dtype), *device)
    except (MXNetError, MemoryError) as error:
        raise _explained(error, shape, dtype, context) from error


@lru_cache(maxsize=None)
def _number_of(dtype: Any) -> int:
    """Return MXNet's number of a type."""
    number: int = _DTYPE_NP_TO_MX[np.dtype(dtype).type]
    return number


#: The shape of an array, and whether it is one of ``mx.np``.
ArrayKind = Tuple[Tuple[int, ...], bool]


def allocate_like(array: NDArray, kinds: List[ArrayKind]) -> List[NDArray]:
    """Return uninitialized arrays of these kinds, with the dtype and the context of another one."""
    try:
        return recording.arrays_like(array, kinds)
    except (MXNetError, MemoryError) as error:
        largest = max((shape for shape, _ in kinds), key=prod)
        raise _explained(error, largest, array.dtype, array.context) from error


def address_of(array: NDArray) -> int:
    """Return the address of the elements of an array whose memory is allocated."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def copy_of_numpy(values: np.ndarray[Any, Any]) -> NDArray:
    """Return a copy of a contiguous array of NumPy, on the CPU.

    MXNet would wait for its engine before it copies.
    """
    array = allocate(values.shape, values.dtype, mx.cpu())
    ctypes.memmove(address_of(array), values.ctypes.data, values.nbytes)
    return array


def _explained(
    reason: object, shape: Tuple[int, ...], dtype: Any, context: mx.Context
) -> LaunchError:
    """Return the error for an array that cannot be allocated."""
    return LaunchError(
        f"no memory for an array of shape {shape} and type {dtype} on {context}: {reason}",
        advice="record less in one scope, for example with smaller minibatches",
    )


class _Buffer:
    __slots__ = "array", "bytes", "elements", "holders", "key", "taken"

    def __init__(self, key: Tuple[str, mx.Context, int], elements: int) -> None:
        #: Its type and device, and how many programs had failed when it was allocated.
        self.key = key
        self.array = allocate((elements,), *key[:2])
        self.elements, self.bytes = elements, elements * itemsize(key[0])
        #: When it was last taken: a count of all buffers taken so far.
        self.taken = 0
        #: How many arrays, views, nodes of MXNet's tape and the like share its memory: the count of
        #: a ``std::shared_ptr``, with which an array in MXNet begins.  Its second word points to a
        #: control block, in which the count follows the first word.
        control_block = ctypes.c_size_t.from_address(self.array.handle.value + _WORD).value
        self.holders = ctypes.c_int.from_address(control_block + _WORD)


class Pool:
    """Buffers that are reused once no array shares their memory.

    After an error in the engine, none is reused: the engine keeps the error with what it wrote.
    The engine may still work on the previous content of a free buffer.  It is the same variable for
    the engine, so later work waits for that.
    """

    def __init__(self) -> None:
        #: The one that was taken last comes first.
        self._buffers: List[_Buffer] = []
        self._taken = self._bytes = 0
        self._lock = threading.Lock()

    def take(self, shape: Tuple[int, ...], dtype: str, context: mx.Context) -> NDArray:
        """Return an uninitialized array whose memory nothing else uses."""
        elements = prod(shape)
        if elements < LARGE:
            return allocate(shape, dtype, context)
        with self._lock:
            buffer = self._pop_free((dtype, context, executing.count_failures()), elements)
            self._taken += 1
            buffer.taken = self._taken
            self._buffers.insert(0, buffer)
            self._bytes += buffer.bytes
            self._evict()
            return recording.first_elements(buffer.array, elements, shape)

    def _pop_free(self, key: Tuple[str, mx.Context, int], elements: int) -> _Buffer:
        """Remove a free buffer that fits from the pool and return it, or else a new one."""
        for number, buffer in enumerate(self._buffers):
            fits = elements <= buffer.elements <= 2 * elements
            if fits and buffer.holders.value == 1 and buffer.key == key:
                self._bytes -= buffer.bytes
                return self._buffers.pop(number)
        # Round up by at most an eighth, so that minibatches of similar size share a buffer.
        step = 1 << max(elements.bit_length() - 4, 0)
        size = max(min(-(-elements // step) * step, MOST_ELEMENTS), elements)
        return _Buffer(key, size)

    def _evict(self) -> None:
        """Drop buffers, the least recently taken first, until the pool is within its limits."""
        oldest = self._taken - MOST_IDLE
        while self._buffers and (self._bytes > MOST_BYTES or self._buffers[-1].taken < oldest):
            self._bytes -= self._buffers.pop().bytes

    def clear(self) -> None:
        """Drop all buffers."""
        with self._lock:
            self._buffers.clear()
            self._bytes = 0


#: For arenas, and for temporary buffers of forward passes.
POOL = Pool()
#: For temporary buffers of backward passes.  From `POOL`, it could be one that a later flush has
#: just used.  The backward pass would wait for that flush, and the flush for the parameters that
#: the backward pass trains.
BACKWARD_POOL = Pool()
