"""Lazy arrays: what recorded calls return until, and after, their values are there."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.util import is_np_shape

from ..errors import GradientError
from ..native import recording
from .types import ROW, TYPES, ArrayType, elements
from .where import user_line

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

    def _view(self, shape: Tuple[int, ...], first: int = 0) -> NDArray:
        """Return elements from the `first` on in another shape, without recording a call."""
        array_type = TYPES[self._type]
        type_id = TYPES.id_of(ArrayType(shape, array_type.dtype, array_type.context))
        return LazyNDArray(self._tape, self._value, self._offset + first, type_id)

    # ``__getitem__`` is native (see `recorder.py`): slices and numbers that were asked for before
    # it knows, for all others it calls this.
    def _index(self, key: Any) -> NDArray:
        if not self._has_views:
            return self.real()[key]
        view = None
        if type(key) is slice and (key.step is None or key.step == 1):
            view = TYPES.view(self._type, key.start, key.stop)
        elif type(key) is int and not (self.ndim == 1 and is_np_shape()):
            view = TYPES.view(self._type, key, ROW)
        if view is not None:
            return LazyNDArray(self._tape, self._value, self._offset + view[0], view[1])
        if type(key) is tuple and key and all(type(k) in (int, slice) for k in key):
            return self._slice_axes(key)
        if isinstance(key, np.integer):
            return self._index(int(key))
        return self.real()[key]

    def _slice_axes(self, key: Tuple[Any, ...]) -> NDArray:
        """Index several axes at once: a view where MXNet makes one, else a recorded ``slice``."""
        shape = self.shape
        if len(key) > len(shape):
            raise IndexError(f"{len(key)} indices for an array with {len(shape)} axes")
        cuts, kept = [], []
        for size, k in zip(shape, key):
            if type(k) is int and not -size <= k < size:
                raise IndexError(f"index {k} is out of bounds for an axis of size {size}")
            cut = slice(k % size, k % size + 1) if type(k) is int else k
            cuts.append(cut.indices(size))
            if type(k) is not int:
                kept.append(len(range(*cuts[-1])))
        if 0 in kept or not kept and len(key) == len(shape) and is_np_shape():
            return self.real()[key]
        kept.extend(shape[len(key) :])
        wanted = tuple(kept) or (1,)
        if _is_one_piece(cuts, shape):
            first = sum(cut[0] * elements(shape[a + 1 :]) for a, cut in enumerate(cuts))
            return self._view(wanted, first=first)
        # A stop of -1 would mean "the last" to the operator; None means "to the very end".
        begin, end, step = zip(*((a, None if b < 0 else b, c) for a, b, c in cuts))
        return mx.nd.slice(self, begin=begin, end=end, step=step).reshape(wanted)

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view of another shape; the arguments are those of ``NDArray.reshape``."""
        if not self._has_views:
            return self.real().reshape(*shape, **kwargs)
        asked = kwargs.get(
            "shape", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        )
        known = resolve_shape(self.shape, tuple(asked))
        if known is None or kwargs.get("reverse"):
            return mx.nd.reshape(self, shape=tuple(asked), reverse=bool(kwargs.get("reverse")))
        return self._view(known)

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


def _is_one_piece(cuts: List[Tuple[int, int, int]], shape: Tuple[int, ...]) -> bool:
    """Whether slices of the first axes leave elements that follow each other in memory."""
    lengths = [len(range(*cut)) for cut in cuts]
    several = next((axis for axis, length in enumerate(lengths) if length != 1), None)
    return several is None or (
        cuts[several][2] == 1
        and all(cut == (0, size, 1) for cut, size in zip(cuts[several + 1 :], shape[several + 1 :]))
    )


def resolve_shape(old: Tuple[int, ...], asked: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    """Return the shape that ``reshape`` gives, or None if `asked` uses codes beyond 0 and -1."""
    if any(n < -1 for n in asked) or asked.count(-1) > 1 or not asked:
        return None
    try:
        new = [old[i] if n == 0 else n for i, n in enumerate(asked)]
    except IndexError:
        return None
    known = elements([n for n in new if n != -1])
    total = elements(old)
    if -1 in new:
        if not known or total % known:
            raise ValueError(f"cannot reshape an array of shape {old} into {asked}")
        new[new.index(-1)] = total // known
    elif known != total:
        raise ValueError(f"cannot reshape an array of shape {old} into {asked}")
    return tuple(new)
