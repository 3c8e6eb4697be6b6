"""Recording: calls become nodes of flat arrays, and their results become lazy arrays.

A :class:`Recording` is what one flush works on.  It grows by appending integers; positions are ids:

* a *value* is one array: the output of a node, or an *external* array that existed before;
* a *node* is one recorded call; its outputs are consecutive values;
* an *operand* is a value and an offset in elements, so that a view (``x[2:5]``, ``x.reshape(...)``)
  costs no node at all.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import weakref
from array import array
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet.base import _LIB
from mxnet.gluon.parameter import DeferredInitializationError, Parameter
from mxnet.ndarray import NDArray

from .. import rules
from ..errors import (
    ArgumentError,
    ContextError,
    NotMergedError,
    RunAsPythonError,
    ScopeError,
    StaleArrayError,
    Where,
    user_message,
)
from ..modes import RECORDING, TRAINING
from ..native import NATIVE
from ..report import Alone
from . import structure
from .lazy import OF_CONSTANT, LazyNDArray
from .tape import Tape
from .types import ROW, TYPES, Memory, memory_of
from .where import IS_USER_CODE, call_line, user_line, where_of

FLATTENER = structure.Flattener(NDArray)

#: What callers may pass, for error messages.
ARGUMENTS = "pass arrays, numbers, strings, None, or lists, tuples and dictionaries of these"


class ThreadState(threading.local):
    """What a thread knows of its own scope."""

    #: The open scope, or None.
    batch: Optional[Any] = None
    #: Its recorder; None also while the scope itself is at work.
    recorder: Optional[Any] = None

    def __init__(self) -> None:
        #: What "auto" knows of the places at which this thread opened scopes.
        self.sites: Dict[Any, Any] = {}


STATE = ThreadState()


class Recording(Tape):
    """Everything that one flush will run."""

    __slots__ = (
        "error",
        "_chunks",
        "_starts",
        "_stops",
        "_handles",
        "_looked",
        "constants",
        "detached",
        "recorder",
        "started",
        "__weakref__",
    )

    def __new__(cls, recorder: Any) -> Recording:
        """Make the flat arrays, which need no arguments."""
        return super().__new__(cls)

    def __init__(self, recorder: Any):
        super().__init__()
        self.recorder = recorder
        self.error: Optional[str] = None
        #: Where externals and parameters lie, as many as there were when this was last asked for.
        self._chunks: Set[int] = set()
        self._starts = array("Q")
        self._stops = array("Q")
        self._handles: Set[int] = set()
        self._looked = 0, 0
        #: Values of what creation operators made, by operator and attributes.
        self.constants: Dict[Any, int] = {}
        #: Values that are others, cut from the gradient graph: in which memory, from where on.
        self.detached: Dict[int, Tuple[Any, int]] = {}
        #: When the first call was recorded, by ``time.perf_counter``, moved by the time that was
        #: spent waiting for values since; 0 before.
        self.started = 0.0

    def lazy(self, value: int, offset: int, type_id: int) -> LazyNDArray:
        """Hand out a lazy array for `value`."""
        made = LazyNDArray(self, value, offset, type_id)
        self.lazies.append(weakref.ref(made))
        return made

    def detach(self, lazy: LazyNDArray) -> Optional[LazyNDArray]:
        """Record `lazy` as a value that no gradient passes; None if nothing is recorded now."""
        recorder = STATE.recorder
        if recorder is None or recorder.recording is not self:
            return None
        mode, recorder.mode = recorder.mode, recorder.mode & ~RECORDING
        try:
            made = mx.nd.identity(lazy)
        finally:
            recorder.mode = mode
        self.detached[made._value] = self.memory(lazy)
        return made

    def memory(self, lazy: LazyNDArray) -> Tuple[Any, int]:
        """Return what names the memory that `lazy` will lie in, and the offset there.

        The name is a value, and which copy of it.
        """
        memory, offset = self.detached.get(lazy._value, ((lazy._value, None), 0))
        if lazy.memory is not None:
            memory = memory[0], lazy.memory
        return memory, offset + lazy._offset

    def external(self, value: NDArray) -> int:
        """Return the value id of an array that this recording does not compute."""
        known = self.external_ids.get(id(value))
        if known is not None:
            return known
        real = value.real() if type(value) is LazyNDArray else value
        known = self.external_ids.get(id(real))
        if known is None:
            if type(real) is not NDArray:
                _check_kind(real)
            known = len(self.value_type)
            self.value_type.append(TYPES.of(real))
            self.external_ids[id(real)] = known
            self.external_values.append(known)
            # Held until the flush, so that its id stays its own.
            self.externals.append(real)
            self.handles.append(real.handle)
        return known

    def reads(self, memory: Iterable[Memory]) -> bool:
        """Whether a recorded call reads one of these arrays, or a view of one."""
        self._look()
        return not self._chunks.isdisjoint(m.chunk for m in memory)

    def overlaps(self, memory: Iterable[Memory]) -> bool:
        """Whether a recorded call reads from any address of `memory`."""
        self._look()
        starts, stops = (np.frombuffer(words, np.uint64) for words in (self._starts, self._stops))
        return any(bool(((starts < m.stop) & (m.start < stops)).any()) for m in memory)

    def holds(self, handles: Set[int]) -> bool:
        """Whether a recorded call is given one of these very arrays, not a view of it."""
        self._look()
        return not self._handles.isdisjoint(handles)

    def parameters(self, first: int = 0) -> Iterator[Parameter]:
        """Yield the parameters that recorded calls read, from an entry on."""
        for entry in itertools.islice(self.entries.values(), first, None):
            yield from entry.program.parameters.values()

    def _look(self) -> None:
        """Take note of where the arrays lie that came since this was last asked for."""
        arrays, entries = self._looked
        self._looked = len(self.handles), len(self.entries)
        found = self.handles[arrays:]
        if entries != len(self.entries):
            found += [d.handle for p in self.parameters(entries) for d in p.list_data()]
        for handle in found:
            memory = memory_of(handle)
            self._chunks.add(memory.chunk)
            self._starts.append(memory.start)
            self._stops.append(memory.stop)
            self._handles.add(handle.value)

    def check_handles(self) -> None:
        """Raise if an array from outside stands for another one than when it was recorded.

        Raises
        ------
        ScopeError
            Names the line of the first call that reads it.
        """
        if self.handles == [array.handle for array in self.externals]:
            return
        swapped = [i for i, a in enumerate(self.externals) if a.handle is not self.handles[i]]
        place = list(self.sources).index(self.external_values[swapped[0]])
        ends = np.cumsum([len(self.entries[e].in_types) for e in self.node_entry])
        raise ScopeError(
            user_message(
                f"an array of shape {self.externals[swapped[0]].shape} got another handle after "
                "a recorded call had read it",
                where_of(self.wheres[int(np.searchsorted(ends, place, "right"))]),
                None,
                "call batch.flush() before the array is made to stand for another",
            )
        )

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
        if lazy.constant and self.externals:
            # A copy: whoever asks may write into it.
            lazy.become(self.externals[list(self.external_values).index(lazy._value)].copy())
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
        self.handles.clear()
        self.lazies.clear()
        self.wheres.clear()

    def drop(self, reason: str) -> None:
        """Forget everything; arrays handed out say `reason` when they are used."""
        self.open = False
        self.error = reason
        self.externals = []
        self.handles.clear()
        self.lazies.clear()


if NATIVE is not None:
    NATIVE.connect(
        LazyNDArray,
        NDArray,
        TYPES.views,
        ROW,
        IS_USER_CODE,
        IS_USER_CODE.known,
        {},
        TYPES.of,
        tuple(
            ctypes.cast(getattr(_LIB, f"MXNDArrayGet{what}"), ctypes.c_void_p).value
            for what in ("ShapeEx64", "DType", "Context")
        ),
    )


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


def _check_kind(array: NDArray) -> None:
    """Raise unless `array` is dense and not one of ``mx.np``."""
    if isinstance(array, mx.np.ndarray):
        kind, method = "of mx.np", "as_nd_ndarray()"
    elif array.stype != "default":
        kind, method = f"of storage type {array.stype!r}", "tostype('default')"
    else:
        return
    raise ArgumentError(
        user_message(
            f"an array {kind} cannot be batched", user_line(), None, f"convert it with .{method}"
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
        #: With ``strict=True``, operators that only run at once are refused.
        self.strict = False
        #: Calls of operators that only run at once, by name.
        self.immediate: Dict[str, Alone] = {}
        #: With ``debug=True``, sees to it that nobody changes what recorded calls read.
        self.watch: Any = None
        #: Recorded calls that make a part of the minibatch which may run; 0: there are no parts.
        self.hold = 0

    def close(self, reason: str) -> None:
        """Let go of scope and recording, so that none of the three waits for the collector.

        What is still pending says `reason`, for want of a value, when it is used.
        """
        recording, self._flush = self.recording, None
        if recording is not None:
            recording.drop(reason)
        self.recording = None  # type: ignore[assignment]

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
        if self._flush is None:
            return
        where = user_line()
        self.forced[where] = self.forced.get(where, 0) + 1
        self._flush()

    def before_write(self, arrays: Sequence[NDArray]) -> None:
        """Compute what is pending if it reads one of `arrays`, which are about to be written to."""
        real = [a._real if type(a) is LazyNDArray else a for a in arrays]
        self._before_write_at([a.handle for a in real if a is not None])

    def _before_write_at(self, handles: Iterable[Any]) -> None:
        recording = self.recording
        if recording.node_entry:
            memory = [memory_of(handle) for handle in handles]
            if recording.reads(memory):
                self.run_pending()
            elif recording.overlaps(memory):
                self.run_pending()
                # To MXNet's engine these are two arrays, of which neither waits for the other.
                mx.nd.waitall()

    def before_change(self, parameter: Parameter) -> None:
        """Compute what is pending if it reads `parameter`, of which anything is about to change."""
        if any(parameter is read for read in self.recording.parameters()):
            self.run_pending()

    def before_anything(self, *_: Any) -> None:
        """Compute what is pending: the next thing may change any array that it reads."""
        self.run_pending()

    def before_copy(self, handle: Any, *_: Any) -> None:
        """Compute what is pending if it reads the array that somebody writes to from outside."""
        self._before_write_at([handle])

    def before_marking(self, count: int, handles: Any, *_: Any) -> None:
        """Compute what is pending if it reads one of the arrays that become variables anew.

        A view of such an array stays the variable that it was.
        """
        # One handle comes as a pointer, several as an array.
        found = [handles[i] for i in range(count)]
        if self.recording.node_entry and self.recording.holds(
            {getattr(handle, "value", handle) for handle in found}
        ):
            self.run_pending()

    def before_seeding(self, *_: Any) -> None:
        """Compute what is pending if it draws random numbers, which belong to the old seed."""
        if any(entry.draws for entry in self.recording.entries.values()):
            self.run_pending()

    def run_pending(self) -> None:
        """Compute what is pending."""
        if self.recording.node_entry:
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
        return recording.lazy(value, OF_CONSTANT, recording.value_type[value])

    def call_block(self, block: Any, args: Tuple[Any, ...]) -> Any:
        """Record a call of a block."""
        if block._callback is not None:
            return self._run_shown(block, args)
        callee = block.__dict__.get("_dynbatch_callee")
        if callee is None or not callee.is_current(block):
            callee = self._library.callee(block)
        if callee.enters[self.mode]:
            return self._enter(block, args)
        if self.hold and len(self.recording.node_entry) >= self.hold:
            self._run_part(callee)
        if not self.recording.started:
            self.recording.started = time.perf_counter()
        if NATIVE is not None:
            made = NATIVE.call(self.recording, self._entries, callee.token, self.mode, args)
            if made is not NotImplemented:
                if self.watch is not None:
                    self.watch.note(self.recording)
                return made
        if any(isinstance(arg, mx.sym.Symbol) for arg in args):
            # Gluon infers something of a block around this one.
            return block.forward(*args)
        try:
            return self.call(callee, args)
        except RunAsPythonError:
            callee.enters[self.mode] = True
            return self._enter(block, args)

    def _enter(self, block: Any, args: Tuple[Any, ...]) -> Any:
        """Run a block as Python: its parameters draw for this call alone, or it is not compiled."""
        context = FLATTENER.flatten(args)[0][0].context
        with context:
            try:
                drawn = {name: p.data(context) for name, p in block._reg_params.items()}
            except DeferredInitializationError:
                try:
                    STATE.recorder = None
                    block._deferred_infer_shape(*args)
                finally:
                    STATE.recorder = self
                for parameter in block.params.values():
                    parameter._finish_deferred_init()
                drawn = {name: p.data(context) for name, p in block._reg_params.items()}
            return block.hybrid_forward(mx.nd, *args, **drawn)

    def _run_shown(self, block: Any, args: Tuple[Any, ...]) -> Any:
        """Run a block at once: each of its operators is shown to somebody, for this call alone."""
        self._run_at_once(self._library.callee(block), "register_op_hook shows their operators")
        leaves = FLATTENER.flatten(args)[0]
        for leaf in leaves:
            if type(leaf) is LazyNDArray:
                leaf.real()
        STATE.recorder = None
        try:
            with leaves[0].context:
                return block._call_cached_op(*args)
        finally:
            STATE.recorder = self

    def _run_part(self, callee: Any) -> None:
        """Run what is recorded if this call is like the very first: a sample seems to begin."""
        recording = self.recording
        if recording.entries[recording.node_entry[0]].token == callee.token:
            self._flush()

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
        return outputs[0] if entry.rebuild is None else entry.rebuild(outputs)

    def invoke(self, callee: Any, arrays: List[NDArray]) -> Optional[List[LazyNDArray]]:
        """Record a call of an operator; None if it can only be run at once."""
        if not self._library.compiles(callee, len(arrays)):
            self._run_at_once(callee, "MXNet cannot compile it")
            return None
        if self.mode & TRAINING and self._library.writes(callee, len(arrays)):
            self._run_at_once(callee, "in training it writes to its arguments")
            return None
        if self.mode & RECORDING and callee.name in rules.HANGS_IN_BACKWARD:
            self._run_at_once(callee, "MXNet may never finish its backward pass within another")
            return None
        if not self.recording.started:
            self.recording.started = time.perf_counter()
        key: List[Any] = [callee.token, self.mode]
        sources: List[int] = []
        offsets: List[int] = []
        for array_ in arrays:
            self._scan(callee, array_, key, sources, offsets)
        return self._append(callee, tuple(key), sources, offsets, arrays)[0]

    def _run_at_once(self, callee: Any, why: str) -> None:
        """Take note of a call that runs at once; with ``strict=True`` it is an error."""
        kind = "operator" if callee.token[0] == "op" else "block"
        reason = f"Calls of {kind} {callee.name} run at once: {why}."
        where = user_line()
        if self.strict:
            raise NotMergedError(
                user_message(
                    f"a call cannot be merged: {reason}",
                    where,
                    callee.name,
                    "open the scope with strict=False to run it at once",
                )
            )
        known = self.immediate.get(callee.name, Alone(callee.name, reason, 0, where))
        self.immediate[callee.name] = known._replace(calls=known.calls + 1)

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
        made = self.recording.node(entry, sources, offsets, where)
        if self.watch is not None:
            self.watch.note(self.recording)
        return made, entry

    def _new_entry(self, key: Any, callee: Any, args: Any, where: Tuple[Any, int]) -> Any:
        leaves, spec = FLATTENER.flatten(args if isinstance(args, tuple) else tuple(args))
        types = [leaf._type if type(leaf) is LazyNDArray else TYPES.of(leaf) for leaf in leaves]
        places = tuple(i for i, arg in enumerate(args) for _ in FLATTENER.flatten(arg)[0])
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
        try:
            STATE.recorder = None
            return self._library.entry(key, callee, self.mode, spec, types, places, where_of(where))
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
