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

from ..record.lazy import LazyNDArray
from .buffers import zero
from .gradient import Request


class Leaves:
    """The leaf copies of one flush."""

    def __init__(self) -> None:
        #: By id of the original array: its copy, and its number in `trained`.
        self._leaves: Dict[int, NDArray] = {}
        self._numbers: Dict[int, int] = {}
        #: The arrays that get a gradient.
        self.trained: List[NDArray] = []
        #: Per trained array, the buffer in which MXNet's operators add up its gradient; None if
        #: only native code computes it, which can write to its target directly.
        self._gradients: List[Optional[NDArray]] = []

    def __contains__(self, array: NDArray) -> bool:
        return id(array) in self._numbers

    def clear(self) -> None:
        """Set the buffers of gradients to zero."""
        for gradient in self._gradients:
            if gradient is not None:
                zero(gradient)

    def train(self, array: NDArray, dense: bool = False) -> int:
        """Add an array to `trained`, if it is not there yet, and return its number.

        `dense` says that its gradient is known to be dense, which saves a look at it.
        """
        number = self._numbers.setdefault(id(array), len(self.trained))
        if number == len(self.trained):
            self.trained.append(array if dense else with_dense_gradient(array))
            self._gradients.append(None)
        return number

    def gradients(self, requests: Sequence[Request]) -> List[NDArray]:
        """Return the array of each gradient: its buffer here, its target, or a new array."""
        return [
            buffer if buffer is not None else target if target is not None else _empty_like(array)
            for buffer, (_, target), array in zip(self._gradients, requests, self.trained)
        ]

    def leaf(self, array: NDArray, trained: bool) -> NDArray:
        """Return the leaf copy of an array, a variable if it is trained."""
        leaf = self._leaves.get(id(array))
        if leaf is None:
            leaf = self._leaves[id(array)] = array.copy()
            if trained:
                number = self.train(array)
                gradient = self._gradients[number]
                if gradient is None:
                    gradient = self._gradients[number] = _empty_like(array)
                autograd.mark_variables([leaf], [gradient], "add")
        return leaf


def _empty_like(array: NDArray) -> NDArray:
    return mx.nd.empty(array.shape, ctx=array.context, dtype=array.dtype)


def with_dense_gradient(array: NDArray) -> NDArray:
    """Return an array, or a view of it if it has a sparse gradient.

    A custom function cannot return a sparse gradient; a recorded view takes a dense one.
    """
    # An array that is kept in an arena has no gradient attached.
    gradient = None if type(array) is LazyNDArray else array.grad
    if gradient is None or gradient.stype == "default":
        return array
    with autograd.record(autograd.is_training()):
        return array.reshape(array.shape)
