"""Infer shapes and dtypes of a program's values; report a mismatch at the user's line."""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import Dict, NoReturn, Sequence, Tuple, Type

import numpy as np
from mxnet.base import MXNetError
from mxnet.gluon.parameter import DeferredInitializationError

from .. import rules
from ..errors import ContextError, DTypeError, DynBatchError, ShapeError, UninitializedError, Where
from ..record.types import ArrayType, name_of
from ..rules.site import Ref, Shape
from .program import CallProgram
from .symbols import VARIABLE, Op

#: Shapes and dtypes of the visible values of a program.
Inferred = Tuple[Dict[Ref, Shape], Dict[Ref, str]]


#: Operators for which MXNet infers other shapes of inputs than they have.
FLATTENING = frozenset(["_npi_concatenate", "_npi_column_stack", "_npi_hstack", "_npi_dstack"])
#: Operators for which MXNet forgets extents of inputs, so that it cannot infer all shapes.
FORGETTING = frozenset(["_npi_hstack", "_npi_dstack"])
LEAVE_OUT = (
    "leave empty arrays out: do without this call in samples that have none, in an `if` of Python; "
    "many operators of MXNet refuse them outside of a scope, too"
)
INCOMPLETE = "the shapes of the results cannot be inferred; is an argument empty?"


class IncompleteError(MXNetError):
    """MXNet cannot infer shapes of results, without a contradiction."""


class OtherShapeError(MXNetError):
    """MXNet takes an array for one of another shape with as many elements."""


class TypedProgram:
    """A program with the types of its values, in one mode: what rules look at."""

    def __init__(
        self,
        name: str,
        mode: int,
        program: CallProgram,
        in_types: Tuple[ArrayType, ...],
        inferred: Inferred,
    ):
        self.name = name
        self.mode = mode
        self.program = program
        self.in_types = in_types
        self.context = in_types[0].context
        self.shapes, self.dtypes = inferred
        self.out_array_types = [
            ArrayType(self.shapes[ref], self.dtypes[ref], self.context) for ref in program.heads
        ]


def infer_shapes(program: CallProgram, types: Sequence[ArrayType]) -> Dict[Ref, Shape]:
    """Infer the shape of every visible value; initialize parameters of unknown shape."""
    parameters = program.parameters.values()
    given = {program.names[i]: types[i].shape for i in program.argument_at.values()}
    # When the program was traced, these shapes may have been unknown.
    given.update((p.name, p._data[0].shape) for p in parameters if p._data is not None)
    partly = any(op.op in FORGETTING for op in program.ops)
    arguments, outputs, auxiliary = program.internals._infer_shape_impl(partly, **given)
    if outputs is None:
        raise IncompleteError(INCOMPLETE)
    shapes = dict(zip(program.internals.list_arguments(), arguments))
    shapes.update(zip(program.internals.list_auxiliary_states(), auxiliary))
    joins_any = any(op.op in FLATTENING for op in program.ops)
    for name, shape in given.items():
        if shapes[name] != shape and not joins_any:
            text = f"an array of shape {shape} is given where {shapes[name]} is needed"
            # Of another number of elements, MXNet would read those of other arrays.
            raise (OtherShapeError if prod(shapes[name]) == prod(shape) else MXNetError)(text)
    shape_of = dict(zip(chain(*program.outputs), outputs))
    for position, op in enumerate(program.ops):
        if op.op == VARIABLE and op.name in given:
            shape_of[position, 0] = given[op.name]
    if partly and any(shape is None or -1 in shape for shape in shape_of.values()):
        raise IncompleteError(INCOMPLETE)
    for op in program.ops:
        refused = _why_not_run(op, [shape_of[ref] for ref in op.inputs])
        if refused:
            raise MXNetError(refused)
    for parameter in [p for p in parameters if p._deferred_init]:
        parameter.shape = shapes[parameter.name]
        parameter._finish_deferred_init()
    return shape_of


def _why_not_run(op: Op, inputs: Sequence[Shape]) -> str:
    """Return what MXNet checks only when it runs an operator; empty if it runs."""
    if op.op in ("stack", "_npi_stack") and len(set(inputs)) > 1:
        return "stack takes arrays of one shape"
    if op.op == "norm" and op.attrs.get("ord", "2") not in ("1", "2"):
        return "norm takes ord=1 or ord=2"
    if op.op == "FullyConnected" and any(len(shape) != 1 for shape in inputs[2:]):
        return f"the bias of FullyConnected has one axis, not the shape {inputs[2]}"
    return ""


def infer(
    program: CallProgram, types: Sequence[ArrayType], name: str, where: Where, numpy: bool = False
) -> Inferred:
    """Infer shapes and dtypes of a call of the block or operator `name`.

    With `numpy`, there may be arrays without axes or without elements.  Raises `OtherShapeError`
    and, with `numpy`, `IncompleteError` for calls that have to run at once.
    """

    def fail(error_type: Type[DynBatchError], text: str, advice: str) -> NoReturn:
        raise error_type(text, where, name, advice) from None

    described = ", ".join(f"{t.shape} {t.dtype}" for t in types)
    try:
        shapes = infer_shapes(program, types)
    except (MXNetError, DeferredInitializationError, AssertionError) as error:
        if isinstance(error, OtherShapeError) or numpy and isinstance(error, IncompleteError):
            raise
        text = f"arguments of shapes {described} do not fit: {_first_line(error)}"
        advice = "check the shapes of this call"
        if any(0 in t.shape for t in types):
            advice = LEAVE_OUT
        elif any(len(t.shape) == 1 for t in types):
            advice += "; axis 0 counts rows, so a vector has the shape (1, size), like x[i : i + 1]"
        fail(ShapeError, text, advice)
    for shape in [t.shape for t in types] + [shapes[ref] for ref in program.heads]:
        if 0 in shape and not numpy:
            fail(ShapeError, f"an array of shape {shape} is empty", LEAVE_OUT)
    if any(not t.shape for t in types) and not numpy:
        text = "an array of shape () has no axis along which calls could be merged"
        fail(ShapeError, text, "call npx.set_np() before, which allows such arrays")
    for parameter in program.parameters.values():
        if parameter._data is None:
            advice = "call net.initialize() before the first call"
            fail(UninitializedError, f"parameter {parameter.name!r} is not initialized", advice)
        devices = parameter.list_ctx()
        if types[0].context not in devices:
            text = (
                f"parameter {parameter.name!r} is on {', '.join(map(str, devices))}, but the "
                f"arguments are on {types[0].context}"
            )
            advice = (
                "move the arguments with .as_in_context(...), or the parameters with "
                "net.collect_params().reset_ctx(...)"
            )
            fail(ContextError, text, advice)
    try:
        return shapes, _infer_dtypes(program, types)
    except MXNetError as error:
        text = f"arguments of types {described} do not fit: {_first_line(error)}"
        advice = "cast them to one dtype with .astype(...), or the block with .cast(...)"
        fail(DTypeError, text, advice)


def _infer_dtypes(program: CallProgram, types: Sequence[ArrayType]) -> Dict[Ref, str]:
    given = {program.names[i]: np.dtype(types[i].dtype).type for i in program.argument_at.values()}
    given.update((p.name, np.dtype(p.dtype).type) for p in program.parameters.values())
    _, outputs, _ = program.internals._infer_type_impl(False, **given)
    if outputs is None:
        raise MXNetError("the dtypes of the results cannot be inferred from those of the arguments")
    return {ref: name_of(t) for ref, t in zip(chain(*program.outputs), outputs)}


def why_refused(program: CallProgram, dtypes: Dict[Ref, str]) -> str:
    """Return why MXNet refuses to compute calls of a program; empty if it does not."""
    for op in program.ops:
        dtype = rules.refuses(op.op, (dtypes[ref] for ref in op.inputs))
        if dtype:
            return f"MXNet refuses to compute {op.op} of {dtype}"
    return ""


def _first_line(error: BaseException) -> str:
    """Return the first line of a message that names a cause, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error in operator" in line or "Check failed" in line]
    return (causes or lines or [type(error).__name__])[0]
