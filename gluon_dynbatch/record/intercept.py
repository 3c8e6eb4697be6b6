"""The functions of MXNet that this package replaces: `TABLE` has all of them.

The replacements act for threads that have a scope open; for any other they pass the call on.  What
is replaced for good is what lazy arrays and backward passes need after their scope.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock, nn, rnn
from mxnet.ndarray import NDArray, register

from ..modes import RECORDING, TRAINING
from . import hazards
from .hooks import REPLACES, Hooks, Lifetime, Replaced, replaced_pair
from .lazy import LazyNDArray
from .operators import Operator, operator_of
from .state import STATE


def _invoke_hook(original: Any) -> Any:
    def invoke(
        handle: int,
        arrays: List[Any],
        keys: List[str],
        values: List[Any],
        out: Any,
        is_np_op: bool,
        output_is_list: bool,
    ) -> Any:
        recorder = STATE.recorder
        if recorder is None:
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        info = operator_of(handle)
        if info.mutates:
            recorder.refuse("it writes to an array")
            hazards.before_write(recorder, arrays)
        if out is not None:
            recorder.refuse("it writes to an array")
            hazards.before_write(recorder, out if isinstance(out, (list, tuple)) else [out])
        if arrays:
            wanted = any(type(a) is LazyNDArray for a in arrays) and not info.overwrites
        else:
            wanted = info.creates and "ctx" in keys
        if not wanted or out is not None or is_np_op:
            recorder.refuse(f"it calls {info.name}, which runs at once")
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        callee = Operator(info, tuple(keys), tuple(map(str, values)))
        if not arrays:
            return recorder.constant(callee.token)
        results = recorder.invoke(callee, arrays)
        if results is None:
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        return results[0] if len(results) == 1 and not output_is_list else results

    return invoke


#: By class of a block: whether its ``forward`` only passes arguments on to ``hybrid_forward``, and
#: whether that is MXNet's own, and nothing but operators.
_CLASSES: Dict[type, Tuple[bool, bool]] = {}
_FORWARDS = (HybridBlock.forward, rnn.RecurrentCell.forward)
#: Their ``hybrid_forward`` is the user's, or keeps something from call to call.
_NOT_PLAIN = (nn.HybridLambda, rnn.ModifierCell, SymbolBlock)


def _class_of(kind: type) -> Tuple[bool, bool]:
    forward = getattr(kind, "forward", None)
    passes = issubclass(kind, HybridBlock) and getattr(forward, REPLACES, forward) in _FORWARDS
    calls = [base for base in kind.__mro__ if "__call__" in vars(base)]
    stock = kind.__module__.startswith("mxnet.gluon.") and calls == [Block]
    _CLASSES[kind] = passes, passes and stock and not issubclass(kind, _NOT_PLAIN)
    return _CLASSES[kind]


def is_stock(block: Block) -> bool:
    """Whether a block and all in it are MXNet's own, and nobody has to see their calls."""
    inner = block._children.values()
    hooked = block._forward_hooks or block._forward_pre_hooks
    kind = type(block)
    return not hooked and (_CLASSES.get(kind) or _class_of(kind))[1] and all(map(is_stock, inner))


def _any_lazy(args: Any) -> bool:
    for arg in args:
        kind = type(arg)
        if kind is LazyNDArray or kind in (list, tuple) and _any_lazy(arg):
            return True
    return False


def _call_hook(original: Any) -> Any:
    def call(block: Block, *args: Any) -> Any:
        recorder = STATE.recorder
        if recorder is not None:
            kind = type(block)
            passes, stock = _CLASSES.get(kind) or _class_of(kind)
            if passes and block._active:
                if not (block._forward_hooks or block._forward_pre_hooks):
                    return recorder.call_block(block, args)
            elif stock and _any_lazy(args) and is_stock(block):
                results = recorder.call_plain(block, args)
                if results is not NotImplemented:
                    return results
        return original(block, *args)

    return call


def _cached_op_hook(original: Any) -> Any:
    def call_cached_op(block: HybridBlock, *args: Any) -> Any:
        recorder = STATE.recorder
        if recorder is None and STATE.batch is not None:
            recorder = STATE.batch.recorder_of(block)
        if recorder is None:
            return original(block, *args)
        return recorder.call_block(block, args)

    return call_cached_op


def _change_hook(before: Any, original: Any) -> Any:
    def change(*args: Any) -> Any:
        if STATE.recorder is not None:
            STATE.recorder.refuse(
                "it changes a parameter, writes to an array, or makes one of given values, "
                "which belongs among its arguments"
            )
            before(STATE.recorder, *args)
        return original(*args)

    return change


def _index_hook(original: Any) -> Any:
    def read(array: NDArray, key: Any) -> NDArray:
        key = key.real() if type(key) is LazyNDArray else key
        view, recorder = original(array, key), STATE.recorder
        if recorder is not None and recorder.tracing is not None:
            recorder.tracing.views[id(view)] = view, array, key
        return view

    return read


def _assign_hook(original: Any) -> Any:
    def prepare(array: NDArray, value: Any, *args: Any, **kwargs: Any) -> NDArray:
        value = value.real() if type(value) is LazyNDArray else value
        return original(array, value, *args, **kwargs)

    return prepare


def _wait_hook(original: Any) -> Any:
    def wait(*args: Any) -> Any:
        if STATE.recorder is None:
            return original(*args)
        STATE.recorder.refuse("it asks for a value")
        batch: Any = STATE.batch
        started = time.perf_counter()
        try:
            return original(*args)
        finally:
            batch.count_wait(time.perf_counter() - started)

    return wait


def _mode_hook(original: Any) -> Any:
    def set_mode(*args: Any) -> Any:
        done = original(*args)
        if STATE.recorder is not None:
            STATE.recorder.mode = current_mode()
        return done

    return set_mode


def current_mode() -> int:
    """Ask autograd for the mode of this thread."""
    return int(RECORDING * autograd.is_recording() | TRAINING * autograd.is_training())


def set_mode(mode: int) -> None:
    """Put autograd into a mode."""
    autograd.set_recording(bool(mode & RECORDING))
    autograd.set_training(bool(mode & TRAINING))


def _library(
    lifetime: Lifetime, why: str, make: Optional[Callable[[Any], Any]], *names: str
) -> Iterable[Replaced]:
    """Yield functions of MXNet's C library: so it does not matter by which name Python has them."""
    return (Replaced(_LIB, name, lifetime, why, make) for name in names)


def _changes(why: str, before: Callable[..., None], *names: str) -> Iterable[Replaced]:
    """Yield functions before which pending calls run that may see what they change."""
    make = functools.partial(_change_hook, before)
    return _library(Lifetime.RECORDING, why, make, *names)


#: What waits for a value.
WAITS = ("MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead")

#: Every function of MXNet that this package replaces.
TABLE: Tuple[Replaced, ...] = (
    Replaced(
        HybridBlock,
        "_call_cached_op",
        Lifetime.OPEN,
        "calls of hybridized blocks are recorded, or counted if they run at once",
        _cached_op_hook,
    ),
    Replaced(
        register,
        "_imperative_invoke",
        Lifetime.RECORDING,
        "calls of operators are recorded if an array is lazy; all of mx.nd's functions, most "
        "methods of arrays, and what is in blocks that are not hybridized, come by here",
        _invoke_hook,
    ),
    Replaced(
        Block,
        "__call__",
        Lifetime.RECORDING,
        "a call of a hybridized block is one call, and so is one of MXNet's own blocks, hybridized "
        "or not, if an array is lazy",
        _call_hook,
    ),
    Replaced(
        NDArray,
        "__getitem__",
        Lifetime.RECORDING,
        "a lazy array as an index has to be real",
        _index_hook,
    ),
    Replaced(
        Parameter,
        "__setattr__",
        Lifetime.RECORDING,
        "a parameter gets other arrays, a device, or another grad_req",
        functools.partial(_change_hook, hazards.before_change),
    ),
    *_changes(
        "gradients go to arrays that are not named",
        hazards.before_anything,
        "MXAutogradBackwardEx",
        "MXExecutorForward",
        "MXExecutorBackwardEx",
    ),
    *_changes(
        "a store writes to the arrays that it gives out to",
        hazards.before_anything,
        "MXKVStoreBroadcast",
        "MXKVStoreBroadcastEx",
        "MXKVStorePullRowSparse",
        "MXKVStorePullRowSparseEx",
        "MXKVStorePullWithSparse",
        "MXKVStorePullWithSparseEx",
        "MXKVStorePushPull",
        "MXKVStorePushPullEx",
    ),
    *_changes(
        "a data iterator writes the next batch where an earlier one was",
        hazards.before_anything,
        "MXDataIterNext",
        "MXDataIterBeforeFirst",
    ),
    *_changes(
        "who waits for all work may then write to memory that MXNet shares with NumPy or others",
        hazards.before_anything,
        "MXNDArrayWaitAll",
    ),
    *_changes(
        "an array is lent for writing, or written to from NumPy",
        hazards.before_copy,
        "MXNDArrayWaitToWrite",
        "MXNDArraySyncCopyFromCPU",
    ),
    *_changes(
        "an array becomes a variable, with a new gradient",
        hazards.before_marking,
        "MXAutogradMarkVariables",
    ),
    *_changes(
        "random numbers of pending calls belong to the old seed",
        hazards.before_seeding,
        "MXRandomSeed",
        "MXRandomSeedContext",
    ),
    *_library(
        Lifetime.RECORDING,
        "the report tells what waiting for values takes",
        _wait_hook,
        *WAITS,
    ),
    *_library(
        Lifetime.RECORDING,
        "the mode of a call is known without asking the C library each time",
        _mode_hook,
        "MXAutogradSetIsRecording",
        "MXAutogradSetIsTraining",
    ),
    Replaced(
        NDArray,
        "_prepare_value_nd",
        Lifetime.FOR_GOOD,
        "a lazy array is assigned to elements of another, where MXNet wants exactly its own type",
    ),
    Replaced(
        autograd,
        "grad",
        Lifetime.FOR_GOOD,
        "gradients of gradients through a scope are refused, of which MXNet says nothing",
    ),
    *_library(
        Lifetime.FOR_GOOD,
        "pending backward passes end before MXNet stops its threads, or it would wait for ever",
        None,
        "MXNotifyShutdown",
    ),
    *_library(
        Lifetime.FOR_GOOD,
        "the profiler starts or stops, which no call of MXNet in another thread survives",
        None,
        "MXSetProcessProfilerState",
        "MXSetProcessProfilerConfig",
        "MXProcessProfilePause",
    ),
)


def of_lifetime(lifetime: Lifetime) -> Dict[str, Replaced]:
    """Return the functions that are replaced so long, by name."""
    return {one.name: one for one in TABLE if one.lifetime is lifetime}


def replace_for_good(name: str, make: Callable[[Any], Any]) -> None:
    """Replace one of the functions that `TABLE` has for good by what `make` makes of it."""
    one = of_lifetime(Lifetime.FOR_GOOD)[name]
    setattr(one.owner, name, replaced_pair(make, getattr(one.owner, name))[1])


#: For every open scope.
CALLS = Hooks(of_lifetime(Lifetime.OPEN).values())
#: For scopes that record.
HOOKS = Hooks(of_lifetime(Lifetime.RECORDING).values())
replace_for_good("_prepare_value_nd", _assign_hook)
