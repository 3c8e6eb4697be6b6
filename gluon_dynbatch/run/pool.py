"""Memory for arrays; large buffers are used again, as new ones are given page by page."""

from __future__ import annotations

import ctypes
import threading
from math import prod
from typing import Any, List, NamedTuple, Tuple

import mxnet as mx
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle

from ..errors import LaunchError
from ..native.assembling import itemsize
from ..native.recording import part

#: Elements from which on a buffer is kept.
LARGE = 1 << 16
#: A buffer is let go of when so many others were taken since it was, or so many bytes are kept.
MOST_IDLE, MOST_BYTES = 64, 1 << 29


def allocate(shape: Tuple[int, ...], dtype: Any, context: mx.Context) -> NDArray:
    """Return memory, or say what needs how much."""
    try:
        return NDArray(_new_alloc_handle(shape, context, False, dtype))
    except Exception as error:  # for arrays beyond 2^31 elements, of no class of MXNet's
        raise LaunchError(
            f"no memory for an array of shape {shape} and type {dtype} on {context}: {error}",
            advice="record less in one scope, for example with smaller minibatches",
        ) from error


class _Buffer(NamedTuple):
    key: Tuple[str, Any]
    array: NDArray
    elements: int
    bytes: int
    #: Buffers taken before it was.
    taken: int


class Pool:
    """Buffers, the one that was taken last first.

    One that nobody else holds is free.  If the engine still works on what was in it, that comes
    first: for the engine it is the same array.
    """

    def __init__(self) -> None:
        self._buffers: List[_Buffer] = []
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, shape: Tuple[int, ...], dtype: str, context: Any) -> NDArray:
        """Return an array of any values that nobody else uses."""
        elements = prod(shape)
        if elements < LARGE:
            return allocate(shape, dtype, context)
        with self._lock:
            buffer = self._free((dtype, context), elements)
            self._taken += 1
            self._buffers.insert(0, buffer._replace(taken=self._taken))
            self._let_go()
            return part(buffer.array, 0, elements).reshape(shape)

    def _free(self, key: Tuple[str, Any], elements: int) -> _Buffer:
        for number, buffer in enumerate(self._buffers):
            fits = buffer.key == key and elements <= buffer.elements <= 2 * elements
            if fits and holders(buffer.array) == 1:
                return self._buffers.pop(number)
        # In steps of an eighth: minibatches differ a little.
        step = 1 << max(elements.bit_length() - 4, 0)
        size = -(-elements // step) * step
        return _Buffer(key, allocate((size,), *key), size, size * itemsize(key[0]), 0)

    def _let_go(self) -> None:
        kept, oldest = sum(buffer.bytes for buffer in self._buffers), self._taken - MOST_IDLE
        while self._buffers and (kept > MOST_BYTES or self._buffers[-1].taken < oldest):
            kept -= self._buffers.pop().bytes

    def clear(self) -> None:
        """Let go of all buffers."""
        with self._lock:
            self._buffers.clear()


#: What arenas, and other buffers that only a flush uses, are in.
POOL = Pool()
#: What backward passes take while they run.  Were it taken from the other pool, the last to use it
#: could be a later flush, which waits for the parameters that this backward pass trains.
BACKWARD_POOL = Pool()


def holders(array: NDArray) -> int:
    """Count the arrays, views, nodes of MXNet's tape and the like that hold the memory of an array.

    An array of MXNet's begins with a ``std::shared_ptr``: the address of its memory, and that of
    its counts, which begin with an address.
    """
    words = ctypes.c_size_t * 2
    counts = words.from_address(array.handle.value)[1]
    return ctypes.c_int.from_address(counts + ctypes.sizeof(ctypes.c_size_t)).value
