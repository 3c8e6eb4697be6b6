"""Entries: what all calls of one kind have in common, and the library of all that were met."""

from __future__ import annotations

import itertools
import threading
import warnings
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Optional, Tuple, Union

import mxnet as mx
from mxnet.gluon import HybridBlock

from .. import rules
from ..errors import Where
from ..modes import RECORDING, TRAINING
from ..record.operators import Operator
from ..record.types import TYPES, ArrayType, elements
from .infer import Shape, infer
from .program import BlockCallee, Program, is_drawn, trace_block, trace_operator
from .symbols import VARIABLE, Ref
from .variant import Variant, choose_variant

#: Operators that multiply with a weight, one row of it for each result.
PRODUCTS = frozenset(["Convolution", "Deconvolution", "FullyConnected"])
#: Ids of entries.
_NUMBERS = itertools.count()

#: What `infer` returns.
Inferred = Tuple[Dict[Ref, Shape], Dict[Ref, str]]


class Entry:
    """One kind of call: a callee with exact argument types, in one mode.

    Calls that merge as rows are analysed once, whatever the number of rows.
    """

    def __init__(
        self,
        callee: Any,
        mode: int,
        program: Program,
        in_types: Tuple[ArrayType, ...],
        places: Tuple[int, ...],
        inferred: Inferred,
        like: Optional[Entry],
    ):
        self.id = next(_NUMBERS)
        self.token = callee.token
        #: The block called, by id; None for an operator.
        self.block_id = callee.identity
        self.name = callee.name
        self.mode = mode
        self.program: Program = like.program if like else _sized(program, inferred[0])
        self.in_types = in_types
        #: Per array, whether it has more than one row.
        self.several = tuple(kind.shape[:1] > (1,) for kind in in_types)
        #: Per array, which of the arguments it came in; those of a list came together.
        self.places = places
        self.context = in_types[0].context if in_types else mx.current_context()
        self.shapes: Dict[Ref, Shape] = inferred[0]
        self.dtypes: Dict[Ref, str] = inferred[1]
        #: The entry that was analysed: this one, or one with another number of rows.
        self.first: Entry = like or self
        self._variants: Dict[FrozenSet[int], Variant] = {}
        #: How its calls were cut so far: see `expand`.
        self.cuts: Dict[Any, Any] = {}
        self.out_array_types = [
            ArrayType(self.shapes[ref], self.dtypes[ref], self.context) for ref in program.heads
        ]
        self.out_types = [TYPES.id_of(t) for t in self.out_array_types]
        #: Operations of its products.
        self.work = sum(
            2 * elements(self.shapes[row, 0]) * elements(self.shapes[op.inputs[1]][1:])
            for row, op in enumerate(program.ops)
            if op.op in PRODUCTS
        )
        #: What recording a call needs, for the native code.
        self.recorded = (self.id, tuple(self.out_types), program.out_spec)

    def variant(self, shared: FrozenSet[int]) -> Variant:
        """Return how calls run together if they share these arguments."""
        if shared not in self._variants:
            if shared or self.first is self:
                made = choose_variant(self, shared)
            else:
                made = replace(self.first.variant(shared), entry=self)
            self._variants[shared] = made
        return self._variants[shared]

    def with_rows(self, types: Tuple[ArrayType, ...]) -> Optional[Inferred]:
        """Return what `infer` would for another number of rows; None if calls have no rows."""
        rows, alike = types[0].shape[:1], len({kind.shape[:1] for kind in types}) == 1
        # Arrays of one row may merge in another way.
        if not alike or not rows > (1,) or not all(self.several):
            return None
        variant = self.variant(frozenset())
        if variant.layout != "rows":
            return None
        own = variant.batched
        shapes = {ref: rows + s[1:] if own[ref[0]] else s for ref, s in self.shapes.items()}
        return shapes, self.dtypes


class Library:
    """What was called in this process; callees keep their entries, by mode and types.

    So what is known of a block goes with it.
    """

    def __init__(self) -> None:
        #: Operators with their attributes, by token.
        self.operators: Dict[Any, Operator] = {}
        #: By line of the user's and operator, the number it is called with; NaN if it differs.
        self.numbers: Dict[Any, float] = {}
        self._lock = threading.RLock()

    def operator(self, token: Any, info: Any) -> Operator:
        """Return the recorded side of an operator."""
        return self.operators.setdefault(token, Operator(token, info))

    def callee(self, block: HybridBlock) -> BlockCallee:
        """Return the recorded side of `block`, a new one if its cached graph became invalid."""
        with self._lock:
            callee: Optional[BlockCallee] = block.__dict__.get("_dynbatch_callee")
            if callee is None or not callee.is_current(block):
                # Past Block.__setattr__, which would register it.
                callee = block.__dict__["_dynbatch_callee"] = BlockCallee(block)
            return callee

    def entry(
        self,
        key: Any,
        callee: Any,
        mode: int,
        spec: Any,
        type_ids: Any,
        places: Tuple[int, ...],
        where: Where,
    ) -> Union[Entry, str]:
        """Make the entry of a call that was not seen before; or say why it is not recorded."""
        types = tuple(TYPES[t] for t in type_ids)
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            if key not in callee.entries:
                program = self.program(callee, spec, len(types), where)
                call = callee, mode, program, types, places, where
                callee.entries[key] = _why_at_once(program, mode) or _make_entry(*call)
            return callee.entries[key]  # type: ignore[no-any-return]

    def program(self, callee: Any, spec: Any, arguments: int, where: Where) -> Program:
        """Trace a callee for one structure of arguments, once."""
        # Name scopes of Gluon are not made for several threads in one block.
        with self._lock:
            if spec not in callee.programs:
                if isinstance(callee, BlockCallee):
                    callee.programs[spec] = trace_block(callee.block, spec, arguments, where)
                else:
                    callee.programs[spec] = trace_operator(callee, arguments, where)
            return callee.programs[spec]  # type: ignore[no-any-return]


def _sized(program: Program, shapes: Dict[Ref, Shape]) -> Program:
    """Give arrays that a program creates their sizes, of which 0 is one that MXNet infers."""
    ops = (
        op._replace(attrs={**op.attrs, "shape": str(shapes[row, 0])})
        if "shape" in op.attrs and not op.inputs
        else op
        for row, op in enumerate(program.ops)
    )
    return program._replace(ops=tuple(ops))


def _make_entry(
    callee: Any,
    mode: int,
    program: Program,
    types: Tuple[ArrayType, ...],
    places: Tuple[int, ...],
    where: Where,
) -> Entry:
    rowless = mode, *(kind._replace(shape=kind.shape[1:]) for kind in types)
    like = program.first.get(rowless)
    inferred = like and like.with_rows(types)
    if inferred is None:
        like, inferred = None, infer(program, types, callee.name, where)
    entry = Entry(callee, mode, program, types, places, inferred, like)
    program.first.setdefault(rowless, entry)
    return entry


def _why_at_once(program: Program, mode: int) -> str:
    """Say why calls cannot be recorded as one; empty if they can."""
    operators = [op.op for op in program.ops if op.op != VARIABLE]
    training = bool(mode & TRAINING)
    if any(is_drawn(parameter, training) for parameter in program.parameters.values()):
        return "its parameters are drawn for each call"
    if not program.compiles:
        return "MXNet cannot compile it"
    if training and set(program.symbol.list_auxiliary_states()) & set(program.names):
        return "in training it writes to its arguments"
    if any(rules.of(op).sized_by_values for op in operators):
        return "the shapes of its results depend on values"
    if any(op.attrs.get("stype", "default") != "default" for op in program.ops):
        return "it makes sparse arrays"
    if mode & RECORDING and any(rules.of(op).hangs_in_backward for op in operators):
        return "MXNet may never finish its backward pass within another"
    return ""
