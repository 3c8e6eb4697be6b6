"""Entries: what all calls of one kind have in common, and the library of all that were met."""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import deque
from typing import Any, Deque, Dict, FrozenSet, Optional, Tuple

import mxnet as mx
from mxnet.gluon import HybridBlock

from .. import rules
from ..errors import RunAsPythonError, Where
from ..modes import RECORDING, TRAINING
from ..record.operators import Operator
from ..record.types import TYPES, ArrayType, elements
from .infer import infer
from .program import BlockCallee, Program, trace_operator
from .symbols import VARIABLE, can_compile, count_operators
from .variant import Variant, choose_variant

#: Operators that multiply with a weight, one row of it for each result.
PRODUCTS = frozenset(["Convolution", "Deconvolution", "FullyConnected"])
#: Ids of entries.
_NUMBERS = itertools.count()


class Entry:
    """One kind of call: a callee with exact argument types, in one mode."""

    def __init__(
        self,
        callee: Any,
        mode: int,
        program: Program,
        in_types: Tuple[ArrayType, ...],
        places: Tuple[int, ...],
        where: Where,
    ):
        self.id = next(_NUMBERS)
        self.token = callee.token
        #: The block called, by id; None for an operator.
        self.block_id = getattr(callee, "identity", None)
        self.name = callee.name
        self.mode = mode
        self.program = program
        self.in_types = in_types
        #: Per array, which of the arguments it came in; those of a list came together.
        self.places = places
        self.context = in_types[0].context if in_types else mx.current_context()
        self.shapes, self.dtypes = infer(program, in_types, callee.name, where)
        self.out_array_types = [
            ArrayType(self.shapes[ref], self.dtypes[ref], self.context) for ref in program.heads
        ]
        self.out_types = [TYPES.id_of(t) for t in self.out_array_types]
        self.operators = count_operators(program.ops)
        #: Operations of its products.
        self.work = sum(
            2 * elements(self.shapes[row, 0]) * elements(self.shapes[op.inputs[1]][1:])
            for row, op in enumerate(program.ops)
            if op.op in PRODUCTS
        )
        #: Whether it draws random numbers.
        self.draws = any(rules.is_random(op.op) for op in program.ops)
        #: What recording a call needs, for the native code.
        self.recorded = (self.id, tuple(self.out_types), program.out_spec)
        self._variants: Dict[FrozenSet[int], Variant] = {}

    def variant(self, shared: FrozenSet[int]) -> Variant:
        """Return how calls run together if they share these arguments."""
        if shared not in self._variants:
            self._variants[shared] = choose_variant(self, shared)
        return self._variants[shared]


class Library:
    """Entries of this process, by what was called with which types in which mode."""

    def __init__(self) -> None:
        self.entries: Dict[Any, Entry] = {}
        self._operators: Dict[Any, Program] = {}
        #: By name of an operator: whether it compiles, and whether it writes to its arguments.
        self._traits: Dict[str, Tuple[bool, bool]] = {}
        #: Tokens of blocks that are gone.  The garbage collector may say so at any moment, in any
        #: thread, whatever lock that holds: it only leaves a note.
        self._forgotten: Deque[Any] = deque()
        self._lock = threading.RLock()

    def callee(self, block: HybridBlock) -> BlockCallee:
        """Return the recorded side of `block`, a new one if its cached graph became invalid."""
        callee: Optional[BlockCallee] = block.__dict__.get("_dynbatch_callee")
        if callee is not None and callee.is_current(block):
            return callee
        with self._lock:
            callee = block.__dict__.get("_dynbatch_callee")
            if callee is None or not callee.is_current(block):
                # Past Block.__setattr__, which would register it.
                callee = block.__dict__["_dynbatch_callee"] = BlockCallee(block)
                gone = weakref.finalize(callee, self._forgotten.append, callee.token)
                gone.atexit = False
            return callee

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
                self.entries[key] = Entry(callee, mode, program, types, places, where)
            return self.entries[key]

    def compiles(self, operator: Operator, arguments: int) -> bool:
        """Whether an operator can be part of a ``CachedOp``."""
        return self._look_at(operator, arguments)[0]

    def writes(self, operator: Operator, arguments: int) -> bool:
        """Whether an operator, called in training, writes to some of its arguments."""
        return self._look_at(operator, arguments)[1]

    def _look_at(self, operator: Operator, arguments: int) -> Tuple[bool, bool]:
        if operator.name not in self._traits:
            symbol = trace_operator(operator, arguments).symbol
            self._traits[operator.name] = can_compile(symbol), bool(symbol.list_auxiliary_states())
        return self._traits[operator.name]

    def _is_python(self, program: Program, mode: int) -> bool:
        """Whether a block writes to its arguments, or MXNet cannot compile it or go backward.

        Its operators are then recorded one by one, and those that do so run at once.
        """
        operators = {op.op for op in program.ops} - {VARIABLE}
        if mode & TRAINING and set(program.symbol.list_auxiliary_states()) & set(program.names):
            return True
        if mode & RECORDING and any(rules.of(op).hangs_in_backward for op in operators):
            return True
        return not all(op in rules.TABLE for op in operators) and not can_compile(program.symbol)

    def _program(
        self, callee: Any, spec: Any, types: Tuple[ArrayType, ...], where: Where
    ) -> Program:
        if isinstance(callee, BlockCallee):
            return callee.program(spec, types, where)
        key = (callee.token, len(types))
        if key not in self._operators:
            self._operators[key] = trace_operator(callee, len(types))
        return self._operators[key]
