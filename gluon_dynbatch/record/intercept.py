"""The functions of MXNet that this package replaces: all are in two tables, `OPEN` and `FOR_GOOD`.

In a thread without an open scope, the replacements of `OPEN` only call the originals.
"""

from __future__ import annotations

import inspect
import time
from functools import lru_cache, partial, wraps
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock, nn, rnn
from mxnet.ndarray import NDArray, register, utils
from mxnet.ndarray.numpy import _api_internal

from ..native import recording
from . import hazards, numpy_functions
from .chosen import chosen_by
from .constants import create_hook, filled_hook
from .hooks import Hooks, Replaced
from .lazy import Lazy, as_index
from .operators import CONSTANTS, SCALAR_OPERATORS, operator_of
from .state import STATE


def _invoke_hook(original: Any) -> Any:
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
            computed = [array for array in arrays_of_user if not recording.is_unrealised(array)]
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
        results = recording.call(recorder, callee, operands)
        if type(results) is str:
            recorder.report_immediate(callee, results)
            return original(handle, arrays, keys, values, out, is_np, as_list)
        return results[0] if len(results) == 1 and not as_list else results

    return invoke


#: Methods ``forward`` that only pass their arguments to ``hybrid_forward``.
FORWARDS = [HybridBlock.forward, rnn.RecurrentCell.forward]
#: Stock blocks whose ``hybrid_forward`` runs the user's code or keeps state between calls.
_NOT_PURE = (nn.HybridLambda, rnn.ModifierCell, SymbolBlock)


@lru_cache(maxsize=None)
def _classify_forward(block_class: Any) -> Tuple[bool, bool]:
    """Classify the ``forward`` of a class of blocks as static, and as stock.

    It is static if it only passes its arguments to ``hybrid_forward``; and stock if, in addition,
    both are MXNet's own and only call operators.
    """
    if not issubclass(block_class, HybridBlock) or block_class.forward not in FORWARDS:
        return False, False
    callers = [base for base in block_class.__mro__ if "__call__" in vars(base)]
    modules = block_class.__module__, block_class.forward.__module__
    stock = all(name.startswith("mxnet.gluon.") for name in modules) and callers == [Block]
    return True, stock and not issubclass(block_class, _NOT_PURE)


def _is_stock(block: Block) -> bool:
    """Return whether a block and its children are all MXNet's own and have no hooks."""
    hooked = block._forward_hooks or block._forward_pre_hooks
    block_class: Any = block.__class__
    stock = not hooked and _classify_forward(block_class)[1]
    return stock and all(map(_is_stock, block._children.values()))


def _has_states(block: Block, args: Any) -> bool:
    """Return whether the states of a cell are a list: a symbol has no rows, which an array has."""
    return not isinstance(block, rnn.RecurrentCell) or isinstance(args[-1], (list, tuple))


def _is_one_call(block: Block, args: Any) -> bool:
    """Return whether a call of a stock block that is not hybridized is recorded as one call."""
    return recording.any_lazy(args) and _is_stock(block) and _has_states(block, args)


recording.classify_forward, recording.is_one_call = _classify_forward, _is_one_call


def _chosen_by_lazy(array: NDArray, key: Any) -> Optional[NDArray]:
    """Record the part of an array that pending index arrays choose, if `chosen_by` can."""
    parts = key if type(key) is tuple else (key,)
    pending = any(isinstance(part, Lazy) and part.pending for part in parts)
    return chosen_by(array, key) if pending else None


def _index_hook(original: Any) -> Any:
    def __getitem__(array: NDArray, key: Any) -> NDArray:
        view, recorder = recording.plain_view(array, key), STATE.recorder
        if view is None:
            view = _chosen_by_lazy(array, key)
        if view is None:
            key = as_index(key)
            view = original(array, key)
        trace = None if recorder is None else recorder.tracing
        # A trace must not keep a lazy array, the result of an operator, alive.
        if trace is not None and not isinstance(view, Lazy):
            trace.views[id(view)] = view, array, autograd.is_recording(), "part", key
        return view

    return __getitem__


def _reshape_hook(original: Any) -> Any:
    def reshape(array: NDArray, *shape: Any, **kwargs: Any) -> Any:
        view, recorder = original(array, *shape, **kwargs), STATE.recorder
        if recorder is not None and recorder.tracing is not None:
            how = autograd.is_recording(), "reshape", view.shape
            recorder.tracing.views[id(view)] = view, array, *how
        return view

    return reshape


def _assign_hook(original: Any) -> Any:
    def prepare(array: NDArray, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = value.real() if isinstance(value, Lazy) else value
        return original(array, value, *args, **kwargs)

    return prepare


def _array_hook(original: Any) -> Any:
    def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> Any:
        recorder = STATE.recorder
        if recorder is not None:
            made = recording.made_array(source_array, ctx, dtype)
            if made is not None:
                return made
            recorder.refuse("it makes a large or empty array with mx.nd.array, or copies an array")
        return original(source_array, ctx, dtype)

    return array


def _wait_hook(original: Any) -> Any:
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


def _named_hook(original: Any) -> Any:
    signature = inspect.signature(getattr(mx.sym.contrib, original.__name__))

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arguments.pop("name", None)
        return original(**arguments)

    return call


def _c_functions(why: str, make: Any, *names: str) -> Tuple[Replaced, ...]:
    """List functions of the C library, so callers that imported them by name are covered, too."""
    return tuple(Replaced(_LIB, name, why, make) for name in names)


def _guard(before: Callable[..., None], original: Any) -> Any:
    """Return a replacement that calls a function of `hazards` before the original."""

    def change(*args: Any) -> Any:
        if STATE.recorder is not None:
            STATE.recorder.refuse("it changes a parameter or writes to an array")
            before(STATE.recorder, *args)
        return original(*args)

    return change


#: Functions that wait for a value.
WAITS = ("MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead")

#: Functions that are replaced while a scope is open in the process, with the reasons.
OPEN: Tuple[Replaced, ...] = (
    Replaced(
        register,
        "_imperative_invoke",
        "calls of operators are recorded if an array is lazy; all functions of mx.nd, most methods "
        "of arrays, and blocks that are not hybridized call their operators here",
        _invoke_hook,
    ),
    Replaced(
        NDArray,
        "__getitem__",
        "MXNet needs the values of a lazy array that is an index; and its indexing of rows takes "
        "longer than recording the calls that read them",
        _index_hook,
    ),
    Replaced(mx.np.ndarray, "__getitem__", "as for the class above", _index_hook),
    *(
        Replaced(_api_internal, name, "it does not call the function for operators above", make)
        for name, make in (
            ("zeros", numpy_functions.zeros_hook),
            ("tensordot", numpy_functions.tensordot_hook),
        )
    ),
    Replaced(
        NDArray,
        "reshape",
        "with trace_once=True, a view of an argument has to be made again for later calls",
        _reshape_hook,
    ),
    Replaced(
        utils,
        "_array",
        "an array of numbers that are known costs more than the call that reads it: it keeps them "
        "until calls read all of them from one buffer; mx.nd.array calls this, by whatever name it "
        "is imported",
        _array_hook,
    ),
    Replaced(
        mx.np,
        "array",
        "as for the function above; MXNet's own takes ten times as long, and writes to an array",
        numpy_functions.array_hook,
    ),
    *(
        Replaced(
            mx.nd, name, "equal arrays are made once per scope, not for each sample", create_hook
        )
        for name in ("arange", "eye", "full", "linspace")
    ),
    *(
        Replaced(
            owner,
            name,
            "equal arrays are found before MXNet writes the dtype and the device as text, which "
            "takes most of the time",
            filled_hook,
        )
        for owner, name in (
            *((mx.nd._internal, "_zeros"), (mx.nd._internal, "_ones")),
            (mx.nd.np._internal, "ones"),
        )
    ),
    Replaced(
        Parameter,
        "__setattr__",
        "a parameter gets other arrays, another device, or another grad_req",
        partial(_guard, hazards.before_parameter_change),
    ),
    Replaced(
        NDArray,
        "__setstate__",
        "an array gets other memory when its pickled state is restored",
        partial(_guard, lambda recorder, array, _: hazards.before_write(recorder, array.handle)),
    ),
    *_c_functions(
        "arrays that the call does not name are written to, and pending calls may read them: "
        "gradients, values from a store, the next batch, shared memory; or the seed changes, and "
        "pending calls draw random numbers",
        partial(_guard, hazards.before_unknown_write),
        *("MXAutogradBackwardEx", "MXExecutorForward", "MXExecutorBackwardEx"),
        *("MXKVStoreBroadcast", "MXKVStoreBroadcastEx", "MXKVStorePushPull"),
        *("MXKVStorePushPullEx", "MXKVStorePullRowSparse", "MXKVStorePullRowSparseEx"),
        *("MXKVStorePullWithSparse", "MXKVStorePullWithSparseEx"),
        *("MXDataIterNext", "MXDataIterBeforeFirst", "MXNDArrayWaitAll"),
        *("MXRandomSeed", "MXRandomSeedContext"),
    ),
    *_c_functions(
        "an array is lent for writing, or written to from NumPy",
        partial(_guard, lambda recorder, handle, *_: hazards.before_write(recorder, handle)),
        *("MXNDArrayWaitToWrite", "MXNDArraySyncCopyFromCPU"),
    ),
    *_c_functions(
        "an array becomes a variable, with a new gradient",
        partial(_guard, hazards.before_marking),
        "MXAutogradMarkVariables",
    ),
    *_c_functions("the report has the time of waiting for values", _wait_hook, *WAITS),
    *(
        Replaced(
            mx.nd.contrib,
            name,
            "a hybridized block with control flow runs as Python code in a scope; of this function "
            "and its form for symbols, only that one has an argument `name`",
            _named_hook,
        )
        for name in ("foreach", "while_loop", "cond")
    ),
)
#: Functions that are replaced for good: lazy arrays and backward passes outlive their scope, and to
#: change MXNet's classes of blocks takes longer than opening a scope, as each has hundreds of
#: subclasses.
FOR_GOOD: Tuple[Replaced, ...] = (
    Replaced(
        HybridBlock,
        "_call_cached_op",
        "calls of hybridized blocks are recorded, or counted if they run at once",
    ),
    Replaced(
        Block,
        "__call__",
        "a hybridized block is recorded as one call, and so is a stock block, hybridized or not, "
        "if an array is lazy",
    ),
    Replaced(
        NDArray,
        "_prepare_value_nd",
        "a lazy array may be assigned to elements of an array: MXNet accepts only its exact type",
    ),
    *_c_functions(
        "a graph is freed after its backward pass unless that was called with retain_graph=True; "
        "gradients of gradients through a scope raise: MXNet would return arrays in no graph; "
        "and the error for a freed graph says that the arrays of a flush share it",
        None,
        "MXAutogradBackwardEx",
    ),
    Replaced(
        autograd,
        "backward",
        "a backward pass that starts from results of a closed scope and ends at variables does not "
        "need MXNet's tape",
    ),
    *_c_functions(
        "such a backward pass has to know what is done with the gradient of a variable, which "
        "MXNet does not tell",
        None,
        "MXAutogradMarkVariables",
    ),
    *_c_functions(
        "operations that two threads push to the engine at the same time may wait for each other, "
        "forever",
        None,
        *("MXImperativeInvokeEx", "MXInvokeCachedOpEx"),
    ),
    *_c_functions(
        "pending backward passes must end before MXNet stops its threads, or it waits forever",
        None,
        "MXNotifyShutdown",
    ),
    *_c_functions(
        "the profiler starts or stops: calls of MXNet that run in other threads would crash",
        None,
        *("MXSetProcessProfilerState", "MXSetProcessProfilerConfig", "MXProcessProfilePause"),
    ),
)


def replace_for_good(name: str, make: Callable[[Any], Any]) -> None:
    """Replace one of the functions in `FOR_GOOD`; `make` gets it and returns the replacement."""
    owner = {replaced.name: replaced.owner for replaced in FOR_GOOD}[name]
    setattr(owner, name, make(getattr(owner, name)))


HOOKS = Hooks(OPEN)
replace_for_good("_prepare_value_nd", _assign_hook)
replace_for_good("_call_cached_op", recording.cached_op_hook)
replace_for_good("__call__", recording.call_hook)
