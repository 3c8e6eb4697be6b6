"""Sums of a list by Python's ``sum`` as ``add_n``, at which calls are cut.

``sum(arrays)`` is ``0 + arrays[0] + arrays[1] + ...``: it begins with the number, also if there is
one array.  What does not begin with it may be any other sum, such as that of a product and a bias.
"""

from __future__ import annotations

from collections import Counter
from typing import Collection, Dict, List, Sequence, Tuple

from ..rules.site import Ref
from .program import CallProgram, read_program
from .symbols import Op, make_symbol


def join_sums(
    ops: Sequence[Op], heads: Sequence[Ref], additions: Collection[int]
) -> Tuple[Op, ...]:
    """Return operators with an ``add_n`` for each sum of a list; what it replaces is not read.

    `additions` are the positions of operators that add two arrays of one shape.  Terms come from
    operators of one name, or are all arguments: ``sum(arrays) + dense(x)`` is no longer sum.
    """
    readers = Counter([*heads, *(ref for op in ops for ref in op.inputs)])
    #: The terms of each sum, by the position of its last addition.
    sums: Dict[int, List[Ref]] = {}
    for position, op in enumerate(ops):
        if op.op == "_plus_scalar" and float(op.attrs.get("scalar", "0")) == 0:
            sums[position] = [op.inputs[0]]
        elif position in additions:
            before, term = op.inputs
            alike = before[0] in sums and ops[sums[before[0]][0][0]].op == ops[term[0]].op
            if alike and readers[before] == 1:
                sums[position] = [*sums.pop(before[0]), term]
    joined = list(ops)
    for position, terms in sums.items():
        attrs = {"num_args": str(len(terms))}
        joined[position] = Op("add_n", ops[position].name, attrs, tuple(terms), {})
    return tuple(joined)


def with_sums(program: CallProgram) -> CallProgram:
    """Return a program of ``mx.nd`` with an ``add_n`` for each sum of a list."""
    if not any(op.op == "_plus_scalar" for op in program.ops):
        return program
    # Other additions take arrays of several shapes.
    additions = [position for position, op in enumerate(program.ops) if op.op == "elemwise_add"]
    ops = join_sums(program.ops, program.heads, additions)
    return program if ops == program.ops else with_operators(program, ops, program.heads)


def with_operators(program: CallProgram, ops: Sequence[Op], heads: Sequence[Ref]) -> CallProgram:
    """Return a program that does with other operators what `program` does; equal ones are one."""
    key = repr((ops, heads))
    found = program.translations.get(key)
    if found is None:
        parameters = {p.name: p for p in program.parameters.values()}
        symbol, names = make_symbol(ops, heads), program.names
        found = read_program(symbol, names, parameters, program.out_spec, program.numpy)
        program.translations[key] = found
    return found
