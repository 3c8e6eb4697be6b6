"""Variants: choose the layout in which the calls of an entry merge.

``rows``
    Arrays of the samples are concatenated along axis 0; their leading sizes may differ.
``stack``
    Arrays get a new leading axis; their shapes are equal.
``concat``
    The call only concatenates its arrays along axis 0.  One launch does so for all calls, which
    may have different numbers of arrays.
``unbatched``
    No batching rule applies, so calls run one by one; the report gives the reason.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import FrozenSet, List, Mapping, Tuple

from mxnet.base import MXNetError

from .. import rules
from ..modes import TRAINING
from .infer import TypedProgram, infer_shapes
from .symbols import VARIABLE


@dataclass(frozen=True, eq=False)
class Variant:
    """How the calls of an entry merge if they share certain arguments."""

    typed: TypedProgram
    #: Arguments that are one array for all calls.
    shared: FrozenSet[int]
    #: Per operator, whether it depends on an argument that is not shared.
    batched: Tuple[bool, ...]
    layout: str = "unbatched"
    #: Why calls do not merge as a whole; empty if they do.
    reason: str = ""
    #: The batched operators by position.
    sites: Mapping[int, rules.Site] = field(default_factory=dict)
    #: In layout "stack", why operators do not merge, by position.
    refused: Mapping[int, str] = field(default_factory=dict)
    #: In layout "concat", the rows of each argument.
    concat_rows: Tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of a call in its launch."""
        if self.layout == "rows":
            types = enumerate(self.typed.in_types)
            return int(next(t.shape[0] for i, t in types if i not in self.shared))
        return sum(self.concat_rows) or 1


def choose_variant(typed: TypedProgram, shared: FrozenSet[int]) -> Variant:
    """Choose the best layout that the rules of all operators allow."""
    program = typed.program
    batched: List[bool] = []
    for i, op in enumerate(program.ops):
        unshared = i in program.argument_at and program.argument_at[i] not in shared
        batched.append(unshared or any(batched[r] for r, _ in op.inputs))
    sites = {
        i: _site(typed, i, batched)
        for i, op in enumerate(program.ops)
        if op.op != VARIABLE and batched[i]
    }
    make_variant = functools.partial(Variant, typed, shared, tuple(batched))
    if not all(batched[r] for r, _ in program.heads):
        return make_variant(reason="a result depends only on shared arrays")
    training = bool(typed.mode & TRAINING)
    if any(
        rules.is_random(op.op, op.attrs, training) and not batched[i]
        for i, op in enumerate(program.ops)
    ):
        text = "a random operator reads only shared arrays, but each call needs its own draw"
        return make_variant(reason=text)
    concat_rows = () if shared else _concat_rows(typed)
    if concat_rows:
        return make_variant("concat", concat_rows=concat_rows)
    by_row = _have_rows(typed, shared) and not any(rules.why_not(s, False) for s in sites.values())
    if by_row and _keeps_rows(typed, shared, batched):
        return make_variant("rows", sites=sites)
    reasons = {i: rules.why_not(site, True) for i, site in sites.items()}
    refused = {i: reason for i, reason in reasons.items() if reason}
    empty = any(0 in shape for shape in typed.shapes.values())
    layout = "stack" if len(refused) < len(sites) and not empty else "unbatched"
    reason = "; ".join(dict.fromkeys([*refused.values()] + ["an array is empty"] * empty))
    return make_variant(layout, reason, sites, refused)


def _site(typed: TypedProgram, i: int, batched: List[bool]) -> rules.Site:
    """Describe the operator at position `i` to its rule."""
    op, shapes = typed.program.ops[i], typed.shapes
    return rules.Site(
        op.op,
        op.attrs,
        tuple(shapes[ref] for ref in op.inputs),
        tuple(shapes[ref] for ref in typed.program.outputs[i]),
        tuple(batched[r] for r, _ in op.inputs),
        bool(typed.mode & TRAINING),
    )


def _concat_rows(typed: TypedProgram) -> Tuple[int, ...]:
    """Return the rows of each argument of a lone ``Concat`` or ``stack``; else an empty tuple.

    All axes before that of the call must have size 1, so that it puts its arrays end to end.
    """
    program, types = typed.program, typed.in_types
    operators = [op for op in program.ops if op.op != VARIABLE]
    read = [program.argument_at.get(at) for at, _ in operators[0].inputs]
    if len(operators) != 1 or read != list(range(len(types))):
        return ()
    op, shape = operators[0].op, typed.out_array_types[0].shape
    attribute = {"Concat": ("dim", "1"), "stack": ("axis", "0")}.get(op)
    if attribute is None:
        return ()
    axis = int(operators[0].attrs.get(*attribute)) % len(shape)
    # `concat(x, h, dim=1)` would have rows of one element; it merges better in layout "rows".
    if math.prod(shape[:axis]) > 1 or (axis and axis + 1 == len(shape)):
        return ()
    sizes = [t.shape[axis] if op == "Concat" else 1 for t in types]
    # Rows are copied one by one, so those of vectors are as long as possible.
    width = functools.reduce(math.gcd, sizes) if len(shape) == 1 else 1
    return tuple(size // width for size in sizes)


def _have_rows(typed: TypedProgram, shared: FrozenSet[int]) -> bool:
    """Return whether axis 0 of all unshared arguments counts rows, equally many of them.

    If all of these and the results are vectors, axis 0 counts elements, unless there is only one.
    """
    unshared = [t.shape for i, t in enumerate(typed.in_types) if i not in shared]
    leading = {shape[0] for shape in unshared}
    vectors = all(len(shape) == 1 for shape in unshared + [t.shape for t in typed.out_array_types])
    return len(leading) == 1 and (not vectors or leading == {1})


def _keeps_rows(typed: TypedProgram, shared: FrozenSet[int], batched: List[bool]) -> bool:
    """Infer shapes for more rows: all batched values must have as many, and no other may change."""
    # More than any extent, so that no other axis matches by chance.
    count = 1 + max(extent for shape in typed.shapes.values() for extent in shape)
    types = [
        t if i in shared else t._replace(shape=(count,) + t.shape[1:])
        for i, t in enumerate(typed.in_types)
    ]
    try:
        shapes = infer_shapes(typed.program, types)
    except MXNetError:
        return False
    return all(
        shapes[ref] == ((count,) + shape[1:] if batched[ref[0]] else shape)
        for ref, shape in typed.shapes.items()
    )
