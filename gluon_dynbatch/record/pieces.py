"""Pieces: what `forward` of a dynamic block recorded for one structure of arguments.

A block that was hybridized with ``trace_once=True`` has `Pieces`.  They run its ``forward`` once
for each structure, watched by a `Trace`, which knows why what it recorded may not stand for another
call; from then on its piece of the tape is appended natively.
"""

from __future__ import annotations

import itertools
import time
import traceback
from typing import Any, List, Optional, Tuple

from mxnet.gluon import Block, HybridBlock
from mxnet.ndarray import NDArray

from ..cache import PlanCache
from ..errors import MismatchError, Where
from ..native import recording
from ..report import Alone, count
from .identity import IGNORED, describe, number_of
from .tracing import Refused, Trace, give
from .where import user_line

#: Bytes of the pieces of one block.
CAPACITY = 32 << 20
#: So many refusals that are not made up for by pieces end the attempts.
PATIENCE = 16

recording.describe, recording.number_of, recording.ignored = describe, number_of, IGNORED
recording.give = give

#: State of the block, and structure of the arguments.
_Key = Tuple[bytes, bytes]


class Pieces(recording.Known):  # type: ignore[misc]
    """The pieces of one block, the least recently used ones forgotten first.

    The native base class has ``call``, which appends what is known, and leaves the rest to `look`,
    `refuse` and `trace`.
    """

    def __init__(self) -> None:
        self.held = PlanCache(CAPACITY)
        #: Refusals.
        self._refused = 0

    def __reduce__(self) -> Any:
        return Pieces, ()

    def refuse(self, recorder: Any, block: Any, args: Tuple[Any, ...], why: Exception) -> Any:
        """Run ``forward`` for a call that no piece may stand for."""
        refusal = why if isinstance(why, Refused) else _not_told_apart(why, "an argument")
        self._note(recorder, block, refusal)
        return block.forward(*args)

    def look(self, recorder: Any, block: Any) -> Any:
        """Look at the attributes of the block and all that it refers to.

        Several threads may do so at once; each goes on with what it has seen itself.
        """
        seen = recording.Structure(None, True)
        try:
            text = seen.write(0, block)
            blocks = [one for one in seen.leaves if isinstance(one, HybridBlock)]
            graphs = [recorder.library.callee(one).token for one in blocks]
            seen.state = repr(graphs).encode() + text
        except (TypeError, ValueError, RecursionError) as error:
            seen.against = _not_told_apart(error, "an attribute")
        for one in seen.leaves:
            hooks = isinstance(one, Block) and (one._forward_hooks or one._forward_pre_hooks)
            if hooks and one is not block:
                reason = f"{one.name} has hooks, which must run each time"
                seen.against = seen.against or Refused(reason)
        self.seen = seen
        return seen

    def trace(
        self,
        recorder: Any,
        block: Any,
        args: Tuple[Any, ...],
        leaves: List[NDArray],
        key: _Key,
        known: Any,
    ) -> Any:
        """Run ``forward``, and keep a piece of it; with ``debug=True``, one may be known."""
        started = time.perf_counter()
        trace, piece = Trace(recorder, leaves), None
        try:
            # Were it to look at closures that call themselves now, it would not find them later.
            result = recording.without_collector(lambda: block.forward(*args))
            if trace.refusal is None:
                seen = self._see_the_same(recorder, block, args, key)
                piece = trace.piece(seen.leaves, result)
                trace.pending.append((self.held, key, piece, piece.weight + len(key[1])))
        except Refused as refusal:
            trace.refusal = refusal
        except BaseException as error:
            recorder.refuse(f"it ends with {type(error).__name__}", _raised_at(error))
            self._note(recorder, block, trace.refusal)
            raise
        finally:
            if recorder.tracing is trace:
                trace.end()
        if trace.refusal is not None:
            self._note(recorder, block, trace.refusal)
        traced = recorder.report.traced
        traced.new += 1
        traced.new_ms += 1e3 * (time.perf_counter() - started)
        if known is not None and recorder.watch is not None:
            _compare(block, known, piece)
        return result

    def _note(self, recorder: Any, block: Any, refusal: Any) -> None:
        if refusal.where is None:
            code = getattr(type(block).forward, "__code__", None)
            refusal.where = user_line() if code is None else recording.Place(code, 0).where
        self._refused += 1
        if self._refused > PATIENCE + len(self.held):
            # It watches nothing, so it stays; without what was raised, whose frames hold arrays.
            hopeless = recording.Structure(None, True)
            hopeless.against = Refused(refusal.reason, refusal.where)
            self.seen = hopeless
        one = Alone(block.name, refusal.reason, 1, refusal.where)
        count(recorder.report.traced.refused, one[:2], one)

    def _see_the_same(self, recorder: Any, block: Any, args: Tuple[Any, ...], key: _Key) -> Any:
        """Return what is seen of the block; raise if ``forward`` has changed what it depends on."""
        seen = self.seen
        if not seen.unchanged():
            seen = self.look(recorder, block)
        if seen.against is not None:
            raise Refused(seen.against.reason, seen.against.where)
        if seen.state != key[0]:
            raise Refused("it changes an attribute of a block")
        if recording.Structure(recorder.tape).write(recording.current_mode(), args) != key[1]:
            raise Refused("it changes its arguments, or the mode")
        return seen


def _compare(block: Any, piece: Any, other: Any) -> None:
    """Raise if a piece is not what `forward` recorded now."""
    if other is not None and other.content == piece.content:
        return
    where = user_line()
    for place, another in itertools.zip_longest(piece.wheres, other.wheres if other else ()):
        if place != another:
            where = (another or place).where
            break
    raise MismatchError(
        "for equal arguments, forward made other calls than when it was traced",
        where,
        block.name,
        "make it depend only on its arguments and on attributes of the block, "
        "or hybridize without trace_once",
    )


def _raised_at(error: BaseException) -> Optional[Where]:
    """Return the last of the user's lines that an exception came through."""
    lines = [
        Where(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if recording.is_user(frame.f_code)
    ]
    return lines[-1] if lines else None


def _not_told_apart(error: Exception, what: str) -> Refused:
    if isinstance(error, RecursionError):
        return Refused(f"{what} is nested too deep")
    culprit = error.args[0] if isinstance(error, TypeError) and error.args else error
    return Refused(f"{what} is of type {type(culprit).__name__}, whose changes cannot be noticed")
