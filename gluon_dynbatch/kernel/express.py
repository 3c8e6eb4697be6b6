"""From a segment to expressions: what a launch computes for each of its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Dict, List, Tuple

from mxnet.gluon import Parameter

from ..lower.segment import Segment
from ..modes import TRAINING
from ..record.types import name_of
from ..rules.site import RefuseError, require
from ..trace.symbols import VARIABLE, Op, Ref
from .expression import Expressions, Node
from .layout import Slot
from .operators import HANDLERS
from .tensor import Call, Shape, Tensor


def express(segment: Segment) -> Tuple[Node, ...]:
    """Express what a segment computes, per head as wide as the rows of its output.

    Raises
    ------
    RefuseError
        With the reason why it is left to MXNet.
    """
    require(segment.layout in ("rows", "stack", "concat"), "calls run one by one")
    require(segment.context.device_type == "cpu", f"no kernels for {segment.context}")
    for op in segment.ops:
        require(op.op == VARIABLE or op.op in HANDLERS, f"operator {op.op} has no kernel")
    build = Expressions()
    values: Dict[Ref, Tensor] = {}
    uses = Counter([*segment.heads, *(ref for op in segment.ops for ref in op.inputs)])
    for row in sorted({row for row, _ in uses}):
        op = segment.ops[row]
        if op.op == VARIABLE:
            made = [_variable(segment, build, op.name)]
        else:
            made = _handled(segment, build, op, values)
        for out, value in enumerate(made):
            values[row, out] = replace(value, once=value.once and uses[row, out] == 1)
    found = []
    for ref, port in zip(segment.heads, segment.outputs):
        value = _value(segment, values, ref)
        require(value.rows, "a result is the same for all rows")
        found.append(value.node())
        assert (found[-1].width, found[-1].dtype) == (port.row_size, port.dtype)
    return tuple(found)


def _variable(segment: Segment, build: Expressions, name: str) -> Tensor:
    if name.startswith("param"):
        slot = Slot("param", int(name[len("param") :]))
        parameter = segment.parameters[slot.number]
        shape, dtype, shared = shape_of(parameter), dtype_of(parameter), True
    else:
        slot = Slot("in", int(name[len("in") :]))
        port = segment.inputs[slot.number]
        shape = port.shape if port.shared else (1, port.row_size)
        dtype, shared = port.dtype, port.shared
    return Tensor(build.read(slot, prod(shape), dtype, every=shared), shape, not shared)


def _value(segment: Segment, values: Dict[Ref, Tensor], ref: Ref) -> Tensor:
    op = segment.ops[ref[0]].op
    require(ref in values, f"operator {op} has no kernel for result {ref[1]}")
    return values[ref]


def _handled(
    segment: Segment, build: Expressions, op: Op, values: Dict[Ref, Tensor]
) -> List[Tensor]:
    """Return the results of an operator."""
    own = tuple(_value(segment, values, ref) for ref in op.inputs)
    training = bool(segment.mode & TRAINING)
    shapes, rows = tuple(x.shape for x in own), tuple(x.rows for x in own)
    try:
        found = HANDLERS[op.op](Call(op.op, op.attrs, shapes, (), rows, training, build, own))
    except RefuseError as error:
        raise RefuseError(f"operator {op.op} has no kernel here: {error}") from None
    return found if isinstance(found, list) else [found]


def dtype_of(parameter: Parameter) -> str:
    """Return the type of a parameter."""
    return name_of(parameter.dtype)


def shape_of(parameter: Parameter) -> Shape:
    """Return the shape of a parameter."""
    # A block whose parameters another has initialized does not know their shapes.
    return tuple(parameter.shape or parameter.list_data()[0].shape)
