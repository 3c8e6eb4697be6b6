"""The functions of MXNet that this package replaces: two tables have all of them.

The replacements act for threads that have a scope open; for any other they pass the call on.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, List, Optional, Tuple

from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock, nn, rnn
from mxnet.ndarray import NDArray, register

from ..errors import DynBatchError
from ..modes import RECORDING, TRAINING
from ..native import recording
from . import hazards
from .hooks import Hooks, Replaced
from .lazy import LazyNDArray
from .operators import OF_NUMBERS, operator_of
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
        if info.writes or out is not None:
            written = out if isinstance(out, (list, tuple)) else [] if out is None else [out]
            recorder.refuse("it writes to an array")
            hazards.before_write(recorder, [*written, *(arrays if info.writes else ())])
        if arrays:
            lazy = recording.any_lazy(arrays)
            wanted = lazy and info.writes != "always"
            if not lazy:
                recorder.report.ordinary[info.name] += 1
        else:
            wanted = info.creates and "ctx" in keys
        if not wanted or out is not None or is_np_op:
            recorder.refuse(f"it calls {info.name}, which runs at once")
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        token = "op", info.name, tuple(keys), tuple(map(str, values))
        if not arrays:
            return recorder.constant(token)
        if info.name in OF_NUMBERS:
            token, arrays = recorder.with_number(token, arrays)
        callee = recorder.operators.get(token) or recorder.library.operator(token, info)
        results = recording.call(recorder, callee, arrays)
        if type(results) is str:
            recorder.note_at_once(callee, results)
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        return results[0] if len(results) == 1 and not output_is_list else results

    return invoke


#: Methods ``forward`` that only pass arguments on to ``hybrid_forward``.
FORWARDS = [HybridBlock.forward, rnn.RecurrentCell.forward]
#: Their ``hybrid_forward`` is the user's, or keeps something from call to call.
_NOT_PLAIN = (nn.HybridLambda, rnn.ModifierCell, SymbolBlock)


@functools.lru_cache(maxsize=None)
def _class_of(kind: Any) -> Tuple[bool, bool]:
    """Say of a class of blocks what its ``forward`` is.

    That is whether it only passes arguments on to ``hybrid_forward``, and whether both are MXNet's
    own, and nothing but operators.
    """
    if not issubclass(kind, HybridBlock) or kind.forward not in FORWARDS:
        return False, False
    calls = [base for base in kind.__mro__ if "__call__" in vars(base)]
    modules = kind.__module__, kind.forward.__module__
    stock = all(one.startswith("mxnet.gluon.") for one in modules) and calls == [Block]
    return True, stock and not issubclass(kind, _NOT_PLAIN)


def is_stock(block: Block) -> bool:
    """Whether a block and all in it are MXNet's own, and nobody has to see their calls."""
    inner = block._children.values()
    hooked = block._forward_hooks or block._forward_pre_hooks
    return not hooked and _class_of(block.__class__)[1] and all(map(is_stock, inner))


def _call_stock(original: Any, recorder: Any, block: Block, args: Any) -> Any:
    """Call one of MXNet's own blocks that is not hybridized."""
    if recording.any_lazy(args) and is_stock(block):
        try:
            return recorder.call_block(block, args)
        except DynBatchError:
            pass  # it may run all the same; what is wrong says so then
    return original(block, *args)


recording.class_of, recording.call_stock = _class_of, _call_stock


def _cached_op_hook(original: Any) -> Any:
    def call_cached_op(block: HybridBlock, *args: Any) -> Any:
        recorder = STATE.batch and STATE.batch.recorder_of(block)
        return recorder.call_block(block, args) if recorder else original(block, *args)

    return call_cached_op


def _index_hook(original: Any) -> Any:
    def read(array: NDArray, key: Any) -> NDArray:
        key = key.real() if type(key) is LazyNDArray else key
        view, recorder = recording.plain_view(array, key), STATE.recorder
        if view is None:
            view = original(array, key)
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
        STATE.recorder.refuse("it reads a value")
        batch: Any = STATE.batch
        started = time.perf_counter()
        try:
            return original(*args)
        finally:
            batch.count_wait(time.perf_counter() - started)

    return wait


def set_mode(mode: int) -> None:
    """Put autograd into a mode."""
    autograd.set_recording(bool(mode & RECORDING))
    autograd.set_training(bool(mode & TRAINING))


def _library(why: str, make: Optional[Callable[[Any], Any]], *names: str) -> Tuple[Replaced, ...]:
    """Return functions of the C library: so it does not matter by which name Python has them."""
    return tuple(Replaced(_LIB, name, why, make) for name in names)


def _before(before: Callable[..., None]) -> Callable[[Any], Any]:
    """Return what makes a function compute first what pending calls read and it may change."""

    def hook(original: Any) -> Any:
        def change(*args: Any) -> Any:
            if STATE.recorder is not None:
                STATE.recorder.refuse(
                    "it changes a parameter, writes to an array, or creates one with mx.nd.array, "
                    "which should be an argument"
                )
                before(STATE.recorder, *args)
            return original(*args)

        return change

    return hook


#: What waits for a value.
WAITS = ("MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead")

#: Every function of MXNet that this package replaces: while any scope is open,
OPEN: Tuple[Replaced, ...] = (
    Replaced(
        HybridBlock,
        "_call_cached_op",
        "calls of hybridized blocks are recorded, or counted if they run at once",
        _cached_op_hook,
    ),
    Replaced(
        register,
        "_imperative_invoke",
        "calls of operators are recorded if an array is lazy; all of mx.nd's functions, most "
        "methods of arrays, and what is in blocks that are not hybridized, come by here",
        _invoke_hook,
    ),
    Replaced(
        Block,
        "__call__",
        "a call of a hybridized block is one call, and so is one of MXNet's own blocks, hybridized "
        "or not, if an array is lazy",
        recording.call_hook,
    ),
    Replaced(
        NDArray,
        "__getitem__",
        "a lazy array as an index has to be real; and rows of a sample take longer than its calls",
        _index_hook,
    ),
    Replaced(
        Parameter,
        "__setattr__",
        "a parameter gets other arrays, a device, or another grad_req",
        _before(hazards.before_change),
    ),
    Replaced(
        NDArray,
        "__setstate__",
        "an array gets other memory, as its pickled state has it",
        _before(lambda recorder, array, _: hazards.before_write_at(recorder, array.handle)),
    ),
    *_library(
        "what is written to is not named, and may be what pending calls read: gradients, what a "
        "store gives out, the next batch, memory that MXNet shares with others; or they draw "
        "random numbers, which belong to the old seed",
        _before(hazards.before_anything),
        *("MXAutogradBackwardEx", "MXExecutorForward", "MXExecutorBackwardEx"),
        *("MXKVStoreBroadcast", "MXKVStoreBroadcastEx", "MXKVStorePushPull"),
        *("MXKVStorePushPullEx", "MXKVStorePullRowSparse", "MXKVStorePullRowSparseEx"),
        *("MXKVStorePullWithSparse", "MXKVStorePullWithSparseEx"),
        *("MXDataIterNext", "MXDataIterBeforeFirst", "MXNDArrayWaitAll"),
        *("MXRandomSeed", "MXRandomSeedContext"),
    ),
    *_library(
        "an array is lent for writing, or written to from NumPy",
        _before(lambda recorder, handle, *_: hazards.before_write_at(recorder, handle)),
        *("MXNDArrayWaitToWrite", "MXNDArraySyncCopyFromCPU"),
    ),
    *_library(
        "an array becomes a variable, with a new gradient",
        _before(hazards.before_marking),
        "MXAutogradMarkVariables",
    ),
    *_library("the report tells what waiting for values takes", _wait_hook, *WAITS),
)
#: and for good, as lazy arrays and backward passes need it after their scope.
FOR_GOOD: Tuple[Replaced, ...] = (
    Replaced(
        NDArray,
        "_prepare_value_nd",
        "a lazy array is assigned to elements of another, where MXNet wants exactly its own type",
    ),
    *_library(
        "a graph that has gone backward is let go of, unless it is to be retained; gradients of "
        "gradients through a scope are refused, of which MXNet says nothing",
        None,
        "MXAutogradBackwardEx",
    ),
    *_library(
        "pending backward passes end before MXNet stops its threads, or it would wait for ever",
        None,
        "MXNotifyShutdown",
    ),
    *_library(
        "the profiler starts or stops, which no call of MXNet in another thread survives",
        None,
        *("MXSetProcessProfilerState", "MXSetProcessProfilerConfig", "MXProcessProfilePause"),
    ),
)


def replace_for_good(name: str, make: Callable[[Any], Any]) -> None:
    """Replace one of the functions in `FOR_GOOD` by what `make` makes of it."""
    owner = {one.name: one.owner for one in FOR_GOOD}[name]
    setattr(owner, name, make(getattr(owner, name)))


HOOKS = Hooks(OPEN)
replace_for_good("_prepare_value_nd", _assign_hook)
