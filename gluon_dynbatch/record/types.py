"""Array types, interned to integers, and the memory of arrays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from array import array
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle
from numpy.typing import NDArray as Numbers

from ..modes import FLOATS, NUMPY_ARRAY, NUMPY_SHAPE
from ..native import recording

#: Number of elements of an array of a shape.
elements = math.prod


@functools.lru_cache(maxsize=None)
def name_of(dtype: Any) -> str:
    """Return NumPy's name of a dtype, e.g. ``"float32"``."""
    return np.dtype(dtype).name


def in_host_memory(context: mx.Context) -> bool:
    """Return whether native code can read and write the arrays of a context."""
    return context.device_type in ("cpu", "cpu_pinned", "cpu_shared")


@contextlib.contextmanager
def numpy_shapes(active: bool) -> Iterator[None]:
    """Switch NumPy's shapes on or off in this thread for a ``with`` statement.

    Without them, there are no arrays of ``mx.np``, either.
    """
    before = recording.current_mode()
    mode = before | NUMPY_SHAPE if active else before & ~(NUMPY_SHAPE | NUMPY_ARRAY)
    recording.set_mode(mode)
    try:
        yield
    finally:
        recording.set_mode(before)


@functools.lru_cache(maxsize=10_000)
def infer_reshape(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shape that MXNet's ``reshape`` gives; it reshapes an array without memory."""
    return NDArray(_new_alloc_handle(old, mx.cpu(), True)).reshape(*args, **kwargs).shape


@functools.lru_cache(maxsize=10_000)
def infer_reshape_view(old: Tuple[int, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Do as `infer_reshape` for an array of ``mx.np``."""
    with numpy_shapes(True):
        array_: Any = mx.np.ndarray(_new_alloc_handle(old, mx.cpu(), True))
        return array_.reshape_view(*args, **kwargs).shape


class ArrayType(NamedTuple):
    """The properties of an array that are known before it is computed."""

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
    """Return the memory of an array, given its handle: chunk, start and stop.

    MXNet's library has no function for this, so it is read from MXNet's own structures: an array
    begins with a pointer to its chunk, and a chunk with its address and size.

    An array and its views have the same chunk.  Start and stop are addresses, 0 before MXNet has
    allocated the memory.  Arrays that were created from one buffer of NumPy or DLPack have
    different chunks, but overlap in these.
    """
    chunk = _WORD.from_address(handle.value).value
    start, size = _PAIR.from_address(chunk) if chunk else (0, 0)
    return chunk, start, start + size if start else 0


def _find_node() -> int:
    """Return the word of an MXNet array that changes when the array becomes a variable."""
    array, gradient = (NDArray(_new_alloc_handle((1,), mx.cpu(), True)) for _ in range(2))
    words = (_WORD * 16).from_address(array.handle.value)
    before = list(words)
    autograd.mark_variables([array], [gradient])
    return next(i for i, (old, new) in enumerate(zip(before, words)) if old != new)


#: Offset in bytes, in an MXNet array, of the pointer to its node in MXNet's tape; null if it has no
#: node.  MXNet's library has no function for this.
NODE_AT = ctypes.sizeof(_WORD) * _find_node()


def _first_word_is_operator() -> bool:
    """Return whether a node begins with a pointer to its operator, null for a variable."""
    variable = mx.nd.zeros((1,))
    variable.attach_grad()
    with autograd.record():
        computed = variable * 2
    nodes = (_WORD.from_address(x.handle.value + NODE_AT).value for x in (variable, computed))
    return [bool(_WORD.from_address(node).value) for node in nodes] == [False, True]


#: Whether `is_leaf` can tell.
_LEAVES_ARE_KNOWN = _first_word_is_operator()


def is_leaf(node: int) -> bool:
    """Return whether a node of MXNet's tape, given by its address, is known to be no operator's."""
    return _LEAVES_ARE_KNOWN and not _WORD.from_address(node).value


class TypeTable(List[ArrayType]):
    """Array types by id: equal types have the same small integer."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: Dict[ArrayType, int] = {}
        #: Per type, the number of elements.
        self.sizes = array("q")
        #: Per type, the index of its kind; per kind, its dtype and context.
        self.kind_numbers = array("i")
        self.kinds: List[Tuple[str, mx.Context]] = []
        #: Per type, whether its dtype is a float and it has several rows, as weights do.
        self.has_rows = bytearray()
        self._lock = threading.RLock()

    def id_of(self, array_type: ArrayType) -> int:
        """Return the id of `array_type`; add the type if it is new."""
        type_id = self._ids.get(array_type)
        if type_id is None:
            with self._lock:
                type_id = self._ids.setdefault(array_type, len(self))
                if type_id == len(self):
                    rows = elements(array_type.shape[:1])
                    self.sizes.append(array_type.elements)
                    self.kind_numbers.append(self.kind_of(array_type.dtype, array_type.context))
                    self.has_rows.append(rows > 1 and array_type.dtype in FLOATS)
                    self.append(array_type)
        return type_id

    def kind_of(self, dtype: str, context: mx.Context) -> int:
        """Return the index of a dtype and a context in `kinds`; add them if they are new."""
        kind = dtype, context
        with self._lock:
            if kind not in self.kinds:
                self.kinds.append(kind)
            return self.kinds.index(kind)

    def columns(self, types: Numbers[Any]) -> Tuple[Numbers[Any], Numbers[Any]]:
        """Return the numbers of elements and the kinds of some types, given by id."""
        return np.array(self.sizes)[types], np.array(self.kind_numbers)[types]

    def view(self, type_id: int, key: Any, numpy: bool = False) -> Optional[Tuple[int, int]]:
        """Return the offset in elements and the type id of ``x[key]``, for a basic index.

        Returns None if the elements are not contiguous.  NumPy determines this with an array of
        bytes, which is neither written nor read, and raises if the index is out of bounds.  With
        `numpy`, a single element has no axes, as in ``mx.np``.
        """
        whole, parts = self[type_id], key if type(key) is tuple else (key,)
        stand_in = np.empty(whole.shape, np.int8)
        # With an ellipsis, NumPy returns an array for a single element, too.
        part = stand_in[parts if Ellipsis in parts else (*parts, Ellipsis)]
        if not part.flags.c_contiguous:
            return None
        offset = part.ctypes.data - stand_in.ctypes.data
        shape = part.shape if numpy else part.shape or (1,)
        view = offset, self.id_of(whole._replace(shape=shape))
        # Of `mx.nd`, empty views and single elements depend on MXNet's np_shape, so
        # `Lazy._index` has to see them each time.
        view_key = recording.view_key(type_id, key)
        if part.size and (part.shape or numpy) and view_key is not None:
            known = recording.known_numpy_views if numpy else recording.known_views
            if len(known) > MOST_VIEWS:
                known.clear()
            known[view_key] = view
        return view

    def of(self, value: NDArray) -> int:
        """Return the id of the type of a real array."""
        dtype = value.dtype
        # NumPy has no bfloat16: MXNet names it by a structure of one field.
        (name,) = getattr(dtype, "names", None) or [getattr(dtype, "__name__", str(dtype))]
        return self.id_of(ArrayType(value.shape, name, value.ctx))


#: Size of the cache of views; it is cleared when it is full.
MOST_VIEWS = 100_000

#: Array types of this process.  Scopes may share them, as they are immutable.
TYPES = TypeTable()
recording.connect_types(TYPES, TYPES.sizes)
recording.type_of = TYPES.of
