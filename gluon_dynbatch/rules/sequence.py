"""Operators on padded sequences, most of which have time on axis 0 and the minibatch on axis 1."""

from __future__ import annotations

from functools import partial
from typing import Sequence, Tuple

from .build import Builder
from .rule import Rule
from .site import Ref, Shape, Site, require


def _to_second(build: Builder, ref: Ref, shape: Shape) -> Ref:
    """Put the samples side by side on axis 1: (N, time, batch, ...) -> (time, N * batch, ...)."""
    turned = build.add("SwapAxis", ref, dim1=0, dim2=1)
    return build.reshape(turned, shape[0], -1, *shape[2:])


def _from_second(build: Builder, ref: Ref, shape: Shape) -> Ref:
    """Take axis 1 apart: (time, N * batch, ...) -> (N, time, batch, ...)."""
    split = build.reshape(ref, shape[0], -1, *shape[1:])
    return build.add("SwapAxis", split, dim1=0, dim2=1)


def time_major(*second: int, outputs: bool) -> Rule:
    """Return the rule of an operator whose minibatch is on axis 1 of some inputs, or of `outputs`.

    Inputs of one axis, and all others, have it on axis 0.
    """
    return Rule(None, partial(side_by_side, second, outputs))


def side_by_side(
    second: Sequence[int], outputs: bool, site: Site, build: Builder
) -> Tuple[Ref, ...]:
    refs = list(build.inputs())
    for k, shape in enumerate(site.inputs):
        # With lengths, the fused RNN adds one more input, whose only axis is the minibatch.
        if k in second and len(shape) > 1:
            refs[k] = _to_second(build, refs[k], shape)
        elif k not in build.parameters:
            refs[k] = build.reshape(refs[k], -1, *shape[1:])
    made = build.call(*refs)
    if not outputs:
        return build.restored(made)
    return tuple(_from_second(build, ref, shape) for ref, shape in zip(made, site.outputs))


def sequence(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = site.integer("axis", 0)
    require(axis in (0, 1), f"Operator {site.op} knows time axes 0 and 1.")
    if build.stacked:
        # Rows of sequences are left to the rows rule.
        require(axis == 0, "")
    else:
        site.keep_rows(axis == 1)
    if not site.flag("use_sequence_length"):
        shape = site.outputs[0] if build.stacked else site.outputs[0][1:]
        return (build.reshape(_whole_sequence(site, build), -1, *shape),)
    if build.stacked:
        return side_by_side((0,), site.op != "SequenceLast", site, build)
    return build.same()


def _whole_sequence(site: Site, build: Builder) -> Ref:
    """Write an operator without lengths in simpler ones; merged, time is axis 1 in both layouts.

    Differentiating ``SequenceLast`` without lengths corrupts the heap of MXNet 1.9.1.
    """
    if site.op == "SequenceLast":
        return build.add("slice_axis", build.refs[0], axis=1, begin=-1, end=None)
    if site.op == "SequenceReverse":
        return build.add("reverse", build.refs[0], axis=(1,))
    return build.add("_copy", build.refs[0])
