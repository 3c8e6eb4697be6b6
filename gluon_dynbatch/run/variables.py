"""Variables of MXNet's tape, and how they get gradients."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from ..native import recording
from ..record.intercept import replace_for_good
from ..record.types import NODE_AT, is_leaf
from .buffers import add_to

#: Of MXNet's numbers for `grad_req`: nothing is done, or the gradient is added.
GRAD_NULL, GRAD_ADD = 0, 3


#: An array that a gradient is written to, or the handle of one.
Target = Union[NDArray, int]


class Requests(NamedTuple):
    """What is asked for the gradients of inputs: columns, with one row per input."""

    #: Whether the gradient is wanted.
    wanted: Sequence[int]
    #: An array that it may be written to, if there is one.
    targets: Sequence[Optional[Target]]


def deliver(
    gradients: Sequence[Optional[Target]], requests: Requests, array_of: Callable[[int], NDArray]
) -> None:
    """Write gradients that are not the targets of their requests to arrays, or add them there.

    `array_of` returns the array of an input.  An array may be there several times: the first
    gradient is written, others are added.
    """
    columns = zip(count(), *requests, gradients)
    left = [
        (number, target, gradient)
        for number, wanted, target, gradient in columns
        if wanted and gradient is not target
    ]
    left.sort(key=lambda each: each[1] is None)
    for number, target, gradient in left:
        assert isinstance(gradient, NDArray)
        if target is None:
            add_to(array_of(number), gradient)
        else:
            # `copyto` fails if MXNet has left three axes of a gradient in a layout of oneDNN.
            mx.nd.identity(gradient, out=array_of(number))


#: What is done with the gradients of variables, by node of MXNet's tape.  Each variable has a node
#: of its own, and what the node of a variable that is gone stands for is replaced with the next one
#: that gets its address.
_GRAD_REQ: Dict[int, int] = {}


def _watch_variables(original: Callable[..., int]) -> Callable[..., int]:
    """Note what is to be done with the gradients of variables when they are made."""

    def mark_variables(number: int, variables: Any, grad_reqs: Any, gradients: Any) -> int:
        failed = original(number, variables, grad_reqs, gradients)
        if not failed:
            for i in range(number):
                node = ctypes.c_size_t.from_address(variables[i] + NODE_AT).value
                _GRAD_REQ[node] = grad_reqs[i]
        return failed

    return mark_variables


replace_for_good("MXAutogradMarkVariables", _watch_variables)


class Variables(NamedTuple):
    """Variables of MXNet's tape among some arrays, and what is asked for each array."""

    requests: Requests
    gradients: recording.Gradients

    def deliver(self, arrays: List[NDArray], gradients: List[Optional[Target]]) -> None:
        """Let the variables have their gradients, as MXNet's backward pass does."""
        deliver(gradients, self.requests, self.gradients.array)
        recording.mark_fresh(arrays, bytes(self.requests.wanted))

    def first_wanted(self, start: int, stop: int) -> Optional[int]:
        """Return the handle of a gradient that is wanted, of some of the arrays, if any is."""
        first = bytes(self.requests.wanted).find(1, start, stop)
        return None if first < 0 else self.gradients.handles[first]


def find_variables(arrays: List[NDArray], reached: Optional[List[bool]]) -> Optional[Variables]:
    """Return the variables among arrays; None if one is computed, or nothing is known of it.

    The gradients of those that are not `reached` are left as they are.
    """
    found = recording.find_gradients(arrays, _GRAD_REQ, reached, is_leaf, GRAD_NULL, GRAD_ADD)
    if found is None:
        return None
    wanted, written = found.marks()
    targets = [handle if mark else None for handle, mark in zip(found.handles, written)]
    return Variables(Requests(wanted, targets), found)
