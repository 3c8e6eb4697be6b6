"""Where the random numbers of native steps come from (page 0017 of ``docs/design``)."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .pool import address_of, allocate

#: The device on which keys are drawn.
CPU = mx.cpu()


def draw_key() -> NDArray:
    """Draw the key of a flush from MXNet's random numbers, which ``mx.random.seed`` sets."""
    key = allocate((2,), "int32", CPU)
    bounds = np.iinfo(np.int32)
    mx.nd._internal._random_randint(low=int(bounds.min), high=int(bounds.max), out=key)
    return key


def array_of(identities: bytes) -> NDArray:
    """Return an array of what identifies rows that draw: two integers for each row."""
    array = allocate((len(identities) // 8, 2), "int32", CPU)
    # Not by MXNet, which waits for its engine before it copies from NumPy.
    ctypes.memmove(address_of(array), identities, len(identities))
    return array
