"""From arenas to the user: what is still held becomes real."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet.ndarray import NDArray

from ..plan.plan import Plan
from ..plan.transpose import Head
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from .buffers import take_out
from .execute import Execution


def hand_out_constants(recording: Tape, lazies: List[LazyNDArray]) -> None:
    """Make copies of what creation operators made; their holders may write into them."""
    numbers = {value: i for i, value in enumerate(recording.external_values)}
    for lazy in lazies:
        if lazy.constant:
            lazy.become(recording.externals[numbers[lazy._value]].copy())


def hand_out(
    execution: Execution, plan: Plan, heads: List[Head], lazies: List[LazyNDArray]
) -> List[NDArray]:
    """Make the arrays that are still held real, as copies out of the arenas."""
    groups: Dict[Any, List[int]] = {}
    for i, head in enumerate(heads):
        arena, element = plan.place(head.term)
        groups.setdefault((arena, head.shape), []).append(i)
    arrays: List[Optional[NDArray]] = [None] * len(lazies)
    for (arena, shape), members in groups.items():
        starts = [plan.place(heads[i].term)[1] + heads[i].offset for i in members]
        for i, array in zip(members, take_out(execution.buffers, arena, shape, starts)):
            arrays[i] = array
            lazies[i].become(array)
    return arrays  # type: ignore[return-value]


def split_views(
    recording: Tape, lazies: List[LazyNDArray]
) -> Tuple[List[LazyNDArray], List[Tuple[LazyNDArray, LazyNDArray, int]]]:
    """Return arrays that get memory of their own, and views: of which of these, from where on."""
    if not recording.detached and len({lazy._value for lazy in lazies}) == len(lazies):
        return lazies, []
    sharing: Dict[Any, List[LazyNDArray]] = {}
    for lazy in lazies:
        sharing.setdefault(lazy.memory[0], []).append(lazy)
    owners, views = [], []
    for (value, _), held in sharing.items():
        owner = held[0] if len(held) == 1 else _owner(recording, value, held)
        if owner is None:
            owners += held
        else:
            owners.append(owner)
            views += [(one, owner, one.memory[1]) for one in held if one is not owner]
    return owners, views


def _owner(recording: Tape, value: int, held: List[LazyNDArray]) -> Optional[LazyNDArray]:
    """Return an array that spans all that lie in the memory of `value`; None if they lie apart."""
    size = TYPES[recording.value_type[value]].elements
    # The value itself comes first: what is cut from it has no gradient.
    whole = sorted((one for one in held if one.size == size), key=lambda one: one._value != value)
    if whole:
        return whole[0]
    places = sorted((one.memory[1], one.size) for one in held)
    if all(a + size <= b for (a, size), (b, _) in zip(places, places[1:])):
        return None
    return LazyNDArray(recording, value, 0, recording.value_type[value])


def become_view(view: LazyNDArray, owner: LazyNDArray, offset: int, recorded: bool) -> None:
    """Let a view share the memory of its array, as it would without a scope."""
    previous = mx.autograd.set_recording(recorded)
    try:
        flat = owner.real().reshape((-1,))
        if view.size != owner.size:
            flat = flat[offset : offset + view.size]
        made = flat.reshape(view.shape)
        view.become(made if recorded else made.detach())
    finally:
        mx.autograd.set_recording(previous)
