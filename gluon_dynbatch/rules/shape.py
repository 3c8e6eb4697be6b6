"""Operators that move, cut, join or repeat elements without computing on them."""

from __future__ import annotations

from typing import List, Optional, Tuple

from .builder import Builder, padded
from .elementwise import check_groups
from .site import (
    Ref,
    RefuseError,
    Shape,
    Site,
    axis_of,
    flag,
    integer,
    integers,
    literal,
    positive_axis,
    refuse_unless,
    size_of,
    slots,
    words,
)
from .table import rows_rule, stack_rule

OPERATORS = words(
    "Reshape reshape_like Flatten expand_dims squeeze transpose SwapAxis Concat stack SliceChannel "
    "_split_v2 slice slice_axis slice_like tile repeat reverse broadcast_to broadcast_axis "
    "broadcast_like diag _contrib_arange_like _contrib_index_array"
)
MAX_SLICE_DIMS = 5
MAX_TRANSPOSE_DIMS = 6
_PROBES = (10007, 10009)
"""Two primes that stand for an unknown number of rows; no sane extent is a multiple of them."""


def infer_reshape(shape: Shape, codes: Tuple[int, ...], reverse: bool = False) -> Optional[Shape]:
    """Compute the output shape of MXNet's ``Reshape``, or None if the codes do not fit.

    Parameters
    ----------
    shape : tuple of int
        Input shape.
    codes : tuple of int
        The ``shape`` attribute with its special codes: 0 copies an axis, -1 is inferred, -2 copies
        what is left, -3 joins two axes, -4 splits one into the two that follow.
    reverse : bool
        Match from the right.

    Returns
    -------
    tuple of int or None
    """
    if reverse:
        if -4 in codes:
            return None
        turned = infer_reshape(shape[::-1], codes[::-1])
        return None if turned is None else turned[::-1]
    try:
        out = _follow_codes(list(shape), list(codes))
    except (IndexError, ZeroDivisionError):
        return None
    if -1 in out:
        known = size_of(tuple(extent for extent in out if extent != -1))
        out[out.index(-1)] = size_of(shape) // known if known else 0
    return tuple(out) if size_of(tuple(out)) == size_of(shape) and min(out) > 0 else None


def _follow_codes(left: List[int], codes: List[int]) -> List[int]:
    out: List[int] = []
    while codes:
        code = codes.pop(0)
        if code == 0:
            out.append(left.pop(0))
        elif code == -2:
            out, left = out + left, []
        elif code == -3:
            out.append(left.pop(0) * left.pop(0))
        elif code == -4:
            whole, first, second = left.pop(0), codes.pop(0), codes.pop(0)
            first = whole // second if first == -1 else first
            out += [first, whole // first if second == -1 else second]
        else:
            out.append(code)
            del left[:1]
    return out


@rows_rule("Reshape")
def _reshape(site: Site, build: Builder) -> Tuple[Ref, ...]:
    codes, reverse = integers(site, "shape"), flag(site, "reverse")
    tail = site.outputs[0][1:]
    for probe in _PROBES:
        refuse_unless(
            bool(codes)
            and infer_reshape((probe, *site.inputs[0][1:]), codes, reverse) == (probe, *tail),
            f"Reshape to {site.attrs.get('shape')} does not keep the rows apart for any number of "
            "rows; begin its shape with 0.",
        )
    return (build.reshape(build.refs[0], 0, *tail),)


@rows_rule("reshape_like")
def _reshape_like(site: Site, build: Builder) -> Tuple[Ref, ...]:
    whole = all(integer(site, f"{side}_{end}", None) is None for side in ("lhs", "rhs")
                for end in ("begin", "end"))  # fmt: skip
    inner = all((integer(site, f"{side}_begin", 0) or 0) >= 1 for side in ("lhs", "rhs"))
    refuse_unless(
        site.batched[0] and (inner or (whole and site.batched[1])),
        "This reshape_like takes its number of rows from a shared array.",
    )
    tail = site.outputs[0][1:]
    refuse_unless(
        size_of(tail) == size_of(site.inputs[0][1:]), "This reshape_like does not keep rows apart."
    )
    return (build.reshape(build.refs[0], 0, *tail),)


@stack_rule("Reshape", "reshape_like", "Flatten", "expand_dims", "squeeze")
def _to_known_shape(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # MXNet 1.9.1 lets codes before -2 lose elements, and then reads past the array's end.
    refuse_unless(
        size_of(site.inputs[0]) == size_of(site.outputs[0]),
        f"Operator {site.op} changes the number of elements.",
    )
    return build.restored([build.spread(0)])


@rows_rule("Flatten")
def _flatten(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs)


@rows_rule("expand_dims")
def _expand_dims(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _off_rows(site, axis_of(site, "axis", 0, len(site.inputs[0]) + 1))
    return build.call(*build.refs)


@rows_rule("squeeze")
def _squeeze(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = integers(site, "axis")
    refuse_unless(bool(axes), "Operator squeeze without an axis drops axis 0 if there is one row.")
    _off_rows(site, *(positive_axis(site, axis, len(site.inputs[0])) for axis in axes))
    return build.call(*build.refs)


def _off_rows(site: Site, *axes: int) -> None:
    refuse_unless(
        0 not in axes, f"Operator {site.op} works along axis 0, so the rows see each other."
    )


@rows_rule("transpose")
def _transpose(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    axes = integers(site, "axes") or tuple(range(ndim))[::-1]
    refuse_unless(axes[0] == 0, "This transpose moves axis 0.")
    return build.call(*build.refs)


@stack_rule("transpose")
def _transpose_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    refuse_unless(ndim < MAX_TRANSPOSE_DIMS, "With a batch axis, transpose has too many axes.")
    axes = integers(site, "axes") or tuple(range(ndim))[::-1]
    return build.call(*build.refs, axes=(0, *(axis + 1 for axis in axes)))


def _swapped(site: Site) -> Tuple[int, int]:
    ndim = len(site.inputs[0])
    return axis_of(site, "dim1", 0, ndim), axis_of(site, "dim2", 0, ndim)


@rows_rule("SwapAxis")
def _swap(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _off_rows(site, *_swapped(site))
    return build.call(*build.refs)


@stack_rule("SwapAxis")
def _swap_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    dim1, dim2 = _swapped(site)
    return build.call(*build.refs, dim1=dim1 + 1, dim2=dim2 + 1)


# Operators with one axis attribute: its name, its default, dimensions more than the input's.
_AXIS = {
    "Concat": ("dim", 1, 0),
    "SliceChannel": ("axis", 1, 0),
    "_split_v2": ("axis", 1, 0),
    "slice_axis": ("axis", 0, 0),
    "stack": ("axis", 0, 1),
}


def _axis(site: Site) -> Tuple[str, int]:
    name, default, more = _AXIS[site.op]
    return name, axis_of(site, name, default, len(site.inputs[0]) + more)


@rows_rule(*_AXIS)
def _one_axis(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _off_rows(site, _axis(site)[1])
    return build.call(*build.spread_all())


@stack_rule(*_AXIS)
def _one_axis_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    name, axis = _axis(site)
    return build.call(*build.spread_all(), **{name: axis + 1})


@rows_rule("slice")
def _slice(site: Site, build: Builder) -> Tuple[Ref, ...]:
    begin, end, step = (slots(site, name)[:1] for name in ("begin", "end", "step"))
    refuse_unless(
        begin in ((), (None,), (0,)) and end in ((), (None,)) and step in ((), (None,), (1,)),
        "This slice picks some of the rows.",
    )
    return build.call(*build.refs)


@stack_rule("slice")
def _slice_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        len(site.inputs[0]) < MAX_SLICE_DIMS, "With a batch axis, slice has too many dimensions."
    )
    bounds = {name: (None, *slots(site, name)) for name in ("begin", "end")}
    step = slots(site, "step")
    return build.call(*build.refs, **bounds, step=(None, *step) if step else ())


@rows_rule("slice_like")
def _slice_like(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(site.batched[0], "This slice_like cuts a shared array.")
    axes = [positive_axis(site, a, len(site.inputs[0])) for a in integers(site, "axes")]
    refuse_unless(
        site.batched[1] or (bool(axes) and 0 not in axes),
        "This slice_like takes its number of rows from a shared array.",
    )
    return build.call(*build.refs)


@stack_rule("slice_like")
def _slice_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    out = site.outputs[0]
    refuse_unless(len(out) < MAX_SLICE_DIMS, "With a batch axis, slice has too many dimensions.")
    begin, end = (None,) + (0,) * len(out), (None, *out)
    return (build.add("slice", build.spread(0), begin=begin, end=end),)


@rows_rule("tile")
def _tile(site: Site, build: Builder) -> Tuple[Ref, ...]:
    reps, ndim = integers(site, "reps"), len(site.inputs[0])
    refuse_unless(
        len(reps) < ndim or (len(reps) == ndim and reps[0] == 1), "This tile repeats the rows."
    )
    return build.call(*build.refs)


@stack_rule("tile")
def _tile_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    reps, ndim = integers(site, "reps"), len(site.outputs[0])
    shape = padded(site.inputs[0], ndim)
    kinds = [(rep != 1, size != 1) for rep, size in zip(padded(reps, ndim), shape)]
    check_groups(site, ["kept", *(k for r, s in kinds for k in ["new"] * r + ["kept"] * s)])
    ref = build.refs[0]
    if len(site.inputs[0]) < ndim:
        ref = build.reshape(ref, -1, *shape)
    return build.call(ref, reps=(1, *padded(reps, ndim)))


@rows_rule("repeat")
def _repeat(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    axis = integer(site, "axis", None)
    refuse_unless(axis is not None, "Operator repeat without an axis joins all rows.")
    _off_rows(site, axis_of(site, "axis", 0, ndim))
    return build.call(*build.refs)


@stack_rule("repeat")
def _repeat_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if integer(site, "axis", None) is None:
        flat = build.reshape(build.refs[0], -1, size_of(site.inputs[0]))
        return build.call(flat, axis=1)
    return build.call(*build.refs, axis=axis_of(site, "axis", 0, len(site.inputs[0])) + 1)


def _flipped(site: Site) -> Tuple[int, ...]:
    return tuple(positive_axis(site, a, len(site.inputs[0])) for a in integers(site, "axis"))


@rows_rule("reverse")
def _reverse(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _off_rows(site, *_flipped(site))
    return build.call(*build.refs)


@stack_rule("reverse")
def _reverse_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs, axis=tuple(axis + 1 for axis in _flipped(site)))


@rows_rule("broadcast_to")
def _broadcast_to(site: Site, build: Builder) -> Tuple[Ref, ...]:
    shape = integers(site, "shape")
    refuse_unless(
        shape[:1] == (0,), "This broadcast_to names the number of rows; begin its shape with 0."
    )
    return build.call(*build.refs)


@rows_rule("broadcast_axis")
def _broadcast_axis(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _off_rows(site, *integers(site, "axis"))
    return build.call(*build.refs)


@stack_rule("broadcast_to", "broadcast_axis", "broadcast_like")
def _broadcast_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, out = site.inputs[0], site.outputs[0]
    grown = (a != b for a, b in zip(data, out) if b != 1)
    check_groups(site, [False, *grown])
    return (build.add("broadcast_to", build.spread(0), shape=(0, *out)),)


@rows_rule("broadcast_like")
def _broadcast_like(site: Site, build: Builder) -> Tuple[Ref, ...]:
    lhs_axes, rhs_axes = integers(site, "lhs_axes"), integers(site, "rhs_axes")
    if literal(site, "lhs_axes") is None:
        lhs_axes, rhs_axes = (0,), (0,)
    lhs = [positive_axis(site, a, len(site.inputs[0])) for a in lhs_axes]
    rhs = [positive_axis(site, a, len(site.inputs[1])) for a in rhs_axes]
    for left, right in zip(lhs, rhs):
        if left == 0:
            refuse_unless(
                right == 0 and (site.batched[1] or site.inputs[1][0] == 1),
                "This broadcast_like takes its number of rows from a shared array.",
            )
        elif right == 0 and site.batched[1]:
            raise RefuseError("This broadcast_like turns the number of rows into a width.")
    refuse_unless(
        0 in lhs or site.batched[0], "This broadcast_like has no rows of its own to keep apart."
    )
    return (build.add("broadcast_to", build.spread(0), shape=(0, *site.outputs[0][1:])),)


@rows_rule("diag")
def _diag(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    refuse_unless(ndim > 2, "This diag pairs rows with columns.")
    _off_rows(site, axis_of(site, "axis1", 0, ndim), axis_of(site, "axis2", 1, ndim))
    return build.call(*build.refs)


@stack_rule("diag")
def _diag_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    if ndim == 1:
        return (_matrices(site, build),)
    axis1, axis2 = axis_of(site, "axis1", 0, ndim), axis_of(site, "axis2", 1, ndim)
    return build.call(*build.refs, axis1=axis1 + 1, axis2=axis2 + 1)


def _matrices(site: Site, build: Builder) -> Ref:
    """Put vectors on a diagonal each; `linalg.makediag` does so too, but not in half precision."""
    size, k = site.outputs[0][0], integer(site, "k", 0) or 0
    zero = build.add("zeros_like", build.add("slice_axis", *build.refs, axis=1, begin=0, end=1))
    # In a matrix row by row, each element of the diagonal is followed by `size` zeros.
    column = build.add("expand_dims", *build.refs, axis=2)
    gaps = build.add("broadcast_axis", build.add("zeros_like", column), axis=2, size=size)
    parts = [build.reshape(build.add("Concat", column, gaps, dim=2, num_args=2), 0, -1)]
    before = k if k >= 0 else -k * size
    missing = size * size - before - site.inputs[0][0] * (size + 1)
    if before:
        parts.insert(0, build.add("broadcast_axis", zero, axis=1, size=before))
    if missing > 0:
        parts.append(build.add("broadcast_axis", zero, axis=1, size=missing))
    flat = build.add("Concat", *parts, dim=1, num_args=len(parts))
    return build.reshape(
        build.add("slice_axis", flat, axis=1, begin=0, end=size * size), -1, size, size
    )


@stack_rule("_contrib_arange_like")
def _arange_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = axis_of(site, "axis", 0, len(site.inputs[0]))
    refuse_unless(integer(site, "axis", None) is not None, "This arange_like counts all elements.")
    row = build.add("expand_dims", *build.call(*build.refs, axis=axis + 1), axis=0)
    return (build.add("broadcast_like", row, build.like, lhs_axes=(0,), rhs_axes=(0,)),)


@rows_rule("_contrib_index_array")
def _index_array(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = _indexed(site)
    _off_rows(site, *axes)
    return build.call(*build.refs)


@stack_rule("_contrib_index_array")
def _index_array_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs, axes=tuple(axis + 1 for axis in _indexed(site)))


def _indexed(site: Site) -> Tuple[int, ...]:
    ndim = len(site.inputs[0])
    return tuple(positive_axis(site, axis, ndim) for axis in integers(site, "axes")) or tuple(
        range(ndim)
    )
