"""Translate the program of a call under NumPy's shapes into one without operators of ``mx.np``.

The translated program computes the same on arrays with axes: one without axes has the shape (1,).
It is analysed, compiled and run without NumPy's shapes, as all programs of ``mx.nd``.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Sequence, Set, Tuple, Union

import numpy as np
from mxnet.base import MXNetError

from ..errors import Where
from ..record.types import ArrayType, name_of, numpy_shapes
from ..rules.numpy import NumPyArray, NumPyCall, translate
from ..rules.site import Ref, RefuseError, Shape
from ..rules.spelling import written
from .infer import IncompleteError, Inferred, infer, why_refused
from .program import CallProgram
from .sums import join_sums, with_operators
from .symbols import VARIABLE, Op, SymbolBuilder, make_symbol


class Translated(NamedTuple):
    """The program of a call and the types of its arguments, translated."""

    program: CallProgram
    types: Tuple[ArrayType, ...]
    #: The types of the results under NumPy's shapes.
    results: Tuple[ArrayType, ...]


def translate_program(
    program: CallProgram, types: Tuple[ArrayType, ...], name: str, where: Where, is_block: bool
) -> Union[Translated, str]:
    """Translate a program for arguments of these types, or return why its calls run at once.

    Of a block, sums of lists become one operator.
    """
    try:
        inferred = infer(program, types, name, where, numpy=True)
    except IncompleteError:
        return "MXNet cannot infer the shapes of its results; they may depend on values"
    shapes, dtypes = inferred
    refused = why_refused(program, dtypes)
    if refused:
        return refused
    if any(0 in shape for shape in shapes.values()):
        return "an array is empty"
    if not all(parameter.shape for parameter in program.parameters.values()):
        return "a parameter has no axes"
    context = types[0].context
    results = tuple(ArrayType(shapes[ref], dtypes[ref], context) for ref in program.heads)
    with_axes = tuple(t._replace(shape=_axed(t.shape)) for t in types)
    with numpy_shapes(False):
        try:
            rewritten = _rewrite(program, inferred)
        except RefuseError as refused:
            return str(refused)
        if not _agrees(program, rewritten, inferred):
            operators = dict.fromkeys(written(op.op) for op in program.ops if op.op != VARIABLE)
            return f"operators of mx.nd do not do the same as {', '.join(operators)} here"
        ops = rewritten.ops
        if is_block:
            ops = join_sums(ops, rewritten.heads, rewritten.additions)
        return Translated(with_operators(program, ops, rewritten.heads), with_axes, results)


def _axed(shape: Shape) -> Shape:
    return shape or (1,)


class Rewritten(NamedTuple):
    """The operators of a translated program, and where its values are."""

    ops: Tuple[Op, ...]
    heads: Tuple[Ref, ...]
    #: Per visible value of the original program, its place here.
    moved: Dict[Ref, Ref]
    #: Operators that add two arrays of one shape.
    additions: Set[int]


def _rewrite(program: CallProgram, inferred: Inferred) -> Rewritten:
    """Translate each operator of a program."""
    shapes, dtypes = inferred
    builder, moved, additions = SymbolBuilder("translated_"), {}, set()
    for position, op in enumerate(program.ops):
        outputs = program.outputs[position]
        if op.op == VARIABLE:
            builder.ops.append(op)
            moved[position, 0] = len(builder.ops) - 1, 0
            continue
        arrays = tuple(NumPyArray(moved[ref], shapes[ref], dtypes[ref]) for ref in op.inputs)
        append = functools.partial(_append, builder, op)
        call = NumPyCall(
            *(op.op, op.attrs, tuple(array.shape for array in arrays)),
            *(tuple(shapes[ref] for ref in outputs), (True,) * len(arrays), False),
            *(arrays, tuple(dtypes[ref] for ref in outputs), append),
        )
        moved.update(zip(outputs, translate(call)))
        result = moved[outputs[0]][0]
        # It may be a cast of a sum.
        is_sum = op.op == "_npi_add" and builder.ops[result].op == "broadcast_add"
        if is_sum and len({*call.inputs, *call.outputs}) == 1:
            additions.add(result)
    heads = tuple(moved[ref] for ref in program.heads)
    # An operator has to produce every result.
    heads = tuple(
        builder.add("_copy", [head]) if builder.ops[head[0]].op == VARIABLE else head
        for head in heads
    )
    return Rewritten(tuple(builder.ops), heads, moved, additions)


def _append(builder: SymbolBuilder, op: Op, name: str, refs: Sequence[Ref], attrs: Any) -> Ref:
    return builder.add(name, refs, attrs, op.extra if name == op.op else {})


def _agrees(program: CallProgram, rewritten: Rewritten, inferred: Inferred) -> bool:
    """Return whether all values of a translation have the shapes and dtypes that they should."""
    shapes, dtypes = inferred
    refs = [ref for ref in rewritten.moved if ref in shapes]
    symbol = make_symbol(rewritten.ops, [rewritten.moved[ref] for ref in refs])
    variables = [(at, op.name) for at, op in enumerate(program.ops) if op.op == VARIABLE]
    given = {name: (_axed(shapes[at, 0]), np.dtype(dtypes[at, 0]).type) for at, name in variables}
    known = set(symbol.list_inputs())
    given = {name: kind for name, kind in given.items() if name in known}
    try:
        _, found, _ = symbol._infer_shape_impl(False, **{n: s for n, (s, _) in given.items()})
        _, types, _ = symbol._infer_type_impl(False, **{n: t for n, (_, t) in given.items()})
    except MXNetError:
        return False
    return (
        found is not None
        and types is not None
        and list(found) == [_axed(shapes[ref]) for ref in refs]
        and list(map(name_of, types)) == [dtypes[ref] for ref in refs]
    )
