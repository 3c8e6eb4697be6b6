"""Write operators.md, the page of all operators, from the batching rules.

Run ``python docs/list_operators.py`` after a change of a rule; a test fails if the page is stale.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Iterable, List, Sequence, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call

from gluon_dynbatch.kernel.operators import NATIVE
from gluon_dynbatch.rules import CREATION, MERGED, UNSUPPORTED, Family, of
from gluon_dynbatch.rules.numpy import TRANSLATED
from gluon_dynbatch.rules.rule import Rule
from gluon_dynbatch.rules.spelling import SIGNS, written

PAGE = Path(__file__).with_name("operators.md")
REPLACED = frozenset(["_contrib_BatchNormWithReLU", "argmax_channel", "batch_take", "reshape_like"])
"""Operators that merge as others, which have native steps."""
COMMON = 8
"""Number of families of `UNSUPPORTED` that the summary lists."""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(op: str, rule: Rule, family: Family) -> Tuple[str, ...]:
    """Return the row of an operator that merges."""
    runs = "native steps" if op in NATIVE else "as another" if op in REPLACED else "MXNet"
    layout = "equal shapes" if rule.rows is None else "any rows"
    return _written(op), layout, runs, _condition(op, family)


def _condition(op: str, family: Family) -> str:
    """Return the condition of a family, without what is said of its other operators."""
    names = {each: written(each).rpartition(".")[2] for each in family.rules}
    others = set(names.values()) - {names[op]}

    def concerns(clause: str) -> bool:
        about = re.match(r"(?:not )?`(\w+)`", clause)
        return about is None or about[1] not in others

    return "; ".join(filter(concerns, family.text.split("; ")))


def _written(op: str) -> str:
    """Return the name of an operator as code, with the sign that stands for it, if any."""
    for pattern, form in (
        ("_r{}_scalar", "`1 {} x`"),
        ("_{}_scalar", "`x {} 1`"),
        ("elemwise_{}", "`{op}`, `x {} y`"),
        ("broadcast_{}", "`{op}`, `x {} y`"),
    ):
        for word, sign in SIGNS.items():
            if op == pattern.format(word):
                return form.format(sign, op=op)
    number = re.match(r"_(?!npi_)\w+_scalar$", op)
    return f"`{written(op)}{'(x, 1)' * bool(number)}`"


def _sorted(rows: Iterable[Tuple[str, ...]]) -> List[Tuple[str, ...]]:
    return sorted(set(rows), key=lambda row: (row[0].strip("`_").lower(), row))


def summary() -> str:
    """Return a short table of the families of operators, and whether they merge."""
    rows = [(family.name, "yes", family.text) for family in MERGED]
    common = [family.name for family in UNSUPPORTED[:COMMON]] + ["and rarer ones"]
    rows.append((", ".join(common), "no", "the report gives the reason"))
    return _table(("operators", "merged", "if, or why not"), rows) + "\n"


def reference() -> str:
    """Return the page of all operators, ``docs/operators.md``."""
    merged = [_row(op, rule, family) for family in MERGED for op, rule in family.rules.items()]
    unsupported = [(_written(op), family.text) for family in UNSUPPORTED for op in family.rules]
    creation = ", ".join(sorted({_written(op) for op in CREATION.rules}))
    return _PAGE.format(
        summary=summary(),
        merged=_table(("operator", "merges with", "run by", "condition"), _sorted(merged)),
        creation=_table(("operators", "note"), [(creation, CREATION.text)]),
        unsupported=_table(("operator", "reason"), _sorted(unsupported)),
        numpy=numpy_table(),
    )


def numpy_table() -> str:
    """Return the table of the operators of ``mx.np`` and ``mx.npx``, by how they merge."""
    rows = []
    for name in filter(_of_numpy, mx.operator.get_all_registered_operators()):
        op = canonical_name(name)
        if "backward" in name:
            continue
        if op in TRANSLATED:
            merges = "as the operators of `mx.nd` that compute it"
        elif not _of_numpy(op):
            merges = f"as `{written(op)}`"
        elif of(op).merges or op in CREATION.rules:
            merges = "as above"
        else:
            merges = "never, see above"
        rows.append((f"`{name}`", merges))
    return _table(("operator", "merges"), _sorted(rows))


def _of_numpy(op: str) -> bool:
    return op.startswith(("_np_", "_npi_", "_npx_"))


def canonical_name(op: str) -> str:
    """Return the name of an operator of which another one may be an alias.

    Parameters
    ----------
    op : str
        Name of an operator.

    Returns
    -------
    str
        Its canonical name.

    Examples
    --------
    >>> canonical_name("_npx_softmax")
    'softmax'
    """
    handle, name = ctypes.c_void_p(), ctypes.c_char_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    check_call(_LIB.MXSymbolGetAtomicSymbolName(handle, ctypes.byref(name)))
    return (name.value or b"").decode()


_PAGE = """\
# Operators

This page lists every operator of MXNet 1.9.1 that models call, and whether calls of many samples
share a launch. Calls of other operators (steps of optimizers, backward passes) run one by one.
The operators of `mx.np` and `mx.npx` [are at the end](#numpy). `python docs/list_operators.py`
writes this page from the rules.

{summary}
## Merged

- `any rows`: the operator treats each row by itself, so samples share a launch even if their
  arrays differ in size along axis 0.
- `equal shapes`: arrays of equal shapes are stacked along a new axis. Each shape is then a part of
  one launch if native steps run it, or a launch of its own if MXNet's operator runs it.
- *Run by* says whether the operator has [native steps](#native-steps). An operator that runs
  `as another` is rewritten with operators that have native steps.

An array is *shared* if all samples use the same object. If a call does not meet the condition, it
runs by itself, and the report gives the reason.

{merged}

## Native steps

Operators with `native steps` in the table above have them for `float32` and `float64` on a CPU,
with few exceptions: `Pooling` has native steps only for whole maps (`global_pool`), `sort` and
`argsort` for up to 1,024 elements, and `topk` for up to 1,024 of any number, if they are at most an
eighth. For `int32` and `int64`, operators have native steps that move elements, choose them by
index, cast, compare, add, subtract or multiply.

MXNet's own operators run all other calls. These merge as well, but their launches are slower, and
arrays of each size need a launch of their own. If one operator of a cell has no native steps, MXNet
runs the whole cell; at granularity `"operator"`, only the part of the call with this operator.
`print(batch.plan)` gives the reason for each launch, and names the operator.

## One array for all samples

These operators read no array, so all samples use one result.

{creation}

Products of parameters and of arrays that all samples share, such as queries that are parameters
times a weight, run once per flush, at granularities `"block"` and `"operator"`. So do weights that
are computed of parameters: `F.dot(x, w + F.dot(a, b))`, or a weight that is normalized.

## Never merged

Calls of these operators run one by one, with the same results as in the loop. The report gives the
reason in this table.

{unsupported}

## NumPy

These are all operators behind `mx.np` and `mx.npx`, by their names in MXNet. Functions without an
operator in this table call several of these operators, or NumPy. Calls of `mx.np` and `mx.nd` that
do the same share rules, native steps and launches.

{numpy}
"""

def main() -> None:
    """Write the page."""
    # Others import this module from elsewhere.
    from programs import parser_of

    parser_of(__doc__).parse_args()
    PAGE.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
