"""Programs: the operators of one call, read off a block or an operator, with shapes and dtypes."""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError, NotImplementedForSymbol
from mxnet.gluon import HybridBlock, Parameter, SymbolBlock
from mxnet.gluon.block import _flatten
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import (
    CellError,
    ContextError,
    DTypeError,
    ShapeError,
    UninitializedError,
    Where,
    user_message,
)
from ..modes import TRAINING
from ..record import structure
from ..record.intercept import Operator
from ..record.types import ArrayType

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
    #: The other way round: which argument a row is.
    argument_at: Dict[int, int]
    parameters: Dict[int, Parameter]
    #: The symbol of all visible values, for inference, and those values in its order.
    internals: Any
    visible: Tuple[Ref, ...]
    #: The visible values of each row, and how many inputs of rows are values of it.
    outputs: Tuple[Tuple[Ref, ...], ...]
    reads: Tuple[int, ...]
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
        parameters = block.collect_params().values()
        #: By mode: whether calls run as Python, so that what is in them is recorded; as those that
        #: draw parameters of their own do, and `RunAsPythonError`.
        self.enters = [
            any(_draws(p, bool(mode & TRAINING)) for p in parameters) for mode in range(4)
        ]
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

    def is_current(self, block: HybridBlock) -> bool:
        """Whether this still stands for what `block` would compute."""
        return self.version is block._cached_op_args and self.identity == id(block)

    def program(self, spec: Any, types: Tuple[ArrayType, ...], where: Where) -> Program:
        """Trace the block for one structure of arguments, once."""
        found = self.programs.get(spec)
        if found is None:
            # Name scopes of Gluon are not made for several threads in one block.
            with _TRACING:
                found = self.programs[spec] = trace_block(self.block, spec, len(types), where)
                _show_graph(self.block, spec, found)
        return found


def _draws(parameter: Parameter, training: bool) -> bool:
    """Whether a parameter has another value at every call, as GluonNLP's that are dropped have."""
    if type(parameter).data is Parameter.data:
        return False
    return training or getattr(parameter, "_mode", "always") != "training"


_TOKENS = itertools.count()
_TRACING = threading.RLock()


def _read_symbol(
    symbol: Any, arguments: List[str], parameters: Dict[str, Parameter], out_spec: Any
) -> Program:
    internals = symbol.get_internals()
    graph = json.loads(internals.tojson(remove_amp_cast=False))
    rows = []
    for node in graph["nodes"]:
        extra = {k: v for k, v in node.items() if k not in ("op", "name", "attrs", "inputs")}
        inputs = tuple((row, out) for row, out, _ in node["inputs"])
        # Launches add up dense gradients, whatever an operator would make by itself.
        attrs = {k: v for k, v in node.get("attrs", {}).items() if k != "sparse_grad"}
        rows.append(Row(node["op"], node["name"], attrs, inputs, extra))
    # By default MXNet leaves amp_cast out of what it saves, and numbers of rows would differ.
    saved = json.loads(symbol.tojson(remove_amp_cast=False))
    heads = tuple((row, out) for row, out, _ in saved["heads"])
    variables = {row.name: i for i, row in enumerate(rows) if row.op == VARIABLE}
    held = {i: parameters[name] for name, i in variables.items() if name in parameters}
    visible = tuple((row, out) for row, out, _ in graph["heads"])
    places = tuple(variables.get(name) for name in arguments)
    outputs: List[List[Ref]] = [[] for _ in rows]
    for ref in visible:
        outputs[ref[0]].append(ref)
    reads = Counter(row for reader in rows for row, _ in reader.inputs)
    return Program(
        tuple(rows),
        heads,
        places,
        {row: i for i, row in enumerate(places) if row is not None},
        held,
        internals,
        visible,
        tuple(map(tuple, outputs)),
        tuple(reads[i] for i in range(len(rows))),
        symbol,
        tuple(arguments),
        out_spec,
    )


def trace_block(block: HybridBlock, spec: Any, arguments: int, where: Where) -> Program:
    """Run ``hybrid_forward`` on symbols and read off its program."""
    if isinstance(block, SymbolBlock):
        inputs, symbol = block._cached_graph
        outputs, out_spec = list(symbol), None
        names = [i.name for i in inputs]
    else:
        # The names that stock Gluon gives, as exported models are loaded by them.
        names = ["data"] if arguments == 1 else [f"data{i}" for i in range(arguments)]
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


def graph_arguments(program: Program) -> List[Tuple[bool, Any]]:
    """Return what a block's graph is called with, as Gluon keeps it: its place, or a parameter."""
    parameters = {p.name: p for p in program.parameters.values()}
    places = {name: i for i, name in enumerate(program.names)}
    return [
        (True, places[name]) if name in places else (False, parameters[name])
        for name in program.symbol.list_inputs()
    ]


def _show_graph(block: HybridBlock, spec: Any, program: Program) -> None:
    """Leave the first graph where ``export`` and ``save`` look for it, as a call that runs does."""
    if block._cached_graph or isinstance(block, SymbolBlock):
        return
    inputs = [mx.sym.var(name) for name in program.names]
    results = list(program.symbol)
    try:
        _, block._in_format = _flatten(structure.unflatten(spec, inputs), "input")
        _, block._out_format = _flatten(structure.unflatten(program.out_spec, results), "output")
    except ValueError:
        # A structure that Gluon itself does not take; only dynamic blocks can be called with it.
        block._in_format = block._out_format = None
    block._cached_graph = inputs, program.symbol
    # In place: a new list would mean that the graph is out of date.
    block._cached_op_args[:] = graph_arguments(program)


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
    inputs = [(i, 0) for i in range(arguments)]
    nodes.append(symbol_node(operator.name, "call", operator.attributes(arguments), inputs))
    symbol = load_symbol(nodes, [(arguments, 0)])
    outputs = [ref for ref in _read_symbol(symbol, names, {}, None).visible if ref[0] == arguments]
    return compose(nodes, outputs, names, {})


def symbol_node(
    op: str, name: str, attrs: Any, inputs: Iterable[Ref], extra: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """Make the node of an operator, as in a symbol's file format."""
    node: Dict[str, Any] = {"op": op, "name": name, "inputs": [[r, o, 0] for r, o in inputs]}
    if attrs:
        node["attrs"] = dict(attrs)
    return {**node, **(extra or {})}


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
    if any(not t.shape for t in types):
        raise ShapeError(
            user_message(
                "an array of shape () has no axis along which calls could be merged",
                where,
                callee.name,
                "make it one of shape (1,) with .reshape((1,))",
            )
        )
    for shape in [t.shape for t in types] + [shapes[ref] for ref in program.heads]:
        if 0 in shape:
            raise ShapeError(
                user_message(
                    f"an array of shape {shape} is empty",
                    where,
                    callee.name,
                    "leave empty arrays out, or compute with them outside of the scope",
                )
            )
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
    known.update((p.name, np.dtype(p.dtype).type) for p in program.parameters.values())
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
