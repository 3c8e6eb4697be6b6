"""Types of arrays: what is known of an array without running anything."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle

from ..modes import FLOATS
from ..native import recording

#: Number of elements of an array of a shape.
elements = math.prod


@functools.lru_cache(maxsize=None)
def name_of(dtype: Any) -> str:
    """Return NumPy's name of an element type, e.g. ``"float32"``."""
    return np.dtype(dtype).name


class ArrayType(NamedTuple):
    """What is known of an array without running anything."""

    shape: Tuple[int, ...]
    #: See `name_of`.
    dtype: str
    context: mx.Context

    @property
    def elements(self) -> int:
        """Number of elements."""
        return elements(self.shape)


_WORD = ctypes.c_size_t
_PAIR = ctypes.c_size_t * 2


def memory_of(handle: Any) -> Tuple[int, int, int]:
    """Return where the values of an array lie, given its handle.

    That is a number, the same for an array and its views, and where the memory starts and stops, 0
    before MXNet has allocated it: arrays made from one buffer of NumPy's or of DLPack's have these
    in common only.  An array of MXNet's begins with the pointer to its memory, which begins with
    address and size; no function of its library tells all of it.
    """
    chunk = _WORD.from_address(handle.value).value
    start, size = _PAIR.from_address(chunk) if chunk else (0, 0)
    return chunk, start, start + size if start else 0


def _find_node() -> int:
    array, gradient = (NDArray(_new_alloc_handle((1,), mx.cpu(), True)) for _ in range(2))
    words = (_WORD * 16).from_address(array.handle.value)
    before = list(words)
    autograd.mark_variables([array], [gradient])
    return next(i for i, (one, other) in enumerate(zip(before, words)) if one != other)


#: Where an array of MXNet's has the pointer to its node in MXNet's tape, which is null if it has
#: none: no function of its library tells.
NODE_AT = ctypes.sizeof(_WORD) * _find_node()


class TypeTable(List[ArrayType]):
    """Array types by id: equal types get the same small integer."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: Dict[ArrayType, int] = {}
        #: Per type, the number of elements.
        self.sizes = array("q")
        #: Per type, the number of its kind; and the type of elements and the device of each kind.
        self._kind_of = array("i")
        self.kinds: List[Tuple[str, mx.Context]] = []
        #: Per type, whether it is one of floats in several rows, as a weight is.
        self.several = bytearray()
        self._lock = threading.RLock()

    def id_of(self, array_type: ArrayType) -> int:
        """Return the id of `array_type`, a new one if it was not seen before."""
        known = self._ids.get(array_type)
        if known is None:
            with self._lock:
                known = self._ids.setdefault(array_type, len(self))
                if known == len(self):
                    rows = elements(array_type.shape[:1])
                    self.sizes.append(array_type.elements)
                    self._kind_of.append(self.kind_of(*array_type[1:]))
                    self.several.append(rows > 1 and array_type.dtype in FLOATS)
                    self.append(array_type)
        return known

    def kind_of(self, *kind: Any) -> int:
        """Return the number of a type of elements and a device."""
        with self._lock:
            if kind not in self.kinds:
                self.kinds.append(kind)
            return self.kinds.index(kind)

    def columns(self, types: Any) -> Tuple[Any, Any]:
        """Return for arrays of some types the numbers of elements, and those of their kinds."""
        columns = np.array(self.sizes), np.array(self._kind_of)
        sizes, kinds = (column[types] for column in columns)
        return sizes, kinds

    def view(self, type_id: int, key: Any) -> Optional[Tuple[int, int]]:
        """Return offset in elements and type of ``x[key]``, for integers, slices and the like.

        None stands for elements that do not follow each other.  NumPy tells, by an array of bytes
        that nobody reads.

        Raises
        ------
        IndexError
            There are no such elements.
        """
        whole, parts = self[type_id], key if type(key) is tuple else (key,)
        stand_in = np.empty(whole.shape, np.int8)
        # With an ellipsis, a single element is an array, too.
        part = stand_in[parts if Ellipsis in parts else (*parts, Ellipsis)]
        if not part.flags.c_contiguous:
            return None
        first = part.ctypes.data - stand_in.ctypes.data
        view = first, self.id_of(whole._replace(shape=part.shape or (1,)))
        # What an element is depends on MXNet's np_shape: not for native code to tell.
        if part.size and part.shape:
            if len(recording.views) > MOST_VIEWS:
                recording.views.clear()
            known = recording.view_key(type_id, key)
            if known is not None:
                recording.views[known] = view
        return view

    def of(self, value: NDArray) -> int:
        """Return the id of the type of a real array."""
        dtype = value.dtype
        return self.id_of(
            ArrayType(value.shape, getattr(dtype, "__name__", str(dtype)), value.context)
        )


#: Views remembered before all are forgotten.
MOST_VIEWS = 100_000

#: Array types of this process.  Types are values: sharing them between scopes shares no state.
TYPES = TypeTable()
recording.type_of = TYPES.of
