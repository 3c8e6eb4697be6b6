"""Index arrays: ``x[indices]`` is recorded, and reads no value."""

from __future__ import annotations

from typing import Any, List

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.numpy import _internal as _npi

from .state import STATE

#: Types of what may be an index array.
_INDEX_ARRAYS = (NDArray, np.ndarray, list)
#: What `chosen_by` calls, of ``mx.nd`` and of ``mx.np``.
_CHOOSERS: Any = (
    (mx.nd.cast, mx.nd.stack, mx.nd.gather_nd, mx.nd.transpose),
    (_npi.cast, _npi.stack, _npi.gather_nd, mx.nd.np.transpose),
)


def chosen_by(array: Any, key: Any) -> Any:
    """Record ``array[key]`` for index arrays, as MXNet's own indexing calculates it.

    Returns None without a scope, and for other keys: MXNet's own indexing then reads values.  A key
    has numbers for the first axes, and then index arrays of one shape for the next axes, or whole
    slices and one array.  Masks are no index arrays.
    """
    parts = key if type(key) is tuple else (key,)
    first = next((i for i, part in enumerate(parts) if isinstance(part, _INDEX_ARRAYS)), 0)
    if STATE.recorder is None or not any(isinstance(part, _INDEX_ARRAYS) for part in parts):
        return None
    if first and all(type(part) is int for part in parts[:first]):
        return chosen_by(array[parts[:first]], parts[first:])
    is_numpy = isinstance(array, mx.np.ndarray)
    indices = _indices(array, [part for part in parts if isinstance(part, _INDEX_ARRAYS)])
    others, ndim = len(parts) - len(indices), len(array.shape)
    whole = all(part == slice(None) for part in parts if type(part) is slice)
    fits = whole and others == sum(type(part) is slice for part in parts) and len(parts) <= ndim
    if not indices or not fits or others and len(indices) > 1:
        return None
    cast, stack, gather_nd, transpose = _CHOOSERS[is_numpy]
    indices = [i if i.dtype == np.int32 else cast(i, dtype="int32") for i in indices]
    shape, count = indices[0].shape, len(indices[0].shape)
    if len(indices) > 1:
        index = stack(*indices)
    else:
        index = (indices[0].reshape_view if is_numpy else indices[0].reshape)((1, *shape))
    if not first:
        return gather_nd(array, index)
    behind = range(first + 1, ndim)
    chosen = gather_nd(transpose(array, (first, *range(first), *behind)), index)
    # The axes of the index, those before the indexed one, and those behind it.
    moved = range(count, count + first), range(count), range(count + first, count + ndim - 1)
    return transpose(chosen, [i for axes in moved for i in axes])


def _indices(array: Any, given: List[Any]) -> List[Any]:
    """Return index arrays as arrays of the class of another one; none if they are no such arrays.

    They have one shape and the context of the other array, and no array is empty.
    """
    is_numpy = isinstance(array, mx.np.ndarray)
    indices: List[Any] = []
    for index in given:
        if not isinstance(index, NDArray):
            try:
                values = np.array(index)
            except ValueError:  # lists of several lengths
                return []
            if values.dtype.kind not in "iu" or not values.size:
                return []
            make = mx.np.array if is_numpy else mx.nd.array
            index = make(values, dtype="int32", ctx=array.ctx)
        if index.dtype == np.bool_ or isinstance(index, mx.np.ndarray) != is_numpy:
            return []
        if index.ctx != array.ctx or not index.shape or index.stype != "default":
            return []
        indices.append(index)
    sizes = *(n for index in indices for n in index.shape), *array.shape
    return indices if len({i.shape for i in indices}) == 1 and 0 not in sizes else []
