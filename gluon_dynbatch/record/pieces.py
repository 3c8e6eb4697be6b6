"""Pieces: what `forward` of a dynamic block recorded for one structure of arguments.

A block that was hybridized with ``trace_once=True`` has `Pieces`.  The first call with a structure
runs ``forward`` under a `Trace`, which makes a piece of the recorded calls, or refuses with a
reason if they would not be right for another call.  Later calls append the piece to the tape,
natively.
"""

from __future__ import annotations

import itertools
import time
import traceback
from typing import Any, List, Optional, Tuple

from mxnet.gluon import Block, HybridBlock
from mxnet.ndarray import NDArray

from ..cache import SizedCache
from ..errors import MismatchError, Where
from ..modes import MODE_BITS
from ..native import recording
from ..report.findings import Finding
from .identity import IGNORED, NAMES, describe, number_of
from .recorder import Recorder
from .tracing import Refused, Trace, give
from .where import user_line

#: Bytes that the pieces of one block may take at first; and at most, if structures come again.
PIECE_BYTES, MOST_PIECE_BYTES = 32 << 20, 256 << 20
#: A block with so many more refusals than pieces is no longer traced.
PATIENCE = 16
#: What may be lost by traces whose pieces are not found, in runs of ``forward``, before most calls
#: are not traced; what a piece that is found gains; and how many times as long as a trace these
#: calls take.
MOST_LOST, GAIN, REST = 8192, 4, 32
#: So many attributes are compared in the time of one recorded call.
COMPARED = 16

recording.describe, recording.number_of = describe, number_of
recording.ignored, recording.names = IGNORED, NAMES
recording.give = give


class Pieces(recording.Known):
    """The pieces of one block; the least recently used ones are evicted.

    The native base class has ``call``, which appends a known piece, and calls `look`, `refuse` and
    `trace` otherwise.
    """

    def __init__(self) -> None:
        self.held: SizedCache[recording.Piece] = SizedCache(PIECE_BYTES, MOST_PIECE_BYTES)
        self._refusals = 0
        #: What is lost so far, and how many attributes were looked at since the last trace.
        self._lost = 0.0
        self._looked = 0

    def __reduce__(self) -> Any:
        return Pieces, ()

    def refuse(self, recorder: Recorder, block: Any, args: Tuple[Any, ...], why: Exception) -> Any:
        """Run ``forward`` for a call that cannot have a piece, and report why."""
        refusal = why if isinstance(why, Refused) else _indistinguishable(why, "an argument")
        self._report(recorder, block, refusal)
        return block.forward(*args)

    def look(self, recorder: Recorder, block: Any) -> Any:
        """Return the `Structure` of the block: its attributes and everything they refer to.

        Several threads may call this at once.  Each continues with its own result.
        """
        seen = recording.Structure(None, True)
        try:
            attributes = seen.write(0, block)
            blocks = [leaf for leaf in seen.leaves if isinstance(leaf, HybridBlock)]
            graphs = [recorder.library.callee(inner).token for inner in blocks]
            seen.state = repr(graphs).encode() + attributes
            seen.number = recording.number_of_text(seen.state)
        except (TypeError, ValueError, RecursionError) as error:
            seen.against = _indistinguishable(error, "an attribute")
        for leaf in seen.leaves:
            hooks = isinstance(leaf, Block) and (leaf._forward_hooks or leaf._forward_pre_hooks)
            if hooks and leaf is not block:
                reason = f"{leaf.name} has hooks, which must run each time"
                seen.against = seen.against or Refused(reason)
        self.seen = seen
        self._looked += len(seen.leaves)
        return seen

    def trace(
        self, recorder: Recorder, block: Any, args: Any, leaves: List[NDArray], key: Any, known: Any
    ) -> Any:
        """Run ``forward`` and keep a piece of it, or report why not.

        The key is the `Structure` of the block, and the bytes by which the piece is kept.  With
        ``debug=True``, a piece may be known already: the new one must equal it.
        """
        started = time.perf_counter()
        trace, piece = Trace(recorder, leaves), None
        try:
            # A collection now would move recursive closures, which are cycles, to a generation that
            # `trace.piece` does not collect.
            result = recording.without_collector(lambda: block.forward(*args))
            if trace.refusal is None:
                seen = self._see_the_same(recorder, block, args, key)
                piece = trace.piece(seen, result)
                if recorder.watch is None:
                    self._account_for(trace.calls, len(seen.leaves))
                trace.pending.append((self.held, key[1], piece, piece.weight + len(key[1])))
        except Refused as refusal:
            trace.refusal = trace.refusal or refusal
        except BaseException as error:
            recorder.refuse(f"it ends with {type(error).__name__}", _raised_at(error))
            self._report(recorder, block, trace.refusal)
            raise
        finally:
            if recorder.tracing is trace:
                trace.end()
        if trace.refusal is not None:
            self._report(recorder, block, trace.refusal)
        traced = recorder.report.traced
        traced.new += 1
        traced.new_ms += 1e3 * (time.perf_counter() - started)
        if known is not None and recorder.watch is not None:
            _compare(block, known, piece)
        return result

    def _account_for(self, calls: int, attributes: int) -> None:
        """Add what a trace takes to what is lost; rest once that is too much.

        A trace takes about as long as its calls, and comparing the attributes of the block; if some
        of these have changed, all were looked at.  While the block rests, its calls run ``forward``
        without being looked at, so structures that come again are found out more slowly.
        """
        took = 1 + (attributes / COMPARED + self._looked) / max(calls, 1)
        self._lost = max(self._lost - GAIN * self.found, 0) + took
        self._looked = self.found = 0
        if self._lost > MOST_LOST:
            self._lost, self.resting = MOST_LOST, round(REST * took)

    def _report(self, recorder: Recorder, block: Any, refusal: Any) -> None:
        """Report a refusal; after too many, refuse all calls."""
        if refusal.where is None:
            code = getattr(type(block).forward, "__code__", None)
            refusal.where = user_line() if code is None else recording.Place(code, 0).where
        self._refusals += 1
        if self._refusals > PATIENCE + len(self.held):
            # A structure that watches nothing never changes.  The exception is a new one, as the
            # frames of one that was raised hold arrays.
            hopeless = recording.Structure(None, True)
            hopeless.against = Refused(refusal.reason, refusal.where)
            self.seen = hopeless
        finding = Finding("unkept", block.name, refusal.reason, 1, refusal.where)
        recorder.report.found.add([finding])

    def _see_the_same(self, recorder: Recorder, block: Any, args: Any, key: Any) -> Any:
        """Return the structure of the block; raise if ``forward`` changed it or its arguments."""
        seen = self.seen
        if not seen.unchanged():
            seen = self.look(recorder, block)
        if seen.against is not None:
            raise Refused(seen.against.reason, seen.against.where)
        if seen.state != key[0].state:
            raise Refused("it changes an attribute of a block")
        number = key[0].number << MODE_BITS | recording.current_mode()
        try:
            changed = recording.Structure(recorder.tape).write(number, args) != key[1]
        except (TypeError, ValueError, RecursionError) as error:
            raise _indistinguishable(error, "an argument") from None
        if changed:
            raise Refused("it changes its arguments, or the mode")
        return seen


def _compare(block: Any, old: Any, new: Any) -> None:
    """Raise ``MismatchError``, at the first other line, if `forward` recorded another piece."""
    if new is not None and new.content == old.content:
        return
    places = itertools.zip_longest(old.places, new.places if new else ())
    changed = next((after or before for before, after in places if before != after), None)
    raise MismatchError(
        "for equal arguments, forward made other calls than when it was traced",
        user_line() if changed is None else changed.where,
        block.name,
        "make it depend only on its arguments and on attributes of the block, "
        "or hybridize without trace_once",
    )


def _raised_at(error: BaseException) -> Optional[Where]:
    """Return the innermost of the user's lines in the traceback of an exception."""
    lines = [
        Where(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if recording.is_user(frame.f_code)
    ]
    return lines[-1] if lines else None


def _indistinguishable(error: Exception, owner: str) -> Refused:
    """Return the refusal for an error of `Structure.write`."""
    if isinstance(error, RecursionError):
        return Refused(f"{owner} is nested too deeply")
    culprit = error.args[0] if isinstance(error, TypeError) and error.args else error
    return Refused(f"{owner} is of type {type(culprit).__name__}, whose changes cannot be noticed")
