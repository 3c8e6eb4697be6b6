"""Write hazards: compute pending calls before something changes the arrays that they read.

Recorded calls use the values of the moment of the call.  `intercept.py` calls the ``before_...``
functions, with the arguments of the MXNet function that is about to change something.
"""

from __future__ import annotations

from typing import Any, cast

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter

from .excerpts import settle_parts
from .state import ThreadRecorder
from .tape import Tape, parameters_of
from .types import memory_of


def before_write(recorder: ThreadRecorder, *handles: Any) -> None:
    """Compute pending calls if they read an array that is about to be written to, by its handle."""
    tape = cast(Tape, recorder.tape)
    if tape.node_entry:
        chunks, starts, stops, _ = tape.reads.memory(tape)
        memories = [memory_of(handle) for handle in handles if handle is not None]
        written = np.array(memories, np.int64).reshape(-1, 3, 1)
        if np.isin(chunks, written[:, 0]).any():
            recorder.run_pending()
        elif ((starts < written[:, 2]) & (written[:, 1] < stops)).any():
            recorder.run_pending()
            # MXNet's engine does not know that these arrays overlap, and would not order the
            # write after the reads.
            mx.nd.waitall()


def before_parameter_change(recorder: ThreadRecorder, parameter: Parameter, *_: Any) -> None:
    """Compute pending calls if they read `parameter`, of which an attribute is about to change."""
    recorder.scope.connect()
    if any(parameter is read for read in parameters_of(recorder.tape.entries.values())):
        recorder.run_pending()


def before_unknown_write(recorder: ThreadRecorder, *_: Any) -> None:
    """Compute pending calls: any array that they read may be about to change."""
    recorder.run_pending()
    recorder.scope.connect()


def before_marking(recorder: ThreadRecorder, count: int, handles: Any, *_: Any) -> None:
    """Compute pending calls if they read one of the arrays that are about to become variables.

    A view of such an array stays what it was, so handles are compared instead of memory.
    """
    recorder.scope.connect()
    tape = cast(Tape, recorder.tape)
    # One handle comes as a pointer, several as an array.
    marked = [getattr(handles[i], "value", handles[i]) for i in range(count)]
    settle_parts(recorder, marked)
    if tape.node_entry and np.isin(tape.reads.memory(tape)[3], marked).any():
        recorder.run_pending()
