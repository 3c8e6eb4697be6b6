"""Leaf copies: what stands for parameters and shared arrays in the graphs of launches.

MXNet goes backward in a thread of its own, while the user's thread goes on, for instance to the
optimizer, which writes the parameters once their gradients are there.  Were the backward pass to
read the parameters themselves, it could queue a read behind that write, which waits for the
gradients, which wait for the read.  So it reads copies made in the forward pass.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..record.lazy import LazyNDArray
from .buffers import zero


class Leaves:
    """The leaf copies of one flush."""

    def __init__(self) -> None:
        #: By id of the original.
        self._leaves: Dict[int, NDArray] = {}
        self._numbers: Dict[int, int] = {}
        #: What is trained, and where MXNet's operators add up gradients; native code does so
        #: where MXNet wants to have them.
        self.trained: List[NDArray] = []
        self._gradients: List[Optional[NDArray]] = []

    def __contains__(self, array: NDArray) -> bool:
        return id(array) in self._numbers

    def clear(self) -> None:
        """Let gradients start from zero."""
        for gradient in self._gradients:
            if gradient is not None:
                zero(gradient)

    def train(self, array: NDArray, dense: bool = False) -> int:
        """Let an array get a gradient, known to be `dense` or not; return its number."""
        found = self._numbers.setdefault(id(array), len(self.trained))
        if found == len(self.trained):
            self.trained.append(array if dense else with_dense_gradient(array))
            self._gradients.append(None)
        return found

    def gradient(self, array: NDArray) -> NDArray:
        """Return where MXNet's operators add up the gradients of an array."""
        number = self.train(array)
        found = self._gradients[number]
        if found is None:
            found = self._gradients[number] = _like(array)
        return found

    def gradients(self, targets: Sequence[Optional[NDArray]]) -> List[NDArray]:
        """Return where each gradient adds up, if it may be where it is wanted."""
        return [
            own if own is not None else target if target is not None else _like(array)
            for own, target, array in zip(self._gradients, targets, self.trained)
        ]

    def leaf(self, array: NDArray, trained: bool = True) -> NDArray:
        """Return the leaf of an array."""
        found = self._leaves.get(id(array))
        if found is None:
            found = self._leaves[id(array)] = array.copy()
            if trained:
                autograd.mark_variables([found], [self.gradient(array)], "add")
        return found


def _like(array: NDArray) -> NDArray:
    return mx.nd.empty(array.shape, ctx=array.context, dtype=array.dtype)


def with_dense_gradient(array: NDArray) -> NDArray:
    """Return a view of an array whose own gradient is sparse: a function cannot give it that."""
    # What is kept in an arena has no gradient of its own.
    gradient = None if type(array) is LazyNDArray else array.grad
    if gradient is None or gradient.stype == "default":
        return array
    with autograd.record(autograd.is_training()):
        return array.reshape(array.shape)
