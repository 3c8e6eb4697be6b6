"""Entries, which hold what all calls of one kind have in common, and the library of callees."""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from dataclasses import replace
from functools import cached_property
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple, Union

import numpy as np
from mxnet.gluon import HybridBlock
from mxnet.util import is_np_array

from .. import rules
from ..errors import Where
from ..modes import NUMPY_SHAPE, RECORDING, TRAINING
from ..native import lowering
from ..record.operators import PART, Operator
from ..record.types import TYPES, ArrayType, elements, numpy_shapes
from ..rules.site import Ref, Shape
from .infer import Inferred, OtherShapeError, TypedProgram, infer, why_refused
from .numpy import translate_program
from .program import BlockCallee, CallProgram, is_redrawn, trace_block, trace_operator
from .sums import with_sums
from .symbols import VARIABLE
from .variant import Variant, choose_variant

#: Operators whose results are dot products with rows of the weight, which is input 1.
PRODUCTS = frozenset(["Convolution", "Deconvolution", "FullyConnected"])
_ENTRY_IDS = itertools.count()
#: Entries of a generation, see `Library`.  Most take 5 to 30 KB.
MOST_ENTRIES = 8192
#: Callees for blocks with equal attributes.
MOST_ALIKE = 256
#: Bytes of the results of a recorded call.  A flush has larger ones up to five times: results and
#: what they were computed from in arenas, copies for the user, gradients.  To merge calls of this
#: size would not save time.
MOST_RESULT_BYTES = 64 << 20


#: Of the arguments of a call, those that all calls share, if there are none.
NONE: FrozenSet[int] = frozenset()


class CallKind:
    """What calls have in common that differ at most in their number of rows.

    If calls merge as rows, this is found out once, by the first entry; if not, there is a kind for
    each entry.
    """

    def __init__(self, typed: TypedProgram):
        #: A program with the types of some of the calls.
        self.typed = typed
        #: Per array, whether it has more than one row.
        self.has_rows = tuple(array_type.shape[:1] > (1,) for array_type in typed.in_types)
        #: Cuts of calls that share no arguments, which `expand` caches here.
        self.cuts: Dict[Any, Any] = {}

    @cached_property
    def variant(self) -> Variant:
        """The variant of calls that share no arguments."""
        return choose_variant(self.typed, NONE)

    def infer(self, types: Tuple[ArrayType, ...]) -> Optional[Inferred]:
        """Derive shapes and dtypes for another number of rows; None if calls have no rows."""
        rows, equal = types[0].shape[:1], len({t.shape[:1] for t in types}) == 1
        # With one row, the layout may be another.
        if not equal or not rows > (1,) or not all(self.has_rows):
            return None
        if self.variant.layout != "rows":
            return None
        shapes = {
            ref: rows + shape[1:] if self.variant.batched[ref[0]] else shape
            for ref, shape in self.typed.shapes.items()
        }
        return shapes, self.typed.dtypes


class Entry(TypedProgram):
    """Calls of a callee with exact argument types, in one mode."""

    #: In the object itself, not in its dictionary: a flush reads it of all entries, of which there
    #: may be a thousand that no cache has.
    __slots__ = ("brief",)

    def __init__(
        self,
        callee: Any,
        mode: int,
        program: CallProgram,
        in_types: Tuple[ArrayType, ...],
        places: Tuple[int, ...],
        where: Where,
        results: Optional[Tuple[ArrayType, ...]] = None,
    ):
        """Analyse such calls; `results` are the types of lazy arrays, if they are others."""
        without_rows = mode, *(t._replace(shape=t.shape[1:]) for t in in_types)
        kind: Optional[CallKind] = program.kinds.get(without_rows)
        inferred: Optional[Inferred] = kind.infer(in_types) if kind else None
        if inferred is None:
            kind, inferred = None, infer(program, in_types, callee.name, where)
        typed = kind.typed.program if kind else _with_shapes(program, inferred[0])
        super().__init__(callee.name, mode, typed, in_types, inferred)
        #: What it has in common with entries of other numbers of rows.
        self.kind = kind or CallKind(self)
        program.kinds.setdefault(without_rows, self.kind)
        self.id = next(_ENTRY_IDS)
        self.token = callee.token
        #: ``id()`` of the block; None for an operator.
        self.block_id = callee.identity
        #: A number that only this block ever has; None for an operator.
        self.block_number = callee.number if isinstance(callee, BlockCallee) else None
        #: Whether an operator is random.
        self.draws = any(
            rules.is_random(op.op, op.attrs, bool(mode & TRAINING)) for op in typed.ops
        )
        #: Per array, the number of the argument that contains it.
        self.argument_of = places
        self._variants: Dict[FrozenSet[int], Variant] = {}
        #: Cuts of its calls, which `expand` caches here.
        self.cuts: Dict[Any, Any] = {}
        self.out_types = [TYPES.id_of(t) for t in results or self.out_array_types]
        #: Arithmetic operations in its products.
        self.work = sum(
            2 * elements(self.shapes[at, 0]) * elements(self.shapes[op.inputs[1]][1:])
            for at, op in enumerate(program.ops)
            if op.op in PRODUCTS
        )
        self.brief = self._brief()
        #: What native code reads for each recorded call.
        self.recorded = (self.id, tuple(self.out_types), program.out_spec, program.numpy)

    def _brief(self) -> lowering.CallBrief:
        """Return what native code reads at each flush."""
        return lowering.CallBrief(
            self.kind,
            self.token,
            results=len(self.out_types),
            places=self.argument_of,
            several=self.kind.has_rows,
            adds=self.program.has_sum,
            of_block=self.block_id is not None,
            recorded=bool(self.mode & RECORDING),
            is_part=self.token[-1] == PART,
            operators=self.program.operators,
            work=self.work,
        )

    def variant(self, shared: FrozenSet[int]) -> Variant:
        """Return the variant of calls that share these arguments."""
        if shared not in self._variants:
            self._variants[shared] = (
                choose_variant(self, shared) if shared else replace(self.kind.variant, typed=self)
            )
        return self._variants[shared]


class Library:
    """The callees of this process.

    Each keeps its programs and entries, so these are freed together with a block.  Programs may use
    any number of shapes, and of attributes of operators, such as a bound that changes at each step.
    So entries have two generations: once there are `most` in the first one, those of the second one
    are dropped, and the first becomes the second, from which entries in use come back.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        #: Number of entries of the first generation that have been added, and who has them.
        self._added = 0
        self._callees: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Operators with their attributes, by token.
        self.operators: Dict[Any, Operator] = {}
        #: The number that an operator is called with, by user line and operator; NaN if it varies.
        self.numbers: Dict[Any, float] = {}
        #: The callees of all blocks that do the same, by their attributes.
        self._alike: Dict[bytes, BlockCallee] = {}
        self._lock = threading.RLock()

    def operator(self, token: Any, info: Any) -> Operator:
        """Return the callee of an operator."""
        return self.operators.get(token) or Operator(token, info)

    def callee(self, block: HybridBlock) -> BlockCallee:
        """Return the callee of a block; make a new one if its cached graph is out of date."""
        with self._lock:
            callee: Optional[BlockCallee] = block.__dict__.get("_dynbatch_callee")
            if callee is None or not callee.is_current(block):
                # Block.__setattr__ would register it.
                callee = block.__dict__["_dynbatch_callee"] = BlockCallee(block)
            return callee

    def stock_callee(self, block: HybridBlock, key: Optional[bytes] = None) -> BlockCallee:
        """Return a new callee of a block; with a key, that of all blocks with this key."""
        with self._lock:
            if key is None:
                return BlockCallee(block)
            if key not in self._alike:
                if len(self._alike) >= MOST_ALIKE:
                    self._alike.clear()
                self._alike[key] = BlockCallee(block, for_all=True)
            return self._alike[key]

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
        """Make the entry for a new kind of call, or return why its calls run at once."""
        types = tuple(TYPES[t] for t in type_ids)
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            entry: Union[Entry, str, None] = callee.entries.get(key)
            if entry is None:
                entry = callee.older.get(key)
                if entry is None:
                    program = self.program(callee, spec, len(types), where)
                    entry = _why_at_once(program, mode)
                    try:
                        entry = entry or _entry(callee, mode, program, types, places, where)
                    except OtherShapeError as error:
                        entry = str(error)
                self._add(callee, key, entry)
            return entry

    def _add(self, callee: Any, key: Any, entry: Union[Entry, str]) -> None:
        """Add an entry to the first generation; begin another one if it is full."""
        if self._added >= self._most:
            self._added = 0
            for each in list(self._callees):
                each.older = each.entries.copy()
                each.entries.clear()
                if not each.older:
                    self._callees.discard(each)
                    # Of an operator; whoever calls it now adds it again.
                    self.operators.pop(each.token, None)
        callee.entries[key] = entry
        self._callees.add(callee)
        self._added += 1
        if isinstance(callee, Operator):
            self.operators[callee.token] = callee

    def trial(
        self,
        block: HybridBlock,
        mode: int,
        spec: Any,
        type_ids: Any,
        places: Tuple[int, ...],
        where: Where,
    ) -> Union[Entry, str]:
        """Return what `entry` would return for a call of a block, and leave the block as it is."""
        fields = vars(block)
        names = "_cached_graph", "_in_format", "_out_format"
        kept = {name: fields[name] for name in names if name in fields}
        arguments = [*block._cached_op_args]
        try:
            return self.entry(None, BlockCallee(block), mode, spec, type_ids, places, where)
        finally:
            for name in names:
                fields.pop(name, None)
            fields.update(kept)
            block._cached_op_args[:] = arguments

    def program(self, callee: Any, spec: Any, arguments: int, where: Where) -> CallProgram:
        """Trace a callee for one structure of arguments, once."""
        # Gluon's name scopes do not support several threads in one block.
        with self._lock:
            # Blocks of Gluon call operators of `mx.np` under NumPy's semantics.
            key = spec, is_np_array()
            if key not in callee.programs:
                if isinstance(callee, BlockCallee):
                    assert callee.block is not None, "its caller holds the block"
                    callee.programs[key] = trace_block(callee.block, spec, arguments, where)
                else:
                    callee.programs[key] = trace_operator(callee, arguments, where)
            return callee.programs[key]  # type: ignore[no-any-return]


def _entry(
    callee: Any,
    mode: int,
    program: CallProgram,
    types: Tuple[ArrayType, ...],
    places: Tuple[int, ...],
    where: Where,
) -> Union[Entry, str]:
    """Make the entry for a new kind of call, or return why its calls run at once."""
    results = None
    if mode & NUMPY_SHAPE:
        is_block = isinstance(callee, BlockCallee)
        translated = translate_program(program, types, callee.name, where, is_block)
        if isinstance(translated, str):
            return translated
        is_numpy = program.numpy
        program, types, results = translated
        if not is_numpy and not all(result.shape for result in results):
            return "arrays of mx.nd without axes are not recorded"
    elif program.numpy:
        return "NumPy's shapes are off, which npx.set_np() switches on"
    elif isinstance(callee, BlockCallee):
        program = with_sums(program)
    with numpy_shapes(False):
        mode &= RECORDING | TRAINING
        entry = Entry(callee, mode, program, types, places, where, results)
    # Of one under NumPy's shapes, this is known before it is translated.
    refused = "" if results else why_refused(program, entry.dtypes)
    out = entry.out_array_types
    if refused:
        return refused
    if not all(entry.shapes.values()):
        return "MXNet takes an array of mx.nd without axes for one of unknown shape"
    if max(len(array.shape) for array in (*entry.in_types, *out)) > rules.MOST_DIMS:
        return f"MXNet can't reshape arrays of more than {rules.MOST_DIMS} axes"
    if sum(elements(t.shape) * np.dtype(t.dtype).itemsize for t in out) > MOST_RESULT_BYTES:
        return f"its results are larger than {MOST_RESULT_BYTES >> 20} MB"
    return entry


def _with_shapes(program: CallProgram, shapes: Dict[Ref, Shape]) -> CallProgram:
    """Replace the shapes of creation operators by inferred ones; size 0 means an unknown size."""
    ops = (
        op._replace(attrs={**op.attrs, **_inferred(op.attrs, shapes[at, 0])})
        if op.op != VARIABLE and not op.inputs
        else op
        for at, op in enumerate(program.ops)
    )
    return program._replace(ops=tuple(ops))


def _inferred(attrs: Mapping[str, str], shape: Shape) -> Dict[str, str]:
    """Return the attributes of a creation operator that say its shape, with the inferred one."""
    if attrs.get("infer_range") not in ("True", "true", "1"):
        return {"shape": str(shape)} if "shape" in attrs else {}
    # An end half a step before the next number gives this length, whatever is rounded.
    steps = shape[0] // int(attrs.get("repeat", 1)) - 0.5
    start, step = float(attrs["start"]), float(attrs.get("step", 1))
    return {"stop": str(start + steps * step), "infer_range": "False"}


def _why_at_once(program: CallProgram, mode: int) -> str:
    """Return why calls of a program run at once; empty if they are recorded."""
    operators = [op.op for op in program.ops if op.op != VARIABLE]
    training = bool(mode & TRAINING)
    if any(is_redrawn(parameter, training) for parameter in program.parameters.values()):
        return "its parameters are drawn for each call"
    if not program.compiles:
        return "MXNet cannot compile it"
    if set(program.symbol.list_auxiliary_states()) & set(program.names):
        if any(rules.of(op).writes == "auxiliary" for op in operators):
            return "it writes to its arguments"
        if training:
            return "in training it writes to its arguments"
    if any(rules.of(op).sized_by_values for op in operators):
        return "the shapes of its results depend on values"
    if any(op.attrs.get("stype", "default") != "default" for op in program.ops):
        return "it makes sparse arrays"
    if mode & RECORDING and any(rules.of(op).hangs_in_backward for op in operators):
        return "MXNet may never finish its backward pass within another"
    return ""
