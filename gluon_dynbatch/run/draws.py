"""Where the random numbers of native steps come from (page 0015 of ``docs/design``)."""

from __future__ import annotations

from typing import List

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ..plan.plan import Plan
from .pool import allocate

#: The device on which keys are drawn.
CPU = mx.cpu()


def draw_key() -> NDArray:
    """Draw the key of a flush from MXNet's random numbers, which ``mx.random.seed`` sets."""
    key = allocate((2,), "int32", CPU)
    bounds = np.iinfo(np.int32)
    mx.nd._internal._random_randint(low=int(bounds.min), high=int(bounds.max), out=key)
    return key


def identify(plan: Plan, launches: List[int]) -> NDArray:
    """Return two numbers per row of some launches: its unit, and its number in the unit.

    They do not depend on the order of launches or of rows in them.
    """
    first = plan.members.first
    units = np.concatenate([plan.members.units[first[n] : first[n + 1]] for n in launches])
    rows = plan.graph.dependencies.rows[units]
    start = np.cumsum(rows) - rows
    numbers = np.empty((rows.sum(), 2), np.int32)
    numbers[:, 0] = np.repeat(units, rows)
    numbers[:, 1] = np.arange(len(numbers)) - np.repeat(start, rows)
    array = allocate(numbers.shape, "int32", CPU)
    array._sync_copyfrom(numbers)
    return array
