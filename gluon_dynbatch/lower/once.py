"""Find what all calls have in common: products of parameters and shared arrays.

An operator that reads only these gives the same result for every call.  Most are repeated by each
segment that reads them, as a kernel computes elementwise functions of a parameter in its own loops.
But a product costs too much for each call, and a factor has to be an array in memory.  So products,
computed factors, and all that they are computed from or that depends only on them, are a segment
of their own in layout "once": its unit exists once per tape, and other segments share its results.
"""

from __future__ import annotations

from typing import List, Set

from .. import rules
from ..trace.symbols import VARIABLE, Op
from ..trace.variant import Variant

#: Operators that multiply matrices, and those whose other inputs are read in place by all calls.
PRODUCTS = frozenset(
    ["FullyConnected", "dot", "batch_dot", "_linalg_gemm", "_linalg_gemm2"]
    + ["Convolution", "Deconvolution", "_linalg_trmm", "_linalg_trsm", "_linalg_syrk"]
    + ["_linalg_potrf", "_linalg_potri", "_linalg_inverse", "_linalg_gelqf", "_linalg_syevd"]
)
TABLES = {"Embedding": 1, "take": 0}
#: Operators whose results are their first inputs in other shapes.
RESHAPES = frozenset(["Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like", "_copy"])


def find_once(variant: Variant) -> List[int]:
    """Return the operators that are computed once for all calls, in topological order."""
    ops, batched = variant.typed.program.ops, variant.batched
    common = [i for i, op in enumerate(ops) if op.op != VARIABLE and not batched[i]]
    factors = {r for i, op in enumerate(ops) if batched[i] for r in _factors(op)}
    #: Whether a value is an array in memory, depends on one, or depends on arrays that operators
    #: create: these may have other sizes in other calls.
    in_place = [op.op == VARIABLE for op in ops]
    stored, created = list(in_place), [False] * len(ops)
    chosen: Set[int] = set()
    for i in common:
        inputs = {r for r, _ in ops[i].inputs}
        in_place[i] = ops[i].op in RESHAPES and in_place[ops[i].inputs[0][0]]
        stored[i], created[i] = (any(known[r] for r in inputs) for known in (stored, created))
        created[i] |= not inputs
        is_factor = i in factors and stored[i] and not in_place[i]
        if is_factor or not created[i] and (ops[i].op in PRODUCTS or chosen & inputs):
            chosen.add(i)
    for i in reversed(common):
        if i in chosen:
            chosen.update(r for r, _ in ops[i].inputs if ops[r].op != VARIABLE)
    writes = any(rules.of(ops[i].op).writes for i in chosen)
    return [] if writes else sorted(chosen)


def _factors(op: Op) -> List[int]:
    """Return the inputs that have to be in memory if all calls share them."""
    if op.op in TABLES:
        return [op.inputs[TABLES[op.op]][0]]
    return [r for r, _ in op.inputs] if op.op in PRODUCTS else []
