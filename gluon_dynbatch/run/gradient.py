"""A flush as one node of MXNet's tape.

So ``backward``, ``grad`` and whatever comes before and after the scope work as ever.  MXNet runs
such a node's backward pass in a thread of its own, while the user's thread goes on.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import logging
import os
from collections import deque
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

import mxnet as mx
from mxnet import autograd
from mxnet.base import (
    _LIB,
    MXCallbackList,
    MXNetError,
    NDArrayHandle,
    c_array,
    c_handle_array,
    check_call,
)
from mxnet.ndarray import NDArray

from ..errors import GradientError
from ..record.intercept import replace_for_good
from ..record.where import user_line
from .buffers import add_to
from .notice import GIVE, Notice

LOGGER = logging.getLogger("gluon_dynbatch")


def _wait_before_the_end(original: Callable[[], int]) -> Callable[[], int]:
    """Let MXNet wait for all work before it stops its threads at the end of the process.

    It waits afterwards only, for ever if a backward pass is still to come.  A function of `atexit`
    would run before those that the user registered earlier, which may go backward, too.
    """

    def shut_down() -> int:
        _LIB.MXNDArrayWaitAll()
        return original()

    return shut_down


replace_for_good("MXNotifyShutdown", _wait_before_the_end)
# Before a fork, MXNet joins the thread that runs backward passes, which may wait for this one.
os.register_at_fork(before=mx.nd.waitall)


def _refuse_second_order(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``autograd.grad(create_graph=True)`` say that it cannot go through a scope.

    MXNet itself says nothing: it hands out gradients that are no longer connected to anything.
    """

    @functools.wraps(original)
    def grad(
        heads: Any,
        variables: Any,
        head_grads: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        train_mode: bool = True,
    ) -> Any:
        if create_graph and any(map(_passes_a_scope, _as_list(heads))):
            raise GradientError(
                "gradients of gradients through a batching scope are not supported",
                user_line(),
                None,
                "compute the part that is differentiated twice outside of the scope",
            )
        return original(heads, variables, head_grads, retain_graph, create_graph, train_mode)

    return grad


def _as_list(heads: Any) -> List[NDArray]:
    return [heads] if isinstance(heads, NDArray) else list(heads)


def _passes_a_scope(head: NDArray) -> bool:
    try:
        # This computes a lazy head; only then are the functions of its scope alive.
        graph = autograd.get_symbol(head)
        return bool(_ALIVE) and "_CustomFunction" in graph.tojson()
    except MXNetError:
        return False


replace_for_good("grad", _refuse_second_order)

_BACKWARD = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.c_void_p,
)

_WRITE, _WRITE_INPLACE, _ADD = 1, 2, 3

Backward = Callable[[List[NDArray], List[bool], List[Optional[NDArray]]], List[Optional[NDArray]]]


class _Recorded(NamedTuple):
    """What MXNet holds only an address of."""

    backward: Backward
    arrays: Tuple[Any, ...]


#: Functions that MXNet may still call, by number.
_ALIVE: Dict[int, _Recorded] = {}
#: Their numbers, each with the notice that MXNet gives when it never calls the function again.
_WATCHED: Deque[Tuple[int, Notice]] = deque()
_NUMBERS = itertools.count(1)
#: How many of them are looked at per flush, which adds one.
_LOOKS = 16
#: So many more graphs than twice those needed are a reason to look for garbage everywhere.
_MORE = 16
#: With how many graphs that is; what was needed is known from when there were fewest.
_search_at = _MORE


def break_cycles(young: bool) -> None:
    """Free `young` objects that only refer to each other; all of them if graphs have piled up.

    An inner function that calls itself is such a cycle, and holds the arrays of its sample: each
    would be copied, and get a gradient, for nobody.  If the collector saw it while it ran, it is no
    longer young, and a single array of it holds the graph of its minibatch.
    """
    global _search_at
    if len(_ALIVE) >= _search_at:
        gc.collect()
        forget(len(_WATCHED))
        _search_at = 2 * len(_ALIVE) + _MORE
    elif young:
        gc.collect(1)
    _search_at = min(_search_at, 2 * len(_ALIVE) + _MORE)


def forget(looks: int = _LOOKS) -> None:
    """Let go of what backward passes needed that never come (again).

    The thread that flushes does so, as those of MXNet had better not (see :mod:`.notice`).  A few
    functions are looked at in turn, so that it costs nothing to keep the graphs of many flushes.
    """
    for _ in range(min(len(_WATCHED), looks)):
        try:
            number, notice = _WATCHED.popleft()
        except IndexError:  # other threads flush, too
            return
        if notice.take():
            _ALIVE.pop(number, None)
        else:
            _WATCHED.append((number, notice))


def _run_backward(
    heads: int, count: int, pointers: Any, requests: Any, training: int, number: int
) -> int:
    del training
    arrays = [
        NDArray(ctypes.cast(p, NDArrayHandle), writable=True) for p in pointers[: heads + count]
    ]
    try:
        asked = [requests[i] for i in range(count)]
        writes = [request in (_WRITE, _WRITE_INPLACE) for request in asked]
        targets = [array if write else None for array, write in zip(arrays[heads:], writes)]
        made = _ALIVE[number].backward(arrays[:heads], [bool(r) for r in asked], targets)
        for target, gradient, write, request in zip(arrays[heads:], made, writes, asked):
            if write:
                if gradient is not target:
                    gradient.copyto(target)
            elif request == _ADD:
                add_to(target, gradient)
    except BaseException:
        # This is mostly a thread of MXNet's: the exception cannot travel on from here.
        LOGGER.exception("the backward pass of a batching scope failed")
        return 0
    return 1


_FUNCTION = _BACKWARD(_run_backward)
# MXNet may let go of arrays when the interpreter has cleared this module already.
for _held in (_FUNCTION, _ALIVE):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))


def record_function(inputs: List[NDArray], outputs: List[NDArray], backward: Backward) -> None:
    """Make `outputs` results of a function of `inputs` in MXNet's tape.

    Unlike ``mx.autograd.Function`` this honours ``grad_req`` ``"add"`` and ``"null"`` per input.

    Parameters
    ----------
    inputs, outputs : list of NDArray
        Arrays; the outputs must not be part of a graph yet.
    backward : callable
        ``backward(head_gradients, wanted, targets)`` returns a gradient per input, None where not
        wanted; it may be the target, if there is one, into which it is copied otherwise.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int)
    number, notice = next(_NUMBERS), Notice()
    functions = c_array(kind, [ctypes.cast(function, kind) for function in (_FUNCTION, GIVE)])
    numbers = c_array(ctypes.c_void_p, [number, notice.address])
    listed = MXCallbackList(
        ctypes.c_int(2),
        ctypes.cast(functions, ctypes.POINTER(kind)),
        ctypes.cast(numbers, ctypes.POINTER(ctypes.c_void_p)),
    )
    _ALIVE[number] = _Recorded(backward, (functions, numbers, listed))
    _WATCHED.append((number, notice))
    previous = autograd.set_recording(True)
    try:
        check_call(
            _LIB.MXCustomFunctionRecord(
                len(inputs),
                c_handle_array(inputs),
                len(outputs),
                c_handle_array(outputs),
                ctypes.byref(listed),
            )
        )
    finally:
        autograd.set_recording(previous)
