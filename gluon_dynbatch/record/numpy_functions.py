"""Replacements of functions of ``mx.np`` that do not call an operator as others do."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import mxnet as mx
from mxnet.util import is_np_shape

from ..native import recording
from .constants import made_before, plain_shape
from .state import STATE


def array_hook(original: Any) -> Any:
    """Make an array of numbers that are known as a lazy array."""

    @wraps(original)
    def array(object: Any, dtype: Any = None, ctx: Any = None) -> Any:
        if STATE.recorder is not None and is_np_shape():
            made = recording.made_array(object, ctx, dtype, True)
            if made is not None:
                return made
        return original(object, dtype, ctx)

    return array


def zeros_hook(original: Any) -> Any:
    """Call the operator."""

    def zeros(shape: Any, dtype: Any, ctx: Any) -> Any:
        plain = None if STATE.recorder is None else plain_shape(shape)
        if plain is None:
            return original(shape, dtype, ctx)
        create = partial(mx.nd.np._internal.zeros, shape=plain, ctx=ctx, dtype=dtype or "float32")
        return made_before(("zeros", plain, ctx, dtype), create)

    return zeros


def tensordot_hook(original: Any) -> Any:
    """Call one of the two operators."""

    def tensordot(a: Any, b: Any, axes: Any) -> Any:
        if STATE.recorder is None:
            return original(a, b, axes)
        if isinstance(axes, int):
            return mx.nd.np._internal.tensordot_int_axes(a, b, axes)
        pair = [(axis,) if isinstance(axis, int) else tuple(axis) for axis in axes]
        return mx.nd.np._internal.tensordot(a, b, *pair)

    return tensordot
