"""The places where MXNet is watched while a scope is open.

* ``mxnet.ndarray.register._imperative_invoke``: every generated ``mx.nd`` function, hence also
  Python operators and most methods of arrays;
* ``HybridBlock.forward`` and ``_call_cached_op``: every call of a hybridized block; the former,
  which looks at all arguments through the C library, is passed by;
* ``NDArray.__setitem__``: calls that read the array, or a view of it, run before it is written to;
* ``backward``, what a ``KVStore`` gives out and fresh values of parameters go to arrays that are
  not named: everything pending runs before;
* ``NDArray.__getitem__``: a lazy array as an index has to be real;
* ``mxnet.autograd.set_recording`` and ``set_training``: so that the mode of a call is known without
  asking the C library each time.

The replacements act for threads that have a scope open; for any other they pass the call on.  When
the last scope closes they are gone.  Two more stay, as lazy arrays outlive their scope:
``autograd.grad`` (see `gradient.py`) and ``NDArray._prepare_value_nd`` (see `lazy.py`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any, Callable, Dict, List, Tuple

from mxnet import autograd
from mxnet.base import _LIB, check_call, mx_uint, py_str
from mxnet.gluon import HybridBlock, Parameter
from mxnet.kvstore import KVStore
from mxnet.ndarray import NDArray, register

from . import rules
from .graph import RECORDING, TRAINING
from .lazy import LazyNDArray
from .record import STATE

#: Creation operators whose results are recorded, once per flush.  Others run at once: MXNet's own
#: code uses them, and there relies on the exact type.
CONSTANTS = frozenset(["_zeros", "_ones", "_full"])

#: What writes to arrays that its arguments do not name.
WRITERS = (
    (NDArray, "backward"),
    (autograd, "backward"),
    (KVStore, "pull"),
    (KVStore, "row_sparse_pull"),
    (KVStore, "pushpull"),
    (KVStore, "broadcast"),
    (Parameter, "initialize"),
    (Parameter, "reset_ctx"),
)


class OperatorInfo:
    """Name of an operator, and the attribute that counts its inputs if it takes any number."""

    __slots__ = ("name", "count_attribute", "creates", "mutates")

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


class Hooks:
    """Installs the replacements while at least one scope is open in the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._operators: Dict[int, OperatorInfo] = {}
        self._originals: List[Tuple[Any, str, Any]] = []

    def acquire(self) -> None:
        """Install the replacements unless they are in place."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._replace(register, "_imperative_invoke", self._invoke_hook)
                self._replace(HybridBlock, "forward", self._forward_hook)
                self._replace(HybridBlock, "_call_cached_op", self._cached_op_hook)
                self._replace(NDArray, "__setitem__", self._write_hook)
                self._replace(NDArray, "__getitem__", self._index_hook)
                for owner, name in WRITERS:
                    self._replace(owner, name, self._writer_hook)
                self._replace(autograd, "set_recording", self._mode_hook)
                self._replace(autograd, "set_training", self._mode_hook)

    def release(self) -> None:
        """Put the originals back when the last scope closes."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for owner, name, original in reversed(self._originals):
                    setattr(owner, name, original)
                self._originals.clear()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._originals.append((owner, name, original))
        setattr(owner, name, make(original))

    def _invoke_hook(self, original: Any) -> Any:
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
            if recorder is not None:
                if out is not None:
                    recorder.before_write(out if isinstance(out, (list, tuple)) else [out])
                elif self._info(handle).mutates:
                    recorder.before_write(arrays)
            if recorder is None or out is not None or is_np_op:
                return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
            if arrays:
                wanted = any(type(a) is LazyNDArray for a in arrays)
            else:
                wanted = self._info(handle).creates
            if not wanted:
                return original(handle, arrays, keys, values, out, is_np_op, output_is_list)
            callee = Operator(self._info(handle), tuple(keys), tuple(map(str, values)))
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

    def _info(self, handle: int) -> OperatorInfo:
        info = self._operators.get(handle)
        if info is None:
            info = self._operators[handle] = OperatorInfo(handle)
        return info

    @staticmethod
    def _forward_hook(original: Any) -> Any:
        def forward(block: HybridBlock, x: Any, *args: Any) -> Any:
            recorder = STATE.recorder
            if recorder is None or not block._active or not isinstance(x, NDArray):
                return original(block, x, *args)
            return recorder.call_block(block, (x, *args))

        return forward

    @staticmethod
    def _cached_op_hook(original: Any) -> Any:
        def call_cached_op(block: HybridBlock, *args: Any) -> Any:
            recorder = STATE.recorder
            if recorder is None and STATE.batch is not None:
                recorder = STATE.batch.recorder_of(block)
            if recorder is None:
                return original(block, *args)
            return recorder.call_block(block, args)

        return call_cached_op

    @staticmethod
    def _write_hook(original: Any) -> Any:
        def write(array: NDArray, key: Any, value: Any) -> None:
            recorder = STATE.recorder
            if recorder is not None:
                recorder.before_write([array])
            original(array, key, value)

        return write

    @staticmethod
    def _writer_hook(original: Any) -> Any:
        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            recorder = STATE.recorder
            if recorder is not None:
                recorder.run_pending()
            return original(*args, **kwargs)

        return write

    @staticmethod
    def _index_hook(original: Any) -> Any:
        def read(array: NDArray, key: Any) -> NDArray:
            return original(array, key.real() if type(key) is LazyNDArray else key)

        return read

    @staticmethod
    def _mode_hook(original: Any) -> Any:
        def set_mode(value: bool) -> bool:
            previous = original(value)
            if STATE.recorder is not None:
                STATE.recorder.mode = current_mode()
            return bool(previous)

        return set_mode


def current_mode() -> int:
    """Ask autograd for the mode of this thread."""
    return (RECORDING if autograd.is_recording() else 0) | (
        TRAINING if autograd.is_training() else 0
    )


HOOKS = Hooks()
