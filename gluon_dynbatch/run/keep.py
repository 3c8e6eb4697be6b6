"""Values that stay in their arenas: later flushes read them there, until somebody wants them."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..native import executing, recording
from ..native.assembling import itemsize
from ..record.lazy import LazyNDArray
from ..record.types import TYPES, name_of
from .buffers import address_of, take_out


class Spots(NamedTuple):
    """Where lazy arrays are: arrays of one length."""

    #: Values, or the arenas in which these are kept.
    name: np.ndarray
    first: np.ndarray
    #: Their numbers of elements, and their types.
    size: np.ndarray
    kind: np.ndarray

    def merged(self) -> Tuple[np.ndarray, ...]:
        """Put together what has elements in common.

        Returns
        -------
        order, begins, counts : numpy.ndarray
            The arrays by name and place, those of them that begin something, and the number of
            elements of that.
        """
        place = self.name * (self.first + self.size).max(initial=1) + self.first
        order = np.argsort(place, kind="stable")
        place, stop = place[order], np.maximum.accumulate((place + self.size)[order])
        begins = np.flatnonzero(np.append(len(place) > 0, place[1:] >= stop[:-1]))
        return order, begins, stop[np.append(begins, len(place))[1:] - 1] - place[begins]


def find_spots(arrays: Sequence[LazyNDArray]) -> Spots:
    """Return where lazy arrays are."""
    found = [(one._value, one._offset, one._type) for one in arrays]
    name, first, kind = np.array(found, dtype=np.int64).reshape(-1, 3).T.copy()
    size, _ = TYPES.columns(kind)
    return Spots(name, first, size, kind)


class Memories(NamedTuple):
    """Where lazy arrays are that become real: consecutive elements are one array and its views."""

    #: The lazy arrays, in the order of what they are in.
    arrays: List[LazyNDArray]
    #: Per lazy array: the number of its memory, and its type.
    number: np.ndarray
    kind: np.ndarray
    #: Per memory: its value, or its arena once it is computed; first element and number of them.
    name: np.ndarray
    first: np.ndarray
    size: np.ndarray
    #: Per memory: the type of an array that is all of it, or -1.
    whole: np.ndarray

    def become(self, made: List[NDArray], recorded: bool = False) -> None:
        """Let the lazy arrays be these, one per memory, or views of them, recorded or not."""
        reals = [made[number] for number in self.number.tolist()]
        parts = np.flatnonzero(self.kind != self.whole[self.number]).tolist()
        if parts:
            mode = autograd.record if recorded else autograd.pause
            with mode(autograd.is_training()):
                for at in parts:
                    first = int(self.first[self.number[at]])
                    reals[at] = _view(reals[at], first, self.arrays[at])
        recording.become(self.arrays, reals)


def _view(array: NDArray, first: int, lazy: LazyNDArray) -> NDArray:
    """Return the part of an array that a lazy array is; the array begins at element `first`."""
    flat, start = array.reshape((-1,)), lazy._offset - first
    if lazy.size != array.size:
        flat = flat[start : start + lazy.size]
    return flat.reshape(lazy.shape)


def find_memories(arrays: Sequence[LazyNDArray]) -> Memories:
    """Put arrays together that have elements in common, but for those that are cut from others."""
    arrays = [one for one in arrays if one._uncut is None]
    spots = find_spots(arrays)
    order, begins, counts = spots.merged()
    number = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    kind, whole = spots.kind[order], np.full(len(begins), -1)
    all_of_it = np.flatnonzero(spots.size[order] == counts[number])[::-1]
    # Of several assignments to one place the last stays.
    whole[number[all_of_it]] = kind[all_of_it]
    heads = order[begins]
    ordered = [arrays[at] for at in order.tolist()]
    return Memories(ordered, number, kind, spots.name[heads], spots.first[heads], counts, whole)


class Kept(recording.Keeper):  # type: ignore[misc]
    """What computed arrays belong to, in place of a tape, until somebody wants them for good.

    The value of such a lazy array is the number of an arena, its offset the first element there.
    Nobody writes to arenas any more: who asks for a handle gets a copy.

    Parameters
    ----------
    arenas : list of NDArray
        The arenas.
    given : Bases
        Where they are.
    recorded : bool
        Whether gradients may come to them.
    size : int
        Bytes of all arenas.
    """

    def __init__(self, arenas: List[NDArray], given: executing.Bases, recorded: bool, size: int):
        sizes = [itemsize(name_of(arena.dtype)) for arena in arenas]
        super().__init__(given.handles, given.addresses, sizes)
        self._arenas = arenas
        self.bytes = size
        #: By arena and type, all arrays of that type in it.
        self._windows: Dict[Tuple[int, int], np.ndarray[Any, Any]] = {}
        self.recorded = recorded
        #: The flushes that this one is to be part of MXNet's tape with.
        self.chain: Any = None

    def realise(self, lazy: LazyNDArray) -> None:
        """Copy an array out of its arena, and with it all that belong to this."""
        if all(reference() is not lazy for reference in self.lazies):
            # It stands for another one, among arrays from outside.
            self._take_out(find_memories([lazy]))
        else:
            self.hand_out()

    def read(self, lazy: LazyNDArray) -> np.ndarray[Any, Any]:
        """Return the values of an array; one wait, or one transfer, serves all of an arena."""
        windows = self._windows.get((lazy._value, lazy._type))
        if windows is None:
            windows = _windows(_numbers(self._arenas[lazy._value]), lazy.shape)
            self._windows[lazy._value, lazy._type] = windows
        return np.array(windows[lazy._offset])

    def hand_out(self) -> None:
        """Copy all arrays that somebody still holds, and let go of the arenas."""
        if self.chain is not None:
            self.chain.connect()
        held = self.held()
        self._take_out(find_memories(held))
        for lazy in held:
            if lazy._uncut is not None:
                recording.become([lazy], [lazy._uncut.real().detach()])

    def held(self) -> List[LazyNDArray]:
        """Return the arrays that belong to this and that somebody still holds."""
        held = (reference() for reference in self.lazies)
        return [lazy for lazy in held if lazy is not None and lazy._owner is self]

    def copies(self, memories: Memories) -> List[NDArray]:
        """Return copies of some memories."""
        columns = memories.name, memories.size, memories.whole
        groups: Dict[Any, List[int]] = {}
        for number, key in enumerate(zip(*(column.tolist() for column in columns))):
            groups.setdefault(key, []).append(number)
        found: Dict[int, NDArray] = {}
        for (arena, size, whole), numbers in groups.items():
            shape = (size,) if whole < 0 else TYPES[whole].shape
            starts = memories.first[numbers].tolist()
            # While autograd records, MXNet takes ten times as long to make a view.
            with autograd.pause(autograd.is_training()):
                found.update(zip(numbers, take_out(self._arenas[arena], shape, starts)))
        return [found[number] for number in range(len(memories.name))]

    def _take_out(self, memories: Memories) -> None:
        memories.become(self.copies(memories))


def _numbers(array: NDArray) -> np.ndarray[Any, Any]:
    """Return the elements of an arena, once they are computed."""
    array.wait_to_read()
    if array.context.device_type != "cpu":
        return array.asnumpy().reshape(-1)  # type: ignore[no-any-return]
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address_of(array))
    return np.frombuffer(memory, dtype)


def _windows(numbers: np.ndarray[Any, Any], shape: Tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return, by their first element, all arrays of a shape whose elements follow each other."""
    one = np.empty(shape, numbers.dtype)
    count, strides = len(numbers) - one.size + 1, (one.itemsize, *one.strides)
    return np.ndarray((count, *shape), one.dtype, numbers, 0, strides)
