"""Parts of plain arrays that are in MXNet's graph: what native code asks of Python."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, List, Optional, Tuple, cast

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.util import is_np_shape

from ..native import recording
from .lazy import BASIC_INDICES
from .operators import OperatorInfo, operator_of
from .state import ThreadRecorder
from .types import TYPES, ArrayType


@functools.lru_cache(maxsize=None)
def _take() -> OperatorInfo:
    """Return the properties of the operator that takes rows."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(b"take", ctypes.byref(handle)))
    return operator_of(handle.value or 0)


def _callee_of_take(recorder: Any, numpy: bool) -> Any:
    """Return the callee that takes rows of an array, of ``mx.nd`` or of ``mx.np``."""
    token = "np" if numpy else "op", "take", ("axis", "mode"), ("0", "clip")
    return recorder.operators.get(token) or recorder.library.operator(token, _take())


def _numbers(recorder: Any, excerpt: recording.Excerpt) -> Any:
    """Return the numbers of rows, of which a scope has one constant."""
    context, numpy = excerpt.array.ctx, isinstance(excerpt.array, mx.np.ndarray)
    token = "rows", excerpt.first, excerpt.count, context, numpy
    constant = recorder.constants.get(token)
    if constant is None:
        rows = np.arange(excerpt.first, excerpt.first + excerpt.count, dtype=np.int32)
        type_id = TYPES.id_of(ArrayType(rows.shape, "int32", context))
        constant = recording.Constant(type_id, rows.tobytes(), None, token, numpy)
        recorder.constants[token] = constant
    return constant.make()


def _realise(excerpt: recording.Excerpt, lazy: Any) -> None:
    """Make a part real: MXNet's own view of the rows, or a view of that."""
    rows, shape = excerpt.rows(), lazy.shape
    with autograd.record(autograd.is_training()):
        if rows.shape != shape:
            if rows.size != lazy.size:
                flat, start = rows.reshape((-1,)), lazy._offset
                rows = recording.part(flat, start, start + lazy.size)
            if not shape and isinstance(lazy, mx.np.ndarray) and is_np_shape():
                rows = rows.as_np_ndarray().reshape(())
            else:
                rows = rows.reshape(shape or (1,))
    recording.become([lazy], [rows])


def _view(type_id: int, key: Any, numpy: bool) -> Optional[Tuple[int, int]]:
    """Return the offset and the type of a part of a plain array; None if MXNet has to make it."""
    parts = key if type(key) is tuple else (key,)
    basic = all(type(k) in BASIC_INDICES or isinstance(k, np.integer) for k in parts)
    if not basic or not TYPES[type_id].elements or not TYPES[type_id].shape:
        return None
    try:
        view = TYPES.view(type_id, key, numpy)
    except IndexError:
        return None  # MXNet's own indexing raises
    if view is None or not TYPES[view[1]].elements:
        return None
    return None if TYPES[view[1]].elements == 1 and is_np_shape() and not numpy else view


def settle_parts(recorder: ThreadRecorder, handles: List[int]) -> None:
    """Let parts stay what they are: of arrays with these handles, which become variables anew."""
    recording.settle_excerpts(cast(recording.Calls, recorder), handles)


recording.realise_excerpt, recording.callee_of_take = _realise, _callee_of_take
recording.view_of_type, recording.numbers_of_rows = _view, _numbers
