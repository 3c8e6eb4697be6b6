"""Leaf copies: copies of parameters and shared arrays that the graphs of launches read.

MXNet runs a backward pass in a thread of its own, while the user's thread goes on, for instance to
the optimizer, which writes the parameters once their gradients are computed.  If the backward pass
read the parameters themselves, it could queue a read behind that write: the read would wait for the
write, the write for the gradients, and the gradients for the read.  So it reads copies, which the
forward pass makes.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..record.lazy import Lazy
from .buffers import zero
from .gradient import Request


class Targets:
    """The arrays whose gradients are added up, numbered, and where they are added up."""

    def __init__(self, others: Optional[Targets] = None) -> None:
        """Begin with no arrays, or with those of others."""
        self.arrays: List[NDArray] = [] if others is None else list(others.arrays)
        #: Per array, the buffer in which MXNet's operators add up its gradient; None if only native
        #: code computes it, which can write to where it is wanted directly.
        self._buffers: List[Optional[NDArray]] = [] if others is None else list(others._buffers)
        #: By id of an array, its number.
        self._numbers: Dict[int, int] = {} if others is None else dict(others._numbers)

    def __contains__(self, array: NDArray) -> bool:
        return id(array) in self._numbers

    def add(self, array: NDArray, dense: bool = False) -> int:
        """Add an array, if it is not there yet, and return its number.

        `dense` says that its gradient is known to be dense, which saves a look at it.
        """
        number = self._numbers.setdefault(id(array), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array if dense else with_dense_gradient(array))
            self._buffers.append(None)
        return number

    def buffer(self, array: NDArray) -> NDArray:
        """Return the buffer of the gradient of an array, which is added if necessary."""
        number = self.add(array)
        buffer = self._buffers[number]
        if buffer is None:
            buffer = self._buffers[number] = _empty_like(array)
        return buffer

    def clear(self) -> None:
        """Set the buffers to zero."""
        for buffer in self._buffers:
            if buffer is not None:
                zero(buffer)

    def gradients(self, requests: Sequence[Request]) -> List[NDArray]:
        """Return the array of each gradient: its buffer, where it is wanted, or a new array."""
        return [
            buffer if buffer is not None else target if target is not None else _empty_like(array)
            for buffer, (_, target), array in zip(self._buffers, requests, self.arrays)
        ]


class Leaves:
    """The leaf copies of one flush."""

    def __init__(self) -> None:
        #: By id of the original array: its copy.
        self._leaves: Dict[int, NDArray] = {}
        #: The arrays whose copies are variables.
        self.targets = Targets()

    def leaf(self, array: NDArray, trained: bool) -> NDArray:
        """Return the leaf copy of an array, a variable if it is trained."""
        leaf = self._leaves.get(id(array))
        if leaf is None:
            leaf = self._leaves[id(array)] = array.copy()
            if trained:
                autograd.mark_variables([leaf], [self.targets.buffer(array)], "add")
        return leaf


def _empty_like(array: NDArray) -> NDArray:
    return mx.nd.empty(array.shape, ctx=array.ctx, dtype=array.dtype)


def with_dense_gradient(array: NDArray) -> NDArray:
    """Return an array, or a view of it if it has a sparse gradient.

    A custom function cannot return a sparse gradient; a recorded view takes a dense one.
    """
    # An array that is kept in an arena has no gradient attached.
    gradient = None if isinstance(array, Lazy) else array.grad
    if gradient is None or gradient.stype == "default":
        return array
    with autograd.record(autograd.is_training()):
        return array.reshape(array.shape)
