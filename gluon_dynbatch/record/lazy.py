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
from mxnet.util import _NumpyArrayScope, is_np_shape

from ..native import recording
from .chosen import chosen_by
from .constants import remade, values_in
from .state import STATE
from .types import NODE_AT, TYPES, name_of, numpy_shapes

#: Types of basic indices: they select a part of an array or add an axis.
BASIC_INDICES = (int, slice, type(None), type(Ellipsis))


def _recordable(array: NDArray) -> NDArray:
    """Return an array, in a scope as a lazy one that is real, so that its calls are recorded."""
    return array if STATE.recorder is None or isinstance(array, Lazy) else recording.as_lazy(array)


def _is_open(owner: Any) -> bool:
    """Return whether the owner of a lazy array is a tape that still records calls."""
    return isinstance(owner, recording.Tape) and owner.open


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

    #: MXNet's class of such arrays.
    _class: Any
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
        lazy: Any = self
        real = self._class(value)
        lazy._type = TYPES.of(real)
        recording.become([lazy], [real])

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
            return _recordable(self.real().detach())
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
    _class = NDArray

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
            chosen = chosen_by(self, key)
            return self.real()[as_index(key)] if chosen is None else chosen
        if not recording.has_views(self._owner) or not self.shape:
            return _recordable(self.real()[key])
        view = TYPES.view(self._type, key)
        if view is None:  # not contiguous: record a ``slice``
            whole_key, _ = indexing_key_expand_implicit_axes(key, self.shape)
            return self._get_nd_basic_indexing(whole_key)
        if not TYPES[view[1]].elements and not is_np_shape():
            return self.real()[key]  # without NumPy's shapes, calls cannot be recorded
        if TYPES[view[1]].elements == 1 and is_np_shape():
            return _recordable(self.real()[key])
        lazy = self._view(*view, lambda base: base[key])
        return _recordable(self.real()[key]) if lazy is None else lazy

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view with another shape; the arguments are those of ``NDArray.reshape``."""
        if not recording.has_views(self._owner) or not self.shape:
            return _recordable(self.real().reshape(*shape, **kwargs))
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            # To calls that are recorded, a shape without axes is one that is not known.
            shape = tuple(shape[0])
            if not shape:
                return _recordable(self.real().reshape(shape, **kwargs))
        if "shape" in kwargs:
            kwargs["shape"] = tuple(kwargs["shape"])
        new_shape = infer_reshape(self.shape, *shape, **kwargs)
        type_id = TYPES.id_of(TYPES[self._type]._replace(shape=new_shape))
        lazy = self._view(0, type_id, lambda base: base.reshape(*shape, **kwargs))
        return _recordable(self.real().reshape(*shape, **kwargs)) if lazy is None else lazy

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
        return _as_other(self)


class LazyNumPy(Lazy, mx.np.ndarray):
    """A lazy array of ``mx.np``."""

    __slots__ = _slots(mx.np.ndarray)
    _class = mx.np.ndarray

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

    def _index(self, key: Any) -> Any:
        parts = key if type(key) is tuple else (key,)
        basic = all(type(k) in BASIC_INDICES or isinstance(k, np.integer) for k in parts)
        if not basic:
            chosen = chosen_by(self, key)
            return self.real()[as_index(key)] if chosen is None else chosen
        if not recording.has_views(self._owner):
            return _recordable(self.real()[key])
        view = TYPES.view(self._type, key, numpy=True)
        if view is None:  # not contiguous: record a ``slice``
            return super().__getitem__(key)
        if not TYPES[view[1]].elements:
            return _recordable(self.real()[key])
        lazy = self._view(*view, lambda base: base[key])
        return _recordable(self.real()[key]) if lazy is None else lazy

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
            return _recordable(self._numpy().reshape_view(*shape, **kwargs))
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            shape = (tuple(shape[0]),)
        new_shape = _infer_reshape_view(self.shape, *shape, **kwargs)
        type_id = TYPES.id_of(TYPES[self._type]._replace(shape=new_shape))

        def take(base: Any) -> NDArray:
            view: NDArray = base.reshape_view(*shape, **kwargs)
            return view

        lazy = self._view(0, type_id, take)
        if lazy is None:
            return _recordable(self._numpy().reshape_view(*shape, **kwargs))
        return lazy

    def _numpy(self) -> Any:
        return self.real()

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **kwargs: Any) -> Any:
        """Return a copy with another dtype; the arguments are those of ``mx.np.ndarray.astype``."""
        if not self.pending or args or kwargs:
            return self._numpy().astype(dtype, *args, copy=copy, **kwargs)
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return mx.nd.np._internal.cast(self, dtype=name_of(dtype))

    @property
    def dtype(self) -> Any:
        """Element type, of the class that ``mx.np`` gives."""
        return np.dtype(TYPES[self._type].dtype)

    def _copied(self) -> Any:
        return mx.nd.np.copy(self)

    def as_nd_ndarray(self) -> Any:
        """Return an array of ``mx.nd`` with the same memory."""
        return _as_other(self)


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


@functools.lru_cache(maxsize=10_000)
def infer_reshape(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shape that MXNet's ``reshape`` gives; it reshapes an array without memory."""
    return NDArray(_new_alloc_handle(old, mx.cpu(), True)).reshape(*args, **kwargs).shape


@functools.lru_cache(maxsize=10_000)
def _infer_reshape_view(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Do as `infer_reshape` for an array of ``mx.np``."""
    with numpy_shapes(True):
        array_: Any = mx.np.ndarray(_new_alloc_handle(old, mx.cpu(), True))
        return array_.reshape_view(*args, **kwargs).shape


def _as_other(array: Lazy) -> Any:
    """Return an array of the other class with the same memory."""
    base, owner, lazy = array._detached_from, array._owner, None
    is_numpy = isinstance(array, mx.np.ndarray)
    needs_no_base = base is None or isinstance(owner, recording.Constant)
    if array.shape and needs_no_base and recording.has_views(owner):
        lazy = recording.view_of(array, 0, array._type, other_class=True)
    if lazy is not None:
        return lazy
    real: Any = array.real()
    return _recordable(real.as_nd_ndarray() if is_numpy else real.as_np_ndarray())


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
)
_ADDRESSES: Any = [ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value for name in _CALLED]
recording.check_call = check_call
recording.connect(
    *(STATE, (LazyNDArray, LazyNumPy), (NDArray, mx.np.ndarray, Borrowed), NDArrayHandle),
    *(_NumpyArrayScope._current, (_NumpyArrayScope(False), _NumpyArrayScope(True))),
    *(NODE_AT, array("Q", _ADDRESSES)),
)
