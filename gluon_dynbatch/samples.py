"""How samples are given to a function: as one argument, or a tuple as several."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Callable, Collection, Dict, List, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block

from .errors import ArgumentError
from .native.recording import part
from .record.hooks import REPLACES
from .record.intercept import FORWARDS
from .record.where import user_line

#: Only passes arguments on to ``forward``.
CALL = Block.__call__

#: Types of what is yet to be run, which functions return it, and what it is called.
UNSTARTED: Dict[type, Tuple[Callable[[Any], bool], str]] = {
    types.GeneratorType: (inspect.isgeneratorfunction, "a generator"),
    types.CoroutineType: (inspect.iscoroutinefunction, "a coroutine"),
    types.AsyncGeneratorType: (inspect.isasyncgenfunction, "an asynchronous generator"),
}


def applier(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function of one sample that calls `fn`.

    Parameters
    ----------
    fn : callable
        A function or a block.

    Raises
    ------
    ArgumentError
        `fn` cannot be called, or is a generator function or a coroutine function; or, when it is
        applied, `fn` does not take the sample.
    """
    if not callable(fn):
        what = f"an object of type {type(fn).__name__} cannot be called"
        raise ArgumentError(what, user_line(), None, "pass a function or a block")
    called, given = _called(fn)
    for is_function, what in UNSTARTED.values():
        if is_function(called):
            raise _unstarted(fn, what)
    signature = _signature(called, given)

    @functools.lru_cache(maxsize=None)
    def takes(count: int) -> bool:
        try:
            signature.bind(*[None] * count)
        except TypeError:
            return False
        return True

    alone = takes(1)

    def apply(sample: Any) -> Any:
        if alone:
            result = fn(sample)
        elif isinstance(sample, tuple) and takes(len(sample)):
            result = fn(*sample)
        else:
            raise _misfit(fn, signature, sample)
        if type(result) in UNSTARTED:
            if not inspect.isasyncgen(result):
                result.close()
            raise _unstarted(fn, UNSTARTED[type(result)][1])
        return result

    return apply


#: NumPy's types of which `mx.nd.from_numpy` makes arrays.
TAKEN = [np.dtype(kind) for kind in ("?", "u1", "i4", "i8", "f2", "f4", "f8")]


def with_arrays(samples: List[Any]) -> List[Any]:
    """Return samples whose arguments of NumPy are arrays of MXNet's, in the current context.

    All of a type come as one array, of which they are parts: one by one takes ten times as long.
    """
    found: Dict[Any, Dict[int, Any]] = {}
    for sample in samples:
        for x in sample if type(sample) is tuple else (sample,):
            if type(x) is np.ndarray and x.dtype in TAKEN and x.ndim and x.size:
                found.setdefault(x.dtype, {})[id(x)] = x
    arrays: Dict[int, Any] = {}
    for same in found.values():
        flat = mx.nd.from_numpy(np.concatenate([x.reshape(-1) for x in same.values()]))
        flat, start = flat.as_in_context(mx.context.current_context()), 0
        for number, x in same.items():
            own = part(flat, start, start + x.size)
            arrays[number] = own if x.ndim == 1 else own.reshape(x.shape)
            start += x.size
    return [
        tuple([arrays.get(id(x), x) for x in sample])
        if type(sample) is tuple
        else arrays.get(id(sample), sample)
        for sample in samples
    ]


def _called(fn: Any) -> Tuple[Any, Collection[str]]:
    """Return what takes the arguments of a call, and names of those that MXNet gives to it."""
    if isinstance(fn, Block):
        call = type(fn).__call__
        if getattr(call, REPLACES, call) is not CALL:
            return fn.__call__, ()
        if type(fn).forward not in FORWARDS:
            return fn.forward, ()
        first = next(iter(inspect.signature(fn.hybrid_forward).parameters), "")
        return fn.hybrid_forward, (first, *fn._reg_params)
    if inspect.isroutine(fn) or isinstance(fn, (type, functools.partial)):
        return fn, ()
    return fn.__call__, ()


def _signature(called: Any, given: Collection[str]) -> inspect.Signature:
    """Return what a user may pass: anything if Python does not tell."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return inspect.signature(lambda *samples: None)
    kept = [p for name, p in signature.parameters.items() if name not in given]
    return signature.replace(parameters=kept)


def _name(fn: Any) -> str:
    return getattr(fn, "name" if isinstance(fn, Block) else "__name__", type(fn).__name__)


def _misfit(fn: Any, signature: inspect.Signature, sample: Any) -> ArgumentError:
    given = f"of type {type(sample).__name__}"
    if isinstance(sample, tuple):
        given = f"a tuple of {len(sample)}"
    taken = ", ".join(map(str, signature.parameters.values()))
    return ArgumentError(
        f"{_name(fn)} takes the arguments ({taken}), but the sample is {given}",
        user_line(),
        advice="make each sample a tuple of these arguments, or map a function of one sample: "
        "map(lambda sample: net(sample[0], sample[1]), samples)",
    )


def _unstarted(fn: Any, what: str) -> ArgumentError:
    return ArgumentError(
        f"{_name(fn)} returns {what}, which map does not run",
        user_line(),
        advice="map a function that returns its result",
    )
