"""From a callee to its program: the operator rows of one call, with shapes, in a batching layout.

A call is traced once per structure of its arguments.  Its *program* is a list of operator rows; an
*entry* is the program with the exact shapes of one kind of call; a *variant* of the entry says how
the calls of many samples share one run, given which arguments they share:

``rows``
    arrays of the samples are concatenated along axis 0; their leading sizes may differ.
``stack``
    arrays get a new leading axis; shapes are equal.
``alone``
    no batching rule holds; every call runs by itself, and the reason is kept for the report.
"""

from __future__ import annotations

import itertools
import json
import threading
import warnings
import weakref
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError, NotImplementedForSymbol
from mxnet.gluon import HybridBlock, Parameter, SymbolBlock
from mxnet.gluon.parameter import DeferredInitializationError

from . import rules, structure
from .errors import (
    CellError,
    ContextError,
    DTypeError,
    ShapeError,
    UninitializedError,
    Where,
    user_message,
)
from .intercept import Operator
from .record import TRAINING, TYPES, ArrayType

#: A value inside a program: row and output number.
Ref = Tuple[int, int]
Shape = Tuple[int, ...]

SYMBOLS = structure.Flattener(mx.sym.Symbol)
VARIABLE = "null"


class Row(NamedTuple):
    """One operator, or a variable, of a program."""

    op: str
    name: str
    attrs: Dict[str, str]
    inputs: Tuple[Ref, ...]
    #: What else the symbol file holds of the node, e.g. subgraphs of control flow.
    extra: Dict[str, Any]


class Program(NamedTuple):
    """The operators of one call, in topological order."""

    rows: Tuple[Row, ...]
    heads: Tuple[Ref, ...]
    #: Row of each argument array; None if the call does not use it.
    arguments: Tuple[Optional[int], ...]
    parameters: Dict[int, Parameter]
    #: The symbol of all visible values, for inference, and those values in its order.
    internals: Any
    visible: Tuple[Ref, ...]
    #: The symbol of the results, the names of its arguments, and the structure of the results.
    symbol: Any
    names: Tuple[str, ...]
    out_spec: Any


class BlockCallee:
    """A Gluon block as something that can be recorded."""

    def __init__(self, block: HybridBlock):
        self._block = weakref.ref(block)
        #: A copied block brings along the attribute in which this object is kept.
        self.identity = id(block)
        #: Gluon puts a new list here whenever the cached graph of a block becomes invalid.
        self.version = block._cached_op_args
        self.token = ("block", next(_TOKENS))
        self.programs: Dict[Any, Program] = {}
        #: Compiled programs for calls outside scopes, by structure of arguments.
        self.graphs: Dict[Any, Any] = {}

    @property
    def block(self) -> HybridBlock:
        """The block itself."""
        return self._block()

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        block = self._block()
        return "a block" if block is None else (block.name or type(block).__name__)

    def program(self, spec: Any, types: Tuple[ArrayType, ...], where: Where) -> Program:
        """Trace the block for one structure of arguments, once."""
        found = self.programs.get(spec)
        if found is None:
            found = self.programs[spec] = trace_block(self.block, spec, len(types), where)
        return found


_TOKENS = itertools.count()


def _read_symbol(
    symbol: Any, arguments: List[str], parameters: Dict[str, Parameter], out_spec: Any
) -> Program:
    internals = symbol.get_internals()
    graph = json.loads(internals.tojson())
    rows = []
    for node in graph["nodes"]:
        extra = {k: v for k, v in node.items() if k not in ("op", "name", "attrs", "inputs")}
        inputs = tuple((row, out) for row, out, _ in node["inputs"])
        rows.append(Row(node["op"], node["name"], node.get("attrs", {}), inputs, extra))
    heads = tuple((row, out) for row, out, _ in json.loads(symbol.tojson())["heads"])
    variables = {row.name: i for i, row in enumerate(rows) if row.op == VARIABLE}
    held = {i: parameters[name] for name, i in variables.items() if name in parameters}
    visible = tuple((row, out) for row, out, _ in graph["heads"])
    places = tuple(variables.get(name) for name in arguments)
    return Program(
        tuple(rows), heads, places, held, internals, visible, symbol, tuple(arguments), out_spec
    )


def trace_block(block: HybridBlock, spec: Any, arguments: int, where: Where) -> Program:
    """Run ``hybrid_forward`` on symbols and read off its program."""
    if isinstance(block, SymbolBlock):
        inputs, symbol = block._cached_graph
        outputs, out_spec = list(symbol), None
        names = [i.name for i in inputs]
    else:
        names = [f"dynbatch_argument{i}" for i in range(arguments)]
        args = structure.unflatten(spec, [mx.sym.var(name) for name in names])
        params = {name: param.var() for name, param in block._reg_params.items()}
        try:
            with block.name_scope():
                result = block.hybrid_forward(mx.sym, *args, **params)
        except (NotImplementedForSymbol, AttributeError, TypeError, AssertionError) as error:
            # The user's own exceptions travel on; these come from a symbol used as an array.
            if "Symbol" not in str(error) and not isinstance(error, NotImplementedForSymbol):
                raise
            raise CellError(
                user_message(
                    f"hybrid_forward cannot be traced with symbols: {error}",
                    where,
                    block.name,
                    "a cell must not read values or shapes of its arrays; "
                    "use forward() of a dynamic block for that",
                )
            ) from error
        outputs, out_spec = _results(result, block.name, where)
        if any(len(out.list_outputs()) > 1 for out in outputs):
            parts = iter([list(out) if len(out.list_outputs()) > 1 else out for out in outputs])
            outputs, out_spec = SYMBOLS.flatten(structure.unflatten(out_spec, list(parts)))
    if out_spec is None:
        out_spec = structure.LEAF if len(outputs) == 1 else SYMBOLS.flatten(outputs)[1]
    # A result that is an argument itself becomes an operator, so that every result has a producer.
    outputs = [mx.sym.identity(o) if _is_variable(o) else o for o in outputs]
    parameters = {p.name: p for p in block.collect_params().values()}
    return _read_symbol(mx.sym.Group(outputs), names, parameters, out_spec)


def _results(result: Any, name: str, where: Where) -> Tuple[List[Any], Any]:
    try:
        outputs, spec = SYMBOLS.flatten(result)
    except TypeError:
        outputs, spec = [], None
    if not outputs:
        raise CellError(
            user_message(
                f"hybrid_forward returns {result!r}, which holds no array",
                where,
                name,
                "return an array, or a list, tuple or dictionary of arrays",
            )
        )
    return outputs, spec


def _is_variable(symbol: Any) -> bool:
    return bool(symbol.list_inputs() == [symbol.name] and symbol.list_outputs() == [symbol.name])


def trace_operator(operator: Operator, arguments: int) -> Program:
    """Make the program of a single operator call."""
    names = [f"argument{i}" for i in range(arguments)]
    nodes = [{"op": VARIABLE, "name": name, "inputs": []} for name in names]
    nodes.append(
        {
            "op": operator.name,
            "name": "call",
            "attrs": operator.attributes(arguments),
            "inputs": [[i, 0, 0] for i in range(arguments)],
        }
    )
    symbol = load_symbol(nodes, [(arguments, 0)])
    outputs = [ref for ref in _read_symbol(symbol, names, {}, None).visible if ref[0] == arguments]
    return compose(nodes, outputs, names, {})


def load_symbol(nodes: List[Dict[str, Any]], heads: List[Ref]) -> Any:
    """Make a symbol from the nodes of its file format."""
    graph = {
        "nodes": nodes,
        "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == VARIABLE],
        "heads": [[row, out, 0] for row, out in heads],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(graph))


def compose(
    nodes: List[Dict[str, Any]],
    heads: List[Ref],
    arguments: List[str],
    parameters: Dict[str, Parameter],
) -> Program:
    """Make a program from nodes of the symbol file format."""
    return _read_symbol(load_symbol(nodes, heads), arguments, parameters, len(heads))


class Variant:
    """How the calls of an entry run together, given which arguments they share."""

    def __init__(self, entry: Entry, shared: FrozenSet[int]):
        self.entry = entry
        self.shared = shared
        self.layout = "alone"
        self.reason = ""
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
                self.batched[i] = (
                    i in program.arguments and program.arguments.index(i) not in self.shared
                )
            else:
                self.batched[i] = any(self.batched[r] for r, _ in row.inputs)
        if not all(self.batched[r] for r, _ in program.heads):
            self.reason = "a result does not depend on any array of the sample's own"
        elif self._draws_once():
            self.reason = "a random operator is applied to shared arrays; each call draws its own"
        elif not self._try_rows():
            self._try_stack()

    def _draws_once(self) -> bool:
        training = bool(self.entry.mode & TRAINING)
        return any(
            rules.is_random(row.op) and (training or row.op != "Dropout") and not self.batched[i]
            for i, row in enumerate(self.entry.program.rows)
        )

    def _site(self, i: int) -> rules.Site:
        row, shapes = self.entry.program.rows[i], self.entry.shapes
        outputs = tuple(shapes[ref] for ref in self.entry.program.visible if ref[0] == i)
        return rules.Site(
            row.op,
            row.attrs,
            tuple(shapes[ref] for ref in row.inputs),
            outputs,
            tuple(self.batched[r] for r, _ in row.inputs),
            bool(self.entry.mode & TRAINING),
        )

    def _operator_rows(self) -> List[int]:
        rows = self.entry.program.rows
        return [i for i, row in enumerate(rows) if row.op != VARIABLE and self.batched[i]]

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


class Entry:
    """One kind of call: a callee with exact argument types, in one mode."""

    def __init__(
        self,
        number: int,
        callee: Any,
        mode: int,
        program: Program,
        in_types: Tuple[ArrayType, ...],
        where: Where,
    ):
        self.id = number
        self.token = callee.token
        self.name = callee.name
        self.mode = mode
        self.program = program
        self.in_types = in_types
        self.where = where
        self.context = in_types[0].context if in_types else mx.current_context()
        self.shapes, self.dtypes = infer(program, in_types, callee, where)
        self.out_array_types = [
            ArrayType(self.shapes[ref], self.dtypes[ref], self.context) for ref in program.heads
        ]
        self.out_types = [TYPES.id_of(t) for t in self.out_array_types]
        #: Puts results into the structure that the callee returns.
        self.rebuild = structure.rebuilder(program.out_spec)
        self._variants: Dict[FrozenSet[int], Variant] = {}

    def variant(self, shared: FrozenSet[int]) -> Variant:
        """Return how calls run together if they share these arguments."""
        found = self._variants.get(shared)
        if found is None:
            found = self._variants[shared] = Variant(self, shared)
        return found


def infer_shapes(program: Program, types: Any) -> Dict[Ref, Shape]:
    """Infer the shape of every visible value."""
    known = _by_name(program, [t.shape for t in types])
    arguments, outputs, auxiliary = program.internals._infer_shape_impl(False, **known)
    if outputs is None:
        raise MXNetError("the shapes of the arguments do not determine those of the results")
    _finish_deferred(program, arguments, auxiliary)
    return dict(zip(program.visible, outputs))


def _by_name(program: Program, values: List[Any]) -> Dict[str, Any]:
    return {
        program.rows[row].name: v for row, v in zip(program.arguments, values) if row is not None
    }


def _finish_deferred(program: Program, arguments: Any, auxiliary: Any) -> None:
    """Give parameters whose shape was still open the shape that this call implies."""
    if not any(p._deferred_init for p in program.parameters.values()):
        return
    shapes = dict(zip(program.internals.list_arguments(), arguments))
    shapes.update(zip(program.internals.list_auxiliary_states(), auxiliary))
    for parameter in program.parameters.values():
        if parameter._deferred_init:
            parameter.shape = shapes[parameter.name]
            parameter._finish_deferred_init()


def infer(
    program: Program, types: Any, callee: Any, where: Where
) -> Tuple[Dict[Ref, Shape], Dict[Ref, str]]:
    """Infer shapes and dtypes of a call; errors name the user's line."""
    described = ", ".join(f"{t.shape} {t.dtype}" for t in types)
    try:
        shapes = infer_shapes(program, types)
    except (MXNetError, DeferredInitializationError, AssertionError) as error:
        raise ShapeError(
            user_message(
                f"arguments of shapes {described} do not fit: {_first_line(error)}",
                where,
                callee.name,
                "check the shapes of this call",
            )
        ) from None
    for parameter in program.parameters.values():
        if parameter._data is None:
            raise UninitializedError(
                user_message(
                    f"parameter {parameter.name!r} is not initialised",
                    where,
                    callee.name,
                    "call net.initialize() before the first call",
                )
            )
        if types and types[0].context not in parameter.list_ctx():
            held = ", ".join(map(str, parameter.list_ctx()))
            raise ContextError(
                user_message(
                    f"the arguments are on {types[0].context}, "
                    f"parameter {parameter.name!r} is on {held}",
                    where,
                    callee.name,
                    "bring them together with .as_in_context(...) "
                    "or net.collect_params().reset_ctx(...)",
                )
            )
    known = _by_name(program, [np.dtype(t.dtype).type for t in types])
    try:
        _, outputs, _ = program.internals._infer_type_impl(False, **known)
        if outputs is None:
            raise MXNetError("the dtypes of the arguments do not determine those of the results")
    except MXNetError as error:
        raise DTypeError(
            user_message(
                f"arguments of types {described} do not fit: {_first_line(error)}",
                where,
                callee.name,
                "bring them to one dtype with .astype(...)",
            )
        ) from None
    return shapes, {r: np.dtype(t).name for r, t in zip(program.visible, outputs)}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line for line in lines if "Error in operator" in line or "Check failed" in line
    ] or lines
    return told[0] if told else type(error).__name__


class Library:
    """Entries of this process, by what was called with which types in which mode."""

    def __init__(self) -> None:
        self.entries: Dict[Any, Entry] = {}
        self._numbers = itertools.count()
        self._operators: Dict[Any, Program] = {}
        self._compiles: Dict[str, bool] = {}
        self._lock = threading.RLock()

    def callee(self, block: HybridBlock) -> BlockCallee:
        """Return the recorded side of `block`, a new one if its cached graph became invalid."""
        known = block.__dict__.get("_dynbatch_callee")
        if (
            known is None
            or known.version is not block._cached_op_args
            or known.identity != id(block)
        ):
            known = BlockCallee(block)
            # Past Block.__setattr__, which would register it.
            block.__dict__["_dynbatch_callee"] = known
            weakref.finalize(known, self._forget, known.token).atexit = False
        return known

    def _forget(self, token: Any) -> None:
        with self._lock:
            for key in [key for key in self.entries if key[0] == token]:
                del self.entries[key]

    def entry(
        self, key: Any, callee: Any, mode: int, spec: Any, type_ids: Any, where: Where
    ) -> Entry:
        """Make the entry of a call that was not seen before."""
        types = tuple(TYPES[t] for t in type_ids)
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            program = self._program(callee, spec, types, where)
            entry = self.entries[key] = self.make_entry(callee, mode, program, types, where)
        return entry

    def make_entry(
        self, callee: Any, mode: int, program: Program, types: Tuple[ArrayType, ...], where: Where
    ) -> Entry:
        """Make an entry with a number of its own."""
        return Entry(next(self._numbers), callee, mode, program, types, where)

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
