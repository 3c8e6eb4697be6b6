"""Keep values in their arenas, where later flushes read them, until Python code needs them."""

from __future__ import annotations

import os
import threading
import weakref
from array import array as Integers
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Tuple, TypeVar

import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX
from mxnet.util import is_np_shape

from ..native import recording
from ..native.executing import Notice
from ..native.recording import elements_in
from ..record.lazy_base import Lazy
from ..record.state import STATE
from ..record.types import TYPES
from ..schedule.dependencies import Array
from .buffers import copy_out
from .pool import ArrayKind

Result = TypeVar("Result")

#: Types of NumPy, by the numbers that MXNet gives them.
NUMPY_TYPES = {code: np.dtype(kind) for kind, code in _DTYPE_NP_TO_MX.items() if kind is not None}


class Spots(NamedTuple):
    """Where lazy arrays are: columns, with one row per array."""

    #: The value that contains the array or, once it is computed, the arena.
    container: Array
    #: Its first element there, its number of elements, and its type.
    first: Array
    size: Array
    kind: Array

    def merged(self) -> Tuple[Array, ...]:
        """Merge arrays that overlap into ranges of elements.

        Returns the arrays in the order of their first elements, the positions in this order at
        which a range begins, and the number of elements of each range.
        """
        start = self.container * (self.first + self.size).max(initial=1) + self.first
        order = np.argsort(start, kind="stable")
        start, stop = start[order], np.maximum.accumulate((start + self.size)[order])
        begins = np.flatnonzero(np.append(len(start) > 0, start[1:] >= stop[:-1]))
        return order, begins, stop[np.append(begins, len(start))[1:] - 1] - start[begins]


def find_spots(arrays: List[Lazy]) -> Spots:
    """Return the spots of lazy arrays."""
    places = np.array(recording.places_of(arrays), dtype=np.int64)
    container, first, kind = places.reshape(-1, 3).T.copy()
    size, _ = TYPES.columns(kind)
    return Spots(container, first, size, kind)


class Memories(NamedTuple):
    """Kept arrays that become real, and their memories: the ranges of elements that they share."""

    #: The kept arrays, in the order of their memories.
    arrays: List[Lazy]
    #: Per kept array: the number of its memory, and its type.
    memory: Array
    kind: Array
    #: Per memory: its arena, its first element, and its number of elements.
    arena: Array
    first: Array
    size: Array
    #: Per memory: the type of a kept array that is all of it, or -1.
    whole: Array

    def groups(self) -> List[List[Lazy]]:
        """Return the kept arrays of each memory."""
        groups: List[List[Lazy]] = [[] for _ in self.size]
        for lazy, memory in zip(self.arrays, self.memory.tolist()):
            groups[memory].append(lazy)
        return groups

    def single(self) -> List[bool]:
        """Return per memory whether its copy becomes the only array that shares it."""
        counts = np.bincount(self.memory, minlength=len(self.size)).tolist()
        shapes = [None if kind < 0 else TYPES[kind].shape for kind in self.whole.tolist()]
        # Copies have axes, so an array without axes is a view.
        return [count == 1 and bool(shape) for count, shape in zip(counts, shapes)]

    def numpy(self, scalars: bool) -> Array:
        """Return per memory whether all its arrays are whole ones of ``mx.np``.

        Without `scalars`, only those with axes.
        """
        marks = np.frombuffer(recording.are_numpy(self.arrays), bool)
        found = np.zeros(len(self.size), bool)
        if marks.any():
            found[:] = True
            found[self.memory[~marks | (self.kind != self.whole[self.memory])]] = False
            shapes = [None if kind < 0 else TYPES[kind].shape for kind in self.whole.tolist()]
            found &= [bool(shape) or scalars and shape == () for shape in shapes]
        return found

    def become(self, copies: List[NDArray], recorded: bool = False) -> None:
        """Make the kept arrays real, given one array per memory; autograd may record the views.

        Then, each kept array is one of its own: of a head given twice, MXNet counts one gradient.
        """
        reals = [copies[memory] for memory in self.memory.tolist()]
        is_view = self.kind != self.whole[self.memory]
        if recorded and len(self.arrays) > len(self.size):
            alike = np.flatnonzero(~is_view)
            _, first = np.unique(self.memory[alike], return_index=True)
            is_view[np.delete(alike, first)] = True
        views = np.flatnonzero(is_view).tolist()
        if views:
            mode = autograd.record if recorded else autograd.pause
            with mode(autograd.is_training()):
                for i in views:
                    first = int(self.first[self.memory[i]])
                    reals[i] = view_in(reals[i], first, self.arrays[i])
        recording.become(self.arrays, reals)


def view_in(array: NDArray, first: int, lazy: Lazy) -> NDArray:
    """Return a lazy array as a view of its memory, which begins at element `first`."""
    flat, start = array.reshape((-1,)), lazy._offset - first
    if lazy.size != array.size:
        # Not by an index, which an open scope would record.
        flat = recording.part(flat, start, start + lazy.size)
    return flat.reshape(lazy.shape or (1,))


def find_memories(arrays: List[Lazy]) -> Memories:
    """Return the memories of kept arrays, except for arrays that are detached from others."""
    arrays = [array for array in arrays if array._detached_from is None]
    spots = find_spots(arrays)
    order, begins, counts = spots.merged()
    memory = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    kind, whole = spots.kind[order], np.full(len(begins), -1)
    # In reverse, so that the first array of a memory counts: NumPy keeps the last assignment.
    covering = np.flatnonzero(spots.size[order] == counts[memory])[::-1]
    whole[memory[covering]] = kind[covering]
    ordered, leading = [arrays[i] for i in order.tolist()], order[begins]
    return Memories(
        arrays=ordered,
        memory=memory,
        kind=kind,
        arena=spots.container[leading],
        first=spots.first[leading],
        size=counts,
        whole=whole,
    )


class Sharing:
    """A lock that is held while arrays become real: threads may share those of a closed scope."""

    def __init__(self) -> None:
        self._renew()
        # In the child of a fork, a thread that is gone may hold the lock.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def alone(self, work: Callable[[], Result]) -> Result:
        """Call a function while no other thread does, and return its result.

        Nor does the collector run code, which could make arrays real that are about to be, or end
        the scope that they are of.
        """
        return recording.locked(self._lock, lambda: recording.without_collector(work))


SHARING = Sharing()


class Connecting(Protocol):
    """The flushes of a scope, a `chain.Chain`."""

    def connect(self) -> None:
        """Make the flushes a node of MXNet's tape."""


class Kept(recording.Keeper):
    """The owner of computed lazy arrays, until they are copied out of the arenas of their flush.

    The value of such a lazy array is the number of an arena, and its offset is the first element
    there.  Arenas are not written to any more; code that needs a handle gets a copy.  `memory` are
    the arenas, of `size` bytes, the handles and addresses of the bases of the flush, which begin
    with its arenas, and the bytes of an element of each arena.  Arenas that nothing uses any more
    go to a `shelf`.  A `notice` tells when the flush is done, so that a read queues nothing in the
    engine; `is_done` says that it was from the beginning.  The other bases are not held: among them
    are arrays in arenas of the flush before, which would hold those of the one before it, and so
    all since the scope was opened.  If the arrays may get gradients, `chain` makes them results of
    a node of MXNet's tape.
    """

    def __init__(
        self,
        memory: Tuple[List[NDArray], Integers[int], Integers[int], List[int]],
        shelf: Optional[recording.Shelf],
        notice: Optional[Notice],
        is_done: bool,
        recorded: bool,
        size: int,
        chain: Optional[Connecting],
    ):
        self.memory, self._notice, self._is_done = memory, notice, is_done
        super().__init__(*memory, shelf)
        #: Returns the `Detached` of these arenas, if there is one.
        self._detached: Callable[[], Optional[Detached]] = lambda: None
        self.bytes = size
        #: By arena and type, the windows of `_windows`.
        self._windows: Dict[Tuple[int, int], Array] = {}
        self.recorded = recorded
        self.chain = chain

    def realise(self, lazy: Lazy) -> None:
        """Copy an array out of its arena, together with all others of this flush."""
        SHARING.alone(lambda: self._realise(lazy))

    def _realise(self, lazy: Lazy) -> None:
        if lazy._owner is not self:
            return  # another thread has just done it
        if all(reference() is not lazy for reference in self.lazies):
            # It is the copy of a lazy array that represents it on a later tape.
            self.copy_out([lazy])
        else:
            self._hand_out()

    def detached(self) -> Optional[Detached]:
        """Return the owner of arrays that are detached from these; None if no graph has these."""
        if not self.recorded:
            return None
        detached = self._detached()
        if detached is None:
            detached = Detached(self)
            self._detached = weakref.ref(detached)
        return detached

    def free_graph(self, arrays: List[Lazy]) -> None:
        """Let arrays be in no graph any more, given all that share memory with any of them."""
        if len(arrays) == len(self.held()):
            self.recorded = False
            return
        known = self._notice, self._is_done
        freed = Kept(self.memory, None, *known, False, self.bytes, None)
        for lazy in arrays:
            if lazy._owner is self:
                freed.lazies.append(weakref.ref(lazy))
                lazy._owner = freed
        STATE.waiting.append(weakref.ref(freed))

    def read(self, lazy: Lazy) -> Array:
        """Return the values of an array; the first read of a type waits for the whole arena."""
        key = lazy._value, lazy._type
        windows = self._windows.get(key)
        if windows is None:
            windows = self._windows[key] = _windows(self.elements_of(lazy._value), lazy.shape)
        return np.array(windows[lazy._offset])

    def wait_for(self, arena: int) -> Array:
        """Wait for an arena and return its elements, for `elements_of`."""
        array = self.arenas[arena]
        if not self._is_done:
            if self._notice is not None:
                self._notice.wait()
            array.wait_to_read()
        elements = elements_in(array, NUMPY_TYPES)
        return array.asnumpy().reshape(-1) if elements is None else elements

    def hand_out(self) -> None:
        """Let MXNet's tape have the arrays that may get gradients, and copy out all others."""
        SHARING.alone(self._hand_out)

    def _hand_out(self) -> None:
        if self.chain is not None and self.recorded:
            self.chain.connect()
        self.empty()

    def empty(self) -> None:
        """Copy out all arrays that are still held, so that nothing needs the arenas any more."""
        held = self.held()
        self.copy_out(held)
        for lazy in held:
            if lazy._detached_from is not None:
                recording.become([lazy], [lazy._detached_from.real().detach()])

    def held(self) -> List[Lazy]:
        """Return the arrays of this flush that are still held and not real yet."""
        return recording.held_by(self.lazies, self, self._detached() or self)

    def copies(self, memories: Memories, recorded: bool) -> List[NDArray]:
        """Return copies of memories, those of each arena by one push.

        If they become results of a node of MXNet's tape (`recorded`), all have axes.
        """
        scalars = is_np_shape() and not recorded
        codes = 2 * memories.whole + memories.numpy(scalars)
        codes = np.where(memories.whole < 0, ~memories.size, codes).tolist()
        kind_of = {code: _kind_of(code) for code in set(codes)}
        kinds, copies = [kind_of[code] for code in codes], []
        # Memories are in the order of their arenas.
        begins = np.flatnonzero(np.diff(memories.arena, prepend=-1)).tolist()
        for low, high in zip(begins, [*begins[1:], len(codes)]):
            columns = memories.first[low:high], memories.size[low:high]
            # While autograd records, making a view takes ten times as long.
            with autograd.pause(autograd.is_training()):
                source = self.arenas[int(memories.arena[low])]
                copies += copy_out(source, kinds[low:high], *columns)
        return copies

    def copy_out(self, arrays: List[Lazy]) -> None:
        """Copy arrays out of their arenas, except for those that are detached from others."""
        memories = find_memories(arrays)
        memories.become(self.copies(memories, recorded=False))


class Detached(recording.Keeper):
    """The owner of lazy arrays that share the memory of those of a `Kept`, and are in no graph."""

    def __init__(self, kept: Kept):
        super().__init__(*kept.memory)
        self._kept, self.lazies = kept, kept.lazies

    def realise(self, lazy: Lazy) -> None:
        """Let an array share the memory of the array that it is detached from."""
        SHARING.alone(lambda: self._realise(lazy))

    def _realise(self, lazy: Lazy) -> None:
        base: Any = lazy._detached_from
        if lazy._owner is self and base is None:  # it represents an array on a later tape
            self._kept.copy_out([lazy])
        elif lazy._owner is self:
            real = base.real().detach()  # this hands out all arrays of the flush
            recording.become([lazy], [real])

    def read(self, lazy: Lazy) -> Array:
        """Return the values of an array, as `Kept.read`."""
        return self._kept.read(lazy)

    def wait_for(self, arena: int) -> Array:
        """Wait for an arena and return its elements, as `Kept.wait_for`."""
        return self._kept.elements_of(arena)

    def detached(self) -> None:
        """Return None: no graph has these arrays."""


def _kind_of(code: int) -> ArrayKind:
    """Return the kind of a copy: flat, of ``~code`` elements, or the type ``code // 2``."""
    if code < 0:
        return (~code,), False
    numpy = bool(code % 2)
    return TYPES[code // 2].shape or (() if numpy else (1,)), numpy


def _windows(elements: Array, shape: Tuple[int, ...]) -> Array:
    """Return a view whose item `i` is the array of a shape that begins at element `i`."""
    window = np.empty(shape, elements.dtype)
    count, strides = len(elements) - window.size + 1, (window.itemsize, *window.strides)
    return np.ndarray((count, *shape), window.dtype, elements, 0, strides)
