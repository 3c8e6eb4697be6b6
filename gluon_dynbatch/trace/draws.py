"""Random arrays of a given shape: each call of a block draws its own, so that calls can merge.

MXNet's operators for them read no array, so nothing tells the calls apart.  They become operators
that draw for each element of an array: of zeros, which are made from the arguments.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Dict, Optional, Sequence, Tuple

from .. import rules
from ..rules.site import Ref
from .symbols import VARIABLE, Op, SymbolBuilder, make_symbol, read_symbol

#: Attributes that the operators for a given shape have, and those for an array do not.
GIVEN_ATTRS = frozenset(["shape", "ctx", "dtype"])


def with_draws_per_call(symbol: Any, names: Sequence[str]) -> Any:
    """Return a symbol that draws for each call; itself if it draws nothing of a given shape.

    `names` are those of the arguments of a call.
    """
    ops, heads = read_symbol(symbol)
    arguments = [i for i, op in enumerate(ops) if op.op == VARIABLE and op.name in names]
    if not arguments or not any(map(_shape_of, ops)):
        return symbol
    build = SymbolBuilder("draw_")
    #: By position in `ops`, that in the new symbol.
    index: Dict[int, int] = {}
    others = (i for i in range(len(ops)) if i not in arguments)
    zeros: Dict[str, Ref] = {}
    for old in (*arguments, *others):
        op, shape = ops[old], _shape_of(ops[old])
        if shape is None:
            moved = op._replace(inputs=tuple((index[i], out) for i, out in op.inputs))
        else:
            dtype = op.attrs.get("dtype", "None").replace("None", "float32")
            if dtype not in zeros:
                zeros[dtype] = _zero(build, range(len(arguments)), dtype)
            moved = _draw_like(build, op, zeros[dtype], shape)
        index[old] = len(build.ops)
        build.ops.append(moved)
    return make_symbol(build.ops, [(index[i], out) for i, out in heads])


def _shape_of(op: Op) -> Optional[Tuple[int, ...]]:
    """Return the shape of an operator that draws an array of it, if one draws it for an array."""
    draws = op.op.startswith("_random_") and f"{op.op}_like" in rules.TABLE
    if not draws or "ctx" in op.attrs:
        return None
    shape = rules.Site(op.op, op.attrs, (), (), (), False).integers("shape") or (1,)
    return shape if all(extent > 0 for extent in shape) else None


def _zero(build: SymbolBuilder, arguments: Sequence[int], dtype: str) -> Ref:
    """Add a zero of shape (1,), to which each argument contributes."""
    terms = []
    for position in arguments:
        # Not the sum of the argument itself, which may hold integers or not be finite.
        blank = build.add("zeros_like", [(position, 0)])
        terms.append(build.add("sum", [build.add("Cast", [blank], {"dtype": dtype})]))
    # Not by `add_n`, at which calls are cut.
    total = reduce(lambda one, other: build.add("elemwise_add", [one, other]), terms)
    return build.add("BlockGrad", [total])


def _draw_like(build: SymbolBuilder, op: Op, zero: Ref, shape: Tuple[int, ...]) -> Op:
    """Add an array of a shape; return the operator that draws for each of its elements."""
    ones = build.add("Reshape", [zero], {"shape": str((1,) * len(shape))})
    array = build.add("broadcast_to", [ones], {"shape": str(shape)})
    attrs = {name: value for name, value in op.attrs.items() if name not in GIVEN_ATTRS}
    return Op(f"{op.op}_like", op.name, attrs, (array,), {})
