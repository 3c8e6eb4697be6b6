"""Pieces: what `forward` of a dynamic block recorded for one structure of arguments.

A block that was hybridized with ``trace_once=True`` has `Pieces`.  They run its ``forward`` once
for each structure, watched by a `Trace`, which knows why what it recorded may not stand for another
call; from then on its piece of the tape is appended natively.
"""

from __future__ import annotations

import itertools
import time
import traceback
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from mxnet.gluon import Block
from mxnet.ndarray import NDArray

from ..cache import PlanCache
from ..errors import MismatchError, Where
from ..native import recording
from .identity import IGNORED, describe, number_of
from .tracing import Refused, Trace
from .where import user_line, where_of

#: Bytes of the pieces of one block.
CAPACITY = 32 << 20
#: So many refusals that are not made up for by pieces end the attempts.
PATIENCE = 16

recording.connect_structures(describe, number_of, IGNORED)


class _Call(NamedTuple):
    """A call of a block whose arguments can be told apart."""

    recorder: Any
    block: Any
    args: Tuple[Any, ...]
    #: The arrays in the arguments.
    leaves: List[NDArray]
    key: bytes


class Pieces:
    """The pieces of one block, the least recently used ones forgotten first."""

    def __init__(self) -> None:
        self._held = PlanCache(CAPACITY)
        #: What was seen of the block, with its number, and what stands against pieces.
        self._seen: Any = None
        self._number = 0
        self._against: Optional[Refused] = None
        self._numbers: Dict[Any, Tuple[int, Any]] = {}
        self._count = itertools.count()
        #: Refusals, and whether there were so many that it is not tried again.
        self._refused = 0
        self._hopeless = False

    def __reduce__(self) -> Any:
        return Pieces, ()

    @property
    def size(self) -> int:
        """About how many bytes the pieces take."""
        return self._held.bytes

    def __len__(self) -> int:
        return len(self._held)

    def call(self, recorder: Any, block: Any, args: Tuple[Any, ...]) -> Any:
        """Return what ``block.forward(*args)`` returns, and have the same recorded."""
        if len(recorder.tape.node_entry) >= recorder.tape.ask_at:
            recorder.run_ahead()
        if not self._hopeless and (self._seen is None or not self._seen.unchanged()):
            self._look(block)
        given = recording.Structure(recorder.tape)
        refusal = self._against
        if refusal is None:
            try:
                key = given.write(4 * self._number + recorder.mode, args)
            except (TypeError, ValueError, RecursionError) as error:
                refusal = _not_told_apart(error, "an argument")
        if refusal is not None:
            self._note(recorder, block, refusal)
            return block.forward(*args)
        piece = self._held.find(key)
        if piece is None:
            return self._run(_Call(recorder, block, args, given.leaves, key))[0]
        if recorder.watch is not None:
            return self._compare(_Call(recorder, block, args, given.leaves, key), piece)
        result = piece.append(recorder.tape, given.leaves, self._seen.leaves, recorder)
        if result is NotImplemented:
            return self._run(_Call(recorder, block, args, given.leaves, key))[0]
        recorder.report.traced.known += 1
        return result

    def _look(self, block: Any) -> None:
        """Look at the attributes of the block and all that it refers to."""
        self._against = None
        self._seen = seen = recording.Structure(None, True)
        try:
            text = seen.write(0, block)
        except (TypeError, ValueError, RecursionError) as error:
            self._against = _not_told_apart(error, "an attribute")
            return
        blocks = [one for one in seen.leaves if isinstance(one, Block)]
        for one in blocks:
            if one is not block and (one._forward_hooks or one._forward_pre_hooks):
                self._against = Refused(f"{one.name} has hooks, which are to run each time")
        if len(self._numbers) > 1000:
            self._numbers.clear()
        # Gluon puts a new list here when a cached graph becomes invalid.
        graphs = [getattr(one, "_cached_op_args", None) for one in blocks]
        known = text, tuple(map(id, graphs))
        if known not in self._numbers:
            self._numbers[known] = next(self._count), graphs
        self._number = self._numbers[known][0]

    def _run(self, call: _Call) -> Tuple[Any, Any]:
        """Run ``forward``; return its result, and the piece that is kept of it, if one is."""
        recorder, block = call.recorder, call.block
        started = time.perf_counter()
        trace, piece = Trace(recorder), None
        try:
            result = block.forward(*call.args)
        except BaseException as error:
            trace.refuse(f"it ends with {type(error).__name__}", _raised_at(error))
            self._note(recorder, block, trace.refusal)
            raise
        finally:
            trace.end()
        try:
            self._check_same(call, trace)
            piece = trace.piece(call.leaves, self._seen.leaves, result)
            trace.keep(self._held, call.key, piece, _weight(piece) + len(call.key))
        except Refused as refusal:
            self._note(recorder, block, refusal)
        if not trace.settle():
            self._note(recorder, block, Refused("random numbers are drawn in Python"))
        recorder.report.traced.note_traced(1e3 * (time.perf_counter() - started))
        return result, piece

    def _note(self, recorder: Any, block: Any, refusal: Any) -> None:
        if refusal.where is None:
            code = getattr(type(block).forward, "__code__", None)
            refusal.where = user_line() if code is None else where_of((code, 0))
        self._refused += 1
        self._hopeless = self._refused > PATIENCE + len(self._held)
        if self._hopeless:
            # Not what was raised, whose frames hold arrays.
            self._against = Refused(refusal.reason, refusal.where)
        recorder.report.traced.refuse(block.name, refusal.reason, refusal.where)

    def _check_same(self, call: _Call, trace: Trace) -> None:
        """Raise if ``forward`` has changed what it depends on."""
        if trace.refusal is not None or call.recorder.tape is not trace.tape:
            return
        number = self._number
        if not self._seen.unchanged():
            self._look(call.block)
            if self._number != number or self._against is not None:
                raise Refused("it changes an attribute of a block")
        given = recording.Structure(trace.tape)
        if given.write(4 * number + call.recorder.mode, call.args) != call.key:
            raise Refused("it changes its arguments, or the mode")

    def _compare(self, call: _Call, piece: Any) -> Any:
        """Run ``forward`` although its piece is known, and compare."""
        result, other = self._run(call)
        if other is not None and other.content == piece.content:
            return result
        where = user_line()
        for place, another in itertools.zip_longest(piece.wheres, other.wheres if other else ()):
            if place != another:
                where = where_of(another or place)
                break
        raise MismatchError(
            "forward records other calls than when it was traced, for equal arguments",
            where,
            call.block.name,
            "let it depend on its arguments and on attributes of the block only, "
            "or hybridize without trace_once",
        )


def _weight(piece: Any) -> int:
    """Return about what a piece takes in memory."""
    calls = 16 * len(piece.node_entry) + 12 * len(piece.sources) + 4 * len(piece.value_type)
    return 1000 + calls + 160 * len(piece.inputs)


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
