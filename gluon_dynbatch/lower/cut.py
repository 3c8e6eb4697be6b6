"""Cut the program of a call into segments: the pieces that are placed into launches as a whole.

At granularity ``block`` a call is one segment.  At granularity ``operator`` it is cut where a piece
can run earlier, or with more company, than the rest:

* Arguments that another call of the same recursion delivers are *recurrent*.  Operators that depend
  on none of them are *hoistable* (the input projection of an LSTM) and form segments of their own:
  all of a minibatch then run in one launch.
* A sum of several arrays (``add_n``) is not an operator but an operand: the segment that uses it
  gathers the sum.  What is computed before it, once per summand, becomes a segment per summand, and
  these are equal whatever the number of summands; so the work per child of nodes with different
  numbers of children merges, and so does what follows.  A sum of sums is one sum.
* An operator without batching rule is a segment by itself; the rest still merges.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Set, Tuple

from .. import rules
from ..trace.symbols import VARIABLE, Ref
from ..trace.variant import Variant
from .normal_form import NormalForm, concat_segment
from .segment import ARGUMENT, Cut, SegmentTable, SegmentUse, Source

#: Terms that a sum may have to be added up anew for each of several readers, one of them a sum.
MOST_TERMS = 64


def cut_call(
    variant: Variant, granularity: str, recurrent: FrozenSet[int], table: SegmentTable
) -> Cut:
    """Return the segments of a call.

    Parameters
    ----------
    variant : Variant
        The call, and which of its arguments all calls share.
    granularity : str
        ``"graph"``, ``"block"`` or ``"operator"``; ``"unbatched"`` keeps every call as it was
        written.
    recurrent : frozenset of int
        Arguments that come out of the recursion this call takes part in.
    table : SegmentTable
        Where equal segments meet.
    """
    whole = granularity == "operator" and variant.layout in ("unbatched", "concat")
    if whole or granularity == "graph":
        granularity = "block"
    key = (granularity, recurrent if granularity == "operator" else frozenset())
    return table.cut(variant, key, lambda: _cut(variant, *key, table))


def _cut(variant: Variant, granularity: str, recurrent: FrozenSet[int], table: SegmentTable) -> Cut:
    if granularity == "operator":
        return _emit(variant, _Cutter(variant, recurrent).partition(), table)
    if granularity == "block" and variant.layout == "concat":
        arguments: Tuple[Source, ...] = tuple(
            (ARGUMENT, i) for i in range(len(variant.concat_rows))
        )
        use = SegmentUse(table.intern(concat_segment(variant)), (arguments,))
        return Cut((use,), ((0, 0),), variant.rows, variant.concat_rows)
    ops = tuple(i for i, op in enumerate(variant.entry.program.ops) if op.op != VARIABLE)
    merges = granularity == "block" and variant.mergeable
    return _emit(variant, _Partition((ops,), {}, frozenset(() if merges else ops)), table)


class _Partition(NamedTuple):
    """Segments as sets of operators, in topological order; sums that became operands."""

    parts: Tuple[Tuple[int, ...], ...]
    #: Their terms, none of which is such a sum.
    sums: Mapping[int, Tuple[Ref, ...]]
    #: Operators that are not batched.
    refused: FrozenSet[int]


class _Cutter:
    """Finds the segments of one variant at operator granularity."""

    def __init__(self, variant: Variant, recurrent: FrozenSet[int]):
        program = self._program = variant.entry.program
        self._ops = program.ops
        self._batched = variant.batched
        self._own = [i for i, op in enumerate(self._ops) if op.op != VARIABLE and self._batched[i]]
        self._refused = frozenset(
            i for i in self._own if isinstance(variant.rewrites[i], rules.Refusal)
        )
        self._sums = self._find_sums()
        self._recurrent = [program.argument_at.get(i) in recurrent for i in range(len(self._ops))]
        for i in self._own:
            self._recurrent[i] = any(self._recurrent[r] for r, _ in self._ops[i].inputs)

    def _find_sums(self) -> Dict[int, Tuple[Ref, ...]]:
        """Return the sums that become operands, with their terms, in topological order."""
        ops, heads = self._ops, {row for row, _ in self._program.heads}
        candidates = [
            i
            for i in self._own
            if ops[i].op == "add_n"
            and i not in heads
            and i not in self._refused
            and all(self._batched[r] for r, _ in ops[i].inputs)
        ]
        readers = Counter(r for op in ops for r, _ in op.inputs)
        nested = {r for i in candidates for r, _ in ops[i].inputs}
        sums: Dict[int, Tuple[Ref, ...]] = {}
        for i in candidates:
            terms = tuple(term for ref in ops[i].inputs for term in sums.get(ref[0], (ref,)))
            # Sums of the same sums again would have more and more terms.
            if len(terms) <= MOST_TERMS or i not in nested or readers[i] == 1:
                sums[i] = terms
        return sums

    def _stages(self) -> Dict[int, int]:
        """Count the cuts behind each operator, at most; along a path that never grows.

        Hoistable and recurrent operators are counted apart: a path goes from the former to the
        latter, once and for good.
        """
        stages = dict.fromkeys(self._own, 0)
        for i in reversed(self._own):
            for r, _ in self._ops[i].inputs:
                if r in stages and self._recurrent[r] == self._recurrent[i]:
                    into_sum = i in self._sums and r not in self._sums
                    cut = into_sum or i in self._refused or r in self._refused
                    stages[r] = max(stages[r], stages[i] + cut)
        return stages

    def partition(self) -> _Partition:
        """Join operators of one stage along their edges, by union-find."""
        stages = self._stages()
        members = [i for i in self._own if i not in self._sums]
        stage = {i: (self._recurrent[i], -stages[i]) for i in members}
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
            for r, _ in self._ops[i].inputs:
                if r in parent and r not in self._refused and stage[r] == stage[i]:
                    parent[root(r)] = root(i)
                elif r in self._program.argument_at and self._batched[r] and not stage[i][0]:
                    # Hoistable operators on one argument can run at once: let them share a launch.
                    other = first_user.setdefault((r, stages[i]), i)
                    parent[root(other)] = root(i)
        groups: Dict[int, List[int]] = {}
        for i in members:
            groups.setdefault(root(i), []).append(i)
        parts = sorted(groups.values(), key=lambda group: (*stage[group[0]], group[0]))
        return _Partition(tuple(map(tuple, parts)), self._sums, self._refused)


def _emit(variant: Variant, partition: _Partition, table: SegmentTable) -> Cut:
    outputs = _outputs(variant, partition)
    place = {ref: (p, k) for p, refs in enumerate(outputs) for k, ref in enumerate(refs)}
    uses = []
    for part, refs in zip(partition.parts, outputs):
        refused = not partition.refused.isdisjoint(part)
        layout = "unbatched" if refused else variant.layout
        normal = NormalForm(variant, set(part), layout, partition.sums, place)
        segment = normal.segment(refs, _reason(variant, part) if refused else "")
        uses.append(SegmentUse(table.intern(segment), tuple(normal.sources)))
    heads = tuple(place[ref] for ref in variant.entry.program.heads)
    return Cut(tuple(uses), heads, variant.rows, variant.concat_rows)


def _reason(variant: Variant, part: Sequence[int]) -> str:
    answers = [variant.rewrites.get(i) for i in part]
    reasons = [answer.reason for answer in answers if isinstance(answer, rules.Refusal)]
    return "; ".join(dict.fromkeys(reasons)) or variant.reason


def _outputs(variant: Variant, partition: _Partition) -> List[List[Ref]]:
    """Return per segment the values that somebody else reads."""
    program = variant.entry.program
    part_of = {i: p for p, part in enumerate(partition.parts) for i in part}
    wanted: Set[Ref] = {ref for ref in program.heads if ref[0] in part_of}
    for i, op in enumerate(program.ops):
        for ref in op.inputs:
            if ref[0] in part_of and part_of.get(i) != part_of[ref[0]]:
                wanted.add(ref)
    outputs: List[List[Ref]] = [[] for _ in partition.parts]
    for ref in sorted(wanted):
        outputs[part_of[ref[0]]].append(ref)
    return outputs
