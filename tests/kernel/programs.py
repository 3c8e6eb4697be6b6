"""Segments by hand: of symbols, and of the cases of the batching rules."""

from __future__ import annotations

from math import prod
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from gluon_dynbatch import rules
from gluon_dynbatch.kernel.expression import Slot
from gluon_dynbatch.lower.segment import Port, Segment
from gluon_dynbatch.modes import RECORDING
from gluon_dynbatch.trace.symbols import Builder, read_symbol

Shape = Tuple[int, ...]


def port(shape: Shape, shared: bool = False, dtype: str = "float64", **more: Any) -> Port:
    return Port(prod(shape), shape, dtype, shared, **more)


def inputs(*shapes: Shape) -> List[mx.sym.Symbol]:
    """Return variables for inputs of which each row has one of these shapes."""
    return [mx.sym.reshape(mx.sym.var(f"in{k}"), (-1, *s)) for k, s in enumerate(shapes)]


def parameters(count: int) -> List[mx.sym.Symbol]:
    return [mx.sym.var(f"param{k}") for k in range(count)]


def segment_of(
    results: Sequence[mx.sym.Symbol],
    ports: Sequence[Port],
    widths: Sequence[int],
    shapes: Sequence[Shape] = (),
) -> Segment:
    """Return the segment of a symbol, with parameters of some shapes."""
    flat = [mx.sym.reshape(r, (-1, width)) for r, width in zip(results, widths)]
    ops, heads = read_symbol(mx.sym.Group(flat))
    made = [
        mx.gluon.Parameter(f"p{k}", shape=shape, dtype="float64") for k, shape in enumerate(shapes)
    ]
    outputs = tuple(port((width,)) for width in widths)
    return Segment("rows", "", RECORDING, mx.cpu(), tuple(ports), outputs, tuple(made), ops, heads)


def draw(segment: Segment, rows: int, rng: np.random.Generator) -> Dict[Slot, np.ndarray]:
    """Return an array for each input and parameter."""
    found = {}
    for k, one in enumerate(segment.inputs):
        shape = one.shape if one.shared else (rows, one.row_size)
        found[Slot("in", k)] = rng.normal(size=shape).astype(one.dtype)
    for k, parameter in enumerate(segment.parameters):
        found[Slot("param", k)] = rng.normal(size=parameter.shape)
    return found


def segment_of_rewrite(
    answer: rules.Rewrite,
    arrays: Sequence[np.ndarray],
    pattern: str,
    outputs: Sequence[Shape],
    stacked: bool,
    fixed: Sequence[int],
    mode: int,
    dtype: str = "float64",
) -> Segment:
    """Return the segment of one operator of which some inputs are batched.

    Parameters
    ----------
    outputs : sequence of shapes
        Per result the shape of a row.
    fixed : sequence of int
        Inputs that have no gradient.
    dtype : str
        Type of the results.
    """
    build, ports, read, made = Builder("test_"), [], [], []
    for k, (array, letter) in enumerate(zip(arrays, pattern)):
        batched, differentiable = letter == "B", k not in fixed
        shape = array.shape[1:] if batched else array.shape
        ports.append(port(shape, not batched, array.dtype.name, differentiable=differentiable))
        ref = build.variable(f"in{k}")
        if batched and len(shape) != 1:
            ref = build.add("Reshape", [ref], {"shape": str((-1, *shape))})
        read.append(ref)

    def find(ref: rules.Ref) -> rules.Ref:
        return read[ref[1]] if ref[0] == rules.INPUT else (made[ref[0]][0], ref[1])

    for step in answer.steps:
        made.append(build.add(step.op, [find(ref) for ref in step.inputs], step.attrs))
    heads = []
    for ref, shape in zip(answer.outputs, outputs):
        flat = build.add("Reshape", [find(ref)], {"shape": str((-1, prod(shape)))})
        heads.append(build.add("_copy", [flat]))
    results = tuple(port((prod(shape),), dtype=dtype) for shape in outputs)
    layout = "stack" if stacked else "rows"
    return Segment(
        layout, "", mode, mx.cpu(), tuple(ports), results, (), tuple(build.ops), tuple(heads)
    )
