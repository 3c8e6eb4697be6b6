"""The places where MXNet is watched while a scope is open.

* ``mxnet.ndarray.register._imperative_invoke``: every generated ``mx.nd`` function, hence also
  Python operators, most methods of arrays, and what is in blocks that are not hybridized; recorded
  if one of the arrays is lazy;
* ``HybridBlock.forward`` and ``_call_cached_op``: every call of a hybridized block; the former,
  which looks at all arguments through the C library, is passed by;
* functions of MXNet's C library that change what an array or a random number is (``CHANGES``), so
  that it does not matter by which name of MXNet's Python they are reached: pending calls that may
  see the change run before;
* ``Parameter.__setattr__``: a parameter gets other arrays, a device, or another ``grad_req``;
* ``NDArray.__getitem__``: a lazy array as an index has to be real;
* those that wait for values: what this takes is told in the report;
* those that switch the mode of autograd: so that the mode of a call is known without asking the C
  library each time.

The replacements act for threads that have a scope open; for any other they pass the call on.  When
the last scope closes they are gone.  Some more stay, as lazy arrays and backward passes outlive
their scope: ``autograd.grad`` and the C library's ``MXNotifyShutdown`` (see `gradient.py`),
``NDArray._prepare_value_nd`` (see `lazy.py`), functions of ``mx.profiler`` (see `profiling.py`).
"""

from __future__ import annotations

import ctypes
import functools
import operator
import time
from collections import deque
from itertools import repeat
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from mxnet import autograd
from mxnet.base import _LIB, check_call, mx_uint, py_str
from mxnet.gluon import HybridBlock, Parameter
from mxnet.ndarray import NDArray, register

from .. import rules
from ..modes import RECORDING, TRAINING
from .lazy import LazyNDArray
from .recorder import STATE, Recorder

#: Creation operators whose results are recorded, once per flush.  Others run at once: MXNet's own
#: code uses them, and there relies on the exact type.
CONSTANTS = frozenset(["_zeros", "_ones", "_full"])

#: Functions of MXNet's library that change what pending calls may read, and the method of the
#: recorder that is given their arguments before.
CHANGES = {
    # Gradients go to arrays that are not named.
    "MXAutogradBackwardEx": Recorder.before_anything,
    "MXExecutorForward": Recorder.before_anything,
    "MXExecutorBackwardEx": Recorder.before_anything,
    # As does what a store gives out.
    "MXKVStoreBroadcast": Recorder.before_anything,
    "MXKVStoreBroadcastEx": Recorder.before_anything,
    "MXKVStorePullRowSparse": Recorder.before_anything,
    "MXKVStorePullRowSparseEx": Recorder.before_anything,
    "MXKVStorePullWithSparse": Recorder.before_anything,
    "MXKVStorePullWithSparseEx": Recorder.before_anything,
    "MXKVStorePushPull": Recorder.before_anything,
    "MXKVStorePushPullEx": Recorder.before_anything,
    # A data iterator writes the next batch where an earlier one was.
    "MXDataIterNext": Recorder.before_anything,
    "MXDataIterBeforeFirst": Recorder.before_anything,
    # Who waits for all work may then write to memory that MXNet shares with NumPy or others.
    "MXNDArrayWaitAll": Recorder.before_anything,
    # The same for one array, as before it is lent for writing, and a copy from NumPy.
    "MXNDArrayWaitToWrite": Recorder.before_copy,
    "MXNDArraySyncCopyFromCPU": Recorder.before_copy,
    # An array is made a variable, with a new gradient.
    "MXAutogradMarkVariables": Recorder.before_marking,
    "MXRandomSeed": Recorder.before_seeding,
    "MXRandomSeedContext": Recorder.before_seeding,
}

#: What waits for a value.
WAITS = ("MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead")

#: What switches the mode of autograd.
MODES = ("MXAutogradSetIsRecording", "MXAutogradSetIsTraining")


class OperatorInfo:
    """Name of an operator, and the attribute that counts its inputs if it takes any number."""

    __slots__ = ("name", "count_attribute", "creates", "mutates", "overwrites")

    def __init__(self, handle: int):
        text = [ctypes.c_char_p() for _ in range(4)]
        name, description, count, returned = text
        number = mx_uint()
        lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
        check_call(
            _LIB.MXSymbolGetAtomicSymbolInfo(
                ctypes.c_void_p(handle),
                ctypes.byref(name),
                ctypes.byref(description),
                ctypes.byref(number),
                *[ctypes.byref(part) for part in lists],
                ctypes.byref(count),
                ctypes.byref(returned),
            )
        )
        self.name = py_str(name.value)
        self.count_attribute = py_str(count.value) if count.value else ""
        self.creates = self.name in CONSTANTS
        self.mutates = rules.mutates(self.name)
        #: Whether it writes to its arguments whatever the mode.
        self.overwrites = rules.mutates(self.name, training=False)


class Operator:
    """An operator with its attributes: what a recorded ``mx.nd`` call calls."""

    __slots__ = ("token", "info", "keys", "values")

    def __init__(self, info: OperatorInfo, keys: Tuple[str, ...], values: Tuple[str, ...]):
        self.info = info
        self.keys = keys
        self.values = values
        self.token = ("op", info.name, keys, values)

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        return self.info.name

    def attributes(self, inputs: int) -> Dict[str, str]:
        """Return the attributes of a call with this number of inputs."""
        found = dict(zip(self.keys, self.values))
        if self.info.count_attribute:
            found[self.info.count_attribute] = str(inputs)
        return found


#: Attribute of a replacement: what it stands for.
REPLACES = "_dynbatch_replaces"


def _pair(make: Callable[[Any], Any], original: Any) -> Tuple[Any, Any]:
    replacement = make(original)
    setattr(replacement, REPLACES, original)
    return original, replacement


class Hooks:
    """Installs replacements while at least one scope in the process needs them.

    Without a lock, which an interrupt could leave locked: what decides is the set of scopes, and
    `_settle` brings MXNet in line with it, by one call of C that nothing comes between.

    Parameters
    ----------
    places : sequence of tuple
        Owner and name of each function, and what makes its replacement.
    """

    def __init__(self, places: Sequence[Tuple[Any, str, Callable[[Any], Any]]]) -> None:
        self._scopes: Set[Any] = set()
        self._owners, self._names, self._makers = zip(*places)
        #: Owners and names of what is replaced.
        self.places = tuple(zip(self._owners, self._names))
        #: For each place the original and its replacement.
        self._functions: Tuple[Tuple[Any, Any], ...] = ()

    def acquire(self, scope: Any) -> None:
        """Install the replacements for a scope unless they are in place."""
        self._scopes.add(scope)
        if not hasattr(getattr(self._owners[0], self._names[0]), REPLACES):
            # At once: all are originals, or all the replacements of another thread.
            found = list(map(getattr, self._owners, self._names))
            originals = [getattr(function, REPLACES, function) for function in found]
            if originals != [original for original, _ in self._functions]:
                self._functions = tuple(map(_pair, self._makers, originals))
            self._settle()

    def release(self, scope: Any) -> None:
        """Put the originals back when the last scope closes; may be called again."""
        self._scopes.discard(scope)
        if not self._scopes:
            self._settle()

    def _settle(self) -> None:
        """Install the replacements if there are scopes, else the originals."""
        wanted = map(operator.getitem, self._functions, map(bool, repeat(self._scopes)))
        deque(map(setattr, self._owners, self._names, wanted), maxlen=0)


#: What is known of operators, by handle.
_OPERATORS: Dict[int, OperatorInfo] = {}


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
        info = _info(handle)
        if info.mutates:
            recorder.before_write(arrays)
        if out is not None:
            recorder.before_write(out if isinstance(out, (list, tuple)) else [out])
        if arrays:
            wanted = any(type(a) is LazyNDArray for a in arrays) and not info.overwrites
        else:
            wanted = info.creates
        if not wanted or out is not None or is_np_op:
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        callee = Operator(info, tuple(keys), tuple(map(str, values)))
        if not arrays:
            return recorder.constant(
                callee.token,
                lambda: original(handle, arrays, keys, values, out, is_np_op, output_is_list),
            )
        made = recorder.invoke(callee, arrays)
        if made is None:
            return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
        return made[0] if len(made) == 1 and not output_is_list else made

    return invoke


def _info(handle: int) -> OperatorInfo:
    info = _OPERATORS.get(handle)
    if info is None:
        info = _OPERATORS[handle] = OperatorInfo(handle)
    return info


def _forward_hook(original: Any) -> Any:
    def forward(block: HybridBlock, x: Any, *args: Any) -> Any:
        recorder = STATE.recorder
        if recorder is None or not block._active or not isinstance(x, NDArray):
            return original(block, x, *args)
        return recorder.call_block(block, (x, *args))

    return forward


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
            before(STATE.recorder, *args)
        return original(*args)

    return change


def _attribute_hook(original: Any) -> Any:
    def set_attribute(parameter: Parameter, name: str, value: Any) -> None:
        if STATE.recorder is not None:
            STATE.recorder.before_change(parameter)
        original(parameter, name, value)

    return set_attribute


def _index_hook(original: Any) -> Any:
    def read(array: NDArray, key: Any) -> NDArray:
        return original(array, key.real() if type(key) is LazyNDArray else key)

    return read


def _wait_hook(original: Any) -> Any:
    def wait(*args: Any) -> Any:
        if STATE.recorder is None:
            return original(*args)
        batch, started = STATE.batch, time.perf_counter()
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
    return (RECORDING if autograd.is_recording() else 0) | (
        TRAINING if autograd.is_training() else 0
    )


#: For every open scope: calls of blocks that run at once are counted.
CALLS = Hooks([(HybridBlock, "_call_cached_op", _cached_op_hook)])
#: For scopes that record.
HOOKS = Hooks(
    [
        (register, "_imperative_invoke", _invoke_hook),
        (HybridBlock, "forward", _forward_hook),
        (NDArray, "__getitem__", _index_hook),
        (Parameter, "__setattr__", _attribute_hook),
        *[(_LIB, name, functools.partial(_change_hook, call)) for name, call in CHANGES.items()],
        *[(_LIB, name, _wait_hook) for name in WAITS],
        *[(_LIB, name, _mode_hook) for name in MODES],
    ]
)
