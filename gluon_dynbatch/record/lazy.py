"""Lazy arrays: what recorded calls return until, and after, their values are there."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle, indexing_key_expand_implicit_axes
from mxnet.util import is_np_shape

from ..errors import GradientError
from ..native import recording
from .types import TYPES
from .where import user_line

#: Types of indices that leave a part of an array, or its elements in another shape.
BASIC = (int, slice, type(None), type(Ellipsis))

#: What lazy arrays that have become real belong to.
_REALISED = recording.Tape()
_REALISED.open = False


class _OfConstant(int):
    """The offset, 0, of an array that a creation operator made.

    All that one operator makes are a single value until somebody looks into one or writes to it:
    a view has to be of the memory of its own array, which becomes real first.
    """

    __slots__ = ()


OF_CONSTANT = _OfConstant(0)


class Elsewhere(int):
    """An offset of an array that has other memory than its value; its views have that, too."""

    def __init__(self, _: int):
        #: Names the copy of a value that it lies in.
        self.copy: object = object()
        #: Once it is computed, the arena in which what it is cut from has its memory; and how much
        #: further that is.
        self.source: Optional[int] = None
        self.shift = 0

    def __add__(self, other: int) -> Elsewhere:
        moved = Elsewhere(int(self) + other)
        moved.copy, moved.source, moved.shift = self.copy, self.source, self.shift
        return moved

    __radd__ = __add__


class LazyNDArray(NDArray):  # type: ignore[misc]
    """An array that a scope has recorded and not yet computed.

    Its shape, dtype and context are known at once.  Whatever asks for its value, in this package or
    in any other code, makes it real, and from then on it is an array like any other.
    """

    __slots__ = ("_tape", "_value", "_offset", "_type", "_real", "__weakref__")

    def __init__(self, tape: Any, value: int, offset: int, type_id: int):
        # NDArrayBase.__init__ would store a handle, and there is none yet.
        self._tape = tape
        self._value = value
        self._offset = offset
        self._type = type_id
        self._real: Optional[NDArray] = None
        tape.lazies.append(weakref.ref(self))

    #: Storage type.
    stype = "default"
    writable = True

    # The base class frees the handle here, but it belongs to the real array, which does so itself.
    # There is nothing to do; a method of C does it in a third of the time of one of Python.
    __del__ = object.__hash__

    @property
    def handle(self) -> Any:
        """Handle of the real array; asking for it computes the value."""
        return self.real().handle

    def real(self) -> NDArray:
        """Return the computed array, computing everything that is pending if need be."""
        if self._real is None:
            self._tape.recorder.realise(self)
        return self._real

    def become(self, real: NDArray) -> None:
        """Take the value of `real`, for good."""
        self._real = real
        self._tape = _REALISED

    def asnumpy(self) -> Any:
        """Return a copy of the values as an array of NumPy's."""
        if self._tape.open and not self.constant:
            self._tape.recorder.compute(self)
        if self._real is None and isinstance(self._tape, recording.Keeper):
            return self._tape.read(self)
        return self.real().asnumpy()

    @property
    def shape(self) -> Tuple[int, ...]:
        """Tuple of sizes."""
        return TYPES[self._type].shape

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
        return bool(self._tape.open)

    @property
    def constant(self) -> bool:
        """Whether the value is pending, but known to be what a creation operator makes."""
        return type(self._offset) is _OfConstant and self._real is None

    @property
    def _has_views(self) -> bool:
        """Whether views can be made without a handle."""
        tape = self._tape
        recorded = tape.open and type(self._offset) is not _OfConstant
        return recorded or isinstance(tape, recording.Keeper)

    @property
    def memory(self) -> Tuple[Tuple[int, Any], int]:
        """What names the memory that it lies in or will, and the offset there, in elements.

        The name is a value, or the arena of one that is computed, and which copy of it.
        """
        (value, copy), first = self._tape.detached.get(self._value, ((self._value, None), 0))
        if type(self._offset) is Elsewhere:
            copy = self._offset.copy
            if self.is_cut:
                value, first = self._offset.source, self._offset.shift
        return (value, copy), first + int(self._offset)

    @property
    def is_cut(self) -> bool:
        """Whether it is computed, and shares the memory of what it is cut from."""
        return type(self._offset) is Elsewhere and self._offset.source is not None

    # ``__getitem__`` is native (see `recorder.py`): slices and numbers that were asked for before
    # it knows, for all others it calls this.
    def _index(self, key: Any) -> NDArray:
        parts = key if type(key) is tuple else (key,)
        basic = all(type(k) in BASIC or isinstance(k, np.integer) for k in parts)
        if not basic or not self._has_views:
            return self.real()[key]
        view = TYPES.view(self._type, key)
        if view is None:  # a recorded ``slice``
            whole_key, _ = indexing_key_expand_implicit_axes(key, self.shape)
            return self._get_nd_basic_indexing(whole_key)
        if TYPES[view[1]].elements == (1 if is_np_shape() else 0):
            return self.real()[key]
        return LazyNDArray(self._tape, self._value, self._offset + view[0], view[1])

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view of another shape; the arguments are those of ``NDArray.reshape``."""
        if not self._has_views:
            return self.real().reshape(*shape, **kwargs)
        if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
            shape = tuple(shape[0])
        if "shape" in kwargs:
            kwargs["shape"] = tuple(kwargs["shape"])
        kind = TYPES[self._type]._replace(shape=reshaped(self.shape, *shape, **kwargs))
        return LazyNDArray(self._tape, self._value, self._offset, TYPES.id_of(kind))

    def _reshaped(self, name: str, inplace: bool, *axis: Any) -> NDArray:
        """Return what a method of arrays makes that changes nothing but the shape."""
        if self._has_views and (inplace or self._tape.open):
            with contextlib.suppress(AssertionError):  # wrong axes
                view = getattr(NDArray, name)(self, *axis, inplace=True)
                view._offset = view._offset if inplace else Elsewhere(view._offset)
                return view
        return getattr(self.real(), name)(*axis, inplace=inplace)

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """Return a copy, or a view, with an axis of size one at `axis`."""
        return self._reshaped("expand_dims", inplace, axis)

    def flatten(self, inplace: bool = False) -> NDArray:
        """Return a copy, or a view, in which all axes but the first are one."""
        return self._reshaped("flatten", inplace)

    def squeeze(self, axis: Any = None, inplace: bool = False) -> NDArray:
        """Return a copy, or a view, without axes of size one."""
        return self._reshaped("squeeze", inplace, axis)

    def copy(self) -> NDArray:
        """Return a copy."""
        return mx.nd.identity(self) if self.pending else self.real().copy()

    def detach(self) -> NDArray:
        """Return the same values in the same memory, cut from the gradient graph."""
        pending = self._tape.open and not self.constant
        detached = self._tape.recorder.detach(self) if pending else None
        return self.real().detach() if detached is None else detached

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Compute the gradients of this array; as ``NDArray.backward``.

        Raises
        ------
        GradientError
            The graph is gone: all arrays of one flush share one, and backward frees it.
        """
        try:
            self.real().backward(out_grad, retain_graph, train_mode)
        except mx.MXNetError as error:
            if "not in a computational graph" not in str(error):
                raise
            raise GradientError(
                "this array is not in a graph: it was not recorded under autograd.record(), "
                "or backward has "
                "already been called on an array of the same flush",
                user_line(),
                None,
                "call mx.autograd.backward(losses) once for all arrays, or pass retain_graph=True",
            ) from error

    def __reduce__(self) -> Any:
        return self.real().__reduce__()


@functools.lru_cache(maxsize=10_000)
def reshaped(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shape that MXNet's ``reshape`` gives, by an array without memory."""
    return NDArray(_new_alloc_handle(old, mx.cpu(), True)).reshape(*args, **kwargs).shape
