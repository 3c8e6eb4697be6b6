"""Lets MXNet's tape hold results of custom functions, where it would read memory that is none.

MXNet makes a gradient that is known to be zero from the array whose gradient it is: in
``BlockGrad(2 * y)`` that of `y` from `y`, whether its tape holds `y` or not.  Of the results of a
custom function it holds none, and the process would crash.  It holds the operands of some
operators: of those whose gradient is always zero, such as ``shape_array``, and with oneDNN of
``Concat``, which takes a tenth of the time if there are many small arrays.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Array, c_char_p, c_int, c_void_p
from typing import Any, Dict, List

from mxnet.base import _LIB, c_array, c_handle_array, check_call
from mxnet.ndarray import NDArray
from mxnet.runtime import Features

from ..native import recording
from ..native.executing import OneAtATime
from ..record.types import TYPES, elements

#: Elements of the largest arrays that it takes longer to name than to copy.
MOST_COPIED = 4096
_JOINS = Features().is_enabled("MKLDNN")
#: The function itself, not its replacement.
_INVOKE = _LIB["MXImperativeInvokeEx"]


def _operator(name: bytes) -> c_void_p:
    handle = c_void_p()
    check_call(_LIB.NNGetOpHandle(name, ctypes.byref(handle)))
    return handle


_SHAPE, _CONCAT = _operator(b"shape_array"), _operator(b"Concat")


def _call(operator: c_void_p, count: int, handles: Array[c_void_p], **attributes: int) -> None:
    """Call an operator of some arrays, and drop its result."""
    results, kinds = POINTER(c_void_p)(), POINTER(c_int)()
    keys = c_array(c_char_p, [name.encode() for name in attributes])
    values = c_array(c_char_p, [str(value).encode() for value in attributes.values()])
    found: Any = ctypes.byref(c_int()), ctypes.byref(results), len(keys), keys, values
    check_call(_INVOKE(operator, count, handles, *found, ctypes.byref(kinds)))
    check_call(_LIB.MXNDArrayFree(c_void_p(results[0])))


def _hold(arrays: List[NDArray]) -> None:
    alike: Dict[int, List[NDArray]] = {}
    for array, type_id in zip(arrays, recording.type_ids_of(arrays)):
        alike.setdefault(type_id, []).append(array)
    for type_id, group in alike.items():
        size = elements(TYPES[type_id].shape)
        if len(group) > 1 and 0 < size <= MOST_COPIED and _JOINS:
            _call(_CONCAT, len(group), c_handle_array(group), num_args=len(group), dim=0)
            continue
        for array in group:
            _call(_SHAPE, 1, c_handle_array([array]))


#: Let MXNet's tape hold arrays that it has recorded; autograd records.
hold = OneAtATime(_hold)
