"""Trace a block or an operator: find the program, which lists the operators of a call."""

from __future__ import annotations

import copy
import itertools
import re
import weakref
from typing import Any, Dict, Iterator, List, MutableMapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.base import NotImplementedForSymbol
from mxnet.gluon import Block, HybridBlock, Parameter, ParameterDict, SymbolBlock
from mxnet.gluon.block import _flatten
from mxnet.symbol.numpy import _Symbol as NumPySymbol

from ..errors import ArgumentError, CellError, Where
from ..native import recording
from ..record.identity import number_of
from ..record.operators import Operator
from ..record.where import failing_line
from ..rules.site import Ref
from .draws import with_draws_per_call
from .symbols import VARIABLE, Op, can_compile, make_call, read_symbol

_TOKENS = itertools.count()


class CallProgram(NamedTuple):
    """The operators of one call, in topological order."""

    ops: Tuple[Op, ...]
    heads: Tuple[Ref, ...]
    #: The visible outputs of each operator.
    outputs: Tuple[Tuple[Ref, ...], ...]
    #: Names of the argument arrays.
    names: Tuple[str, ...]
    #: Inputs of the symbol, in Gluon's form: (True, number of an argument) or (False, parameter).
    symbol_inputs: List[Tuple[bool, Any]]
    #: Arguments that are used, and parameters, by position in `ops`.
    argument_at: Dict[int, int]
    parameters: Dict[int, Parameter]
    #: The symbol of the results, and that of all visible outputs.
    symbol: Any
    internals: Any
    #: Structure of the results.
    out_spec: Any
    #: Whether MXNet can make a ``CachedOp`` of the symbol.
    compiles: bool
    #: Number of operators.
    operators: int
    #: Whether an operator is ``add_n``.
    has_sum: bool
    #: Whether the results are arrays of ``mx.np``.
    numpy: bool
    #: What calls have in common (`entry.CallKind`), by mode and types apart from numbers of rows.
    kinds: MutableMapping[Any, Any]
    #: Programs without operators of ``mx.np`` that do the same for certain types, see `numpy.py`.
    translations: Dict[Any, Any]


def read_program(
    symbol: Any,
    names: Sequence[str],
    parameters: Dict[str, Parameter],
    out_spec: Any,
    numpy: bool = False,
) -> CallProgram:
    """Read the program of a symbol, given the names of its arguments and its parameters."""
    results = with_draws_per_call(symbol, names)
    internals = results.get_internals()
    # Reading both at once gives them the same positions; the results come first.
    ops, refs = read_symbol(mx.sym.Group([results, internals]))
    count = len(symbol.list_outputs())
    # Launches accumulate dense gradients only.
    ops = tuple(
        op._replace(attrs={k: v for k, v in op.attrs.items() if k != "sparse_grad"}) for op in ops
    )
    operators = [op.op for op in ops if op.op != VARIABLE]
    variables = {op.name: at for at, op in enumerate(ops) if op.op == VARIABLE}
    outputs: List[List[Ref]] = [[] for _ in ops]
    for ref in refs[count:]:
        outputs[ref[0]].append(ref)
    return CallProgram(
        ops=ops,
        heads=refs[:count],
        outputs=tuple(map(tuple, outputs)),
        names=tuple(names),
        symbol_inputs=[
            (True, names.index(name)) if name in names else (False, parameters[name])
            for name in symbol.list_inputs()
        ],
        argument_at={variables[name]: i for i, name in enumerate(names) if name in variables},
        parameters={at: parameters[name] for name, at in variables.items() if name in parameters},
        symbol=symbol,
        internals=internals,
        out_spec=out_spec,
        compiles=can_compile(symbol),
        operators=len(operators),
        has_sum="add_n" in operators,
        numpy=numpy,
        kinds=weakref.WeakValueDictionary(),
        translations={},
    )


class BlockCallee(recording.Callee):
    """A Gluon block as a callee."""

    def __init__(self, block: HybridBlock, for_all: bool = False):
        """Make the callee of a block; or `for_all` blocks that do the same and have no parameters.

        The latter may be called after the block was freed.
        """
        self._kept: Optional[HybridBlock] = None
        if for_all:
            self._kept = block = _copy_of(block)
        self._block = weakref.ref(block)
        self.identity, self.version = id(block), block._cached_op_args
        self.number = number_of(block)
        self.token = ("block", next(_TOKENS))
        self.programs: Dict[Any, CallProgram] = {}
        #: Compiled programs for calls outside of scopes, by structure of arguments.
        self.compiled: Dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the block needs its own callee

    @property
    def block(self) -> Optional[HybridBlock]:
        """The block; None if it was freed."""
        return self._block()

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        block = self._block()
        return "a block" if block is None else (block.name or type(block).__name__)


def _copy_of(block: HybridBlock) -> HybridBlock:
    """Return a block without parameters that does the same, and does not refer to this one."""
    copied = copy.copy(block)
    fields: Dict[str, Any] = vars(copied)
    fields.pop("_dynbatch_callee", None)
    fields.pop("_dynbatch_stock", None)
    scope_class = type(fields["_scope"])
    fields.update(_scope=scope_class(copied), _params=ParameterDict(block.prefix))
    fields.update(_cached_graph=(), _cached_op=None, _cached_op_args=[])
    return copied


def is_redrawn(parameter: Parameter, training: bool) -> bool:
    """Return whether each call draws the value of a parameter anew: GluonNLP's weight dropout."""
    if type(parameter).data is Parameter.data:
        return False
    return training or getattr(parameter, "_mode", "always") != "training"


def trace_block(block: HybridBlock, spec: Any, arguments: int, where: Where) -> CallProgram:
    """Call ``hybrid_forward`` with symbols and return its program."""
    # Gluon's names for inputs, which users of exported models need.
    names = ["data"] if arguments == 1 else [f"data{i}" for i in range(arguments)]
    args = recording.unflatten(spec, recording.variables(spec, names, _variable))
    if isinstance(block, SymbolBlock):
        inputs, result = block._cached_graph
        names = [i.name for i in inputs]
        if _gluon_refuses(block, args):
            text = f"a SymbolBlock takes {len(names)} arrays ({', '.join(names)})"
            raise ArgumentError(text, where, block.name, "pass these arrays, and no others")
    else:
        result = _call_with_symbols(block, args, where)
    outputs, out_spec = _results(result, block.name, where)
    # A symbol with several outputs counts as a list.
    parts = [list(out) if len(out.list_outputs()) > 1 else out for out in outputs]
    outputs, out_spec = recording.flatten(recording.unflatten(out_spec, parts), mx.sym.Symbol)
    # A result that is itself an argument is copied, so that an operator produces every result.
    numpy = isinstance(outputs[0], NumPySymbol)
    outputs = [make_call("_copy", {}, [out]) if _is_variable(out) else out for out in outputs]
    parameters = {p.name: p for p in block.collect_params().values()}
    symbol = mx.sym.Group(outputs, NumPySymbol if numpy else mx.sym.Symbol)
    # MXNet creates a variable for each missing input of an operator.
    for name in symbol.list_inputs():
        if name not in names and name not in parameters:
            raise CellError.like(AssertionError)(*_missing_array(block, name, where))
    program = read_program(symbol, names, parameters, out_spec, numpy)
    _set_cached_graph(block, spec, program)
    return program


#: Exceptions of Python code that gets arguments of a wrong structure.
_MISUSE = AttributeError, TypeError, LookupError, AssertionError, ValueError


def _call_with_symbols(block: HybridBlock, args: Sequence[Any], where: Where) -> Any:
    params = {name: param.var() for name, param in block._reg_params.items()}
    try:
        with block.name_scope():
            return block.hybrid_forward(mx.sym, *args, **params)
    except (NotImplementedForSymbol, *_MISUSE) as error:
        if "legacy ndarrays" in str(error) or "numpy operator which" in str(error):
            text = "hybrid_forward mixes arrays and operators of mx.nd and mx.np"
            advice = (
                "call npx.set_np() before the block is made, so that Gluon's blocks use mx.np, or "
                "convert arrays with .as_nd_ndarray(); Gluon's recurrent cells and some losses "
                "call mx.nd all the same: write these with mx.np"
            )
            raise ArgumentError.like(type(error))(text, where, block.name, advice) from error
        if _gluon_refuses(block, args):
            text = f"hybrid_forward does not take these arguments: {error}"
            advice = "pass the arguments that it takes, with the same nesting in each call"
            advice = _instead(error) or advice
            raise ArgumentError.like(type(error))(text, where, block.name, advice) from error
        # Only exceptions from the use of a symbol as an array get advice.
        if "Symbol" not in str(error) and not isinstance(error, NotImplementedForSymbol):
            raise
        line = failing_line(error)
        place = f" at {line}" if line is not None else ""
        text = f"hybrid_forward cannot be traced with symbols{place}: {error}"
        advice = (
            "a cell may only call operators of F and other cells, and must not read values or "
            "shapes of its arrays, or change them in place (write x = x - y); use forward() of a "
            "dynamic block for that"
        )
        advice = _instead(error) or advice
        raise CellError.like(type(error))(text, where, block.name, advice) from error


def _instead(error: Exception) -> str:
    """Return what to write for ``x[index]``, ``x -= y``, a number or a nested argument, if any."""
    if "integer index" in str(error):
        return (
            "write F.take(x, index) instead of x[index], and F.slice_axis(x, axis, begin, end) "
            "instead of x[begin:end]"
        )
    if re.search(r"must be Symbol instances, but got [\[(]*[-\d]", str(error)):
        return "an operator takes an array for an argument: make one by mx.nd.array(...)"
    if re.search(r"must be Symbol instances, but got [\[({]", str(error)):
        return (
            "an operator takes one array for an argument, not several: pass arrays one by one, as "
            "in net(*sample), or take them apart in the cell"
        )
    alias = getattr(error, "alias", None) or ""
    plain = alias[:-1] if getattr(error, "function", "").startswith("__i") else ""
    return plain and f"write x = x {plain} y instead of x {alias} y: symbols do not change in place"


def _missing_array(block: Block, name: str, where: Where) -> Tuple[str, Where, str, str]:
    """Return the arguments of the error for an array that is no argument and no parameter."""
    for owner in _descendants(block):
        for attribute, held in vars(owner).items():
            blocks = held.values() if isinstance(held, dict) else held
            for child in blocks if isinstance(held, (list, tuple, dict)) else ():
                if isinstance(child, Block) and name in child.collect_params():
                    kind = type(held).__name__
                    text = f"hybrid_forward calls {child.name}, which is not a child of a block: it"
                    text += f" is in the {kind} {attribute!r} of {owner.name}"
                    advice = "hold such blocks in nn.HybridSequential, or call register_child(...)"
                    return text, where, block.name, f"{advice} for each of them"
    text = f"hybrid_forward calls an operator without the array {name!r}"
    advice = "pass all arrays that the operator takes, and make each block that is called a child: "
    return text, where, block.name, f"{advice}an attribute, or registered by register_child"


def _descendants(block: Block) -> Iterator[Block]:
    """Yield a block and all blocks below it."""
    yield block
    for child in block._children.values():
        yield from _descendants(child)


def _gluon_refuses(block: HybridBlock, args: Sequence[Any]) -> bool:
    """Return whether a hybridized Gluon block refuses arguments, without running its code.

    It does if they hold numbers, or are nested in another way than those of its first call.
    """
    try:
        _, structure = _flatten(args, "input")
    except ValueError:
        return True
    return block._in_format not in (None, structure)


def _results(result: Any, name: str, where: Where) -> Tuple[List[Any], Any]:
    try:
        outputs, spec = recording.flatten(result, mx.sym.Symbol)
    except TypeError:
        outputs, spec = [], None
    if not outputs:
        text = f"hybrid_forward returns {result!r}, which holds no array"
        advice = "return an array, or a list, tuple or dictionary of arrays"
        kind = CellError.like(TypeError if result is None else ValueError)
        raise kind(text, where, name, advice)
    return outputs, spec


def _variable(name: str, numpy: bool) -> Any:
    """Return the symbol of an argument, one of ``mx.np`` for such an array."""
    symbol = mx.sym.var(name)
    return symbol.as_np_ndarray() if numpy else symbol


def _is_variable(symbol: Any) -> bool:
    return bool(symbol.list_inputs() == [symbol.name] and symbol.list_outputs() == [symbol.name])


def _set_cached_graph(block: HybridBlock, spec: Any, program: CallProgram) -> None:
    """Give a block that has no graph this one, for ``export`` and ``save``, as Gluon's calls do."""
    if block._cached_graph or isinstance(block, SymbolBlock):
        return
    inputs = [mx.sym.var(name) for name in program.names]
    symbol = program.symbol
    results = [symbol] if len(symbol.list_outputs()) == 1 else list(symbol)
    try:
        _, block._in_format = _flatten(recording.unflatten(spec, inputs), "input")
        _, block._out_format = _flatten(recording.unflatten(program.out_spec, results), "output")
    except ValueError:
        # Gluon does not support this structure, which only dynamic blocks accept.
        block._in_format = block._out_format = None
    block._cached_graph = inputs, symbol
    # In place, because a new list would mark the graph as out of date.
    block._cached_op_args[:] = program.symbol_inputs


def trace_operator(operator: Operator, arguments: int, where: Where) -> CallProgram:
    """Return the program of an operator call."""
    attrs, op = operator.attributes(arguments), operator.token[1]
    inputs = make_call(op, attrs).list_inputs()
    if len(inputs) != arguments:
        listed = ", ".join(name[len(op) + 1 :] for name in inputs)
        text = f"{operator.name} takes {len(inputs)} arrays ({listed}), not {arguments}"
        raise ArgumentError(text, where, operator.name, "pass all of them, and no others")
    names = [f"argument{i}" for i in range(arguments)]
    call = make_call(op, attrs, [mx.sym.var(name) for name in names])
    _, out_spec = recording.flatten(list(call), mx.sym.Symbol)
    return read_program(mx.sym.Group([call]), names, {}, out_spec, operator.token[0] == "np")
