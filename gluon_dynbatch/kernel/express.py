"""From a segment to expressions: what a launch computes for each of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Dict, List, Tuple, Union

import numpy as np
from mxnet.base import MXNetError
from mxnet.gluon import Parameter

from ..lower.segment import ParameterRows, Segment, whole_of
from ..modes import TRAINING
from ..rules.site import RefuseError, Site
from ..trace.symbols import VARIABLE, Ref, make_symbol
from .call import Call, Value
from .columns import NotExpressed, Shape, require
from .expression import Expressions, Node, Slot
from .operators import HANDLERS

#: Numbers of rows for which shapes are inferred.
ROWS = (1009, 1013)


@dataclass(frozen=True)
class Expressed:
    """What a segment computes for each row of a launch."""

    expressions: Expressions
    #: Per head of the segment, as wide as the rows of its output.
    results: Tuple[Node, ...]


def express(segment: Segment) -> Expressed:
    """Express what a segment computes.

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
    return Expressed(expressing.build, expressing.results())


class _Expressing:
    """The values of a segment, found one operator after another."""

    def __init__(self, segment: Segment):
        self._segment = segment
        self.build = Expressions()
        self._values: Dict[Ref, Value] = {}
        self._uses: Dict[Ref, int] = {}
        for ref in [*segment.heads, *(ref for op in segment.ops for ref in op.inputs)]:
            self._uses[ref] = self._uses.get(ref, 0) + 1
        self._shapes = _shapes(segment, list(self._uses))
        #: Per operator the results that are used.
        self._used: Dict[int, List[int]] = {}
        for row, out in self._uses:
            self._used.setdefault(row, []).append(out)

    def emit(self, row: int) -> None:
        """Find the results of an operator that are used."""
        op = self._segment.ops[row]
        if op.op == VARIABLE and (row, 0) in self._uses:
            kind = "param" if op.name.startswith("param") else "in"
            slot = Slot(kind, int(op.name[len(kind) :]))
            shape, rows = self._shapes[row, 0]
            dtype = _dtype(self._segment, slot)
            self._values[row, 0] = Value(None, slot, dtype, shape, rows, self._uses[row, 0] == 1)
        if op.op == VARIABLE:
            return
        used = {out: self._shapes[row, out] for out in self._used.get(row, ())}
        if not used:
            return
        call = self._call(row, [shape for shape, _ in used.values()])
        try:
            made = HANDLERS[op.op](call)
        except (NotExpressed, RefuseError) as error:
            raise NotExpressed(f"operator {op.op} has no kernel here: {error}") from None
        for out, (shape, rows) in used.items():
            once = self._uses[row, out] == 1
            if made is None:
                value = call.values[0]
                require(out == 0 and prod(shape) == prod(value.shape), f"{op.op} loses elements")
                value = value._replace(shape=shape, rows=rows, once=once and value.once)
            else:
                require(out < len(made), f"operator {op.op} has no kernel for result {out}")
                node = made[out]
                assert node.width == prod(shape), (op, node, shape)
                value = Value(node, None, node.dtype, shape, rows, once)
            shared = not rows and any(v.rows for v in call.values)
            counts = op.op == "_contrib_arange_like"
            require(counts or not shared, f"operator {op.op} joins rows")
            self._values[row, out] = value

    def _call(self, row: int, outputs: List[Shape]) -> Call:
        op = self._segment.ops[row]
        values = tuple(self._values[ref] for ref in op.inputs)
        training = bool(self._segment.mode & TRAINING)
        shapes, rows = tuple(v.shape for v in values), tuple(v.rows for v in values)
        site = Site(op.op, op.attrs, shapes, tuple(outputs), rows, training)
        return Call(site, self.build, values, training)

    def results(self) -> Tuple[Node, ...]:
        """Return the results of the segment."""
        found = []
        for ref, port in zip(self._segment.heads, self._segment.outputs):
            value = self._values[ref]
            require(value.rows, "a result is the same for all rows")
            call = Call(Site("", {}, (), (), (), False), self.build, (value,), False)
            found.append(call.node())
            assert (found[-1].width, found[-1].dtype) == (port.row_size, port.dtype)
        return tuple(found)


def _dtype(segment: Segment, slot: Slot) -> str:
    if slot.kind == "in":
        return segment.inputs[slot.number].dtype
    return dtype_of(segment.parameters[slot.number])


def dtype_of(parameter: Union[Parameter, ParameterRows]) -> str:
    """Return the type of a parameter."""
    return np.dtype(whole_of(parameter).dtype).name


def shape_of(parameter: Union[Parameter, ParameterRows]) -> Shape:
    """Return the shape of a parameter."""
    if isinstance(parameter, ParameterRows):
        return parameter.stop - parameter.start, *parameter.parameter.shape[1:]
    # A block whose parameters another has initialized does not know their shapes.
    return tuple(parameter.shape or parameter.list_data()[0].shape)


def _shapes(segment: Segment, refs: List[Ref]) -> Dict[Ref, Tuple[Shape, bool]]:
    """Return shapes per row of a launch, and whether rows have values of their own.

    What differs between two numbers of rows grows with the rows.
    """
    try:
        symbol = make_symbol(segment.ops, refs)
    except MXNetError as error:
        # Of shapes that no array can have.
        raise NotExpressed("MXNet refuses it") from error
    names = set(symbol.list_inputs())
    inferred = []
    for count in ROWS:
        known: Dict[str, Shape] = {
            f"in{k}": port.shape if port.shared else (count, port.row_size)
            for k, port in enumerate(segment.inputs)
        }
        known.update((f"param{k}", shape_of(p)) for k, p in enumerate(segment.parameters))
        known = {name: shape for name, shape in known.items() if name in names}
        try:
            _, outputs, _ = symbol._infer_shape_impl(False, **known)
        except MXNetError:
            outputs = None
        require(outputs is not None, "shapes depend on the number of rows")
        inferred.append(outputs)
    return {ref: _per_row(*pair) for ref, pair in zip(refs, zip(*inferred))}


def _per_row(one: Shape, other: Shape) -> Tuple[Shape, bool]:
    if one == other:
        return one, False
    factor, rest = divmod(one[0], ROWS[0])
    grown = (factor * ROWS[1], *one[1:])
    require(rest == 0 and other == grown, "rows are not along axis 0")
    return (factor, *one[1:]), True
