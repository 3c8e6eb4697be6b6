"""The functions of MXNet that this package replaces: all are in two tables, `OPEN` and `FOR_GOOD`.

In a thread without an open scope, the replacements of `OPEN` only call the originals.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.ndarray import NDArray, register, utils
from mxnet.ndarray.numpy import _api_internal

from ..native import recording
from . import hazards, nd_functions, numpy_functions
from .constants import create_hook, filled_hook
from .hooks import Hooks, Replaced
from .state import STATE


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

#: Functions that are replaced while a scope in the process records calls, with the reasons.
OPEN: Tuple[Replaced, ...] = (
    Replaced(
        register,
        "_imperative_invoke",
        "calls of operators are recorded if an array is lazy; all functions of mx.nd, most methods "
        "of arrays, and blocks that are not hybridized call their operators here",
        nd_functions.invoke_hook,
    ),
    Replaced(
        NDArray,
        "__getitem__",
        "MXNet needs the values of a lazy array that is an index; and its indexing of rows takes "
        "longer than recording the calls that read them",
        nd_functions.index_hook,
    ),
    Replaced(mx.np.ndarray, "__getitem__", "as for the class above", nd_functions.index_hook),
    Replaced(
        NDArray,
        "_get_index_nd",
        "a lazy array may choose the elements that are written: MXNet stacks only indices of its "
        "exact type",
        nd_functions.key_hook,
    ),
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
        nd_functions.reshape_hook,
    ),
    Replaced(
        utils,
        "_array",
        "an array of numbers that are known costs more than the call that reads it: it keeps them "
        "until calls read all of them from one buffer; mx.nd.array calls this, by whatever name it "
        "is imported",
        nd_functions.nd_array_hook,
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
    *_c_functions("the report has the time of waiting for values", nd_functions.wait_hook, *WAITS),
    *(
        Replaced(
            mx.nd.contrib,
            name,
            "a hybridized block with control flow runs as Python code in a scope; of this function "
            "and its form for symbols, only that one has an argument `name`",
            nd_functions.named_hook,
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
        *("MXImperativeInvokeEx", "MXInvokeCachedOpEx", "MXNetFuncCall"),
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
replace_for_good("_prepare_value_nd", nd_functions.assign_hook)
replace_for_good("_call_cached_op", recording.cached_op_hook)
replace_for_good("__call__", recording.call_hook)
