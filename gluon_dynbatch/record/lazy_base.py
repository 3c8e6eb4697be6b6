"""What lazy arrays of both interfaces do."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..native import recording
from .constants import values_in
from .state import STATE
from .types import TYPES


def recordable(array: NDArray) -> NDArray:
    """Return an array, in a scope as a lazy one that is real, so that its calls are recorded."""
    return array if STATE.recorder is None or isinstance(array, Lazy) else recording.as_lazy(array)


def _is_open(owner: Any) -> bool:
    """Return whether the owner of a lazy array is a tape that still records calls."""
    return isinstance(owner, recording.FlatTape) and owner.open


class Lazy:
    """An array that a scope has recorded and not yet computed.

    Its shape, dtype and context are known at once.  Code that asks for its values, in this package
    or elsewhere, makes it real: from then on, it behaves as any other array.
    Native code creates lazy arrays.  This is the base of its two classes.
    """

    __slots__ = ()

    #: A tape, arenas (`run.keep.Kept`) or a `Constant`; or the real array, once there is one.  Code
    #: reads it once per decision, as another thread may make the array real in between.
    _owner: Any
    #: The value on the tape, or the arena; the offset in elements; and the id of the type.
    _value: int
    _offset: int
    _type: int
    #: Of a detached array, or of a part of a `Constant`, the array whose memory it shares.
    _detached_from: Optional[Any]

    #: MXNet's class of such arrays, and its function that reads single elements.
    _class: Any
    _reader: str
    stype = "default"
    writable = True

    # The base class frees the handle here, but the handle belongs to the real array.  A function of
    # C that does nothing takes a third of the time of one in Python.
    __del__ = object.__hash__

    def _restore(self, value: Any) -> None:
        """Give the array other memory, as restoring a pickled state does."""
        lazy: Any = self
        real = self._class(value)
        lazy._type = TYPES.of(real)
        recording.become([lazy], [real])

    #: Handle of the real array; reading it computes the value.
    handle = property(recording.handle_of_lazy, _restore)

    def real(self) -> NDArray:
        """Return the computed array; if it is pending, compute everything that is pending."""
        while isinstance(owner := self._owner, recording.Owner):
            owner.realise(self)
        real: NDArray = owner
        return real

    def asnumpy(self) -> Any:
        """Return a copy of the values as a NumPy array."""
        if _is_open(owner := self._owner):
            owner.realise(self)
        if isinstance(owner := self._owner, recording.Keeper):
            return owner.read(self)
        if isinstance(owner, recording.Constant) and owner.data is not None and owner.holds(self):
            if STATE.recorder is not None:
                STATE.recorder.reads(owner)
            return values_in(owner.data, self)
        return self.real().asnumpy()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Tuple of sizes."""
        return TYPES[self._type].shape

    def __len__(self) -> int:
        # MXNet's own method asks for the shape by a property, of `mx.np` twice.
        return TYPES[self._type].shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return TYPES.sizes[self._type]

    @property
    def dtype(self) -> Any:
        """Element type, as a NumPy type."""
        return np.dtype(TYPES[self._type].dtype).type

    @property
    def context(self) -> mx.Context:
        """Device of the array."""
        return TYPES[self._type].context

    @property
    def ctx(self) -> mx.Context:
        """Device of the array, by the name that ``mx.np`` uses."""
        return TYPES[self._type].context

    @property
    def pending(self) -> bool:
        """Whether the value is still to be computed."""
        return _is_open(self._owner)

    def _copied(self) -> Any:
        """Record a copy."""
        raise NotImplementedError

    def _view(
        self, offset: int, type_id: int, take: Callable[[NDArray], NDArray]
    ) -> Optional[NDArray]:
        """Return a view at an offset within this array; None if it needs a handle.

        `take` makes the same view of an array that is real.
        """
        base = None if isinstance(self._owner, recording.Constant) else self._detached_from
        of_base, leaves_graph = None, recording.leaves_graph(self)
        if base is not None:
            if isinstance(base, Lazy):
                of_base = recording.view_of(base, offset, type_id)
            of_base = take(base) if of_base is None else of_base
        lazy = recording.view_of(self, offset, type_id, of_base)
        view: Optional[NDArray] = lazy.detach() if leaves_graph and lazy is not None else lazy
        return view

    def _as_other(self) -> Any:
        """Return an array of the other class with the same memory."""
        base, owner, lazy = self._detached_from, self._owner, None
        needs_no_base = base is None or isinstance(owner, recording.Constant)
        if self.shape and needs_no_base and recording.has_views(owner):
            lazy = recording.view_of(self, 0, self._type, other_class=True)
        if lazy is not None:
            return lazy
        real: Any = self.real()
        is_numpy = issubclass(self._class, mx.np.ndarray)
        return recordable(real.as_nd_ndarray() if is_numpy else real.as_np_ndarray())

    def copy(self) -> NDArray:
        """Return a copy."""
        return self._copied() if self.pending else self.real().copy()

    def detach(self) -> Any:
        """Return an array that shares the memory and is detached from the gradient graph."""
        owner = self._owner
        if isinstance(owner, recording.Constant):
            return recording.view_of(self, 0, self._type)
        if isinstance(owner, recording.Keeper):
            base: Any = self._detached_from
            keeper = owner.detached() if base is None else None
            base = self if base is None else base
            detached = recording.view_of(self, 0, self._type, base, keeper=keeper)
            return self.detach() if detached is None else detached
        if not _is_open(owner) or STATE.recorder is not owner.recorder:
            return recordable(self.real().detach())
        with autograd.pause(autograd.is_training()):
            detached = self._copied()
        detached._detached_from = self if self._detached_from is None else self._detached_from
        return detached

    def attach_grad(self, *args: Any, **kwargs: Any) -> None:
        """Attach a gradient, to the real array: MXNet makes zeros like it, which are no call."""
        self.real().attach_grad(*args, **kwargs)

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Compute the gradients of the variables that this array depends on."""
        heads: Any = [self]
        given = None if out_grad is None else [out_grad]
        autograd.backward(heads, given, retain_graph, train_mode)

    def __reduce__(self) -> Any:
        return self.real().__reduce__()
