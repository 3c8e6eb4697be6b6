"""From a callee to its program: the operator rows of one call, with shapes, in a batching layout.

A call is traced once per structure of its arguments.  Its *program* is a list of operator rows; an
*entry* is the program with the exact shapes of one kind of call; a *variant* of the entry says how
the calls of many samples share one run, given which arguments they share:

``rows``
    arrays of the samples are concatenated along axis 0; their leading sizes may differ.
``stack``
    arrays get a new leading axis; shapes are equal.
``join``
    the call itself puts arrays end to end along axis 0; so does a launch, for all calls at once,
    whatever the number of arrays.
``alone``
    no batching rule holds; every call runs by itself, and the reason is kept for the report.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import warnings
import weakref
from collections import deque
from typing import (
    Any,
    Deque,
    Dict,
    FrozenSet,
    List,
    Set,
    Tuple,
)

import mxnet as mx
from mxnet.base import MXNetError
from mxnet.gluon import HybridBlock

from .. import rules
from ..errors import (
    RunAsPythonError,
    Where,
)
from ..modes import RECORDING, TRAINING
from ..record import structure
from ..record.intercept import Operator
from ..record.types import TYPES, ArrayType
from .program import VARIABLE, BlockCallee, Program, Ref, infer, infer_shapes, trace_operator


class Variant:
    """How the calls of an entry run together, given which arguments they share."""

    def __init__(self, entry: Entry, shared: FrozenSet[int]):
        self.entry = entry
        self.shared = shared
        self.layout = "alone"
        self.reason = ""
        #: In layout "join", the rows of every argument.
        self.joined: Tuple[int, ...] = ()
        #: Rows that depend on an array of the sample's own.
        self.batched: List[bool] = []
        #: Per batched operator row, its rewrite; a refusal in layout "stack" only.
        self.rewrites: Dict[int, Any] = {}
        #: Cuts by (granularity, late arguments); filled by ``segment.py``.
        self.cuts: Dict[Any, Any] = {}
        self._choose()

    def _choose(self) -> None:
        program = self.entry.program
        self.batched = [False] * len(program.rows)
        for i, row in enumerate(program.rows):
            if row.op == VARIABLE:
                argument = program.argument_at.get(i)
                self.batched[i] = argument is not None and argument not in self.shared
            else:
                self.batched[i] = any(self.batched[r] for r, _ in row.inputs)
        if not all(self.batched[r] for r, _ in program.heads):
            self.reason = "a result does not depend on any array of the sample's own"
        elif self._draws_once():
            self.reason = "a random operator is applied to shared arrays; each call draws its own"
        elif not (self._try_join() or self._try_rows()):
            self._try_stack()

    def _draws_once(self) -> bool:
        training = bool(self.entry.mode & TRAINING)
        return any(
            rules.is_random(row.op) and (training or row.op != "Dropout") and not self.batched[i]
            for i, row in enumerate(self.entry.program.rows)
        )

    def _site(self, i: int) -> rules.Site:
        program, shapes = self.entry.program, self.entry.shapes
        row = program.rows[i]
        return rules.Site(
            row.op,
            row.attrs,
            tuple(shapes[ref] for ref in row.inputs),
            tuple(shapes[ref] for ref in program.outputs[i]),
            tuple(self.batched[r] for r, _ in row.inputs),
            bool(self.entry.mode & TRAINING),
        )

    def _operator_rows(self) -> List[int]:
        rows = self.entry.program.rows
        return [i for i, row in enumerate(rows) if row.op != VARIABLE and self.batched[i]]

    def _try_join(self) -> bool:
        """Recognise a lone ``concat`` along axis 0, or ``stack``, of arrays of the sample's own."""
        program, types = self.entry.program, self.entry.in_types
        made = [row for row in program.rows if row.op != VARIABLE]
        arguments = tuple((row, 0) for row in program.arguments)
        if len(made) != 1 or self.shared or made[0].inputs != arguments:
            return False
        op, shape = made[0].op, self.entry.out_array_types[0].shape
        axis = {"Concat": ("dim", "1"), "stack": ("axis", "0")}.get(op)
        if axis is None or int(made[0].attrs.get(*axis)) not in (0, -len(shape)):
            return False
        if 0 in shape or any(0 in t.shape for t in types):
            return False
        sizes = [t.shape[0] if op == "Concat" else 1 for t in types]
        # Rows of one element would be copied one by one.
        size = functools.reduce(math.gcd, sizes) if len(shape) == 1 else 1
        self.layout, self.joined = "join", tuple(n // size for n in sizes)
        return True

    def _try_rows(self) -> bool:
        entry = self.entry
        own = [t.shape for i, t in enumerate(entry.in_types) if i not in self.shared]
        leading = {shape[0] for shape in own if shape}
        flat = all(len(shape) == 1 for shape in own + [t.shape for t in entry.out_array_types])
        if len(leading) != 1 or not all(own) or (flat and leading != {1}) or leading == {0}:
            return False
        rewrites = {}
        for i in self._operator_rows():
            rewrites[i] = rules.rows(self._site(i))
            if isinstance(rewrites[i], rules.Refusal):
                return False
        if not self._grows_with_rows(leading.pop()):
            return False
        self.layout, self.rewrites = "rows", rewrites
        return True

    def _grows_with_rows(self, count: int) -> bool:
        """Check on shapes that one more row in makes exactly one more row out, everywhere."""
        entry = self.entry
        types = [
            t if i in self.shared else t._replace(shape=(count + 1,) + t.shape[1:])
            for i, t in enumerate(entry.in_types)
        ]
        try:
            grown = infer_shapes(entry.program, types)
        except MXNetError:
            return False
        return all(
            grown[ref] == ((count + 1,) + shape[1:] if self.batched[ref[0]] else shape)
            and (not self.batched[ref[0]] or shape[:1] == (count,))
            for ref, shape in entry.shapes.items()
        )

    def _try_stack(self) -> None:
        reasons = []
        for i in self._operator_rows():
            self.rewrites[i] = rules.stack(self._site(i))
            if isinstance(self.rewrites[i], rules.Refusal):
                reasons.append(self.rewrites[i].reason)
        if any(0 in shape for shape in self.entry.shapes.values()):
            reasons.append("an array is empty")
        self.reason = "; ".join(dict.fromkeys(reasons))
        if len(reasons) < len(self.rewrites) and "an array is empty" not in reasons:
            self.layout = "stack"

    @property
    def mergeable(self) -> bool:
        """Whether calls of this variant can run together as a whole."""
        return not self.reason


def _embedded(program: Program) -> FrozenSet[Ref]:
    """Return the values that become indices of an ``Embedding`` and could carry a gradient there.

    MXNet refuses to be asked for the gradient of what is embedded, however far back it comes from.
    """
    found: Set[Ref] = set()
    rows: Set[int] = set()
    for i in reversed(range(len(program.rows))):
        row = program.rows[i]
        fixed = rules.nondifferentiable_inputs(row.op)
        if row.op == "Embedding":
            refs = [row.inputs[0]]
        elif i in rows:
            refs = [ref for k, ref in enumerate(row.inputs) if k not in fixed]
        else:
            continue
        found.update(refs)
        rows.update(r for r, _ in refs)
    return frozenset(found)


class Entry:
    """One kind of call: a callee with exact argument types, in one mode."""

    def __init__(
        self,
        number: int,
        callee: Any,
        mode: int,
        program: Program,
        in_types: Tuple[ArrayType, ...],
        places: Tuple[int, ...],
        where: Where,
    ):
        self.id = number
        self.token = callee.token
        #: The block called, by id; None for an operator.
        self.block_id = getattr(callee, "identity", None)
        self.name = callee.name
        self.mode = mode
        self.program = program
        self.in_types = in_types
        #: Per array, which of the arguments it came in; those of a list came together.
        self.places = places
        self.where = where
        self.context = in_types[0].context if in_types else mx.current_context()
        self.shapes, self.dtypes = infer(program, in_types, callee, where)
        self.out_array_types = [
            ArrayType(self.shapes[ref], self.dtypes[ref], self.context) for ref in program.heads
        ]
        self.out_types = [TYPES.id_of(t) for t in self.out_array_types]
        self.embedded = _embedded(program)
        #: Whether it draws random numbers.
        self.draws = any(row.op != VARIABLE and rules.is_random(row.op) for row in program.rows)
        #: Puts results into the structure that the callee returns; None for a single array.
        self.rebuild = structure.rebuilder(program.out_spec)
        #: What recording a call needs, for the native code.
        self.recorded = (number, tuple(self.out_types), self.rebuild)
        self._variants: Dict[FrozenSet[int], Variant] = {}

    def variant(self, shared: FrozenSet[int]) -> Variant:
        """Return how calls run together if they share these arguments."""
        found = self._variants.get(shared)
        if found is None:
            found = self._variants[shared] = Variant(self, shared)
        return found


class Library:
    """Entries of this process, by what was called with which types in which mode."""

    def __init__(self) -> None:
        self.entries: Dict[Any, Entry] = {}
        self._numbers = itertools.count()
        self._operators: Dict[Any, Program] = {}
        self._compiles: Dict[str, bool] = {}
        self._writes: Dict[str, bool] = {}
        #: Tokens of blocks that are gone.  The garbage collector may say so at any moment, in any
        #: thread, whatever lock that holds: it only leaves a note.
        self._forgotten: Deque[Any] = deque()
        self._lock = threading.RLock()

    def callee(self, block: HybridBlock) -> BlockCallee:
        """Return the recorded side of `block`, a new one if its cached graph became invalid."""
        known = block.__dict__.get("_dynbatch_callee")
        if known is None or not known.is_current(block):
            with self._lock:
                known = block.__dict__.get("_dynbatch_callee")
                if known is None or not known.is_current(block):
                    known = BlockCallee(block)
                    # Past Block.__setattr__, which would register it.
                    block.__dict__["_dynbatch_callee"] = known
                    gone = weakref.finalize(known, self._forgotten.append, known.token)
                    gone.atexit = False
        return known

    def _drop_forgotten(self) -> None:
        """Drop the entries of blocks that are gone."""
        while self._forgotten:
            token = self._forgotten.popleft()
            for key in [key for key in self.entries if key[0] == token]:
                del self.entries[key]

    def entry(
        self,
        key: Any,
        callee: Any,
        mode: int,
        spec: Any,
        type_ids: Any,
        places: Tuple[int, ...],
        where: Where,
    ) -> Entry:
        """Make the entry of a call that was not seen before."""
        types = tuple(TYPES[t] for t in type_ids)
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self._drop_forgotten()
            if key not in self.entries:
                program = self._program(callee, spec, types, where)
                if isinstance(callee, BlockCallee) and self._is_python(program, mode):
                    raise RunAsPythonError
                self.entries[key] = self.make_entry(callee, mode, program, types, places, where)
            return self.entries[key]

    def make_entry(
        self,
        callee: Any,
        mode: int,
        program: Program,
        types: Tuple[ArrayType, ...],
        places: Tuple[int, ...],
        where: Where,
    ) -> Entry:
        """Make an entry with a number of its own."""
        return Entry(next(self._numbers), callee, mode, program, types, places, where)

    def compiles(self, operator: Operator, arguments: int) -> bool:
        """Whether an operator can be part of a ``CachedOp``: MXNet takes those with a gradient."""
        known = self._compiles.get(operator.name)
        if known is None:
            try:
                mx.nd.CachedOp(trace_operator(operator, arguments).symbol)
                known = True
            except MXNetError as error:
                known = "FGradient" not in str(error)
            self._compiles[operator.name] = known
        return known

    def writes(self, operator: Operator, arguments: int) -> bool:
        """Whether an operator, called in training, writes to some of its arguments."""
        known = self._writes.get(operator.name)
        if known is None:
            symbol = trace_operator(operator, arguments).symbol
            known = self._writes[operator.name] = bool(symbol.list_auxiliary_states())
        return known

    def _is_python(self, program: Program, mode: int) -> bool:
        """Whether a block writes to its arguments, or MXNet cannot compile it or go backward.

        Its operators are then recorded one by one, and those that do so run at once.
        """
        written = set(program.symbol.list_auxiliary_states()).intersection(program.names)
        operators = {row.op for row in program.rows}
        if mode & TRAINING and written:
            return True
        if mode & RECORDING and not operators.isdisjoint(rules.HANGS_IN_BACKWARD):
            return True
        if all(row.op in rules.TABLE for row in program.rows if row.op != VARIABLE):
            return False
        try:
            mx.nd.CachedOp(program.symbol)
        except MXNetError as error:
            return "FGradient" in str(error)
        return False

    def _program(
        self, callee: Any, spec: Any, types: Tuple[ArrayType, ...], where: Where
    ) -> Program:
        if isinstance(callee, BlockCallee):
            return callee.program(spec, types, where)
        key = (callee.token, len(types))
        found = self._operators.get(key)
        if found is None:
            found = self._operators[key] = trace_operator(callee, len(types))
        return found
