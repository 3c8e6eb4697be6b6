"""Cut the program of a call into segments: the parts that are placed into launches as a whole.

At granularity ``block`` a call is one segment.  At granularity ``operator`` it is cut where a part
can run earlier than the rest, or merge with more calls:

* Arguments that another call of the same recursion delivers are *recurrent*.  Operators that depend
  on none of them are *hoistable* (the input projection of an LSTM) and form segments of their own:
  one launch runs those of a whole minibatch.
* A sum of several arrays (``add_n``) is an operand, not an operator: the segment that reads it
  gathers its terms.  The operators that compute one term form a segment.  These segments are equal
  for any number of terms, and so is the segment that reads the sum, so nodes with different numbers
  of children merge.  A sum of sums is one sum.  In a recursion, a cut is one more launch at each
  step.  So terms that a recursion computes stay in the segment that reads the sum, unless calls
  have so many different numbers of them that the cut saves launches.
* A sum that is only a result of the call stays an operator, unless calls differ in the number of
  its terms; then a segment copies the operand.
* An operator without a batching rule is a segment by itself; the rest still merges.
* Products of parameters and shared arrays are one segment, which runs once (`once.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Collection, Dict, FrozenSet, List, Mapping, Sequence, Set, Tuple

from ..rules.site import Ref
from ..trace.symbols import VARIABLE, Op
from ..trace.variant import Variant
from .normal_form import NormalForm, OperandSum, concat_segment
from .once import find_once
from .segment import ARGUMENT, ONCE, Cut, Segment, Source, Terms, find_root, intern

#: A sum with more terms stays an operator if another sum and something else read it.
MOST_TERMS = 64


def cut_call(
    variant: Variant,
    granularity: str,
    recurrent: FrozenSet[int],
    uneven: FrozenSet[int],
    varied: FrozenSet[int],
) -> Cut:
    """Return the segments of a call.

    At granularity ``"unbatched"``, calls do not merge.  A recursion that the call takes part in
    delivers its `recurrent` arguments.  The `uneven` arguments are in lists whose lengths differ
    between calls with sums; for those that are `varied`, it saves launches to compute terms apart.
    """
    typed, whole = variant.typed, False
    merges = granularity != "unbatched" and variant.layout not in ("unbatched", "concat")
    # Samples are told apart by what they read, so at granularity "graph" they share no result.
    once = find_once(variant) if merges and granularity != "graph" else []
    if merges and granularity == "operator":
        cutter = _Cutter(variant, recurrent, uneven, varied)
        content = _emit_segments(variant, once, cutter.parts(), cutter.sums, variant.refused)
        whole = cutter.whole
    elif granularity != "unbatched" and variant.layout == "concat":
        arguments = tuple((ARGUMENT, i) for i in range(len(variant.concat_rows)))
        content = (intern(concat_segment(variant)),), ((arguments,),), ((0, 0),)
    else:
        excluded = {*once, *(i for i, op in enumerate(typed.program.ops) if op.op == VARIABLE)}
        ops = [i for i in range(len(typed.program.ops)) if i not in excluded]
        refused = () if merges and not variant.reason else ops
        content = _emit_segments(variant, once, [ops], {}, refused)
    count, rows = len(typed.in_types), (variant.rows, variant.concat_rows)
    return Cut(*content, typed.name, count, *rows, whole)


def _reads(ops: Sequence[Op], sums: Mapping[int, OperandSum]) -> List[Tuple[Ref, ...]]:
    """Return the values that each operator or sum reads."""
    return [(*sums[i].local, *sums[i].terms) if i in sums else op.inputs
            for i, op in enumerate(ops)]  # fmt: skip


class _Cutter:
    """Finds the segments of one variant at operator granularity."""

    def __init__(
        self,
        variant: Variant,
        recurrent: FrozenSet[int],
        uneven: FrozenSet[int],
        varied: FrozenSet[int],
    ):
        program = self._program = variant.typed.program
        self._ops, self._batched = program.ops, variant.batched
        #: The batched operators.  Each segment repeats the others, which read only shared arrays.
        self._batched_ops = [
            i for i, op in enumerate(self._ops) if op.op != VARIABLE and self._batched[i]
        ]
        self._heads = {i for i, _ in program.heads}
        self._refused = variant.refused
        self._recurrent = self._dependents(recurrent)
        #: See `Cut`.
        self.whole = False
        #: The sums that become operands, in topological order.
        self.sums = self._find_sums(self._dependents(uneven), self._dependents(varied))
        self._reads = _reads(self._ops, self.sums)

    def _dependents(self, arguments: FrozenSet[int]) -> List[bool]:
        """Return per operator or variable whether it depends on any of these arguments."""
        depends = [self._program.argument_at.get(i) in arguments for i in range(len(self._ops))]
        for i in self._batched_ops:
            depends[i] = any(depends[r] for r, _ in self._ops[i].inputs)
        return depends

    def _find_sums(self, uneven: Sequence[bool], varied: Sequence[bool]) -> Dict[int, OperandSum]:
        ops = self._ops
        # Per operator, whether a recursion computes it, so that a cut after it is one more launch.
        computed = [self._recurrent[i] and op.op != VARIABLE for i, op in enumerate(ops)]
        apart = [varied[i] if computed[i] else uneven[i] for i in range(len(ops))]
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
        sums: Dict[int, OperandSum] = {}
        for i in candidates:
            terms = tuple(term for ref in ops[i].inputs for term in flat.get(ref[0], (ref,)))
            # If sums share sums, the number of terms can grow exponentially.
            if len(terms) <= MOST_TERMS or i not in nested or readers[i] == 1:
                flat[i] = terms
                local = tuple(ref for ref in terms if not apart[ref[0]])
                self.whole |= any(uneven[r] for r, _ in local)
                if not any(computed[r] for r, _ in local):
                    sums[i] = OperandSum((), terms)
                elif len(local) < len(terms):
                    sums[i] = OperandSum(local, tuple(ref for ref in terms if apart[ref[0]]))
        return sums

    def _stages(self) -> Dict[int, int]:
        """Return per operator the greatest number of cuts on a path to a result.

        It never grows along a path.  Paths of hoistable and of recurrent operators are counted
        separately, because a path that enters the latter never leaves them.
        """
        stages = dict.fromkeys(self._batched_ops, 0)
        for i in reversed(self._batched_ops):
            terms = self.sums[i].terms if i in self.sums else ()
            for ref in self._reads[i]:
                r = ref[0]
                if r in stages and self._recurrent[r] == self._recurrent[i]:
                    cut = ref in terms or i in self._refused or r in self._refused
                    stages[r] = max(stages[r], stages[i] + cut)
        return stages

    def parts(self) -> List[List[int]]:
        """Return the operators of each segment: those of one stage, joined along their edges."""
        stages, sums = self._stages(), self.sums
        members = [
            i for i in self._batched_ops if i not in sums or sums[i].local or i in self._heads
        ]
        stage = {i: (self._recurrent[i], -stages[i]) for i in members}
        parent = {i: i for i in members}
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
                    parent[find_root(parent, r)] = find_root(parent, i)
                elif r in arguments and self._recurrent[r] == self._recurrent[i] and joins_users:
                    first = first_user.setdefault((r, stages[i]), i)
                    parent[find_root(parent, first)] = find_root(parent, i)
        groups: Dict[int, List[int]] = {}
        for i in members:
            groups.setdefault(find_root(parent, i), []).append(i)
        return sorted(groups.values(), key=lambda group: (*stage[group[0]], group[0]))


def _emit_segments(
    variant: Variant,
    once: Sequence[int],
    parts: Sequence[Sequence[int]],
    sums: Mapping[int, OperandSum],
    refused: Collection[int],
) -> Tuple[Tuple[Segment, ...], Tuple[Tuple[Terms, ...], ...], Tuple[Source, ...]]:
    """Return segments, sources and heads of a cut; parts with a `refused` operator do not merge.

    The operators that run `once`, if there are any, are the first segment.
    """
    parts = [once, *parts] if once else parts
    program, outputs = variant.typed.program, _outputs(variant, parts, sums)
    source_of = {(at, 0): (ARGUMENT, i) for at, i in program.argument_at.items()}
    source_of.update((ref, (p, k)) for p, refs in enumerate(outputs) for k, ref in enumerate(refs))
    segments, sources = [], []
    for part, refs in zip(parts, outputs):
        layout, reason = variant.layout, ""
        if part is once:
            layout = ONCE
        elif any(i in refused for i in part):
            reasons = [variant.refused[i] for i in part if i in variant.refused]
            layout, reason = "unbatched", "; ".join(dict.fromkeys(reasons)) or variant.reason
        normal = NormalForm(variant, set(part), layout, sums, source_of)
        segments.append(intern(normal.segment(refs, reason)))
        sources.append(tuple(normal.sources))
    heads = tuple(source_of[ref] for ref in program.heads)
    return tuple(segments), tuple(sources), heads


def _outputs(
    variant: Variant, parts: Sequence[Sequence[int]], sums: Mapping[int, OperandSum]
) -> List[List[Ref]]:
    """Return per segment the values that another segment reads, or that are results of the call."""
    program = variant.typed.program
    part_of = {i: p for p, part in enumerate(parts) for i in part}
    read: Set[Ref] = {ref for ref in program.heads if ref[0] in part_of}
    for i, refs in enumerate(_reads(program.ops, sums)):
        read.update(r for r in refs if r[0] in part_of and part_of.get(i) != part_of[r[0]])
    outputs: List[List[Ref]] = [[] for _ in parts]
    for ref in sorted(read):
        outputs[part_of[ref[0]]].append(ref)
    return outputs
