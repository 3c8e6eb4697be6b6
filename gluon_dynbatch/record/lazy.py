"""Lazy arrays: the results of recorded calls, before and after they are computed."""

from __future__ import annotations

import ctypes
import functools
from array import array
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle, indexing_key_expand_implicit_axes
from mxnet.util import is_np_shape

from ..native import recording
from .constants import remade, values_of
from .state import STATE
from .types import NODE_AT, TYPES

#: Types of basic indices: they select a part of an array or add an axis.
BASIC_INDICES = (int, slice, type(None), type(Ellipsis))


def _is_open(owner: Any) -> bool:
    """Return whether the owner of a lazy array is a tape that still records calls."""
    return isinstance(owner, recording.Tape) and owner.open


class LazyNDArray(NDArray):
    """An array that a scope has recorded and not yet computed.

    Its shape, dtype and context are known at once.  Code that asks for its values, in this package
    or elsewhere, makes it real: from then on, it behaves as any other array.
    Native code creates lazy arrays.
    """

    __slots__ = ("_owner", "_value", "_offset", "_type", "_detached_from", "__weakref__")

    #: A tape, arenas (`run.keep.Kept`) or a `Constant`; or the real array, once there is one.  Code
    #: reads it once per decision, as another thread may make the array real in between.
    _owner: Any
    #: The value on the tape, or the arena; the offset in elements; and the id of the type.
    _value: int
    _offset: int
    _type: int
    #: Of a detached array, or of a part of a `Constant`, the array whose memory it shares.
    _detached_from: Optional[LazyNDArray]

    stype = "default"
    writable = True

    # The base class frees the handle here, but the handle belongs to the real array.  A function of
    # C that does nothing takes a third of the time of one in Python.
    __del__ = object.__hash__

    @property
    def handle(self) -> Any:
        """Handle of the real array; reading it computes the value."""
        return self.real().handle

    @handle.setter
    def handle(self, value: Any) -> None:
        """Give the array other memory, as restoring a pickled state does."""
        real = NDArray(value)
        self._type = TYPES.of(real)
        recording.become([self], [real])

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
            return values_of(owner.data, self)
        return self.real().asnumpy()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Tuple of sizes."""
        return TYPES[self._type].shape

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
    def pending(self) -> bool:
        """Whether the value is still to be computed."""
        return _is_open(self._owner)

    # MXNet's own methods go through `mx.nd`, which takes several times as long.
    __add__ = recording.arithmetic(NDArray.__add__, "_plus_scalar", "broadcast_add")
    __sub__ = recording.arithmetic(NDArray.__sub__, "_minus_scalar", "broadcast_sub")
    __rsub__ = recording.arithmetic(NDArray.__rsub__, "_rminus_scalar")
    __mul__ = recording.arithmetic(NDArray.__mul__, "_mul_scalar", "broadcast_mul")
    __truediv__ = recording.arithmetic(NDArray.__truediv__, "_div_scalar", "broadcast_div")
    __rtruediv__ = recording.arithmetic(NDArray.__rtruediv__, "_rdiv_scalar")
    # Looks up slices and numbers that were used before; calls `_index` for all other keys.
    __getitem__ = recording.index

    def _index(self, key: Any) -> NDArray:
        parts = key if type(key) is tuple else (key,)
        basic = all(type(k) in BASIC_INDICES or isinstance(k, np.integer) for k in parts)
        if not basic:
            chosen = chosen_by(self, parts)
            return self.real()[as_index(key)] if chosen is None else chosen
        if not recording.has_views(self._owner) or not self.shape:
            return self.real()[key]
        view = TYPES.view(self._type, key)
        if view is None:  # not contiguous: record a ``slice``
            whole_key, _ = indexing_key_expand_implicit_axes(key, self.shape)
            return self._get_nd_basic_indexing(whole_key)
        if TYPES[view[1]].elements == (1 if is_np_shape() else 0):
            return self.real()[key]
        lazy = self._view(*view, lambda base: base[key])
        return self.real()[key] if lazy is None else lazy

    def _view(
        self, offset: int, type_id: int, take: Callable[[NDArray], NDArray]
    ) -> Optional[NDArray]:
        """Return a view at an offset within this array; None if it needs a handle.

        `take` makes the same view of the array that this one is detached from.
        """
        base = self._detached_from
        if base is None or isinstance(self._owner, recording.Constant):
            lazy: Optional[NDArray] = recording.view_of(self, offset, type_id)
        else:
            lazy = recording.view_of(self, offset, type_id, take(base))
        return lazy

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view with another shape; the arguments are those of ``NDArray.reshape``."""
        if not recording.has_views(self._owner) or not self.shape:
            return self.real().reshape(*shape, **kwargs)
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            # To calls that are recorded, a shape without axes is one that is not known.
            shape = tuple(shape[0])
            if not shape:
                return self.real().reshape(shape, **kwargs)
        if "shape" in kwargs:
            kwargs["shape"] = tuple(kwargs["shape"])
        new_shape = infer_reshape(self.shape, *shape, **kwargs)
        type_id = TYPES.id_of(TYPES[self._type]._replace(shape=new_shape))
        lazy = self._view(0, type_id, lambda base: base.reshape(*shape, **kwargs))
        return self.real().reshape(*shape, **kwargs) if lazy is None else lazy

    def copy(self) -> NDArray:
        """Return a copy."""
        if self.pending:
            copied: NDArray = mx.nd.identity(self)
            return copied
        made = self._made_again(self.dtype)
        return self.real().copy() if made is None else made

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Return a copy of another dtype, or this array if it has the dtype and `copy` is False."""
        made = self._made_again(dtype) if copy or np.dtype(dtype) != self.dtype else self
        return self.real().astype(dtype, copy) if made is None else made

    def _made_again(self, dtype: Any) -> Optional[NDArray]:
        """Return a new array of the values of a `Constant`; None if MXNet has to make it."""
        owner = self._owner
        if STATE.recorder is None or not isinstance(owner, recording.Constant):
            return None
        made: Optional[NDArray] = None
        if self.shape and owner.holds(self):
            made = remade(owner, self, dtype)
        return made

    def detach(self) -> NDArray:
        """Return an array that shares the memory and is detached from the gradient graph."""
        if isinstance(self._owner, recording.Constant):
            part: LazyNDArray = recording.view_of(self, 0, self._type)
            return part
        if not _is_open(owner := self._owner) or STATE.recorder is not owner.recorder:
            return self.real().detach()
        with autograd.pause(autograd.is_training()):
            detached: LazyNDArray = mx.nd.identity(self)
        detached._detached_from = self if self._detached_from is None else self._detached_from
        return detached

    def attach_grad(self, grad_req: str = "write", stype: Optional[str] = None) -> None:
        """Attach a gradient, to the real array: MXNet makes zeros like it, which are no call."""
        self.real().attach_grad(grad_req, stype)

    def __reduce__(self) -> Any:
        return self.real().__reduce__()


def chosen_by(array: NDArray, parts: Tuple[Any, ...]) -> Any:
    """Record ``array[parts]`` for index arrays, as MXNet's own indexing calculates it.

    Returns None without a scope, and for other keys: MXNet's own indexing then reads values.  A key
    has arrays of one shape for the first axes, or one array for any axis, and whole slices.
    """
    indices = [part for part in parts if type(part) in (NDArray, LazyNDArray)]
    others, ndim = len(parts) - len(indices), len(array.shape)
    axis = next((i for i, part in enumerate(parts) if part is indices[0]), 0) if indices else 0
    whole = all(part == slice(None) for part in parts if type(part) is slice)
    fits = whole and others == sum(type(part) is slice for part in parts) and len(parts) <= ndim
    alike = len({(index.shape, index.context) for index in indices}) == 1
    if STATE.recorder is None or not (fits and alike and (not others or len(indices) == 1)):
        return None
    if indices[0].context != array.context or 0 in (*indices[0].shape, *array.shape):
        return None
    indices = [i if i.dtype is np.int32 else mx.nd.cast(i, dtype="int32") for i in indices]
    shape, count = indices[0].shape, len(indices[0].shape)
    index = mx.nd.stack(*indices) if len(indices) > 1 else indices[0].reshape((1, *shape))
    if not axis:
        return mx.nd.gather_nd(array, index)
    behind = range(axis + 1, ndim)
    turned = mx.nd.transpose(array, (axis, *range(axis), *behind))
    chosen = mx.nd.gather_nd(turned, index)
    # The axes of the index, those before the indexed one, and those behind it.
    moved = range(count, count + axis), range(count), range(count + axis, count + ndim - 1)
    return mx.nd.transpose(chosen, [i for axes in moved for i in axes])


def as_index(key: Any) -> Any:
    """Return a key of ``x[key]`` with computed arrays, which are in no graph, for lazy ones.

    MXNet has no gradient for them.  The results of a scope are results of one node of its tape,
    and for an index among them, MXNet makes zeros of an array that it no longer has.
    """
    if type(key) is tuple:
        return tuple(map(as_index, key))
    return key.real().detach() if type(key) is LazyNDArray else key


@functools.lru_cache(maxsize=10_000)
def infer_reshape(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shape that MXNet's ``reshape`` gives; it reshapes an array without memory."""
    return NDArray(_new_alloc_handle(old, mx.cpu(), True)).reshape(*args, **kwargs).shape


#: C functions of MXNet that native code calls, in the order of its struct `Functions`.
_CALLED = (
    *("MXNDArrayGetShapeEx64", "MXNDArrayGetDType", "MXNDArrayGetContext", "MXNDArrayGetData"),
    *("MXNDArrayWaitToRead", "MXNDArraySlice", "MXNDArrayAt", "MXNDArrayCreateEx64"),
    *("MXNDArrayReshape64",),
    *("MXAutogradIsRecording", "MXAutogradIsTraining", "MXAutogradSetIsRecording"),
)
_ADDRESSES: Any = [ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value for name in _CALLED]
recording.check_call = check_call
recording.connect(STATE, LazyNDArray, NDArray, NDArrayHandle, NODE_AT, array("Q", _ADDRESSES))
