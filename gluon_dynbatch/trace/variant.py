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
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

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
    draws = any(_draws(op, entry.mode) and not batched[i] for i, op in enumerate(program.ops))
    if not all(batched[r] for r, _ in program.heads):
        reason = "a result does not depend on any array of the sample's own"
        found: Dict[str, Any] = {"reason": reason}
    elif draws:
        reason = "a random operator is applied to shared arrays; each call draws its own"
        found = {"reason": reason}
    else:
        rows = _as_concat(entry, shared) or _as_rows(entry, shared, batched, sites)
        found = rows or _as_stack(entry, sites)
    return Variant(entry, shared, tuple(batched), **found)


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


def _as_concat(entry: Entry, shared: FrozenSet[int]) -> Optional[Dict[str, Any]]:
    """Recognise a lone ``concat`` or ``stack`` of a sample's own arrays that puts them end to end.

    That is along axis 0, or along one with nothing but axes of size 1 before it.
    """
    program, types = entry.program, entry.in_types
    operators = [op for op in program.ops if op.op != VARIABLE]
    read = [program.argument_at.get(at) for at, _ in operators[0].inputs]
    if len(operators) != 1 or shared or read != list(range(len(types))):
        return None
    op, shape = operators[0].op, entry.out_array_types[0].shape
    named = {"Concat": ("dim", "1"), "stack": ("axis", "0")}.get(op)
    if named is None:
        return None
    axis = int(operators[0].attrs.get(*named)) % len(shape)
    # Rows of one element, as of a lone `concat(x, h, dim=1)`, are better merged as rows.
    if math.prod(shape[:axis]) > 1 or (axis and axis + 1 == len(shape)):
        return None
    sizes = [t.shape[axis] if op == "Concat" else 1 for t in types]
    # Rows of one element would be copied one by one.
    size = functools.reduce(math.gcd, sizes) if len(shape) == 1 else 1
    return {"layout": "concat", "concat_rows": tuple(n // size for n in sizes)}


def _as_rows(
    entry: Entry, shared: FrozenSet[int], batched: List[bool], sites: Dict[int, rules.Site]
) -> Optional[Dict[str, Any]]:
    own = [t.shape for i, t in enumerate(entry.in_types) if i not in shared]
    leading = {shape[0] for shape in own}
    flat = all(len(shape) == 1 for shape in own + [t.shape for t in entry.out_array_types])
    if len(leading) != 1 or (flat and leading != {1}):
        return None
    if any(rules.why_not(site, False) for site in sites.values()):
        return None
    return {"layout": "rows", "sites": sites} if _grows_with_rows(entry, shared, batched) else None


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


def _as_stack(entry: Entry, sites: Dict[int, rules.Site]) -> Dict[str, Any]:
    answers = {i: rules.why_not(site, True) for i, site in sites.items()}
    refused = {i: reason for i, reason in answers.items() if reason}
    empty = any(0 in shape for shape in entry.shapes.values())
    layout = "stack" if len(refused) < len(sites) and not empty else "unbatched"
    reason = "; ".join(dict.fromkeys([*refused.values()] + ["an array is empty"] * empty))
    return {"layout": layout, "reason": reason, "sites": sites, "refused": refused}
