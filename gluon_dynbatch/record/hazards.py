"""Write hazards: what pending calls read is about to change, so they are computed first.

Recorded calls use the values of their own time.  The functions ``before_...`` are called by those
of MXNet's functions that change something (see `intercept.py`), with their arguments.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..native import recording
from .tape import parameters_of
from .types import memory_of


def before_write(recorder: Any, arrays: Sequence[NDArray]) -> None:
    """Compute what is pending if it reads one of `arrays`, which are about to be written to."""
    before_write_at(recorder, *[a.handle for a in arrays if not recording.is_to_come(a)])


def before_write_at(recorder: Any, *handles: Any) -> None:
    """Compute what is pending if it reads what is written to, of which there are handles."""
    tape = recorder.tape
    if tape.node_entry:
        chunks, starts, stops, _ = tape.reads.words(tape)
        memories = [memory_of(handle) for handle in handles if handle is not None]
        written = np.array(memories, np.int64).reshape(-1, 3, 1)
        if np.isin(chunks, written[:, 0]).any():
            recorder.run_pending()
        elif ((starts < written[:, 2]) & (written[:, 1] < stops)).any():
            recorder.run_pending()
            # To MXNet's engine these are two arrays, of which neither waits for the other.
            mx.nd.waitall()


def before_change(recorder: Any, parameter: Parameter, *_: Any) -> None:
    """Compute what is pending if it reads `parameter`, of which anything is about to change."""
    recorder.scope.connect()
    if any(parameter is read for read in parameters_of(recorder.tape.entries.values())):
        recorder.run_pending()


def before_anything(recorder: Any, *_: Any) -> None:
    """Compute what is pending: the next thing may change any array that it reads."""
    recorder.run_pending()
    recorder.scope.connect()


def before_marking(recorder: Any, count: int, handles: Any, *_: Any) -> None:
    """Compute what is pending if it reads one of the arrays that become variables anew.

    A view of such an array stays the variable that it was.
    """
    recorder.scope.connect()
    tape = recorder.tape
    # One handle comes as a pointer, several as an array.
    marked = [getattr(handles[i], "value", handles[i]) for i in range(count)]
    if tape.node_entry and np.isin(tape.reads.words(tape)[3], marked).any():
        recorder.run_pending()
