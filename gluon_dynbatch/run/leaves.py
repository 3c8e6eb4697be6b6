"""Leaf copies: what stands for parameters and shared arrays in the graphs of launches.

MXNet goes backward in a thread of its own, while the user's thread goes on, for instance to the
optimizer, which writes the parameters once their gradients are there.  Were the backward pass to
read the parameters themselves, it could queue a read behind that write, which waits for the
gradients, which wait for the read.  So it reads copies made in the forward pass.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..lower.segment import ParameterRows
from ..record.lazy import LazyNDArray
from .buffers import part, zero
from .dispatch import Executable


class _Leaf(NamedTuple):
    array: NDArray
    #: Where its gradients add up, if it is trained.
    gradient: Optional[NDArray]
    #: Whether it has memory of its own.
    copied: bool


class Leaves:
    """The leaf copies of one flush."""

    def __init__(self) -> None:
        #: By id of the original.
        self._leaves: Dict[int, _Leaf] = {}
        self._numbers: Dict[int, int] = {}
        #: Some rows of leaves: by id of the original, whether copied, and which rows.
        self._parts: Dict[Tuple[int, bool, int, int], NDArray] = {}
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

    def train(self, array: NDArray) -> int:
        """Let an array get a gradient; return its number among those that are trained."""
        found = self._numbers.setdefault(id(array), len(self.trained))
        if found == len(self.trained):
            self.trained.append(with_dense_gradient(array))
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

    def parameter(
        self, parameter: Any, context: mx.Context, executable: Executable, argument: int
    ) -> NDArray:
        """Return what an executable gets for a parameter."""
        read_back = argument in executable.read_back
        if isinstance(parameter, ParameterRows):
            return self._rows(parameter, context, read_back)
        data = parameter.data(context)
        if argument in executable.mutated:
            return data.copy()
        return self.array(data, parameter.grad_req != "null", read_back)

    def _rows(self, rows: ParameterRows, context: mx.Context, read_back: bool) -> NDArray:
        data = rows.parameter.data(context)
        self.array(data, rows.grad_req != "null", read_back)
        whole = self._leaves[id(data)]
        key = (id(data), whole.copied, rows.start, rows.stop)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = part(whole.array, rows.start, rows.stop)
            if whole.gradient is not None:
                gradient = part(whole.gradient, rows.start, rows.stop)
                autograd.mark_variables([found], [gradient], "add")
        return found

    def array(self, array: NDArray, trained: bool, read_back: bool) -> NDArray:
        """Return the leaf of an array; a copy if its values are read in the backward pass."""
        leaf = self._leaves.get(id(array))
        if leaf is None or (read_back and not leaf.copied):
            made = array.copy() if read_back else array.detach()
            gradient = None if leaf is None else leaf.gradient
            if trained and leaf is None:
                gradient = self.gradient(array)
            if gradient is not None:
                autograd.mark_variables([made], [gradient], "add")
            leaf = self._leaves[id(array)] = _Leaf(made, gradient, read_back)
        return leaf.array


def _like(array: NDArray) -> NDArray:
    return mx.nd.empty(array.shape, ctx=array.context, dtype=array.dtype)


def with_dense_gradient(array: NDArray) -> NDArray:
    """Return a view of an array whose own gradient is sparse: a function cannot give it that."""
    # What is kept in an arena has no gradient of its own.
    gradient = None if type(array) is LazyNDArray else array.grad
    if gradient is None or gradient.stype == "default":
        return array
    previous = autograd.set_recording(True)
    try:
        return array.reshape(array.shape)
    finally:
        autograd.set_recording(previous)
