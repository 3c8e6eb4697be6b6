"""Variants: in which layout the calls of an entry merge, given which arguments they share.

``rows``
    arrays of the samples are concatenated along axis 0; their leading sizes may differ.
``stack``
    arrays get a new leading axis; shapes are equal.
``concat``
    the call itself puts arrays end to end along axis 0; so does a launch, for all calls at once,
    whatever the number of arrays.
``unbatched``
    no batching rule holds; every call runs by itself, and the reason is kept for the report.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, FrozenSet, List, Mapping, Tuple

from mxnet.base import MXNetError

from .. import rules
from ..modes import TRAINING
from .infer import infer_shapes
from .symbols import VARIABLE, Op

if TYPE_CHECKING:
    from .entry import Entry


@dataclass(frozen=True, eq=False)
class Variant:
    """How the calls of an entry run together, given which arguments they share."""

    entry: Entry
    #: Arguments that are one array for all calls.
    shared: FrozenSet[int]
    #: Which operators depend on an array of the sample's own.
    batched: Tuple[bool, ...]
    layout: str = "unbatched"
    #: Why calls do not merge as a whole; empty if they do.
    reason: str = ""
    #: The batched operators, and why those of layout "stack" that do not merge refuse.
    sites: Mapping[int, rules.Site] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    #: In layout "concat", the rows of every argument.
    concat_rows: Tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that a call adds to its launch."""
        if self.layout == "rows":
            types = enumerate(self.entry.in_types)
            return int(next(t.shape[0] for i, t in types if i not in self.shared))
        return sum(self.concat_rows) or 1


def choose_variant(entry: Entry, shared: FrozenSet[int]) -> Variant:
    """Ask the rules of all operators for the best layout."""
    program = entry.program
    batched: List[bool] = []
    for i, op in enumerate(program.ops):
        own = i in program.argument_at and program.argument_at[i] not in shared
        batched.append(own or any(batched[r] for r, _ in op.inputs))
    sites = {
        i: _site(entry, i, batched)
        for i, op in enumerate(program.ops)
        if op.op != VARIABLE and batched[i]
    }
    variant = functools.partial(Variant, entry, shared, tuple(batched))
    if not all(batched[r] for r, _ in program.heads):
        return variant(reason="a result does not depend on any array of the sample's own")
    if any(_draws(op, entry.mode) and not batched[i] for i, op in enumerate(program.ops)):
        text = "a random operator is applied to shared arrays; each call draws its own"
        return variant(reason=text)
    concat_rows = () if shared else _concat_rows(entry)
    if concat_rows:
        return variant("concat", concat_rows=concat_rows)
    by_row = _have_rows(entry, shared) and not any(rules.why_not(s, False) for s in sites.values())
    if by_row and _grows_with_rows(entry, shared, batched):
        return variant("rows", sites=sites)
    answers = {i: rules.why_not(site, True) for i, site in sites.items()}
    refused = {i: reason for i, reason in answers.items() if reason}
    empty = any(0 in shape for shape in entry.shapes.values())
    layout = "stack" if len(refused) < len(sites) and not empty else "unbatched"
    reason = "; ".join(dict.fromkeys([*refused.values()] + ["an array is empty"] * empty))
    return variant(layout, reason, sites, refused)


def _draws(op: Op, mode: int) -> bool:
    return rules.is_random(op.op) and (bool(mode & TRAINING) or op.op != "Dropout")


def _site(entry: Entry, i: int, batched: List[bool]) -> rules.Site:
    op, shapes = entry.program.ops[i], entry.shapes
    return rules.Site(
        op.op,
        op.attrs,
        tuple(shapes[ref] for ref in op.inputs),
        tuple(shapes[ref] for ref in entry.program.outputs[i]),
        tuple(batched[r] for r, _ in op.inputs),
        bool(entry.mode & TRAINING),
    )


def _concat_rows(entry: Entry) -> Tuple[int, ...]:
    """Return the rows of each array of a lone ``concat`` or ``stack`` that puts them end to end.

    That is along axis 0, or along one with nothing but axes of size 1 before it.
    """
    program, types = entry.program, entry.in_types
    operators = [op for op in program.ops if op.op != VARIABLE]
    read = [program.argument_at.get(at) for at, _ in operators[0].inputs]
    if len(operators) != 1 or read != list(range(len(types))):
        return ()
    op, shape = operators[0].op, entry.out_array_types[0].shape
    named = {"Concat": ("dim", "1"), "stack": ("axis", "0")}.get(op)
    if named is None:
        return ()
    axis = int(operators[0].attrs.get(*named)) % len(shape)
    # Rows of one element, as of a lone `concat(x, h, dim=1)`, are better merged as rows.
    if math.prod(shape[:axis]) > 1 or (axis and axis + 1 == len(shape)):
        return ()
    sizes = [t.shape[axis] if op == "Concat" else 1 for t in types]
    # Rows of one element would be copied one by one.
    size = functools.reduce(math.gcd, sizes) if len(shape) == 1 else 1
    return tuple(n // size for n in sizes)


def _have_rows(entry: Entry, shared: FrozenSet[int]) -> bool:
    own = [t.shape for i, t in enumerate(entry.in_types) if i not in shared]
    leading = {shape[0] for shape in own}
    flat = all(len(shape) == 1 for shape in own + [t.shape for t in entry.out_array_types])
    return len(leading) == 1 and (not flat or leading == {1})


def _grows_with_rows(entry: Entry, shared: FrozenSet[int], batched: List[bool]) -> bool:
    """Check on shapes that more rows in make as many more rows out, everywhere and nowhere else."""
    # More than any extent, so that none is equal by chance.
    count = 1 + max(extent for shape in entry.shapes.values() for extent in shape)
    types = [
        t if i in shared else t._replace(shape=(count,) + t.shape[1:])
        for i, t in enumerate(entry.in_types)
    ]
    try:
        grown = infer_shapes(entry.program, types)
    except MXNetError:
        return False
    return all(
        grown[ref] == ((count,) + shape[1:] if batched[ref[0]] else shape)
        for ref, shape in entry.shapes.items()
    )
