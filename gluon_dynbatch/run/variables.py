"""Variables of MXNet's tape, and how they get gradients."""

from __future__ import annotations

import ctypes
from itertools import compress, repeat
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from ..native import recording
from ..record.intercept import replace_for_good
from ..record.types import NODE_AT, is_leaf
from .buffers import add_to

#: Of MXNet's numbers for `grad_req`: nothing is done, or the gradient is added.
GRAD_NULL, GRAD_ADD = 0, 3


class GradientRequest(NamedTuple):
    """Whether the gradient of an input is wanted, and an array that it may be written to."""

    wanted: bool
    target: Optional[NDArray]


#: The request for the gradient of an input that is not wanted.
UNWANTED = GradientRequest(False, None)


def deliver(
    gradients: Sequence[Optional[NDArray]],
    requests: Sequence[GradientRequest],
    arrays: Sequence[NDArray],
) -> None:
    """Write gradients that are not the targets of their requests to arrays, or add them there.

    An array may be there several times: the first gradient is written, others are added.
    """
    left = [
        (gradient, array, target)
        for (wanted, target), gradient, array in zip(requests, gradients, arrays)
        if wanted and gradient is not target
    ]
    left.sort(key=lambda each: each[2] is None)
    for gradient, array, target in left:
        assert gradient is not None
        if target is None:
            add_to(array, gradient)
        else:
            # `copyto` fails if MXNet has left three axes of a gradient in a layout of oneDNN.
            mx.nd.identity(gradient, out=array)


#: What is done with the gradients of variables, by node of MXNet's tape.  Each variable has a node
#: of its own, and what the node of a variable that is gone stands for is replaced with the next one
#: that gets its address.
_GRAD_REQ: Dict[int, int] = {}


def _watch_variables(original: Callable[..., int]) -> Callable[..., int]:
    """Note what is to be done with the gradients of variables when they are made."""

    def mark_variables(count: int, variables: Any, grad_reqs: Any, gradients: Any) -> int:
        failed = original(count, variables, grad_reqs, gradients)
        if not failed:
            for i in range(count):
                node = ctypes.c_size_t.from_address(variables[i] + NODE_AT).value
                _GRAD_REQ[node] = grad_reqs[i]
        return failed

    return mark_variables


replace_for_good("MXAutogradMarkVariables", _watch_variables)


class Variables(NamedTuple):
    """Variables of MXNet's tape among some arrays, and what is asked for each array."""

    requests: List[GradientRequest]
    #: Per array, where its gradient goes; the array itself if it is not wanted.
    gradients: List[NDArray]

    def deliver(self, arrays: List[NDArray], gradients: List[Optional[NDArray]]) -> None:
        """Let the variables have their gradients, as MXNet's backward pass does."""
        deliver(gradients, self.requests, self.gradients)
        wanted = [request.wanted for request in self.requests]
        recording.mark_fresh(list(compress(arrays, wanted)))


def find_variables(arrays: List[NDArray], reached: Optional[List[bool]]) -> Optional[Variables]:
    """Return the variables among arrays; None if one is computed, or nothing is known of it.

    The gradients of those that are not `reached` are left as they are.
    """
    found, seen = Variables([], []), set()
    gradients = recording.gradients_of(arrays)
    if gradients is None:
        return None
    columns = arrays, recording.nodes_of(arrays), gradients, reached or repeat(True)
    for array, node, gradient, is_reached in zip(*columns):
        if gradient is None:
            if node and not is_leaf(node) or array.stype != "default":
                return None  # an operator has computed it
            found.requests.append(UNWANTED)
            found.gradients.append(array)
            continue
        grad_req = _GRAD_REQ.get(node)
        if grad_req is None:
            return None
        if grad_req == GRAD_NULL or not is_reached:
            found.requests.append(UNWANTED)
        else:
            is_target = grad_req != GRAD_ADD and node not in seen
            found.requests.append(GradientRequest(True, gradient if is_target else None))
            seen.add(node)
        found.gradients.append(gradient)
    return found
