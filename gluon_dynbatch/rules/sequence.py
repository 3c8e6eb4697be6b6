"""Operators on padded sequences; most have time on axis 0 and the minibatch on axis 1."""

from __future__ import annotations

from functools import partial
from typing import Sequence, Tuple

from .build import Builder
from .rule import Rule
from .site import Ref, Site, require


def time_major(*inputs: int, outputs: bool) -> Rule:
    """Return the stack rule of an operator with the minibatch on axis 1 of these arrays.

    Inputs with one axis, and all other arrays, have it on axis 0.
    """
    return Rule(None, partial(fold_minibatch, inputs, outputs))


def fold_minibatch(
    on_axis_1: Sequence[int], outputs: bool, site: Site, build: Builder
) -> Tuple[Ref, ...]:
    refs = list(build.inputs())
    for k, shape in enumerate(site.inputs):
        # Lengths for the fused RNN are an input whose only axis is the minibatch.
        if k in on_axis_1 and len(shape) > 1:
            # (N, time, batch, ...) -> (time, N * batch, ...)
            swapped = build.add("SwapAxis", refs[k], dim1=0, dim2=1)
            refs[k] = build.reshape(swapped, shape[0], -1, *shape[2:])
        elif k not in build.parameters:
            refs[k] = build.reshape(refs[k], -1, *shape[1:])
    folded = build.call(*refs)
    if not outputs:
        return build.unfold(folded)
    # (time, N * batch, ...) -> (N, time, batch, ...)
    pairs = zip(folded, site.outputs)
    split = (build.reshape(ref, shape[0], -1, *shape[1:]) for ref, shape in pairs)
    return tuple(build.add("SwapAxis", ref, dim1=0, dim2=1) for ref in split)


def sequence(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = site.integer("axis", 0)
    require(axis in (0, 1), f"Operator {site.called} merges only if the time axis is 0 or 1.")
    if build.stacked:
        # With time on axis 1, the stack is folded into rows.
        require(axis == 0, "")
    else:
        site.keep_rows(axis == 1)
    if not site.flag("use_sequence_length"):
        shape = site.outputs[0] if build.stacked else site.outputs[0][1:]
        return (build.reshape(_whole_sequence(site, build), -1, *shape),)
    if build.stacked:
        return fold_minibatch((0,), site.op != "SequenceLast", site, build)
    return build.same()


def _whole_sequence(site: Site, build: Builder) -> Ref:
    """Replace an operator without lengths by a simpler one, with time on axis 1 in both layouts.

    In MXNet 1.9.1, the gradient of ``SequenceLast`` without lengths corrupts the heap.
    """
    if site.op == "SequenceLast":
        return build.add("slice_axis", build.refs[0], axis=1, begin=-1, end=None)
    if site.op == "SequenceReverse":
        return build.add("reverse", build.refs[0], axis=(1,))
    return build.add("_copy", build.refs[0])
