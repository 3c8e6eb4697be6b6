"""Backward passes that go around MXNet's tape.

A backward pass mostly starts from results of one scope that nothing else has used, and ends at
variables.  Then MXNet's tape has nothing to add, and the pass is handed to the engine by the
thread that asks for it.  MXNet would first need an array per result and a node of its tape; it
would wait until the gradients of the minibatch before have been used; and then it would run the
pass from another thread, while the user's thread, which records the next minibatch, holds Python's
lock.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ..modes import FLOATS
from ..native import recording
from ..native.recording import current_mode, set_mode
from ..record.intercept import replace_for_good
from ..record.lazy_base import Lazy
from ..record.state import STATE
from ..record.types import TYPES, ArrayType, name_of
from .chain import Chain
from .profiling import PROFILER


def _replace_backward(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(
        heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        listed = [heads] if isinstance(heads, NDArray) else heads
        given = [head_grads] if isinstance(head_grads, NDArray) else head_grads
        if not go_backward(listed, given, retain_graph, train_mode):
            original(heads, head_grads, retain_graph, train_mode)

    return backward


def go_backward(
    heads: Sequence[Any],
    given: Optional[Sequence[Optional[NDArray]]],
    retain_graph: bool,
    train_mode: bool,
) -> bool:
    """Run a backward pass from some arrays, with the gradients that are given or else ones.

    Returns False if MXNet has to run it.
    """
    if STATE.scope is not None:
        return False
    if isinstance(given, (list, tuple)):
        # A result of the same scope thereby makes it a node of MXNet's tape.
        given = [each.real() if isinstance(each, Lazy) else each for each in given]
    found = _chain_of(heads)
    if found is None:
        return False
    chain, numbers = found
    kinds = {number: TYPES[number] for number in set(numbers)}
    if any(kind.dtype not in FLOATS for kind in kinds.values()):
        return False  # it has no gradient
    if given is not None and (
        len(given) != len(heads) or not all(map(_fits, given, map(kinds.__getitem__, numbers)))
    ):
        return False
    mode = current_mode()
    set_mode(0)
    try:
        ones = {number: ones_of(kind) for number, kind in kinds.items()}
        gradients = [ones[number] for number in numbers]
        for i, each in enumerate(given or ()):
            if each is not None:
                gradients[i] = each
        with PROFILER.backward_pass():
            return chain.backward(list(heads), gradients, retain_graph, bool(train_mode))
    finally:
        set_mode(mode)


def _chain_of(heads: Any) -> Optional[Tuple[Chain, List[int]]]:
    """Return the flushes that computed arrays, and the numbers of the arrays' types.

    None says that MXNet has to know of one of the arrays.
    """
    if type(heads) not in (list, tuple) or not heads:
        return None
    found = recording.kept_heads(list(heads))
    if found is None:
        return None
    owners, numbers = found
    chains = {owner.chain if owner.recorded else None for owner in owners}
    chain = chains.pop()
    return (chain, numbers) if not chains and chain is not None and chain.closed else None


def _fits(gradient: Any, kind: ArrayType) -> bool:
    """Return whether a gradient that is given, if any is, has the type of an array."""
    if gradient is None:
        return True
    if not isinstance(gradient, NDArray) or gradient.stype != "default":
        return False
    return (name_of(gradient.dtype), gradient.ctx) == kind[1:]


#: The most elements of ones that are kept.
_MOST_ONES = 65536
#: Ones, by dtype and context.
_ONES: Dict[Tuple[str, mx.Context], NDArray] = {}


def ones_of(kind: ArrayType) -> NDArray:
    """Return ones, at least as many as an array of a type has elements."""
    key = kind.dtype, kind.context
    ones = _ONES.get(key)
    if ones is None or ones.size < kind.elements:
        ones = mx.nd.array(np.ones(kind.elements), kind.context, kind.dtype)
        if kind.elements <= _MOST_ONES:
            _ONES[key] = ones
    return ones


def free_ones() -> None:
    """Free the ones that are kept for later backward passes."""
    _ONES.clear()


replace_for_good("backward", _replace_backward)
