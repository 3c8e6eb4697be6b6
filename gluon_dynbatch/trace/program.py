"""Programs: the operators of one call, traced from a block or an operator."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet.base import NotImplementedForSymbol
from mxnet.gluon import HybridBlock, Parameter, SymbolBlock
from mxnet.gluon.block import _flatten

from .. import rules
from ..errors import ArgumentError, CellError, Where
from ..native import recording
from ..record.operators import Operator
from .symbols import VARIABLE, Op, Ref, call_of, can_compile, read_symbol


class Program(NamedTuple):
    """The operators of one call, in topological order."""

    ops: Tuple[Op, ...]
    heads: Tuple[Ref, ...]
    #: The visible outputs of each operator.
    outputs: Tuple[Tuple[Ref, ...], ...]
    #: Names of the argument arrays.
    names: Tuple[str, ...]
    #: What the symbol is called with, as Gluon keeps it: the place of an argument, or a parameter.
    given: List[Tuple[bool, Any]]
    #: Arguments, of those that are used, and parameters, by position in `ops`.
    argument_at: Dict[int, int]
    parameters: Dict[int, Parameter]
    #: The symbol of the results, and that of all visible outputs.
    symbol: Any
    internals: Any
    #: Structure of the results.
    out_spec: Any
    #: Whether MXNet can make a ``CachedOp`` of it.
    compiles: bool
    #: Number of operators, whether one is a sum of several arrays, and whether one is random.
    operators: int
    adds: bool
    draws: bool
    #: By mode and types without the number of rows: the first entry.
    first: Dict[Any, Any]


def read_program(
    symbol: Any, names: Sequence[str], parameters: Dict[str, Parameter], out_spec: Any
) -> Program:
    """Read the program off a symbol, given the names of its arguments and its parameters."""
    internals = symbol.get_internals()
    # The symbol first, so that its heads come first.
    ops, refs = read_symbol(mx.sym.Group([symbol, internals]))
    count = len(symbol.list_outputs())
    heads, visible = refs[:count], refs[count:]
    # Launches add up dense gradients, whatever an operator would make by itself.
    ops = tuple(
        op._replace(attrs={k: v for k, v in op.attrs.items() if k != "sparse_grad"}) for op in ops
    )
    operators = [op.op for op in ops if op.op != VARIABLE]
    variables = {op.name: at for at, op in enumerate(ops) if op.op == VARIABLE}
    outputs: List[List[Ref]] = [[] for _ in ops]
    for ref in visible:
        outputs[ref[0]].append(ref)
    return Program(
        ops,
        heads,
        tuple(map(tuple, outputs)),
        tuple(names),
        [
            (n in names, names.index(n) if n in names else parameters[n])
            for n in symbol.list_inputs()
        ],
        {variables[name]: i for i, name in enumerate(names) if name in variables},
        {at: parameters[name] for name, at in variables.items() if name in parameters},
        symbol,
        internals,
        out_spec,
        can_compile(symbol),
        len(operators),
        "add_n" in operators,
        any(map(rules.is_random, operators)),
        {},
    )


class BlockCallee(recording.Callee):  # type: ignore[misc]
    """A Gluon block as something that can be recorded."""

    def __init__(self, block: HybridBlock):
        self._block = weakref.ref(block)
        self.identity, self.version = id(block), block._cached_op_args
        self.token = ("block", next(_TOKENS))
        self.programs: Dict[Any, Program] = {}
        #: Programs as they are compiled for calls outside of scopes, by structure of arguments.
        self.compiled: Dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # a copied block has none yet

    @property
    def block(self) -> HybridBlock:
        """The block itself."""
        return self._block()

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        block = self._block()
        return "a block" if block is None else (block.name or type(block).__name__)


def is_drawn(parameter: Parameter, training: bool) -> bool:
    """Whether a parameter has another value at every call, as GluonNLP's that are dropped have."""
    if type(parameter).data is Parameter.data:
        return False
    return training or getattr(parameter, "_mode", "always") != "training"


_TOKENS = itertools.count()


def trace_block(block: HybridBlock, spec: Any, arguments: int, where: Where) -> Program:
    """Run ``hybrid_forward`` on symbols and read off its program."""
    if isinstance(block, SymbolBlock):
        inputs, result = block._cached_graph
        names = [i.name for i in inputs]
    else:
        # The names that stock Gluon gives, as exported models are loaded by them.
        names = ["data"] if arguments == 1 else [f"data{i}" for i in range(arguments)]
        args = recording.unflatten(spec, [mx.sym.var(name) for name in names])
        result = _call_with_symbols(block, args, where)
    outputs, out_spec = _results(result, block.name, where)
    parts = [list(out) if len(out.list_outputs()) > 1 else out for out in outputs]
    outputs, out_spec = recording.flatten(recording.unflatten(out_spec, parts), mx.sym.Symbol)
    # A result that is an argument itself becomes an operator, so that every result has a producer.
    outputs = [mx.sym.identity(o) if _is_variable(o) else o for o in outputs]
    parameters = {p.name: p for p in block.collect_params().values()}
    symbol = mx.sym.Group(outputs)
    # MXNet makes a variable for an array that an operator lacks.
    for name in symbol.list_inputs():
        if name not in names and name not in parameters:
            text = f"hybrid_forward calls an operator without the array {name!r}"
            raise CellError(text, where, block.name, "pass all arrays that the operator takes")
    program = read_program(symbol, names, parameters, out_spec)
    _show_graph(block, spec, program)
    return program


def _call_with_symbols(block: HybridBlock, args: Sequence[Any], where: Where) -> Any:
    params = {name: param.var() for name, param in block._reg_params.items()}
    try:
        with block.name_scope():
            return block.hybrid_forward(mx.sym, *args, **params)
    except (NotImplementedForSymbol, AttributeError, TypeError, AssertionError) as error:
        # The user's own exceptions travel on; these come from a symbol used as an array.
        if "Symbol" not in str(error) and not isinstance(error, NotImplementedForSymbol):
            raise
        text = f"hybrid_forward cannot be traced with symbols: {error}"
        advice = (
            "a cell may only call operators of F and other cells, and must not read values or "
            "shapes of its arrays; use forward() of a dynamic block for that"
        )
        raise CellError(text, where, block.name, advice) from error


def _results(result: Any, name: str, where: Where) -> Tuple[List[Any], Any]:
    try:
        outputs, spec = recording.flatten(result, mx.sym.Symbol)
    except TypeError:
        outputs, spec = [], None
    if not outputs:
        text = f"hybrid_forward returns {result!r}, which holds no array"
        advice = "return an array, or a list, tuple or dictionary of arrays"
        raise CellError(text, where, name, advice)
    return outputs, spec


def _is_variable(symbol: Any) -> bool:
    return bool(symbol.list_inputs() == [symbol.name] and symbol.list_outputs() == [symbol.name])


def _show_graph(block: HybridBlock, spec: Any, program: Program) -> None:
    """Leave the first graph where ``export`` and ``save`` look for it, as a call that runs does."""
    if block._cached_graph or isinstance(block, SymbolBlock):
        return
    inputs = [mx.sym.var(name) for name in program.names]
    results = list(program.symbol)
    try:
        _, block._in_format = _flatten(recording.unflatten(spec, inputs), "input")
        _, block._out_format = _flatten(recording.unflatten(program.out_spec, results), "output")
    except ValueError:
        # A structure that Gluon itself does not take; only dynamic blocks can be called with it.
        block._in_format = block._out_format = None
    block._cached_graph = inputs, program.symbol
    # In place: a new list would mean that the graph is out of date.
    block._cached_op_args[:] = program.given


def trace_operator(operator: Operator, arguments: int, where: Where) -> Program:
    """Make the program of a single operator call."""
    attrs = operator.attributes(arguments)
    taken = [name[len(operator.name) + 1 :] for name in call_of(operator.name, attrs).list_inputs()]
    if len(taken) != arguments:
        text = f"{operator.name} takes {len(taken)} arrays ({', '.join(taken)}), not {arguments}"
        raise ArgumentError(text, where, operator.name, "pass all of them, and no others")
    names = [f"argument{i}" for i in range(arguments)]
    call = call_of(operator.name, attrs, [mx.sym.var(name) for name in names])
    _, out_spec = recording.flatten(list(call), mx.sym.Symbol)
    return read_program(mx.sym.Group([call]), names, {}, out_spec)
