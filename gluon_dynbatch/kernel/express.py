"""Translate a segment's operators to expressions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Dict, List, Sequence, Tuple

from mxnet.gluon import Parameter

from ..lower.segment import ONCE, Segment
from ..modes import RECORDING, TRAINING
from ..record.types import in_host_memory, name_of
from ..rules.site import Ref, RefuseError, Shape, require
from ..rules.spelling import written
from ..trace.symbols import VARIABLE, Op
from .expression import Expressions, Node
from .indexing import OWN
from .layout import Slot
from .operators import HANDLERS
from .tensor import STORED_DTYPES, TRUTHS_DTYPE, Call, Tensor

#: Operators that a layer of Gluon calls before the one that its users know.
WITHIN = frozenset(["_rnn_param_concat", "_npi_rnn_param_concat"])


def express(segment: Segment) -> Tuple[Node, ...]:
    """Return a node per head of a segment, as wide as a row of the output.

    Raises
    ------
    RefuseError
        If MXNet's operators must run the segment; says why.
    """
    require(segment.layout in ("rows", "stack", "concat", ONCE), "calls run one by one")
    require(in_host_memory(segment.context), f"no native steps for {segment.context}")
    ops, heads = segment.native
    unknown = [
        called
        for called, op in ops
        if op.op != VARIABLE and op.op not in (OWN if op.extra.get("own") else HANDLERS)
    ]
    if unknown:
        named = min(unknown, key=WITHIN.__contains__)
        raise RefuseError(f"operator {written(named)} has no native steps")
    for port in segment.inputs:
        # Also of inputs that no kernel reads: native code adds up inputs that are sums.
        require(port.dtype in STORED_DTYPES, f"{port.dtype} has no native steps")
    single = segment.layout == ONCE
    build = Expressions(recorded=bool(segment.mode & RECORDING), single=single)
    tensors: Dict[Ref, Tensor] = {}
    uses = Counter([*heads, *(ref for _, op in ops for ref in op.inputs)])
    for position in sorted({position for position, _ in uses}):
        called, op = ops[position]
        if op.op == VARIABLE:
            results = [_variable(segment, build, op.name)]
        else:
            results = _apply(segment, build, op, called, tensors)
        for out, x in enumerate(results):
            once = x.read_once and uses[position, out] == 1
            tensors[position, out] = replace(x, read_once=once)
    nodes = []
    for ref, port in zip(heads, segment.outputs):
        head = _tensor(ops, tensors, ref)
        require(head.per_row or single, "a result is the same for all rows")
        nodes.append(head.node(STORED_DTYPES))
        assert (nodes[-1].width, head.dtype) == (port.row_size, port.dtype)
    return tuple(nodes)


def _variable(segment: Segment, build: Expressions, name: str) -> Tensor:
    kind = "param" if name.startswith("param") else "in"
    slot = Slot(kind, int(name[len(kind) :]))
    if kind == "param":
        parameter = segment.parameters[slot.number]
        shape, dtype, shared = shape_of(parameter), name_of(parameter.dtype), True
    else:
        port = segment.inputs[slot.number]
        shape = port.shape if port.shared else (1, *port.shape)
        dtype, shared = port.dtype, port.shared
    read = build.read(slot, prod(shape), dtype, shared)
    if dtype == "bool":
        read = build.cast(read, TRUTHS_DTYPE)
        # MXNet has no gradients for booleans from outside.
        read = build.function("multiplier", read, values=(0,)) if shared else read
    return Tensor(read, shape, per_row=not shared, truths=dtype == "bool")


def _tensor(ops: Sequence[Tuple[str, Op]], tensors: Dict[Ref, Tensor], ref: Ref) -> Tensor:
    called = ops[ref[0]][0]
    require(ref in tensors, f"operator {written(called)} has no native steps for result {ref[1]}")
    return tensors[ref]


def _apply(
    segment: Segment, build: Expressions, op: Op, called: str, tensors: Dict[Ref, Tensor]
) -> List[Tensor]:
    """Return the results of an operator."""
    inputs = tuple(_tensor(segment.native[0], tensors, ref) for ref in op.inputs)
    training = bool(segment.mode & TRAINING)
    shapes, per_row = tuple(x.shape for x in inputs), tuple(x.per_row for x in inputs)
    try:
        results = (OWN if op.extra.get("own") else HANDLERS)[op.op](
            Call(op.op, op.attrs, shapes, (), per_row, training, build, inputs)
        )
    except RefuseError as error:
        raise RefuseError(f"operator {written(called)} has no native steps here: {error}") from None
    return results if isinstance(results, list) else [results]


def shape_of(parameter: Parameter) -> Shape:
    """Return the shape of a parameter."""
    # Gluon leaves it unknown in a block whose parameters were initialized through another block.
    return tuple(parameter.shape or parameter.list_data()[0].shape)
