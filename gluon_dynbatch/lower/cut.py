"""Cut the program of a call into segments: the pieces that are placed into launches as a whole.

At granularity ``block`` a call is one segment.  At granularity ``operator`` it is cut where a piece
can run earlier, or with more company, than the rest:

* Operators that depend only on *early* arguments, those that no other call of the same recursion
  has to deliver (the input projection of an LSTM), form segments of their own: all of a minibatch
  then run in one launch.  Which arguments are late is read off the recorded graph.
* A sum of several arrays (``add_n``) is not an operator but an operand: the segment that uses it
  gathers the sum.  What is computed before it, once per summand, becomes a segment per summand, and
  these are equal whatever the number of summands; so the work per child of nodes with different
  numbers of children merges, and so does what follows.  A sum of sums is one sum.
* An operator without batching rule is a segment by itself; the rest still merges.
"""

from __future__ import annotations

from collections import Counter
from typing import (
    Dict,
    FrozenSet,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
)

from .. import rules
from ..trace.entry import Variant
from ..trace.program import VARIABLE, Ref
from .segment import Cut, NormalForm, SegmentTable, SegmentUse

#: Terms that a sum may have to be added up anew for each of several readers, one of them a sum.
MOST_TERMS = 64


def cut_call(variant: Variant, granularity: str, late: FrozenSet[int], table: SegmentTable) -> Cut:
    """Return the segments of a call.

    Parameters
    ----------
    variant : Variant
        The call, and which of its arguments all calls share.
    granularity : str
        ``"block"`` or ``"operator"``; ``"alone"`` keeps every call as it was written.
    late : frozenset of int
        Arguments that come out of the recursion this call takes part in.
    table : SegmentTable
        Where equal segments meet.
    """
    if granularity != "alone" and variant.layout in ("alone", "join"):
        granularity = "block"
    key = (granularity, late if granularity == "operator" else None)
    cut = variant.cuts.get(key)
    if cut is None:
        if granularity == "operator":
            partition = _Cutter(variant, late).partition()
        elif granularity == "block" and variant.layout == "join":
            cut = variant.cuts[key] = _join(variant, table)
            return cut
        else:
            partition = _whole(variant, granularity == "alone" or not variant.mergeable)
        cut = variant.cuts[key] = _emit(variant, partition, table)
    return cut


class _Partition(NamedTuple):
    """Segments as sets of rows, in topological order; sums that became operands."""

    parts: Tuple[Tuple[int, ...], ...]
    #: Their terms, none of which is such a sum.
    sums: Mapping[int, Tuple[Ref, ...]]
    refused: FrozenSet[int]


def _whole(variant: Variant, alone: bool) -> _Partition:
    rows = variant.entry.program.rows
    everything = tuple(i for i, row in enumerate(rows) if row.op != VARIABLE)
    return _Partition((everything,), {}, frozenset(everything) if alone else frozenset())


def _join(variant: Variant, table: SegmentTable) -> Cut:
    """Make arrays that stand side by side the result; who reads them sees to the order."""
    normal = NormalForm(variant, set(), variant.layout, {}, {})
    normal.join()
    segment = table.intern(normal, variant, variant.layout, "")
    return Cut((SegmentUse(segment, tuple(normal.sources)),), ((0, 0),))


class _Cutter:
    """Finds the segments of one variant at operator granularity."""

    def __init__(self, variant: Variant, late: FrozenSet[int]):
        self._rows = variant.entry.program.rows
        self._program = variant.entry.program
        self._variant = variant
        self._own = [i for i, r in enumerate(self._rows) if r.op != VARIABLE and variant.batched[i]]
        self._refused = frozenset(
            i for i in self._own if isinstance(variant.rewrites[i], rules.Refusal)
        )
        self._sums = self._find_sums()
        self._late = self._depends_on(late)

    def _find_sums(self) -> Dict[int, Tuple[Ref, ...]]:
        """Return the sums that become operands, with their terms, in topological order."""
        rows, heads = self._rows, {row for row, _ in self._program.heads}
        candidates = [
            i
            for i in self._own
            if rows[i].op == "add_n"
            and i not in heads
            and i not in self._refused
            and all(self._variant.batched[r] for r, _ in rows[i].inputs)
        ]
        readers = Counter(r for row in rows for r, _ in row.inputs)
        nested = {r for i in candidates for r, _ in rows[i].inputs}
        found: Dict[int, Tuple[Ref, ...]] = {}
        for i in candidates:
            terms = tuple(term for ref in rows[i].inputs for term in found.get(ref[0], (ref,)))
            # Sums of the same sums again would have more and more terms.
            if len(terms) <= MOST_TERMS or i not in nested or readers[i] == 1:
                found[i] = terms
        return found

    def _depends_on(self, late: FrozenSet[int]) -> List[bool]:
        arguments = self._program.argument_at
        found = [arguments.get(i) in late for i in range(len(self._rows))]
        for i in self._own:
            found[i] = any(found[r] for r, _ in self._rows[i].inputs)
        return found

    def _stages(self) -> Dict[int, int]:
        """Count the cuts behind each row, at most; along a path that never grows.

        Early and late rows are counted apart: a path leaves the early ones once and for good.
        """
        stages = dict.fromkeys(self._own, 0)
        for i in reversed(self._own):
            for r, _ in self._rows[i].inputs:
                if r in stages and self._late[r] == self._late[i]:
                    into_sum = i in self._sums and r not in self._sums
                    cut = into_sum or i in self._refused or r in self._refused
                    stages[r] = max(stages[r], stages[i] + cut)
        return stages

    def partition(self) -> _Partition:
        stages = self._stages()
        members = [i for i in self._own if i not in self._sums]
        parent = {i: i for i in members}

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        first_user: Dict[Tuple[int, int], int] = {}
        for i in members:
            if i in self._refused:
                continue
            for r, _ in self._rows[i].inputs:
                if r in parent and r not in self._refused and self._alike(r, i, stages):
                    parent[root(r)] = root(i)
                elif (
                    self._rows[r].op == VARIABLE and self._variant.batched[r] and not self._late[i]
                ):
                    # Operators on one early argument can run at once: let them share a launch.
                    other = first_user.setdefault((r, stages[i]), i)
                    parent[root(other)] = root(i)
        groups: Dict[int, List[int]] = {}
        for i in members:
            groups.setdefault(root(i), []).append(i)
        parts = sorted(groups.values(), key=lambda g: (self._late[g[0]], -stages[g[0]], g[0]))
        return _Partition(tuple(map(tuple, parts)), self._sums, self._refused)

    def _alike(self, a: int, b: int, stages: Dict[int, int]) -> bool:
        return self._late[a] == self._late[b] and stages[a] == stages[b]


def _emit(variant: Variant, partition: _Partition, table: SegmentTable) -> Cut:
    program = variant.entry.program
    part_of = {row: p for p, part in enumerate(partition.parts) for row in part}
    outputs = _crossing(variant, partition, part_of)
    place = {ref: ("seg", p, k) for p, refs in enumerate(outputs) for k, ref in enumerate(refs)}
    uses = []
    for part, refs in zip(partition.parts, outputs):
        alone = any(row in partition.refused for row in part)
        layout = "alone" if alone else variant.layout
        normal = NormalForm(variant, set(part), layout, partition.sums, place)
        for ref in refs:
            normal.result(ref)
        normal.finish()
        reason = (_refusal(variant, part) or variant.reason) if alone else ""
        uses.append(
            SegmentUse(table.intern(normal, variant, layout, reason), tuple(normal.sources))
        )
    heads = tuple(place[ref][1:] for ref in program.heads)
    return Cut(tuple(uses), heads)


def _refusal(variant: Variant, part: Sequence[int]) -> str:
    found = [variant.rewrites.get(row) for row in part]
    return "; ".join(dict.fromkeys(f.reason for f in found if isinstance(f, rules.Refusal)))


def _crossing(variant: Variant, partition: _Partition, part_of: Dict[int, int]) -> List[List[Ref]]:
    """Per segment, the values that somebody else reads."""
    program = variant.entry.program
    wanted: Set[Ref] = {ref for ref in program.heads if ref[0] in part_of}
    for i, row in enumerate(program.rows):
        for ref in row.inputs:
            if ref[0] in part_of and part_of.get(i) != part_of[ref[0]]:
                wanted.add(ref)
    outputs: List[List[Ref]] = [[] for _ in partition.parts]
    for ref in sorted(wanted):
        outputs[part_of[ref[0]]].append(ref)
    return outputs
