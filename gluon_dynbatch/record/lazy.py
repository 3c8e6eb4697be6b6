"""Lazy arrays of each interface: results of recorded calls, before and after they are computed."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import indexing_key_expand_implicit_axes
from mxnet.util import _NumpyArrayScope, is_np_shape

from ..native import recording
from .constants import remade
from .indexing import chosen_by
from .lazy_base import Lazy, recordable
from .state import STATE
from .types import NODE_AT, TYPES, infer_reshape, infer_reshape_view, name_of, numpy_shapes

#: Types of basic indices: they select a part of an array or add an axis.
BASIC_INDICES = (int, slice, type(None), type(Ellipsis))


def _slots(array_class: type) -> Tuple[str, ...]:
    """Return the slots of the lazy arrays of a class, which are at the same places in all of them.

    An array of ``mx.np`` has fields that one of ``mx.nd`` does not have.  Python puts slots in the
    order of their names.
    """
    names = ["_owner", "_value", "_offset", "_type", "_detached_from"]
    missing = mx.np.ndarray.__basicsize__ - array_class.__basicsize__
    names += [f"_at{i}" for i in range(missing // ctypes.sizeof(ctypes.c_void_p))]
    return (*names, *(["__weakref__"] if not array_class.__weakrefoffset__ else []))


class LazyNDArray(Lazy, NDArray):
    """A lazy array of ``mx.nd``."""

    __slots__ = _slots(NDArray)
    _class, _reader = NDArray, "asscalar"

    # MXNet's own methods go through `mx.nd`, which takes several times as long.
    __add__ = recording.arithmetic(NDArray.__add__, "_plus_scalar", "broadcast_add")
    __sub__ = recording.arithmetic(NDArray.__sub__, "_minus_scalar", "broadcast_sub")
    __rsub__ = recording.arithmetic(NDArray.__rsub__, "_rminus_scalar")
    __mul__ = recording.arithmetic(NDArray.__mul__, "_mul_scalar", "broadcast_mul")
    __truediv__ = recording.arithmetic(NDArray.__truediv__, "_div_scalar", "broadcast_div")
    __rtruediv__ = recording.arithmetic(NDArray.__rtruediv__, "_rdiv_scalar")
    # Looks up slices and numbers that were used before; calls `_index` for all other keys.
    __getitem__ = recording.index
    asscalar = recording.scalar_reader(NDArray.asscalar)

    def _index(self, key: Any) -> NDArray:
        parts = key if type(key) is tuple else (key,)
        basic = all(type(k) in BASIC_INDICES or isinstance(k, np.integer) for k in parts)
        if not basic:
            chosen = chosen_by(self, key)
            return self.real()[as_index(key)] if chosen is None else chosen
        if not recording.has_views(self._owner) or not self.shape:
            return recordable(self.real()[key])
        view = TYPES.view(self._type, key)
        if view is None:  # not contiguous: record a ``slice``
            whole_key, _ = indexing_key_expand_implicit_axes(key, self.shape)
            return self._get_nd_basic_indexing(whole_key)
        if not TYPES[view[1]].elements and not is_np_shape():
            return self.real()[key]  # without NumPy's shapes, calls cannot be recorded
        if TYPES[view[1]].elements == 1 and is_np_shape():
            return recordable(self.real()[key])
        lazy = self._view(*view, lambda base: base[key])
        return recordable(self.real()[key]) if lazy is None else lazy

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view with another shape; the arguments are those of ``NDArray.reshape``."""
        if not recording.has_views(self._owner) or not self.shape:
            return recordable(self.real().reshape(*shape, **kwargs))
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            # To calls that are recorded, a shape without axes is one that is not known.
            shape = tuple(shape[0])
            if not shape:
                return recordable(self.real().reshape(shape, **kwargs))
        if "shape" in kwargs:
            kwargs["shape"] = tuple(kwargs["shape"])
        new_shape = infer_reshape(self.shape, *shape, **kwargs)
        type_id = TYPES.id_of(TYPES[self._type]._replace(shape=new_shape))
        lazy = self._view(0, type_id, lambda base: base.reshape(*shape, **kwargs))
        return recordable(self.real().reshape(*shape, **kwargs)) if lazy is None else lazy

    def __repr__(self) -> str:
        # MXNet writes the name of the class.
        return super().__repr__().replace(f"<{type(self).__name__} ", f"<{NDArray.__name__} ")

    def copy(self) -> NDArray:
        """Return a copy."""
        made = None if self.pending else self._made_again(self.dtype)
        return super().copy() if made is None else made

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> NDArray:
        """Return a copy with another dtype; the arguments are those of ``NDArray.astype``."""
        same = {*args, *kwargs.values()} == {False} and np.dtype(dtype) == self.dtype
        made = self if same else self._made_again(dtype)
        return self.real().astype(dtype, *args, **kwargs) if made is None else made

    def _made_again(self, dtype: Any) -> Optional[NDArray]:
        """Return a new array of the values of a `Constant`; None if MXNet has to make it."""
        owner, made = self._owner, None
        is_constant = STATE.recorder is not None and isinstance(owner, recording.Constant)
        if is_constant and self.shape and owner.holds(self):
            made = remade(owner, self, dtype)
        return made

    def _copied(self) -> Any:
        return mx.nd.identity(self)

    def as_np_ndarray(self) -> Any:
        """Return an array of ``mx.np`` with the same memory."""
        return self._as_other()


class LazyNumPy(Lazy, mx.np.ndarray):
    """A lazy array of ``mx.np``."""

    __slots__ = _slots(mx.np.ndarray)
    _class, _reader = mx.np.ndarray, "item"

    __add__ = recording.arithmetic(mx.np.ndarray.__add__, "_npi_add_scalar", "_npi_add", True)
    __sub__ = recording.arithmetic(
        mx.np.ndarray.__sub__, "_npi_subtract_scalar", "_npi_subtract", True
    )
    __rsub__ = recording.arithmetic(mx.np.ndarray.__rsub__, "_npi_rsubtract_scalar", None, True)
    __mul__ = recording.arithmetic(
        mx.np.ndarray.__mul__, "_npi_multiply_scalar", "_npi_multiply", True
    )
    __truediv__ = recording.arithmetic(
        mx.np.ndarray.__truediv__, "_npi_true_divide_scalar", "_npi_true_divide", True
    )
    __rtruediv__ = recording.arithmetic(
        mx.np.ndarray.__rtruediv__, "_npi_rtrue_divide_scalar", None, True
    )
    __getitem__ = recording.index
    item = recording.item_reader(mx.np.ndarray.item)

    def _index(self, key: Any) -> Any:
        parts = key if type(key) is tuple else (key,)
        basic = all(type(k) in BASIC_INDICES or isinstance(k, np.integer) for k in parts)
        if not basic:
            chosen = chosen_by(self, key)
            return self.real()[as_index(key)] if chosen is None else chosen
        if not recording.has_views(self._owner):
            return recordable(self.real()[key])
        view = TYPES.view(self._type, key, numpy=True)
        if view is None:  # not contiguous: record a ``slice``
            return super().__getitem__(key)
        if not TYPES[view[1]].elements:
            return recordable(self.real()[key])
        lazy = self._view(*view, lambda base: base[key])
        return recordable(self.real()[key]) if lazy is None else lazy

    def __len__(self) -> int:
        shape = TYPES[self._type].shape
        if not shape:
            raise TypeError("len() of unsized object")
        return shape[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        # MXNet's own method tests whether the value is of the class of this array.
        self.real()[as_index(key)] = value

    def reshape_view(self, *shape: Any, **kwargs: Any) -> Any:
        """Return a view with another shape; ``reshape`` returns a copy."""
        if not recording.has_views(self._owner):
            return recordable(self._numpy().reshape_view(*shape, **kwargs))
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            shape = (tuple(shape[0]),)
        new_shape = infer_reshape_view(self.shape, *shape, **kwargs)
        type_id = TYPES.id_of(TYPES[self._type]._replace(shape=new_shape))

        def take(base: Any) -> NDArray:
            view: NDArray = base.reshape_view(*shape, **kwargs)
            return view

        lazy = self._view(0, type_id, take)
        if lazy is None:
            return recordable(self._numpy().reshape_view(*shape, **kwargs))
        return lazy

    def _numpy(self) -> Any:
        return self.real()

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **kwargs: Any) -> Any:
        """Return a copy with another dtype; the arguments are those of ``mx.np.ndarray.astype``."""
        plain = not args and not kwargs
        if plain and not copy and np.dtype(dtype) == self.dtype:
            return self
        if not self.pending or not plain:
            return self._numpy().astype(dtype, *args, copy=copy, **kwargs)
        return mx.nd.np._internal.cast(self, dtype=name_of(dtype))

    @property
    def dtype(self) -> Any:
        """Element type, of the class that ``mx.np`` gives."""
        return np.dtype(TYPES[self._type].dtype)

    def _copied(self) -> Any:
        return mx.nd.np.copy(self)

    def as_nd_ndarray(self) -> Any:
        """Return an array of ``mx.nd`` with the same memory."""
        return self._as_other()


class Borrowed(NDArray):
    """An array of ``mx.nd`` with the handle of one of ``mx.np``, which it keeps alive."""

    __slots__ = ("_lender",)

    __del__ = object.__hash__  # as for `Lazy`


def as_index(key: Any) -> Any:
    """Return a key of ``x[key]`` with computed arrays, which are in no graph, for lazy ones.

    MXNet has no gradient for them.  The results of a scope are results of one node of its tape,
    and for an index among them, MXNet makes zeros of an array that it no longer has.
    """
    if type(key) is tuple:
        return tuple(map(as_index, key))
    return key.real().detach() if isinstance(key, Lazy) else key


def _reshaped(array: NDArray, shape: Tuple[int, ...], array_class: Any) -> Any:
    """Return a view of an array; it has the gradient of the array."""
    handle = NDArrayHandle()
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    in_graph = recording.in_graph([array])[0]
    mode = autograd.record if in_graph else autograd.pause
    with numpy_shapes(True), mode(autograd.is_training()):
        check_call(
            _LIB.MXNDArrayReshape64(array.handle, len(shape), sizes, False, ctypes.byref(handle))
        )
    return array_class(handle)


def _as_numpy(array: NDArray, shape: Tuple[int, ...]) -> NDArray:
    """Return an array as one of ``mx.np``, with the same memory and gradient."""
    return recording.shared_array(array) if shape else _reshaped(array, (), mx.np.ndarray)


def _without_axes(array: NDArray) -> NDArray:
    """Return an array of ``mx.np`` without axes as one of ``mx.nd`` with one axis."""
    view: NDArray = _reshaped(array, (1,), NDArray)
    return view


recording.as_numpy, recording.without_axes = _as_numpy, _without_axes

#: C functions of MXNet that native code calls, in the order of its struct `Functions`.
_CALLED = (
    *("MXNDArrayGetShapeEx64", "MXNDArrayGetDType", "MXNDArrayGetContext", "MXNDArrayGetData"),
    *("MXNDArrayWaitToRead", "MXNDArraySlice", "MXNDArrayAt", "MXNDArrayCreateEx64"),
    *("MXNDArrayReshape64",),
    *("MXAutogradIsRecording", "MXAutogradIsTraining", "MXAutogradSetIsRecording"),
    *("MXAutogradSetIsTraining", "MXIsNumpyShape", "MXSetIsNumpyShape", "MXShallowCopyNDArray"),
    *("MXNDArrayGetGrad", "MXNDArrayGetStorageType", "MXNDArraySetGradState", "MXNDArrayFree"),
)
_ADDRESSES: Any = [ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value for name in _CALLED]
recording.check_call = check_call
recording.connect(
    *(STATE, (LazyNDArray, LazyNumPy), (NDArray, mx.np.ndarray, Borrowed), NDArrayHandle),
    *(_NumpyArrayScope._current, (_NumpyArrayScope(False), _NumpyArrayScope(True))),
    *(NODE_AT, array("Q", _ADDRESSES)),
)
