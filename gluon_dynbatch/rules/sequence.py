"""Operators on padded sequences, most of which have time on axis 0 and the minibatch on axis 1."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Tuple

from .builder import Builder
from .site import Ref, Shape, Site, UseRowsError, flag, integer, refuse_unless
from .table import rows_rule, stack_rule

SEQUENCE = ("SequenceMask", "SequenceLast", "SequenceReverse")


class _Minibatch(NamedTuple):
    """Where the minibatch is: on axis 1 of some inputs and outputs, on axis 0 of the others."""

    inputs: Tuple[int, ...]
    outputs: bool = False
    #: Inputs that have none.
    shared: Tuple[int, ...] = ()


TIME_MAJOR: Mapping[str, _Minibatch] = {
    "RNN": _Minibatch((0, 2, 3), True, (1,)),
    "CTCLoss": _Minibatch((0,)),
    "_contrib_interleaved_matmul_selfatt_qk": _Minibatch((0,)),
    "_contrib_interleaved_matmul_selfatt_valatt": _Minibatch((0,), True),
    "_contrib_interleaved_matmul_encdec_qk": _Minibatch((0, 1)),
    "_contrib_interleaved_matmul_encdec_valatt": _Minibatch((0,), True),
}


def _to_second(build: Builder, ref: Ref, shape: Shape) -> Ref:
    """Join the samples to axis 1: (N, time, batch, ...) -> (time, N * batch, ...)."""
    turned = build.add("SwapAxis", ref, dim1=0, dim2=1)
    return build.reshape(turned, shape[0], -1, *shape[2:])


def _from_second(build: Builder, ref: Ref, shape: Shape) -> Ref:
    """Take axis 1 apart: (time, N * batch, ...) -> (N, time, batch, ...)."""
    apart = build.reshape(ref, shape[0], -1, *shape[1:])
    return build.add("SwapAxis", apart, dim1=0, dim2=1)


@stack_rule(*TIME_MAJOR)
def _time_major(site: Site, build: Builder) -> Tuple[Ref, ...]:
    where = TIME_MAJOR[site.op]
    # With lengths, the fused RNN adds one more input, whose only axis is the minibatch.
    second = [k for k in where.inputs if k < len(site.inputs) and len(site.inputs[k]) > 1]
    refs = []
    for k, shape in enumerate(site.inputs):
        if k in where.shared:
            refuse_unless(
                not site.batched[k], f"Every sample has parameters of its own for this {site.op}."
            )
            refs.append(build.refs[k])
        elif k in second:
            refs.append(_to_second(build, build.spread(k), shape))
        else:
            refs.append(build.folded(k))
    outputs = build.call(*refs)
    if not where.outputs:
        return build.restored(outputs)
    return tuple(_from_second(build, ref, shape) for ref, shape in zip(outputs, site.outputs))


def _time_axis(site: Site) -> int:
    axis = integer(site, "axis", 0)
    refuse_unless(axis in (0, 1), f"Operator {site.op} knows time axes 0 and 1.")
    return int(axis or 0)


# SequenceReverse knows no other time axis than 0.
@rows_rule("SequenceMask", "SequenceLast")
def _sequence(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(_time_axis(site) == 1, f"Axis 0 of this {site.op} is time, not rows.")
    if not flag(site, "use_sequence_length"):
        result = _whole_sequence(site, build)
        return (build.reshape(result, 0, *site.outputs[0][1:]),)
    return build.call(*build.spread_all())


def _whole_sequence(site: Site, build: Builder) -> Ref:
    """Write an operator without lengths in simpler ones; merged, time is axis 1 in both layouts.

    Differentiating ``SequenceLast`` without lengths corrupts the heap of MXNet 1.9.1.
    """
    if site.op == "SequenceLast":
        return build.add("slice_axis", build.refs[0], axis=1, begin=-1, end=None)
    if site.op == "SequenceReverse":
        return build.add("reverse", build.refs[0], axis=(1,))
    return build.add("_copy", build.refs[0])


@stack_rule(*SEQUENCE)
def _sequence_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if _time_axis(site) == 1:
        raise UseRowsError("rows of sequences")
    if not flag(site, "use_sequence_length"):
        return build.restored((_whole_sequence(site, build),))
    refs = build.spread_all()
    lengths = [build.reshape(ref, -1) for ref in refs[1:]]
    (result,) = build.call(_to_second(build, refs[0], site.inputs[0]), *lengths)
    if site.op == "SequenceLast":
        return build.restored((result,))
    return (_from_second(build, result, site.inputs[0]),)
