"""Cut the program of a call into segments: the pieces that are placed into launches as a whole.

At granularity ``block`` a call is one segment.  At granularity ``operator`` it is cut where a piece
can run earlier, or with more company, than the rest:

* Arguments that another call of the same recursion delivers are *recurrent*.  Operators that depend
  on none of them are *hoistable* (the input projection of an LSTM) and form segments of their own:
  all of a minibatch then run in one launch.
* A sum of several arrays (``add_n``) is not an operator but an operand: the segment that uses it
  gathers the sum.  What is computed before it, once per summand, becomes a segment per summand, and
  these are equal whatever the number of summands; so the work per child of nodes with different
  numbers of children merges, and so does what follows.  A sum of sums is one sum.  In a recursion,
  what every call has one of stays in the segment: a cut would be a launch more at each step.
* A sum that is nothing but a result stays an operator, unless calls differ in the number of its
  summands; then a segment copies the operand.
* An operator without batching rule is a segment by itself; the rest still merges.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ..trace.symbols import VARIABLE, Op, Ref
from ..trace.variant import Variant
from .normal_form import NormalForm, Sum, concat_segment
from .segment import ARGUMENT, Cut, SegmentUse, Source, intern

#: Terms that a sum may have to be added up anew for each of several readers, one of them a sum.
MOST_TERMS = 64


def cut_call(
    variant: Variant,
    granularity: str,
    recurrent: FrozenSet[int],
    uneven: FrozenSet[int],
) -> Cut:
    """Return the segments of a call.

    Granularity ``"unbatched"`` keeps every call as it was written.  Recurrent arguments come out of
    the recursion that this call takes part in; of uneven ones, other calls with sums have more or
    fewer.
    """
    whole = granularity == "operator" and variant.layout in ("unbatched", "concat")
    if whole or granularity == "graph":
        granularity = "block"
    if granularity == "operator":
        return _emit(variant, _Cutter(variant, recurrent, uneven).partition())
    return _whole(variant, granularity)


def _whole(variant: Variant, granularity: str) -> Cut:
    if granularity == "block" and variant.layout == "concat":
        called = variant.entry.name, len(variant.entry.in_types)
        arguments: Tuple[Source, ...] = tuple(
            (ARGUMENT, i) for i in range(len(variant.concat_rows))
        )
        use = SegmentUse(intern(concat_segment(variant)), (arguments,))
        return Cut(*called, (use,), ((0, 0),), variant.rows, variant.concat_rows)
    ops = tuple(i for i, op in enumerate(variant.entry.program.ops) if op.op != VARIABLE)
    merges = granularity == "block" and not variant.reason
    return _emit(variant, _Partition((ops,), {}, frozenset(() if merges else ops)))


class _Partition(NamedTuple):
    """Segments as sets of operators, in topological order; sums that became operands."""

    parts: Tuple[Tuple[int, ...], ...]
    sums: Mapping[int, Sum]
    #: Operators that are not batched.
    refused: FrozenSet[int]


def _reads(ops: Sequence[Op], sums: Mapping[int, Sum]) -> List[Tuple[Ref, ...]]:
    """List what each operator reads, and what each sum adds up."""
    return [(*sums[i].others, *sums[i].terms) if i in sums else op.inputs
            for i, op in enumerate(ops)]  # fmt: skip


class _Cutter:
    """Finds the segments of one variant at operator granularity."""

    def __init__(self, variant: Variant, recurrent: FrozenSet[int], uneven: FrozenSet[int]):
        program = self._program = variant.entry.program
        self._ops = program.ops
        self._batched = variant.batched
        self._own = [i for i, op in enumerate(self._ops) if op.op != VARIABLE and self._batched[i]]
        self._heads = {row for row, _ in program.heads}
        self._refused = frozenset(variant.refused)
        self._recurrent = self._behind(recurrent)
        self._sums = self._find_sums(self._behind(uneven))
        self._reads = _reads(self._ops, self._sums)

    def _behind(self, arguments: FrozenSet[int]) -> List[bool]:
        """Mark what depends on any of these arguments."""
        found = [self._program.argument_at.get(i) in arguments for i in range(len(self._ops))]
        for i in self._own:
            found[i] = any(found[r] for r, _ in self._ops[i].inputs)
        return found

    def _find_sums(self, uneven: Sequence[bool]) -> Dict[int, Sum]:
        """Return the sums that become operands, in topological order."""
        ops = self._ops
        readers = Counter(r for op in ops for r, _ in op.inputs)
        candidates = [
            i
            for i in self._own
            if ops[i].op == "add_n"
            and (i not in self._heads or uneven[i] and not readers[i])
            and i not in self._refused
            and all(self._batched[r] for r, _ in ops[i].inputs)
        ]
        nested = {r for i in candidates for r, _ in ops[i].inputs}
        flat: Dict[int, Tuple[Ref, ...]] = {}
        sums: Dict[int, Sum] = {}
        for i in candidates:
            terms = tuple(term for ref in ops[i].inputs for term in flat.get(ref[0], (ref,)))
            # Sums of the same sums again would have more and more terms.
            if len(terms) <= MOST_TERMS or i not in nested or readers[i] == 1:
                flat[i] = terms
                even = tuple(ref for ref in terms if not uneven[ref[0]])
                if not any(self._recurrent[r] and ops[r].op != VARIABLE for r, _ in even):
                    sums[i] = Sum((), terms)
                elif len(even) < len(terms):
                    sums[i] = Sum(even, tuple(ref for ref in terms if uneven[ref[0]]))
        return sums

    def _stages(self) -> Dict[int, int]:
        """Count the cuts behind each operator, at most; along a path that never grows.

        Hoistable and recurrent operators are counted apart: a path goes from the former to the
        latter, once and for good.
        """
        stages = dict.fromkeys(self._own, 0)
        for i in reversed(self._own):
            terms = self._sums[i].terms if i in self._sums else ()
            for ref in self._reads[i]:
                r = ref[0]
                if r in stages and self._recurrent[r] == self._recurrent[i]:
                    cut = ref in terms or i in self._refused or r in self._refused
                    stages[r] = max(stages[r], stages[i] + cut)
        return stages

    def partition(self) -> _Partition:
        """Join operators of one stage along their edges, by union-find."""
        stages = self._stages()
        members = [
            i for i in self._own if i not in self._sums or self._sums[i].others or i in self._heads
        ]
        stage = {i: (self._recurrent[i], -stages[i]) for i in members}
        parent = {i: i for i in members}

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        arguments = {i for i in self._program.argument_at if self._batched[i]}
        # In a recursion, terms of sums are to merge one by one.
        terms = {(True, -cuts) for cuts in range(1, 1 + max(stages.values(), default=0))}
        first_user: Dict[Tuple[int, int], int] = {}
        for i in members:
            if i in self._refused:
                continue
            for r, _ in self._reads[i]:
                if r in parent and r not in self._refused and stage[r] == stage[i]:
                    parent[root(r)] = root(i)
                elif r in arguments and self._recurrent[r] == stage[i][0] and stage[i] not in terms:
                    # What waits for one argument can run at once: let it share a launch.
                    other = first_user.setdefault((r, stages[i]), i)
                    parent[root(other)] = root(i)
        groups: Dict[int, List[int]] = {}
        for i in members:
            groups.setdefault(root(i), []).append(i)
        parts = sorted(groups.values(), key=lambda group: (*stage[group[0]], group[0]))
        return _Partition(tuple(map(tuple, parts)), self._sums, self._refused)


def _emit(variant: Variant, partition: _Partition) -> Cut:
    outputs = _outputs(variant, partition)
    place = {ref: (p, k) for p, refs in enumerate(outputs) for k, ref in enumerate(refs)}
    uses = []
    for part, refs in zip(partition.parts, outputs):
        refused = not partition.refused.isdisjoint(part)
        layout = "unbatched" if refused else variant.layout
        normal = NormalForm(variant, set(part), layout, partition.sums, place)
        segment = normal.segment(refs, _reason(variant, part) if refused else "")
        uses.append(SegmentUse(intern(segment), tuple(normal.sources)))
    heads = tuple(place[ref] for ref in variant.entry.program.heads)
    called = variant.entry.name, len(variant.entry.in_types)
    return Cut(*called, tuple(uses), heads, variant.rows, variant.concat_rows)


def _reason(variant: Variant, part: Sequence[int]) -> str:
    reasons = [variant.refused[i] for i in part if i in variant.refused]
    return "; ".join(dict.fromkeys(reasons)) or variant.reason


def _outputs(variant: Variant, partition: _Partition) -> List[List[Ref]]:
    """Return per segment the values that somebody else reads."""
    program = variant.entry.program
    part_of = {i: p for p, part in enumerate(partition.parts) for i in part}
    wanted: Set[Ref] = {ref for ref in program.heads if ref[0] in part_of}
    for i, refs in enumerate(_reads(program.ops, partition.sums)):
        for ref in refs:
            if ref[0] in part_of and part_of.get(i) != part_of[ref[0]]:
                wanted.add(ref)
    outputs: List[List[Ref]] = [[] for _ in partition.parts]
    for ref in sorted(wanted):
        outputs[part_of[ref[0]]].append(ref)
    return outputs
