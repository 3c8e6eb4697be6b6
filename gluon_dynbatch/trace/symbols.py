"""Symbols as lists of operators: the only module that knows symbol JSON and ``CachedOp``."""

from __future__ import annotations

import ctypes
import json
import threading
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet.base import _LIB, MXNetError, c_str, check_call
from mxnet.symbol.register import _symbol_creator

from ..rules.site import Ref

#: Operator name of variables: arguments and parameters.
VARIABLE = "null"


class Op(NamedTuple):
    """An operator or a variable of a symbol."""

    op: str
    name: str
    attrs: Mapping[str, str]
    inputs: Tuple[Ref, ...]
    #: Other fields of the JSON, such as the subgraphs of control flow.
    extra: Mapping[str, Any]


def count_operators(ops: Iterable[Op]) -> int:
    """Count the operators that are not variables."""
    return sum(op.op != VARIABLE for op in ops)


class SymbolBuilder:
    """Collects operators in topological order; their names begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.ops: List[Op] = []
        self._prefix = prefix

    def variable(self, name: str) -> Ref:
        """Append a variable."""
        self.ops.append(Op(VARIABLE, name, {}, (), {}))
        return len(self.ops) - 1, 0

    def add(
        self,
        op: str,
        inputs: Iterable[Ref],
        attrs: Mapping[str, str] = {},
        extra: Mapping[str, Any] = {},
    ) -> Ref:
        """Append an operator and return its first output."""
        name = f"{self._prefix}{op}{len(self.ops)}"
        self.ops.append(Op(op, name, attrs, tuple(inputs), extra))
        return len(self.ops) - 1, 0


def read_symbol(symbol: Any) -> Tuple[Tuple[Op, ...], Tuple[Ref, ...]]:
    """Return the operators of a symbol in topological order, and its results."""
    # By default, MXNet does not save amp_cast, which would change positions.
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    ops = []
    for node in graph["nodes"]:
        op, name, attrs = node.pop("op"), node.pop("name"), node.pop("attrs", {})
        inputs = tuple((row, out) for row, out, _ in node.pop("inputs"))
        ops.append(Op(op=op, name=name, attrs=attrs, inputs=inputs, extra=node))
    return tuple(ops), tuple((row, out) for row, out, _ in graph["heads"])


def make_symbol(ops: Sequence[Op], heads: Iterable[Ref]) -> Any:
    """Make a symbol; the inverse of `read_symbol`."""
    nodes: List[Dict[str, Any]] = []
    for op in ops:
        inputs = [(*ref, 0) for ref in op.inputs]
        node = {"op": op.op, "name": op.name, "inputs": inputs, **op.extra}
        nodes.append({**node, "attrs": op.attrs} if op.attrs else node)
    graph = {
        "nodes": nodes,
        "arg_nodes": [i for i, op in enumerate(ops) if op.op == VARIABLE],
        "heads": [(*ref, 0) for ref in heads],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(graph))


def make_call(op: str, attrs: Mapping[str, str], inputs: Sequence[Any] = ()) -> Any:
    """Make the symbol of an operator call; MXNet creates a variable for each missing input."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return _symbol_creator(handle.value, inputs, None, list(attrs), list(attrs.values()), op, False)


class Compiled(mx.nd.CachedOp):
    """A ``CachedOp`` and a lock, to be held while it runs forward or backward.

    It is not thread-safe, and MXNet may run it backward in a thread of its own while the user's
    thread already runs it forward again.  The lock is not for all such objects: one may wait for an
    operator in Python, which runs another one in a thread of MXNet.  A thread that holds it may run
    code that the collector calls, such as ``__del__``.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lock = threading.RLock()


def compile_symbol(symbol: Any, is_data: Sequence[bool], *flags: Tuple[str, Any]) -> Compiled:
    """Compile a symbol; `is_data` marks the inputs that are data instead of parameters."""
    data = [i for i, flag in enumerate(is_data) if flag]
    parameters = [i for i, flag in enumerate(is_data) if not flag]
    return Compiled(symbol, [("data_indices", data), ("param_indices", parameters), *flags])


def can_compile(symbol: Any) -> bool:
    """Return whether MXNet can make a ``CachedOp``, which needs a gradient for every operator."""
    try:
        mx.nd.CachedOp(symbol)
    except MXNetError as error:
        return "FGradient" not in str(error)
    return True
