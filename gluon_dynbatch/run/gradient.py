"""Record a function as one node of MXNet's tape, and free what it holds.

With such nodes for the flushes of scopes, ``backward``, ``grad`` and computations before and after
a scope work as usual.  MXNet runs the backward pass of a node in a thread of its own, while the
user's thread goes on.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
from collections import deque
from ctypes import CFUNCTYPE, POINTER, c_int, c_void_p
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    List,
    Optional,
    Protocol,
    Set,
    Tuple,
)

import mxnet as mx
from mxnet import autograd
from mxnet.base import (
    _LIB,
    MXCallbackList,
    NDArrayHandle,
    SymbolHandle,
    c_array,
    c_handle_array,
    check_call,
)
from mxnet.ndarray import NDArray, sparse
from mxnet.symbol import Symbol
from mxnet.util import is_np_shape, np_shape

from ..errors import GradientError
from ..native import recording
from ..native.executing import GIVE
from ..record.intercept import HOOKS, replace_for_good
from ..record.where import user_line
from .engine import FLIGHT, give_back
from .hold import hold
from .pool import address_of
from .profiling import PROFILER
from .variables import GRAD_ADD, GRAD_NULL, Requests, Target, deliver

LOGGER = logging.getLogger("gluon_dynbatch")


def _wait_before_the_end(original: Callable[[], int]) -> Callable[[], int]:
    """Wait for all work before MXNet stops its threads at the end of the process.

    MXNet itself waits only after that, and forever if a backward pass is still pending.  A function
    registered with `atexit` would run before those that the user registered earlier, which may
    start backward passes, too.
    """

    def shut_down() -> int:
        _LIB.MXNDArrayWaitAll()
        return original()

    return shut_down


replace_for_good("MXNotifyShutdown", _wait_before_the_end)
# Before a fork, MXNet joins the thread of backward passes, which may wait for the forking thread.
os.register_at_fork(before=mx.nd.waitall)

#: The number of backward passes so far that retained their graph.
_retained = 0


def _watch_backward(original: Callable[..., int]) -> Callable[..., int]:
    """Count backward passes that retain their graph; raise for two that a scope does not allow.

    One is the gradient of a gradient: MXNet would return gradients that are not connected to the
    inputs of the scope.  The other is a second pass, which MXNet refuses, too.
    """

    def backward(count: int, heads: Any, *arguments: Any) -> int:
        global _retained
        retain_graph, create_graph = arguments[3:5]
        if create_graph and any(_passes_a_scope(heads[i]) for i in range(count)):
            raise GradientError(
                "gradients of gradients through a batching scope are not supported",
                user_line(),
                advice="compute the part that is differentiated twice outside of the scope",
            )
        _retained += bool(retain_graph)
        started = _note_heads(count, heads)
        given, held = _dense(count, heads, arguments[0])
        failed = original(count, heads, given, *arguments[1:])
        del held
        if failed and HOOKS.used and b"not in a computational graph" in _LIB.MXGetLastError():
            raise GradientError(
                "an array is not in a graph: it was not recorded under autograd.record(), or "
                "backward has already freed a graph that it shares",
                user_line(),
                advice="compute the arrays under autograd.record(), and call "
                "mx.autograd.backward(losses) once for all of them, or pass retain_graph=True",
            )
        if not failed:
            _keep_results(arguments[1], *arguments[6:8])
            _note_backward(arguments[1], arguments[6])
            if started is not None and not (retain_graph or create_graph):
                started.record_rest(record_function)
        return failed

    return backward


def _keep_results(count: int, *results: Any) -> None:
    """Copy what a backward pass returns, which MXNet keeps only until the next call of it."""
    for result in results if count else ():
        pointer = result._obj
        copy = (pointer._type_ * count)(*pointer[:count])
        pointer.contents = pointer._type_.from_buffer(copy)


def _note_heads(count: int, heads: Any) -> Optional[Function]:
    """Tell functions from which arrays a backward pass starts.

    Returns the function of which all of them are results, if there is one.
    """
    functions = [function for function, *_ in list(_ALIVE.values())]
    started = {heads[i] for i in range(count)} if functions else set()
    for function in functions:
        if function.starts(started):
            return function  # those that were recorded later are not reached
    return None


def _note_backward(count: int, results: Any) -> None:
    """Register a backward pass, which returns `count` results or writes gradients of variables."""
    if count:
        FLIGHT.went_backward([results._obj[i] for i in range(count)])
        return
    alive = [_ALIVE.get(number) for number in FLIGHT.graphs]
    gradients = [each[2] for each in alive if each is not None and each[2] is not None]
    FLIGHT.went_backward([gradient.handle.value for gradient in gradients])
    # Graphs that are retained may run again; of these, the last one will do.
    while len(FLIGHT.graphs) > 1:
        FLIGHT.graphs.popleft()


#: Classes of sparse arrays, by MXNet's number of the storage type.
_SPARSE = {1: sparse.RowSparseNDArray, 2: sparse.CSRNDArray}


def _dense(count: int, heads: Any, given: Any) -> Tuple[Any, List[NDArray]]:
    """Return handles of gradients of heads, dense ones for sparse ones that may reach a scope.

    A custom function cannot take sparse gradients.  The second result owns the dense ones.
    """
    held: List[NDArray] = []
    if not isinstance(given, ctypes.Array):
        return given, held  # a null pointer: all are ones
    kind, handles = ctypes.c_int(), list(given)
    for i, handle in enumerate(given):
        if handle is None:
            continue
        check_call(_LIB.MXNDArrayGetStorageType(NDArrayHandle(handle), ctypes.byref(kind)))
        if kind.value > 0 and any(_passes_a_scope(heads[k]) for k in range(count)):
            shared = NDArrayHandle()
            check_call(_LIB.MXShallowCopyNDArray(NDArrayHandle(handle), ctypes.byref(shared)))
            held.append(_SPARSE[kind.value](shared).tostype("default"))
            handles[i] = held[-1].handle.value
    return (NDArrayHandle * count)(*handles), held


def _passes_a_scope(head: int) -> bool:
    """Return whether the graph of an array, given by its handle, may contain a scope."""
    graph = SymbolHandle()
    if not _ALIVE or _LIB.MXAutogradGetSymbol(NDArrayHandle(head), ctypes.byref(graph)):
        return False
    return "_CustomFunction" in Symbol(graph).tojson()


replace_for_good("MXAutogradBackwardEx", _watch_backward)


class Function(Protocol):
    """A function that is one node of MXNet's tape."""

    def starts(self, heads: Set[int]) -> bool:
        """Note that a backward pass starts from the arrays with these handles.

        Returns whether all of them are results of this node.
        """

    @property
    def inputs(self) -> List[NDArray]:
        """The arrays that get gradients."""

    def reached(self) -> Optional[List[bool]]:
        """Return per input whether a gradient may reach it; None if this is not known, or all."""

    def record_rest(self, record: Callable[[List[NDArray], List[NDArray], Function], None]) -> None:
        """Record results anew whose graphs a backward pass has not reached.

        For MXNet, all results are those of one node, whose graph it has just freed.
        """

    def backward(
        self, head_gradients: List[NDArray], requests: Requests, training: bool
    ) -> List[Optional[Target]]:
        """Compute a gradient per input from head gradients, None where it is not wanted.

        A gradient that is not the target of its request is copied or added to where MXNet wants it.
        `training` is what ``backward`` was called with as ``train_mode``.
        """


#: By number, the functions that MXNet may still call, each with what there was at its recording:
#: `_retained`; the gradient of one of its variables, if any is an input; and whether arrays could
#: have no axes (MXNet's ``np_shape``, of which its own thread does not know).
_ALIVE: Dict[int, Tuple[Function, int, Optional[NDArray], bool]] = {}
#: Numbers of functions that have run: they do not run again unless their graph was retained.
_RUN: Deque[int] = deque()
#: Per function: its number; a byte that MXNet sets once it will not call the function again; and
#: objects whose addresses MXNet holds.
_WATCHED: Deque[Tuple[int, ctypes.c_byte, Any]] = deque()
_NUMBERS = itertools.count(1)
#: Functions that are checked per flush.
_LOOKS = 16


def forget(looks: int = _LOOKS) -> None:
    """Free what functions hold that MXNet will not call again.

    Each flush calls this, because a thread of MXNet must not (see `give_notice`).  MXNet drops a
    node only with the last array of its graph, wherever that is held.  So a function that has run
    is freed earlier, unless a backward pass since its recording retained a graph.  Of the others, a
    few (`looks`) are checked per call, in turn, so that the cost does not grow with the number of
    graphs.
    """
    try:
        while _RUN:
            number = _RUN.popleft()
            if _ALIVE.get(number, (None, -1))[1] == _retained:
                _ALIVE.pop(number, None)
        for _ in range(min(len(_WATCHED), looks)):
            watched = number, notice, _ = _WATCHED.popleft()
            if notice.value:
                _ALIVE.pop(number, None)
            else:
                _WATCHED.append(watched)
    except IndexError:  # another thread flushes and has emptied a queue
        pass


def _run_backward(
    heads: int, count: int, pointers: Any, grad_reqs: Any, training: int, number: int
) -> int:
    """Call a function for MXNet."""
    with PROFILER.backward_pass():
        return _write_gradients(heads, count, pointers, grad_reqs, bool(training), number)


_CALLBACK: Any = CFUNCTYPE(c_int, c_int, c_int, POINTER(c_void_p), POINTER(c_int), c_int, c_void_p)(
    _run_backward
)


def _write_gradients(
    heads: int, count: int, pointers: Any, grad_reqs: Any, training: bool, number: int
) -> int:
    """Write the gradients of a function, or add them, as requested per input."""
    lent = pointers[: heads + count]
    arrays = recording.arrays_of(lent)
    try:
        try:
            function, _, _, scalars = _ALIVE[number]
            slots = _slots(function.inputs)
            targets = [arrays[heads + slot] for slot in slots]
            requests = _requests(function, slots, grad_reqs[:count], targets)
            with np_shape(scalars or None):
                gradients = function.backward(arrays[:heads], requests, training)
                deliver(gradients, requests, targets.__getitem__)
        finally:
            # MXNet waits for what writes these arrays; those that are only read it would free.
            check_call(give_back(lent))
    except BaseException:
        # No exception may leave a callback from C; MXNet learns of it by the returned 0.
        LOGGER.exception("the backward pass of a batching scope failed")
        return 0
    _RUN.append(number)
    return 1


def _slots(inputs: List[NDArray]) -> List[int]:
    """Return the number of each input among those of the node: there, each array is one input.

    MXNet would add up the gradients of an array that is several inputs, and so overwrite it.
    """
    numbers: Dict[int, int] = {}
    return [numbers.setdefault(id(array), len(numbers)) for array in inputs]


def _requests(
    function: Function, slots: List[int], grad_reqs: List[int], targets: List[NDArray]
) -> Requests:
    """Return what is requested for the inputs of a function.

    A variable that no gradient reaches keeps the gradient that it has, as in the loop.
    """
    reached, seen = function.reached(), set()
    wanted: List[bool] = []
    places: List[Optional[NDArray]] = []
    known = set(slots if reached is None else itertools.compress(slots, reached))
    for slot, array, target in zip(slots, function.inputs, targets):
        grad_req = grad_reqs[slot]
        if slot not in known and grad_req != GRAD_ADD and _is_gradient(target, array):
            grad_req = GRAD_NULL
        is_target = grad_req not in (GRAD_NULL, GRAD_ADD) and slot not in seen
        wanted.append(grad_req != GRAD_NULL)
        places.append(target if is_target else None)
        seen.add(slot)
    return Requests(wanted, places)


def _is_gradient(target: NDArray, array: NDArray) -> bool:
    """Return whether what MXNet wants is all of the gradient of a variable: it has its memory."""
    own = array.grad
    return own is not None and own.stype == "default" and address_of(target) == address_of(own)


# MXNet may still use these after the interpreter has cleared this module at exit.
for _held in (_CALLBACK, _ALIVE, _WATCHED):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))


def record_function(inputs: List[NDArray], outputs: List[NDArray], function: Function) -> None:
    """Record `outputs` as results of a function of `inputs` in MXNet's tape.

    Unlike ``mx.autograd.Function``, this respects ``grad_req`` ``"add"`` and ``"null"`` per input.
    The outputs must not be part of a graph yet.
    """
    inputs = [*{id(array): array for array in inputs}.values()]  # see `_slots`
    callback = CFUNCTYPE(c_int)
    number, notice = next(_NUMBERS), ctypes.c_byte()
    # Callbacks for the backward pass and for the end of the node, and the argument of each.
    callbacks = c_array(callback, [ctypes.cast(_CALLBACK, callback), callback(GIVE)])
    arguments = c_array(c_void_p, [number, ctypes.addressof(notice)])
    callback_list = MXCallbackList(
        c_int(2),
        ctypes.cast(callbacks, POINTER(callback)),
        ctypes.cast(arguments, POINTER(c_void_p)),
    )
    gradients = (array.grad for array in inputs)
    gradient = next((gradient for gradient in gradients if gradient is not None), None)
    _ALIVE[number] = function, _retained, gradient, is_np_shape()
    FLIGHT.graphs.append(number)
    _WATCHED.append((number, notice, (callbacks, arguments, callback_list)))
    with autograd.record(autograd.is_training()):
        check_call(
            _LIB.MXCustomFunctionRecord(
                len(inputs),
                c_handle_array(inputs),
                len(outputs),
                c_handle_array(outputs),
                ctypes.byref(callback_list),
            )
        )
        hold(outputs)
