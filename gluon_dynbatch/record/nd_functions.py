"""Replacements of functions of ``mx.nd``, and of arrays; those of blocks are in native code."""

from __future__ import annotations

import inspect
import time
from functools import partial, wraps
from typing import Any, Optional

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

from ..native import recording
from . import hazards
from .indexing import chosen_by
from .lazy import as_index
from .lazy_base import Lazy
from .many_arrays import MOST_WHOLE, WIDE, record_in_parts
from .operators import CONSTANTS, SCALAR_OPERATORS, operator_of
from .state import STATE


def invoke_hook(original: Any) -> Any:
    """Record the call of an operator if one of its arrays is lazy."""

    def invoke(
        handle: int, arrays: Any, keys: Any, values: Any, out: Any, is_np: bool, as_list: bool
    ) -> Any:
        recorder = STATE.recorder
        if recorder is None:
            return original(handle, arrays, keys, values, out, is_np, as_list)
        info = operator_of(handle)
        if info.writes or out is not None:
            written = out if isinstance(out, (list, tuple)) else [] if out is None else [out]
            recorder.refuse("it writes to an array")
            written = [*written, *(arrays if info.writes else ())]
            arrays_of_user = (array for array in written if isinstance(array, NDArray))
            computed = [array for array in arrays_of_user if recording.shares_memory(array)]
            hazards.before_write(recorder, *[array.handle for array in computed])
        if arrays:
            # A call that is traced has to be recorded to be repeated.
            wanted = recording.any_lazy(arrays) or recorder.tracing is not None
            records = wanted and info.writes != "always"
            if not wanted:
                recorder.count_ordinary(info.called)
        else:
            records = info.name in CONSTANTS and "ctx" in keys
        if not records or out is not None:
            recorder.refuse(f"it calls {info.called}, which runs at once")
            return original(handle, arrays, keys, values, out, is_np, as_list)
        token = "np" if is_np else "op", info.name, tuple(keys), tuple(map(str, values))
        if not arrays:
            constant = recorder.constants.get(token)
            if constant is not None:
                return constant.make()
            create = partial(original, handle, [], keys, values, None, is_np, as_list)
            return recorder.constant(token, create, lambda: CONSTANTS[info.name])
        operands = arrays
        if info.name in SCALAR_OPERATORS:
            token, operands = recorder.lift_number(token, arrays)
        callee = recorder.operators.get(token) or recorder.library.operator(token, info)
        if len(operands) > MOST_WHOLE and info.name in WIDE:
            results = record_in_parts(recorder, info, token, operands)
        else:
            results = recording.call(recorder, callee, operands)
        if type(results) is str:
            recorder.report_at_once(callee, results)
            return original(handle, arrays, keys, values, out, is_np, as_list)
        return results[0] if len(results) == 1 and not as_list else results

    return invoke


def _chosen_by_lazy(array: NDArray, key: Any) -> Optional[NDArray]:
    """Record the part of an array that pending index arrays choose, if `chosen_by` can."""
    parts = key if type(key) is tuple else (key,)
    pending = any(isinstance(part, Lazy) and part.pending for part in parts)
    return chosen_by(array, key) if pending else None


def index_hook(original: Any) -> Any:
    """Record the part that a key chooses."""

    def __getitem__(array: NDArray, key: Any) -> NDArray:
        view, recorder = recording.plain_view(array, key), STATE.recorder
        if view is None:
            view = _chosen_by_lazy(array, key)
        if view is None:
            key = as_index(key)
            view = original(array, key)
        trace = None if recorder is None else recorder.tracing
        # A trace must not keep a lazy array, the result of an operator, alive.
        if trace is not None and view is not array and not isinstance(view, Lazy):
            trace.views[id(view)] = view, array, autograd.is_recording(), "part", key
        return view

    return __getitem__


def reshape_hook(original: Any) -> Any:
    """Note a view, which a trace has to make again."""

    def reshape(array: NDArray, *shape: Any, **kwargs: Any) -> Any:
        view, recorder = original(array, *shape, **kwargs), STATE.recorder
        if recorder is not None and recorder.tracing is not None:
            how = autograd.is_recording(), "reshape", view.shape
            recorder.tracing.views[id(view)] = view, array, *how
        return view

    return reshape


def assign_hook(original: Any) -> Any:
    """Assign a lazy array as the array that it becomes."""

    def prepare(array: NDArray, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = value.real() if isinstance(value, Lazy) else value
        return original(array, value, *args, **kwargs)

    return prepare


def key_hook(original: Any) -> Any:
    """Index with the array that a lazy array becomes."""

    def get_index(array: NDArray, key: Any) -> Any:
        return original(array, as_index(key))

    return get_index


def nd_array_hook(original: Any) -> Any:
    """Make an array of numbers that are known as a lazy array."""

    def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> Any:
        recorder = STATE.recorder
        if recorder is not None:
            made = recording.made_array(source_array, ctx, dtype)
            if made is not None:
                return made
            recorder.refuse("it makes a large or empty array with mx.nd.array, or copies an array")
        return original(source_array, ctx, dtype)

    return array


def wait_hook(original: Any) -> Any:
    """Measure the time."""

    def wait(*args: Any) -> Any:
        if STATE.recorder is None:
            return original(*args)
        STATE.recorder.refuse("it reads a value")
        scope: Any = STATE.scope
        started = time.perf_counter()
        try:
            return original(*args)
        finally:
            scope.count_wait(time.perf_counter() - started)

    return wait


def named_hook(original: Any) -> Any:
    """Take the argument `name` that the form for symbols has."""
    signature = inspect.signature(getattr(mx.sym.contrib, original.__name__))

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arguments.pop("name", None)
        return original(**arguments)

    return call
