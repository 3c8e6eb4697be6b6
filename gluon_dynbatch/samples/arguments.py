"""Passing samples to a function: as one argument, or a tuple as several arguments."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block
from mxnet.util import is_np_array

from ..errors import ArgumentError
from ..native import recording
from ..record.stock import FORWARDS
from ..record.where import user_line
from ..run.pool import allocate

#: Results that have not run yet, by type: the test for functions that return one, and its name.
UNSTARTED: Dict[type, Tuple[Callable[[Any], bool], str]] = {
    types.GeneratorType: (inspect.isgeneratorfunction, "a generator"),
    types.CoroutineType: (inspect.iscoroutinefunction, "a coroutine"),
    types.AsyncGeneratorType: (inspect.isasyncgenfunction, "an asynchronous generator"),
}


def iterator_of(samples: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over samples; raises `ArgumentError` for an object that has none."""
    try:
        return iter(samples)
    except TypeError:
        if hasattr(samples, "__iter__"):  # an error of its own
            raise
    what = f"the samples are an object of type {type(samples).__name__}, which is not iterable"
    advice = "pass a list of samples, or another iterable"
    raise ArgumentError.like(TypeError)(what, user_line(), None, advice)


def applier(fn: Callable[..., Any], generators: bool = False) -> Callable[[Any], Any]:
    """Return a function of one sample that calls `fn`, a function or a block.

    Raises `ArgumentError` if `fn` cannot be called, or is a coroutine function or, unless
    `generators` are allowed, a generator function.  The returned function raises it if `fn` does
    not take the sample.
    """
    if not callable(fn):
        what = f"an object of type {type(fn).__name__} cannot be called"
        raise ArgumentError(what, user_line(), None, "pass a function or a block")
    target, implicit = _call_target(fn)
    refused = dict(UNSTARTED)
    if generators:
        del refused[types.GeneratorType]
    for returns_it, name in refused.values():
        if returns_it(target):
            raise _unstarted_error(fn, name)
    signature = _signature(target, implicit)

    @functools.lru_cache(maxsize=None)
    def takes(count: int) -> bool:
        try:
            signature.bind(*[None] * count)
        except TypeError:
            return False
        return True

    takes_one = takes(1)
    # Defaults of a function may be variables that it keeps, as in ``lambda sample, net=net: ...``.
    may_take_both = takes_one and isinstance(fn, (Block, types.MethodType))

    def apply(sample: Any) -> Any:
        if takes_one:
            if may_take_both and type(sample) is tuple and len(sample) > 1 and takes(len(sample)):
                raise _ambiguous_error(fn, signature, sample)
            result = fn(sample)
        elif isinstance(sample, tuple) and takes(len(sample)):
            result = fn(*sample)
        else:
            raise _arguments_error(fn, signature, sample)
        if type(result) in refused:
            if not inspect.isasyncgen(result):
                result.close()
            raise _unstarted_error(fn, refused[type(result)][1])
        return result

    return apply


CPU = mx.cpu()
#: Arrays that a sample may be, or have.
ARRAYS = np.ndarray, mx.nd.NDArray
#: Data types of arrays that are converted.
CONVERTIBLE = frozenset(np.dtype(code) for code in ("?", "u1", "i4", "i8", "f2", "f4", "f8"))


def with_mxnet_arrays(samples: List[Any]) -> List[Any]:
    """Convert the NumPy arrays among the arguments to MXNet arrays in the current context.

    Arrays of one dtype become views of one array: one by one takes ten times as long.
    """
    context = mx.context.current_context()
    moved = None if context == CPU else context
    return recording.converted(samples, CONVERTIBLE, _allocate_flat, moved, is_np_array())


def _allocate_flat(size: int, dtype: Any) -> mx.nd.NDArray:
    return allocate((size,), dtype, CPU)


def shapes_of(sample: Any) -> Tuple[Any, ...]:
    """Return the shape of each argument of a sample; None for an argument that is no array."""
    arguments = sample if type(sample) is tuple else (sample,)
    return tuple([x.shape if isinstance(x, ARRAYS) else None for x in arguments])


def _call_target(fn: Any) -> Tuple[Any, Collection[str]]:
    """Return the function that gets the user's arguments, and the names of those MXNet adds."""
    if isinstance(fn, Block):
        if type(fn).__call__ is not Block.__call__:
            return fn.__call__, ()
        # Gluon's own ``__call__`` only passes its arguments on to ``forward``.
        if type(fn).forward not in FORWARDS:
            return fn.forward, ()
        hybrid: Any = fn
        first = next(iter(inspect.signature(hybrid.hybrid_forward).parameters), "")
        return hybrid.hybrid_forward, (first, *fn._reg_params)
    if inspect.isroutine(fn) or isinstance(fn, (type, functools.partial)):
        return fn, ()
    return fn.__call__, ()


def _signature(target: Any, implicit: Collection[str]) -> inspect.Signature:
    """Return the parameters for the user's arguments: any number if Python does not know them."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return inspect.signature(lambda *samples: None)
    parameters = [p for name, p in signature.parameters.items() if name not in implicit]
    return signature.replace(parameters=parameters)


def _name(fn: Any) -> str:
    return getattr(fn, "name" if isinstance(fn, Block) else "__name__", type(fn).__name__)


def _arguments_error(fn: Any, signature: inspect.Signature, sample: Any) -> ArgumentError:
    is_tuple = isinstance(sample, tuple)
    description = f"a tuple of {len(sample)}" if is_tuple else f"of type {type(sample).__name__}"
    parameters = ", ".join(map(str, signature.parameters.values()))
    return ArgumentError(
        f"{_name(fn)} takes the arguments ({parameters}), but the sample is {description}",
        user_line(),
        advice="make each sample a tuple of these arguments, or pass a function of one sample: "
        "lambda sample: net(sample[0], sample[1])",
    )


def _ambiguous_error(fn: Any, signature: inspect.Signature, sample: Any) -> ArgumentError:
    parameters = ", ".join(map(str, signature.parameters.values()))
    return ArgumentError(
        f"{_name(fn)} takes the arguments ({parameters}), so a sample that is a tuple of "
        f"{len(sample)} may be its first argument or {len(sample)} of them",
        user_line(),
        advice="pass a function that says which: lambda sample: net(*sample), or "
        "lambda sample: net(sample)",
    )


def _unstarted_error(fn: Any, result: str) -> ArgumentError:
    return ArgumentError(
        f"{_name(fn)} returns {result}, which would not run",
        user_line(),
        advice="pass a function that returns its result",
    )
