"""Constants: arrays whose values are known when they are made, see `recording.Constant`."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX
from mxnet.ndarray.ndarray import array as make_array

from ..native import recording
from .state import STATE
from .types import TYPES, ArrayType, in_host_memory

#: Codes of dtypes in MXNet.
DTYPE_CODES: Dict[Any, int] = {
    type_: code for type_, code in _DTYPE_NP_TO_MX.items() if isinstance(type_, type)
}
#: Arguments of operators that fill an array.
FILLED = {"shape", "ctx", "dtype"}
#: Types of arguments of creation functions of which `repr` says all.
PLAIN = (int, float, bool, str, type, type(None), np.dtype, mx.Context)


def values_in(data: bytes, lazy: Any) -> Any:
    """Return a copy of the values of a lazy array, given those of its `Constant`."""
    array_type = TYPES[lazy._type]
    dtype = np.dtype(array_type.dtype)
    values = np.frombuffer(data, dtype, array_type.elements, lazy._offset * dtype.itemsize)
    return values.reshape(array_type.shape).copy()


def remade(constant: recording.Constant, lazy: Any, dtype: Any) -> Any:
    """Return an array of another dtype with the values of one of a constant.

    None if MXNet has to make it: numbers that a dtype does not have could become other ones.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        return None
    if constant.data is None or wanted.type not in DTYPE_CODES or wanted.kind == "b":
        return None
    values = lazy.asnumpy()
    if wanted.name not in ("float32", "float64"):
        whole = np.trunc(values) if wanted.kind in "iu" and values.dtype.kind == "f" else values
        with np.errstate(invalid="ignore"):
            if not (whole.astype(wanted).astype(values.dtype) == whole).all():
                return None
    return recording.made_array(values, lazy.context, wanted)


def constant_number(number: float, like: int, numpy: bool = False) -> Any:
    """Return a lazy array that has one number, and can be broadcast to an array of a type.

    With `numpy`, it is one of ``mx.np``.
    """
    type_id, class_ = _type_of_number(like)
    return recording.Constant(type_id, class_(number).tobytes(), numpy=numpy).make()


@functools.lru_cache(maxsize=None)
def _type_of_number(like: int) -> Tuple[int, Any]:
    """Return the type of an array of one number, and the class of this number in NumPy."""
    array_type = TYPES[like]
    shape = (1,) * len(array_type.shape)
    return TYPES.id_of(array_type._replace(shape=shape)), np.dtype(array_type.dtype).type


def constant_of(
    created: NDArray, token: Any, values_by_numpy: Callable[[], Any]
) -> Optional[recording.Constant]:
    """Return a constant that has the values of a new array; None if none can.

    `values_by_numpy` returns what NumPy makes of the same call.  With it, nothing has to wait until
    MXNet has computed the array.  It is None for calls that NumPy may not compute in the same way.
    """
    numpy = type(created) is mx.np.ndarray
    if not numpy and type(created) is not NDArray:
        return None
    dtype = np.dtype(created.dtype)
    if dtype.type not in DTYPE_CODES or not created.size or not (created.shape or numpy):
        return None
    type_id = TYPES.of(created)
    is_small = created.size * dtype.itemsize <= recording.MOST_VALUES
    is_known = is_small and in_host_memory(created.ctx)
    values = values_by_numpy() if is_known else None
    if values is None:
        return recording.Constant(type_id, None, recording.plain_array(created), token, numpy)
    data = np.broadcast_to(np.asarray(values, dtype), created.shape).tobytes()
    return recording.Constant(type_id, data, None, token, numpy)


def token_of(create: Callable[..., Any], args: Any, kwargs: Any) -> Optional[str]:
    """Return a token that is equal for calls that make equal arrays; None if that is not known."""
    for value in (*args, *kwargs.values()):
        parts = value if type(value) in (tuple, list) else (value,)
        if not all(type(part) in PLAIN for part in parts):
            return None
    return f"{create.__name__}{args}{kwargs}{mx.current_context()}"


def values_made(original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what NumPy makes of a call of a creation function, or None, see `constant_of`."""
    if original.__name__ not in BY_NUMPY:
        return None
    arguments = inspect.signature(original).bind(*args, **kwargs)
    arguments.apply_defaults()
    dtype = np.dtype(arguments.arguments["dtype"] or "float32")
    if dtype.name not in ("float16", "float32", "float64", "int32", "int64"):
        return None
    values = BY_NUMPY[original.__name__](arguments.arguments)
    if original.__name__ == "full" and dtype.name in ("float32", "float64"):
        return values
    # Of these, conversions and sums are exact.
    exact = np.isfinite(values).all() and (np.abs(values) < 2**11).all()
    return values if exact and (values == np.trunc(values)).all() else None


def _arange(given: Dict[str, Any]) -> Any:
    start, stop = (0, given["start"]) if given["stop"] is None else (given["start"], given["stop"])
    return np.repeat(np.arange(start, stop, given["step"]), given["repeat"])


#: Creation functions by name, as NumPy has them; the argument has the arguments by name.
BY_NUMPY: Dict[str, Callable[[Dict[str, Any]], Any]] = {
    "arange": _arange,
    "eye": lambda given: np.eye(given["N"], given["M"] or given["N"], given["k"]),
    "full": lambda given: np.float64(given["val"]) + 0.0,  # MXNet writes no -0.0
}


def create_hook(original: Any) -> Any:
    """Make equal arrays once per scope."""

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        recorder = STATE.recorder
        token = None if recorder is None else token_of(original, args, kwargs)
        if recorder is None or token is None:
            return original(*args, **kwargs)
        return recorder.constant(
            token,
            functools.partial(original, *args, **kwargs),
            functools.partial(values_made, original, args, kwargs),
        )

    return create


def filled_hook(original: Any) -> Any:
    """Find what an equal call of an operator that fills an array has made in this scope."""

    @functools.wraps(original)
    def fill(*args: Any, **kwargs: Any) -> Any:
        if STATE.recorder is None or args or kwargs.keys() != FILLED:
            return original(*args, **kwargs)
        shape = plain_shape(kwargs["shape"])
        if shape is None:
            return original(*args, **kwargs)
        return made_before(
            (original.__name__, shape, kwargs["ctx"], kwargs["dtype"]),
            functools.partial(original, **kwargs),
        )

    return fill


def plain_shape(shape: Any) -> Optional[Tuple[int, ...]]:
    """Return a shape as a tuple, or None if it is not of Python's own whole numbers."""
    if type(shape) is int:
        return (shape,)
    if type(shape) not in (tuple, list) or any([type(extent) is not int for extent in shape]):
        return None
    return tuple(shape)


def made_before(key: Any, create: Callable[[], Any]) -> Any:
    """Return an array of the constant that an equal call has made in this scope, or create it."""
    recorder: Any = STATE.recorder
    constant = recorder.constants.get(key)
    if constant is not None:
        return constant.make()
    made = create()
    owner = getattr(made, "_owner", None)
    if type(owner) is recording.Constant:
        recorder.constants[key] = owner
    return made


def _axed(shape: Tuple[int, ...], numpy: bool) -> Tuple[int, ...]:
    """Return a shape for an array of ``mx.nd``, given that of one that may be of ``mx.np``."""
    return (1,) if numpy and not shape else shape


def _part(array: NDArray, part: Any) -> NDArray:
    """Return the elements of an array that are those of a part of a `Constant`, as a view."""
    numpy = isinstance(part, mx.np.ndarray)
    with autograd.pause(autograd.is_training()):
        elements = recording.plain_array(array).reshape((-1,))
        return elements[part._offset : part._offset + part.size].reshape(_axed(part.shape, numpy))


def _realise(constant: recording.Constant, lazy: Any) -> None:
    if STATE.recorder is not None:
        STATE.recorder.refuse("it needs the memory of an array that it makes")
    whole = lazy._detached_from
    real = constant.copy() if whole is None else _part(whole.real(), lazy)
    recording.become([lazy], [real])


def _store(constant: recording.Constant) -> NDArray:
    """Return an array with the values of a constant, which native code cannot write there."""
    array_type, data = TYPES[constant.type], constant.data
    assert data is not None
    values = np.frombuffer(data, array_type.dtype).reshape(_axed(array_type.shape, constant.numpy))
    return make_array(values, array_type.context, array_type.dtype)


def _describe(type_id: int) -> Tuple[Any, ...]:
    """Return the arguments of a `Layout`."""
    shape, name, context = TYPES[type_id]
    dtype = np.dtype(name)
    sizes = TYPES.sizes[type_id], dtype.itemsize
    device = context.device_typeid, context.device_id
    return (shape, DTYPE_CODES[dtype.type], *device, *sizes, in_host_memory(context))


recording.realise_constant, recording.store_constant = _realise, _store
recording.describe_type = _describe
recording.type_of_parts = lambda *parts: TYPES.id_of(ArrayType(*parts))
recording.current_context, recording.context_type = mx.current_context, mx.Context
for _type, _code in DTYPE_CODES.items():
    _dtype = np.dtype(_type)
    recording.known_dtypes.update(
        dict.fromkeys((_dtype, _type, _dtype.name), (_dtype, _code, _dtype.itemsize))
    )
for _name, _same in {None: "float32", float: "float64", int: "int64", bool: "bool"}.items():
    recording.known_dtypes[_name] = recording.known_dtypes[_same]
