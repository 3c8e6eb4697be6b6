"""Recording: calls become nodes of flat arrays, and their results become lazy arrays.

A :class:`Recording` is what one flush works on.  It grows by appending integers; positions are ids:

* a *value* is one array: the output of a node, or an *external* array that existed before;
* a *node* is one recorded call; its outputs are consecutive values;
* an *operand* is a value and an offset in elements, so that a view (``x[2:5]``, ``x.reshape(...)``)
  costs no node at all.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
import weakref
from array import array
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from . import structure
from .errors import (
    ArgumentError,
    ContextError,
    GradientError,
    ScopeError,
    StaleArrayError,
    Where,
    user_message,
)

FLATTENER = structure.Flattener(NDArray)

#: What callers may pass, for error messages.
ARGUMENTS = "pass arrays, numbers, strings, None, or lists, tuples and dictionaries of these"

#: Bits of the mode in which a call was made.
RECORDING, TRAINING = 1, 2


class ArrayType(NamedTuple):
    """What is known of an array without running anything."""

    shape: Tuple[int, ...]
    #: NumPy's name of the element type, e.g. ``"float32"``.
    dtype: str
    context: mx.Context

    @property
    def elements(self) -> int:
        """Number of elements."""
        return elements(self.shape)


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of this `shape`."""
    count = 1
    for size in shape:
        count *= size
    return count


class TypeTable:
    """Interns array types: equal types get the same small integer."""

    def __init__(self) -> None:
        self._ids: Dict[ArrayType, int] = {}
        self._types: List[ArrayType] = []
        self._views: Dict[Tuple[int, Any, Any], Tuple[int, int]] = {}
        self._lock = threading.Lock()

    def __getitem__(self, type_id: int) -> ArrayType:
        return self._types[type_id]

    def id_of(self, array_type: ArrayType) -> int:
        """Return the id of `array_type`, a new one if it was not seen before."""
        found = self._ids.get(array_type)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(array_type, len(self._types))
                if found == len(self._types):
                    self._types.append(array_type)
        return found

    def view(self, type_id: int, start: Any, stop: Any) -> Optional[Tuple[int, int]]:
        """Return offset in elements and type of ``x[start]`` or, with a stop, of ``x[start:stop]``.

        None stands for a view that is empty.  Remembered, as it is asked for once per node.

        Raises
        ------
        IndexError
            There is no row `start`.
        """
        found = self._views.get((type_id, start, stop))
        if found is None:
            kind = self._types[type_id]
            count, row = kind.shape[0], elements(kind.shape[1:])
            if stop is ROW:
                if not -count <= start < count:
                    raise IndexError(f"index {start} is out of bounds for axis 0 with size {count}")
                first, shape = start % count, kind.shape[1:] or (1,)
            else:
                first, last, _ = slice(start, stop).indices(count)
                shape = (last - first,) + kind.shape[1:]
                if last <= first:
                    return None
            if len(self._views) > MOST_VIEWS:
                self._views.clear()
            found = first * row, self.id_of(kind._replace(shape=shape))
            self._views[type_id, start, stop] = found
        return found

    def of(self, value: NDArray) -> int:
        """Return the id of the type of a real array."""
        dtype = value.dtype
        return self.id_of(
            ArrayType(value.shape, getattr(dtype, "__name__", str(dtype)), value.context)
        )


#: In the place of a stop: one row is meant, not a range.
ROW = "row"
#: Views remembered before all are forgotten.
MOST_VIEWS = 100_000

#: Array types of this process.  Types are values: sharing them between scopes shares no state.
TYPES = TypeTable()


class ThreadState(threading.local):
    """What a thread knows of its own scope."""

    #: The open scope, or None.
    batch: Optional[Any] = None
    #: Its recorder; None also while the scope itself is at work.
    recorder: Optional[Any] = None


STATE = ThreadState()


class LazyNDArray(NDArray):
    """An array that a scope has recorded and not yet computed.

    Its shape, dtype and context are known at once.  Whatever asks for its value, in this package or
    in any other code, makes it real, and from then on it is an array like any other.
    """

    __slots__ = ("_recording", "_value", "_offset", "_type", "_real", "__weakref__")

    def __init__(self, recording: Recording, value: int, offset: int, type_id: int):
        # NDArrayBase.__init__ would store a handle, and there is none yet.
        self._recording = recording
        self._value = value
        self._offset = offset
        self._type = type_id
        self._real: Optional[NDArray] = None

    # The base class frees the handle here, but it belongs to the real array, which does so itself.
    # There is nothing to do; a method of C does it in a third of the time of one of Python.
    __del__ = object.__hash__

    @property
    def handle(self) -> Any:  # type: ignore[override]
        """Handle of the real array; asking for it computes the value."""
        return self.real().handle

    @property
    def writable(self) -> bool:  # type: ignore[override]
        """Whether the array may be written to."""
        return True

    def real(self) -> NDArray:
        """Return the computed array, computing everything that is pending if need be."""
        if self._real is None:
            self._recording.realise(self)
        return self._real

    def become(self, real: NDArray) -> None:
        """Take the value of `real`, for good."""
        self._real = real
        self._recording = REALISED

    @property
    def shape(self) -> Tuple[int, ...]:
        """Tuple of sizes."""
        return TYPES[self._type].shape

    @property
    def dtype(self) -> Any:
        """Element type, as a NumPy type."""
        return np.dtype(TYPES[self._type].dtype).type

    @property
    def context(self) -> mx.Context:
        """Device of the array."""
        return TYPES[self._type].context

    ctx = context

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(TYPES[self._type].shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return TYPES[self._type].elements

    @property
    def stype(self) -> str:
        """Storage type."""
        return "default"

    @property
    def pending(self) -> bool:
        """Whether the value is still to be computed."""
        return self._recording.open

    def _view(self, offset: int, shape: Tuple[int, ...]) -> LazyNDArray:
        """Return `shape` elements from `offset` on as a view, without recording a call."""
        kind = TYPES[self._type]
        type_id = TYPES.id_of(ArrayType(shape, kind.dtype, kind.context))
        return self._recording.lazy(self._value, self._offset + offset, type_id)

    def __getitem__(self, key: Any) -> NDArray:
        recording = self._recording
        if not recording.open:
            return self.real()[key]
        view = None
        if type(key) is slice and (key.step is None or key.step == 1):
            view = TYPES.view(self._type, key.start, key.stop)
        elif type(key) is int:
            view = TYPES.view(self._type, key, ROW)
        if view is not None:
            return recording.lazy(self._value, self._offset + view[0], view[1])
        if isinstance(key, tuple) and all(type(k) in (int, slice) for k in key) and key:
            return self._slice_axes(key)
        return super().__getitem__(key)

    def _slice_axes(self, key: Tuple[Any, ...]) -> NDArray:
        """Index several axes at once, by one recorded ``slice`` and a view."""
        shape = self.shape
        if len(key) > len(shape):
            raise IndexError(f"{len(key)} indices for an array with {len(shape)} axes")
        begin, end, step, kept = [], [], [], []
        for size, k in zip(shape, key):
            if type(k) is int and not -size <= k < size:
                raise IndexError(f"index {k} is out of bounds for an axis of size {size}")
            cut = slice(k % size, k % size + 1) if type(k) is int else k
            start, stop, stride = cut.indices(size)
            count = len(range(start, stop, stride))
            begin.append(start)
            # A stop of -1 would mean "the last" to the operator; None means "to the very end".
            end.append(None if stop < 0 else stop)
            step.append(stride)
            if type(k) is not int:
                kept.append(count)
        if 0 in kept:
            return super().__getitem__(key)
        sliced = mx.nd.slice(self, begin=tuple(begin), end=tuple(end), step=tuple(step))
        kept.extend(shape[len(key) :])
        return sliced.reshape(tuple(kept) or (1,))

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """Return a view of another shape; the arguments are those of ``NDArray.reshape``."""
        if not self.pending:
            return self.real().reshape(*shape, **kwargs)
        asked = kwargs.get(
            "shape", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        )
        known = resolve_shape(self.shape, tuple(asked))
        if known is None or kwargs.get("reverse"):
            return mx.nd.reshape(self, shape=tuple(asked), reverse=bool(kwargs.get("reverse")))
        return self._view(0, known)

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """Return a view with an axis of size one at `axis`."""
        ndim = self.ndim
        if not self.pending or not -ndim - 1 <= axis <= ndim:
            return self.real().expand_dims(axis, inplace)
        at = axis + ndim + 1 if axis < 0 else axis
        shape = self.shape
        return self._view(0, shape[:at] + (1,) + shape[at:])

    def flatten(self, inplace: bool = False) -> NDArray:
        """Return a view in which all axes but the first are one."""
        del inplace
        shape = self.shape
        return self.reshape((shape[0], elements(shape[1:])))

    def squeeze(self, axis: Any = None, inplace: bool = False) -> NDArray:
        """Return a view without axes of size one."""
        if not self.pending:
            return self.real().squeeze(axis, inplace)
        shape = self.shape
        axes = range(len(shape)) if axis is None else ([axis] if isinstance(axis, int) else axis)
        drop = {a % len(shape) for a in axes if axis is None or -len(shape) <= a < len(shape)}
        if axis is None:
            drop = {a for a in drop if shape[a] == 1}
        if len(drop) != len(list(axes)) and axis is not None or any(shape[a] != 1 for a in drop):
            raise ValueError(f"cannot squeeze axis {axis} of an array of shape {shape}")
        return self._view(0, tuple(n for a, n in enumerate(shape) if a not in drop) or (1,))

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Return the array with elements of another type."""
        if not self.pending:
            return self.real().astype(dtype, copy)
        name = np.dtype(dtype).name
        if not copy and name == TYPES[self._type].dtype:
            return self
        return mx.nd.cast(self, dtype=name)

    def copy(self) -> NDArray:
        """Return a copy."""
        return mx.nd.identity(self) if self.pending else self.real().copy()

    def detach(self) -> NDArray:
        """Return the same values, cut from the gradient graph."""
        return mx.nd.BlockGrad(self) if self.pending else self.real().detach()

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Compute the gradients of this array; as ``NDArray.backward``.

        Raises
        ------
        GradientError
            The graph is gone: all arrays of one flush share one, and backward frees it.
        """
        try:
            self.real().backward(out_grad, retain_graph, train_mode)
        except mx.MXNetError as error:
            if "not in a computational graph" not in str(error):
                raise
            raise GradientError(
                user_message(
                    "this array is not in a graph: it was not recorded under autograd.record(), "
                    "or backward has "
                    "already been called on an array of the same flush",
                    user_line(),
                    None,
                    "call mx.autograd.backward(losses) once for all arrays, "
                    "or pass retain_graph=True",
                )
            ) from error

    def as_in_context(self, context: mx.Context) -> NDArray:
        """Return the array on another device."""
        return self if context == self.context else self.real().as_in_context(context)

    def __reduce__(self) -> Any:
        return self.real().__reduce__()


def _accept_lazy_values() -> None:
    """Let lazy arrays be assigned to elements of others; there MXNet wants exactly its own type."""
    original = NDArray._prepare_value_nd

    def prepare(array_: NDArray, value: Any, *args: Any, **kwargs: Any) -> NDArray:
        return original(
            array_, value.real() if type(value) is LazyNDArray else value, *args, **kwargs
        )

    NDArray._prepare_value_nd = prepare


_accept_lazy_values()


def resolve_shape(old: Tuple[int, ...], asked: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    """Return the shape that ``reshape`` gives, or None if `asked` uses codes beyond 0 and -1."""
    if any(n < -1 for n in asked) or asked.count(-1) > 1 or not asked:
        return None
    try:
        new = [old[i] if n == 0 else n for i, n in enumerate(asked)]
    except IndexError:
        return None
    known = elements([n for n in new if n != -1])
    total = elements(old)
    if -1 in new:
        if not known or total % known:
            raise ValueError(f"cannot reshape an array of shape {old} into {asked}")
        new[new.index(-1)] = total // known
    elif known != total:
        raise ValueError(f"cannot reshape an array of shape {old} into {asked}")
    return tuple(new)


class Recording:
    """Everything that one flush will run, as flat arrays."""

    __slots__ = (
        "open",
        "error",
        "node_entry",
        "node_value0",
        "sources",
        "offsets",
        "wheres",
        "value_type",
        "externals",
        "external_values",
        "_external_ids",
        "constants",
        "lazies",
        "recorder",
        "seconds",
        "entries",
        "__weakref__",
    )

    def __init__(self, recorder: Any):
        self.recorder = recorder
        self.open = True
        self.error: Optional[str] = None
        #: Per node: id of its entry, and its first output value.
        self.node_entry = array("i")
        self.node_value0 = array("i")
        #: Entries used, by id.
        self.entries: Dict[int, Any] = {}
        #: Per operand, nodes one after another: value and offset in elements.
        self.sources = array("i")
        self.offsets = array("q")
        #: Per node: code object and instruction of the user's call.
        self.wheres: List[Tuple[Any, int]] = []
        #: Per value: type id.
        self.value_type = array("i")
        #: Arrays from outside, and their values.
        self.externals: List[NDArray] = []
        self.external_values = array("i")
        self._external_ids: Dict[int, int] = {}
        #: Values of what creation operators made, by operator and attributes.
        self.constants: Dict[Any, int] = {}
        #: Weak references to all lazy arrays handed out.
        self.lazies: List[Any] = []
        self.seconds = time.perf_counter()

    def lazy(self, value: int, offset: int, type_id: int) -> LazyNDArray:
        """Hand out a lazy array for `value`."""
        made = LazyNDArray(self, value, offset, type_id)
        self.lazies.append(weakref.ref(made))
        return made

    def external(self, value: NDArray) -> int:
        """Return the value id of an array that this recording does not compute."""
        known = self._external_ids.get(id(value))
        if known is not None:
            return known
        real = value.real() if type(value) is LazyNDArray else value
        known = self._external_ids.get(id(real))
        if known is None:
            if real.stype != "default":
                raise ArgumentError(
                    user_message(
                        f"an array of storage type {real.stype!r} cannot be batched",
                        user_line(),
                        None,
                        "convert it with .tostype('default')",
                    )
                )
            known = len(self.value_type)
            self.value_type.append(TYPES.of(real))
            self._external_ids[id(real)] = known
            self.external_values.append(known)
            # Held until the flush, so that its id stays its own.
            self.externals.append(real)
        return known

    def reads(self, value: NDArray) -> bool:
        """Whether a recorded call has `value` as an argument."""
        return id(value) in self._external_ids

    def node(
        self, entry: Any, sources: List[int], offsets: List[int], where: Tuple[Any, int]
    ) -> List[LazyNDArray]:
        """Append one call and hand out its outputs."""
        first = len(self.value_type)
        self.entries[entry.id] = entry
        self.node_entry.append(entry.id)
        self.node_value0.append(first)
        self.sources.extend(sources)
        self.offsets.extend(offsets)
        self.wheres.append(where)
        self.value_type.extend(entry.out_types)
        made = [LazyNDArray(self, first + i, 0, t) for i, t in enumerate(entry.out_types)]
        self.lazies.extend(map(weakref.ref, made))
        return made

    def realise(self, lazy: LazyNDArray) -> None:
        """Compute the value of `lazy`, which asks for it now."""
        if lazy._value in self.constants.values() and self.externals:
            # A copy: whoever asks may write into it.
            lazy.become(self.externals[self.external_values.index(lazy._value)].copy())
            return
        if self.open:
            self.recorder.force(self)
        if lazy._real is None:
            raise StaleArrayError(
                user_message(
                    "this array was recorded in a batching scope and never computed: "
                    + (self.error or "the scope ended with an exception"),
                    user_line(),
                    None,
                    "run the computation again in a new scope",
                )
            )

    def close(self) -> None:
        """Let go of everything that only a flush needs."""
        self.open = False
        self.externals = []
        self.lazies = []
        self.wheres = []

    def drop(self, reason: str) -> None:
        """Forget everything; arrays handed out say `reason` when they are used."""
        self.open = False
        self.error = reason
        self.externals = []
        self.lazies = []


#: What lazy arrays that have become real belong to.
REALISED = Recording(None)
REALISED.close()


def _library_directories() -> Tuple[str, ...]:
    roots = [os.path.dirname(mx.__file__), os.path.dirname(os.path.abspath(__file__))]
    site = os.path.dirname(roots[0])
    return tuple(os.path.join(r, "") for r in [*roots, os.path.join(site, "gluonnlp")])


class _UserCode:
    """Tells the user's code objects from those of the libraries between user and recorder."""

    def __init__(self) -> None:
        self._directories = _library_directories()
        #: By id, because hashing a code object reads all of it; held, so that ids stay unique.
        self._known: Dict[int, Tuple[bool, Any]] = {}

    def __call__(self, code: Any) -> bool:
        known = self._known.get(id(code))
        if known is None:
            name = code.co_filename
            # Functions that MXNet generates have no file.
            user = not (name.startswith(self._directories) or name == "<string>")
            known = self._known[id(code)] = (user, code)
        return known[0]


IS_USER_CODE = _UserCode()


def call_line(depth: int = 2) -> Tuple[Any, int]:
    """Return code object and instruction of the nearest caller outside the libraries."""
    frame = sys._getframe(depth)
    while not IS_USER_CODE(frame.f_code):
        back = frame.f_back
        if back is None:
            break
        frame = back
    return frame.f_code, frame.f_lasti


def where_of(place: Tuple[Any, int]) -> Where:
    """Make a readable place out of a code object and an instruction."""
    code, instruction = place
    number = code.co_firstlineno
    for start, line in dis.findlinestarts(code):
        if start > instruction:
            break
        number = line or number
    return Where(code.co_filename, number, code.co_name)


def user_line() -> Where:
    """Return the nearest place outside the libraries."""
    return where_of(call_line())


def context_error(contexts: Iterable[mx.Context], name: str) -> ContextError:
    """Make the error for a call whose arrays are on several devices."""
    return ContextError(
        user_message(
            "the arrays of one call are on several contexts: "
            + ", ".join(sorted(map(str, contexts))),
            user_line(),
            name,
            "bring them together with .as_in_context(...)",
        )
    )


class Recorder:
    """Turns calls into nodes of the current recording.

    Parameters
    ----------
    library : object
        Gives the entry of a call, from ``library.entries`` or ``library.entry(...)``.
    flush : callable
        ``flush(recording, where)`` computes everything; called when a value is asked for.
    """

    def __init__(self, library: Any, flush: Any):
        self._library = library
        self._entries = library.entries
        self._flush = flush
        #: ``RECORDING`` and ``TRAINING`` bits, kept equal to autograd's while the scope is open.
        self.mode = 0
        self.thread = threading.get_ident()
        self.recording = Recording(self)
        self.forced: Dict[Where, int] = {}

    def fresh(self) -> Recording:
        """Start a new recording and return the one that ends."""
        ended, self.recording = self.recording, Recording(self)
        return ended

    def force(self, recording: Recording) -> None:
        """Compute `recording` because a value is asked for now."""
        if threading.get_ident() != self.thread:
            raise ScopeError(
                user_message(
                    "a value of an open batching scope was asked for from another thread",
                    user_line(),
                    None,
                    "call batch.flush() in the scope's own thread first",
                )
            )
        where = user_line()
        self.forced[where] = self.forced.get(where, 0) + 1
        self._flush()

    def before_write(self, arrays: Sequence[NDArray]) -> None:
        """Compute what is pending if it reads one of `arrays`, which are about to be written to."""
        recording = self.recording
        if not recording.node_entry:
            return
        parameters = {
            id(data)
            for entry in recording.entries.values()
            for parameter in entry.program.parameters.values()
            for data in parameter.list_data()
        }
        if any(recording.reads(a) or id(a) in parameters for a in arrays):
            where = user_line()
            self.forced[where] = self.forced.get(where, 0) + 1
            self._flush()

    def constant(self, token: Any, create: Any) -> LazyNDArray:
        """Return a lazy array for what a creation operator makes, made once per recording.

        Many samples start from equal zeros; as one value they need neither memory nor time each.
        """
        recording = self.recording
        value = recording.constants.get(token)
        if value is None:
            value = recording.constants[token] = recording.external(create())
        return recording.lazy(value, 0, recording.value_type[value])

    def call_block(self, block: Any, args: Tuple[Any, ...]) -> Any:
        """Record a call of a block."""
        return self.call(self._library.callee(block), args)

    def call(self, callee: Any, args: Tuple[Any, ...]) -> Any:
        """Record a call of a callee with any structure of arguments."""
        recording = self.recording
        key: List[Any] = [callee.token, self.mode]
        sources: List[int] = []
        offsets: List[int] = []
        for arg in args:
            # Lazy arrays and lists of them are what cells get: no detour for these.
            if type(arg) is LazyNDArray and arg._recording is recording:
                key.append(arg._type)
                sources.append(arg._value)
                offsets.append(arg._offset)
            elif type(arg) is list:
                key.append("[")
                for item in arg:
                    if type(item) is LazyNDArray and item._recording is recording:
                        key.append(item._type)
                        sources.append(item._value)
                        offsets.append(item._offset)
                    else:
                        self._scan(callee, item, key, sources, offsets)
                key.append("]")
            else:
                self._scan(callee, arg, key, sources, offsets)
        outputs, entry = self._append(callee, tuple(key), sources, offsets, args)
        return entry.rebuild(outputs)

    def invoke(self, callee: Any, arrays: List[NDArray]) -> Optional[List[LazyNDArray]]:
        """Record a call of an operator; None if it can only be run at once."""
        if not self._library.compiles(callee, len(arrays)):
            return None
        key: List[Any] = [callee.token, self.mode]
        sources: List[int] = []
        offsets: List[int] = []
        for array_ in arrays:
            self._scan(callee, array_, key, sources, offsets)
        return self._append(callee, tuple(key), sources, offsets, arrays)[0]

    def _scan(
        self, callee: Any, value: Any, key: List[Any], sources: List[int], offsets: List[int]
    ) -> None:
        """Add one argument of any kind to the key of a call, and its arrays to the operands."""
        if isinstance(value, NDArray):
            recording = self.recording
            if type(value) is LazyNDArray and value._recording is recording:
                sources.append(value._value)
                offsets.append(value._offset)
                key.append(value._type)
            else:
                number = recording.external(value)
                sources.append(number)
                offsets.append(0)
                key.append(recording.value_type[number])
            return
        try:
            leaves, spec = FLATTENER.flatten(value)
        except TypeError as error:
            raise self._bad_argument(callee, error.args[0]) from None
        key.append(spec)
        for leaf in leaves:
            self._scan(callee, leaf, key, sources, offsets)

    def _append(
        self, callee: Any, key: Tuple[Any, ...], sources: List[int], offsets: List[int], args: Any
    ) -> Any:
        entry = self._entries.get(key)
        where = call_line(3)
        if entry is None:
            entry = self._new_entry(key, callee, args, where)
        return self.recording.node(entry, sources, offsets, where), entry

    def _new_entry(self, key: Any, callee: Any, args: Any, where: Tuple[Any, int]) -> Any:
        leaves, spec = FLATTENER.flatten(args if isinstance(args, tuple) else tuple(args))
        types = [leaf._type if type(leaf) is LazyNDArray else TYPES.of(leaf) for leaf in leaves]
        if not types:
            raise ArgumentError(
                user_message(
                    "a block is called without any array",
                    user_line(),
                    callee.name,
                    "pass at least one array",
                )
            )
        self._check_contexts(callee, types)
        # Tracing calls children with symbols: these are not calls to record.
        STATE.recorder = None
        try:
            return self._library.entry(key, callee, self.mode, spec, types, where_of(where))
        finally:
            STATE.recorder = self

    def _check_contexts(self, callee: Any, types: List[int]) -> None:
        contexts = {TYPES[t].context for t in types}
        if len(contexts) > 1:
            raise context_error(contexts, callee.name)

    def _bad_argument(self, callee: Any, value: Any) -> ArgumentError:
        return ArgumentError(
            user_message(
                f"an argument holds {value!r} of type {type(value).__name__}",
                user_line(),
                callee.name,
                ARGUMENTS,
            )
        )
