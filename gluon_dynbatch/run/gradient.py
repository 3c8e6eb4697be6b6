"""A flush as one node of MXNet's tape.

So ``backward``, ``grad`` and whatever comes before and after the scope work as ever.  MXNet runs
such a node's backward pass in a thread of its own, while the user's thread goes on.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

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
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

from ..errors import GradientError
from ..native.executing import GIVE
from ..record.intercept import replace_for_good
from ..record.where import user_line
from .buffers import add_to

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

#: How many backward passes may have left their graph to be used again.
_repeatable = 0


def _watch_backward(original: Callable[..., int]) -> Callable[..., int]:
    """Note which graphs may be used again, and refuse what cannot go through a scope.

    Of gradients of gradients, MXNet itself says nothing: it hands out some that are no longer
    connected to anything.
    """

    def backward(count: int, heads: Any, *others: Any) -> int:
        global _repeatable
        retain_graph, create_graph = others[3:5]
        if create_graph and any(_passes_a_scope(heads[i]) for i in range(count)):
            raise GradientError(
                "gradients of gradients through a batching scope are not supported",
                user_line(),
                advice="compute the part that is differentiated twice outside of the scope",
            )
        _repeatable += bool(retain_graph)
        return original(count, heads, *others)

    return backward


def _passes_a_scope(head: int) -> bool:
    graph = SymbolHandle()
    if not _ALIVE or _LIB.MXAutogradGetSymbol(NDArrayHandle(head), ctypes.byref(graph)):
        return False
    return "_CustomFunction" in Symbol(graph).tojson()


replace_for_good("MXAutogradBackwardEx", _watch_backward)

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


#: Functions that MXNet may still call, by number; each with the passes that were repeatable before.
_ALIVE: Dict[int, Tuple[Backward, int]] = {}
#: Numbers of those that have run, which is for the last time if it is not repeatable.
_RUN: Deque[int] = deque()
#: All numbers, each with a byte that MXNet sets when it never calls the function again, and with
#: what MXNet holds only an address of.
_WATCHED: Deque[Tuple[int, ctypes.c_byte, Any]] = deque()
_NUMBERS = itertools.count(1)
#: How many of them are looked at per flush, which adds one.
_LOOKS = 16


def forget(looks: int = _LOOKS) -> None:
    """Let go of what backward passes needed that never come (again).

    The thread that flushes does so, as those of MXNet had better not (see `give_notice`).  MXNet
    itself only lets go with the last array of the graph, whoever holds that; so what has run goes
    before, unless a backward pass may have been told to retain the graph.  Of the rest, a few are
    looked at in turn, so that it costs nothing to keep the graphs of many flushes.
    """
    try:
        while _RUN:
            number = _RUN.popleft()
            if _ALIVE.get(number, (None, -1))[1] == _repeatable:
                _ALIVE.pop(number, None)
        for _ in range(min(len(_WATCHED), looks)):
            watched = _WATCHED.popleft()
            if watched[1].value:
                _ALIVE.pop(watched[0], None)
            else:
                _WATCHED.append(watched)
    except IndexError:  # other threads flush, too
        pass


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
        made = _ALIVE[number][0](arrays[:heads], [bool(r) for r in asked], targets)
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
    _RUN.append(number)
    return 1


_FUNCTION = _BACKWARD(_run_backward)
# MXNet may let go of arrays when the interpreter has cleared this module already.
for _held in (_FUNCTION, _ALIVE, _WATCHED):
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
    number, notice = next(_NUMBERS), ctypes.c_byte()
    functions = c_array(kind, [ctypes.cast(_FUNCTION, kind), kind(GIVE)])
    numbers = c_array(ctypes.c_void_p, [number, ctypes.addressof(notice)])
    listed = MXCallbackList(
        ctypes.c_int(2),
        ctypes.cast(functions, ctypes.POINTER(kind)),
        ctypes.cast(numbers, ctypes.POINTER(ctypes.c_void_p)),
    )
    _ALIVE[number] = backward, _repeatable
    _WATCHED.append((number, notice, (functions, numbers, listed)))
    with autograd.record(autograd.is_training()):
        check_call(
            _LIB.MXCustomFunctionRecord(
                len(inputs),
                c_handle_array(inputs),
                len(outputs),
                c_handle_array(outputs),
                ctypes.byref(listed),
            )
        )
