"""From a segment to expressions: what a launch computes for each of its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Dict, List, Tuple, Union

from mxnet.gluon import Parameter

from ..lower.segment import Segment
from ..modes import TRAINING
from ..record.types import name_of
from ..rules.site import RefuseError
from ..trace.symbols import VARIABLE, Op, Ref
from .expression import Expressions, Node, Slot
from .operators import HANDLERS
from .tensor import Call, NotExpressed, Shape, Tensor, require


def express(segment: Segment) -> Tuple[Node, ...]:
    """Express what a segment computes, per head as wide as the rows of its output.

    Raises
    ------
    NotExpressed
        With the reason why it is left to MXNet.
    """
    require(segment.layout in ("rows", "stack", "concat"), "calls run one by one")
    require(segment.context.device_type == "cpu", f"no kernels for {segment.context}")
    for op in segment.ops:
        require(op.op == VARIABLE or op.op in HANDLERS, f"operator {op.op} has no kernel")
    expressing = _Expressing(segment)
    for row in range(len(segment.ops)):
        expressing.emit(row)
    return expressing.results()


class _Expressing:
    """The values of a segment, found one operator after another."""

    def __init__(self, segment: Segment):
        self._segment = segment
        self.build = Expressions()
        self._values: Dict[Ref, Tensor] = {}
        self._uses = Counter([*segment.heads, *(ref for op in segment.ops for ref in op.inputs)])
        self._used = {row for row, _ in self._uses}

    def emit(self, row: int) -> None:
        """Find the results of an operator, if any is used."""
        op = self._segment.ops[row]
        if row not in self._used:
            return
        if op.op == VARIABLE:
            made = [self._variable(op.name)]
        else:
            found = self._handled(op)
            made = found if isinstance(found, list) else [found]
        for out, value in enumerate(made):
            once = value.once and self._uses[row, out] == 1
            self._values[row, out] = replace(value, once=once)

    def _value(self, ref: Ref) -> Tensor:
        op = self._segment.ops[ref[0]].op
        require(ref in self._values, f"operator {op} has no kernel for result {ref[1]}")
        return self._values[ref]

    def _variable(self, name: str) -> Tensor:
        kind = "param" if name.startswith("param") else "in"
        number = int(name[len(kind) :])
        slot = Slot(kind, number)
        if kind == "param":
            parameter = self._segment.parameters[number]
            return Tensor(self.build, slot, dtype_of(parameter), shape_of(parameter), False)
        port = self._segment.inputs[number]
        shape = port.shape if port.shared else (1, port.row_size)
        return Tensor(self.build, slot, port.dtype, shape, not port.shared)

    def _handled(self, op: Op) -> Union[Tensor, List[Tensor]]:
        values = tuple(map(self._value, op.inputs))
        training = bool(self._segment.mode & TRAINING)
        shapes, rows = tuple(v.shape for v in values), tuple(v.rows for v in values)
        call = Call(op.op, op.attrs, shapes, (), rows, training, self.build, values)
        try:
            return HANDLERS[op.op](call)
        except (NotExpressed, RefuseError) as error:
            raise NotExpressed(f"operator {op.op} has no kernel here: {error}") from None

    def results(self) -> Tuple[Node, ...]:
        """Return the results of the segment."""
        found = []
        for ref, port in zip(self._segment.heads, self._segment.outputs):
            value = self._value(ref)
            require(value.rows, "a result is the same for all rows")
            found.append(value.node())
            assert (found[-1].width, found[-1].dtype) == (port.row_size, port.dtype)
        return tuple(found)


def dtype_of(parameter: Parameter) -> str:
    """Return the type of a parameter."""
    return name_of(parameter.dtype)


def shape_of(parameter: Parameter) -> Shape:
    """Return the shape of a parameter."""
    # A block whose parameters another has initialized does not know their shapes.
    return tuple(parameter.shape or parameter.list_data()[0].shape)
