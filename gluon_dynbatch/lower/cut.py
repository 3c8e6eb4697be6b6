"""Cut the program of a call into segments: the pieces that are placed into launches as a whole.

At granularity ``block`` a call is one segment.  At granularity ``operator`` it is cut where a piece
can run earlier than the rest, or merge with more calls:

* Arguments that another call of the same recursion delivers are *recurrent*.  Operators that depend
  on none of them are *hoistable* (the input projection of an LSTM) and form segments of their own:
  one launch runs those of a whole minibatch.
* A sum of several arrays (``add_n``) is an operand, not an operator: the segment that reads it
  gathers its terms.  The operators that compute one term form a segment.  These segments are equal
  for any number of terms, and so is the segment that reads the sum, so nodes with different numbers
  of children merge.  A sum of sums is one sum.  In a recursion, terms of which every call has the
  same number stay in the segment that reads the sum: a cut would be one more launch at each step.
* A sum that is only a result of the call stays an operator, unless calls differ in the number of
  its terms; then a segment copies the operand.
* An operator without a batching rule is a segment by itself; the rest still merges.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ..trace.symbols import VARIABLE, Op, Ref
from ..trace.variant import Variant
from .normal_form import NormalForm, Sum, concat_segment
from .segment import ARGUMENT, Cut, SegmentUse, Source, intern

#: A sum with more terms stays an operator if another sum and something else read it.
MOST_TERMS = 64


def cut_call(
    variant: Variant,
    granularity: str,
    recurrent: FrozenSet[int],
    uneven: FrozenSet[int],
) -> Cut:
    """Return the segments of a call.

    Parameters
    ----------
    variant : Variant
        How the calls merge.
    granularity : str
        ``"graph"``, ``"block"`` or ``"operator"``; ``"unbatched"`` does not merge calls.
    recurrent : frozenset of int
        The arguments that a recursion delivers which the call takes part in.
    uneven : frozenset of int
        The arguments in lists whose lengths differ between calls with sums.
    """
    if granularity == "operator" and variant.layout not in ("unbatched", "concat"):
        return _emit_segments(variant, _Cutter(variant, recurrent, uneven).partition())
    if granularity != "unbatched" and variant.layout == "concat":
        arguments: List[Source] = [(ARGUMENT, i) for i in range(len(variant.concat_rows))]
        use = SegmentUse(intern(concat_segment(variant)), (tuple(arguments),))
        return _make_cut(variant, [use], [(0, 0)])
    ops = tuple(i for i, op in enumerate(variant.entry.program.ops) if op.op != VARIABLE)
    merges = granularity != "unbatched" and not variant.reason
    return _emit_segments(variant, _Partition((ops,), {}, frozenset(() if merges else ops)))


class _Partition(NamedTuple):
    """The operators of each segment, by position in the program."""

    #: In topological order.
    parts: Tuple[Tuple[int, ...], ...]
    #: The sums that became operands.
    sums: Mapping[int, Sum]
    #: The operators that are not batched.
    refused: FrozenSet[int]


def _reads(ops: Sequence[Op], sums: Mapping[int, Sum]) -> List[Tuple[Ref, ...]]:
    """Return the values that each operator or sum reads."""
    return [(*sums[i].local, *sums[i].terms) if i in sums else op.inputs
            for i, op in enumerate(ops)]  # fmt: skip


class _Cutter:
    """Finds the segments of one variant at operator granularity."""

    def __init__(self, variant: Variant, recurrent: FrozenSet[int], uneven: FrozenSet[int]):
        program = self._program = variant.entry.program
        self._ops = program.ops
        self._batched = variant.batched
        #: The batched operators.  Each segment repeats the others, which read only shared arrays.
        self._batched_ops = [
            i for i, op in enumerate(self._ops) if op.op != VARIABLE and self._batched[i]
        ]
        self._heads = {i for i, _ in program.heads}
        self._refused = frozenset(variant.refused)
        self._recurrent = self._dependents(recurrent)
        self._sums = self._find_sums(self._dependents(uneven))
        self._reads = _reads(self._ops, self._sums)

    def _dependents(self, arguments: FrozenSet[int]) -> List[bool]:
        """Return per operator or variable whether it depends on any of these arguments."""
        depends = [self._program.argument_at.get(i) in arguments for i in range(len(self._ops))]
        for i in self._batched_ops:
            depends[i] = any(depends[r] for r, _ in self._ops[i].inputs)
        return depends

    def _find_sums(self, uneven: Sequence[bool]) -> Dict[int, Sum]:
        """Return the sums that become operands, in topological order."""
        ops = self._ops
        readers = Counter(r for op in ops for r, _ in op.inputs)
        candidates = [
            i
            for i in self._batched_ops
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
            # If sums share sums, the number of terms can grow exponentially.
            if len(terms) <= MOST_TERMS or i not in nested or readers[i] == 1:
                flat[i] = terms
                even = tuple(ref for ref in terms if not uneven[ref[0]])
                if not any(self._recurrent[r] and ops[r].op != VARIABLE for r, _ in even):
                    sums[i] = Sum((), terms)
                elif len(even) < len(terms):
                    sums[i] = Sum(even, tuple(ref for ref in terms if uneven[ref[0]]))
        return sums

    def _stages(self) -> Dict[int, int]:
        """Return per operator the greatest number of cuts on a path to a result.

        It never grows along a path.  Paths of hoistable and of recurrent operators are counted
        separately, because a path that enters the latter never leaves them.
        """
        stages = dict.fromkeys(self._batched_ops, 0)
        for i in reversed(self._batched_ops):
            terms = self._sums[i].terms if i in self._sums else ()
            for ref in self._reads[i]:
                r = ref[0]
                if r in stages and self._recurrent[r] == self._recurrent[i]:
                    cut = ref in terms or i in self._refused or r in self._refused
                    stages[r] = max(stages[r], stages[i] + cut)
        return stages

    def partition(self) -> _Partition:
        """Join operators of one stage along their edges, by union-find."""
        stages, sums = self._stages(), self._sums
        members = [
            i for i in self._batched_ops if i not in sums or sums[i].local or i in self._heads
        ]
        stage = {i: (self._recurrent[i], -stages[i]) for i in members}
        parent = {i: i for i in members}

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        arguments = {i for i in self._program.argument_at if self._batched[i]}
        first_user: Dict[Tuple[int, int], int] = {}
        for i in members:
            if i in self._refused:
                continue
            # Operators that wait for one argument can run in one launch.  In a recursion, those of
            # different terms stay apart, so that each term merges by itself.
            joins_users = not (self._recurrent[i] and stages[i])
            for r, _ in self._reads[i]:
                if r in parent and r not in self._refused and stage[r] == stage[i]:
                    parent[root(r)] = root(i)
                elif r in arguments and self._recurrent[r] == self._recurrent[i] and joins_users:
                    first = first_user.setdefault((r, stages[i]), i)
                    parent[root(first)] = root(i)
        groups: Dict[int, List[int]] = {}
        for i in members:
            groups.setdefault(root(i), []).append(i)
        parts = sorted(groups.values(), key=lambda group: (*stage[group[0]], group[0]))
        return _Partition(tuple(map(tuple, parts)), sums, self._refused)


def _emit_segments(variant: Variant, partition: _Partition) -> Cut:
    outputs = _outputs(variant, partition)
    source_of = {ref: (p, k) for p, refs in enumerate(outputs) for k, ref in enumerate(refs)}
    uses = []
    for part, refs in zip(partition.parts, outputs):
        refused = not partition.refused.isdisjoint(part)
        layout = "unbatched" if refused else variant.layout
        normal = NormalForm(variant, set(part), layout, partition.sums, source_of)
        segment = normal.segment(refs, _reason(variant, part) if refused else "")
        uses.append(SegmentUse(intern(segment), tuple(normal.sources)))
    return _make_cut(variant, uses, [source_of[ref] for ref in variant.entry.program.heads])


def _make_cut(
    variant: Variant, uses: Sequence[SegmentUse], heads: Sequence[Tuple[int, int]]
) -> Cut:
    callee = variant.entry.name, len(variant.entry.in_types)
    return Cut(*callee, tuple(uses), tuple(heads), variant.rows, variant.concat_rows)


def _reason(variant: Variant, part: Sequence[int]) -> str:
    reasons = [variant.refused[i] for i in part if i in variant.refused]
    return "; ".join(dict.fromkeys(reasons)) or variant.reason


def _outputs(variant: Variant, partition: _Partition) -> List[List[Ref]]:
    """Return per segment the values that another segment reads, or that are results of the call."""
    program = variant.entry.program
    part_of = {i: p for p, part in enumerate(partition.parts) for i in part}
    read: Set[Ref] = {ref for ref in program.heads if ref[0] in part_of}
    for i, refs in enumerate(_reads(program.ops, partition.sums)):
        for ref in refs:
            if ref[0] in part_of and part_of.get(i) != part_of[ref[0]]:
                read.add(ref)
    outputs: List[List[Ref]] = [[] for _ in partition.parts]
    for ref in sorted(read):
        outputs[part_of[ref[0]]].append(ref)
    return outputs
