"""Where the random numbers of native steps come from (page 0017 of ``docs/design``)."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .pool import allocate, copy_of_numpy

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
    return copy_of_numpy(np.frombuffer(identities, np.int32).reshape(-1, 2))
