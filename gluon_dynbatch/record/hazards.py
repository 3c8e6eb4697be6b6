"""Write hazards: what pending calls read is about to change, so they are computed first.

Recorded calls use the values of their own time.  The functions ``before_...`` are called by those
of MXNet's functions that change something (see `intercept.py`), with their arguments.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any, Iterable, Iterator, Sequence, Set

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..errors import ScopeError
from .lazy import LazyNDArray
from .tape import Tape
from .types import Memory, memory_of
from .where import where_of


class Reads:
    """Where the arrays lie that the calls of a tape read; looked up when somebody asks."""

    def __init__(self, tape: Tape):
        self.tape = tape
        self._chunks: Set[int] = set()
        self._starts = array("Q")
        self._stops = array("Q")
        self._handles: Set[int] = set()
        self._arrays = self._entries = 0

    def include(self, memory: Iterable[Memory]) -> bool:
        """Whether one of these arrays, or a view of one, is read."""
        self._look()
        return not self._chunks.isdisjoint(m.chunk for m in memory)

    def overlap(self, memory: Iterable[Memory]) -> bool:
        """Whether any address of `memory` is read."""
        self._look()
        starts, stops = (np.frombuffer(words, np.uint64) for words in (self._starts, self._stops))
        return any(bool(((starts < m.stop) & (m.start < stops)).any()) for m in memory)

    def hold(self, handles: Set[int]) -> bool:
        """Whether one of these very arrays, not a view of it, is read."""
        self._look()
        return not self._handles.isdisjoint(handles)

    def _look(self) -> None:
        """Take note of where the arrays lie that came since this was last asked for."""
        tape = self.tape
        arrays, entries = len(tape.handles), len(tape.entries)
        handles = tape.handles[self._arrays :]
        if entries != self._entries:
            later = _parameters(tape, self._entries)
            handles += [data.handle for parameter in later for data in parameter.list_data()]
        for handle in handles:
            if handle is None:  # kept in an arena, to which nobody writes
                continue
            memory = memory_of(handle)
            self._chunks.add(memory.chunk)
            self._starts.append(memory.start)
            self._stops.append(memory.stop)
            self._handles.add(handle.value)
        self._arrays, self._entries = arrays, entries


def _parameters(tape: Tape, first: int = 0) -> Iterator[Parameter]:
    """Yield the parameters that recorded calls read, from an entry on."""
    for entry in itertools.islice(tape.entries.values(), first, None):
        yield from entry.program.parameters.values()


def _reads(recorder: Any) -> Reads:
    if recorder.reads is None or recorder.reads.tape is not recorder.tape:
        recorder.reads = Reads(recorder.tape)
    return recorder.reads  # type: ignore[no-any-return]


def before_write(recorder: Any, arrays: Sequence[NDArray]) -> None:
    """Compute what is pending if it reads one of `arrays`, which are about to be written to."""
    real = [a._real if type(a) is LazyNDArray else a for a in arrays]
    _before_write_at(recorder, [a.handle for a in real if a is not None])


def _before_write_at(recorder: Any, handles: Iterable[Any]) -> None:
    if recorder.tape.node_entry:
        memory = [memory_of(handle) for handle in handles]
        reads = _reads(recorder)
        if reads.include(memory):
            recorder.run_pending()
        elif reads.overlap(memory):
            recorder.run_pending()
            # To MXNet's engine these are two arrays, of which neither waits for the other.
            mx.nd.waitall()


def before_change(recorder: Any, parameter: Parameter, *_: Any) -> None:
    """Compute what is pending if it reads `parameter`, of which anything is about to change."""
    recorder.connect()
    if any(parameter is read for read in _parameters(recorder.tape)):
        recorder.run_pending()


def before_anything(recorder: Any, *_: Any) -> None:
    """Compute what is pending: the next thing may change any array that it reads."""
    recorder.run_pending()
    recorder.connect()


def before_copy(recorder: Any, handle: Any, *_: Any) -> None:
    """Compute what is pending if it reads the array that somebody writes to from outside."""
    _before_write_at(recorder, [handle])


def before_marking(recorder: Any, count: int, handles: Any, *_: Any) -> None:
    """Compute what is pending if it reads one of the arrays that become variables anew.

    A view of such an array stays the variable that it was.
    """
    recorder.connect()
    if recorder.tape.node_entry:
        # One handle comes as a pointer, several as an array.
        marked = [handles[i] for i in range(count)]
        if _reads(recorder).hold({getattr(handle, "value", handle) for handle in marked}):
            recorder.run_pending()


def check_handles(tape: Tape) -> None:
    """Raise if an array from outside stands for another one than when it was recorded.

    Raises
    ------
    ScopeError
        Names the line of the first call that reads it.
    """
    externals = zip(tape.external_values, tape.externals, tape.handles)
    swapped = {
        value: a.shape
        for value, a, handle in externals
        if handle is not None and a.handle is not handle
    }
    if not swapped:
        return
    for node, call in enumerate(tape.calls()):
        for value, _ in call.operands:
            if value in swapped:
                raise ScopeError(
                    f"an array of shape {swapped[value]} was replaced (it got another handle) "
                    "before a recorded call could read it",
                    where_of(tape.wheres[node]),
                    None,
                    "call batch.flush() before you replace the array",
                )
