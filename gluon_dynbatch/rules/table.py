"""The table of rules and the two questions that can be asked of it.

A rule is a function ``(site, builder) -> output refs`` that raises `RefuseError` to refuse (or, in
the stack layout, `UseRowsError` if the rows rule can do it).
`rows_rule` and `stack_rule` enter one for any number of operators.  A rows rule is enough: an
operator that treats axis 0 as independent rows is stacked by folding the new axis into axis 0 and
unfolding it afterwards, as the batching rules of JAX do for operators that carry a batch axis of
their own (Bradbury et al., JAX: composable transformations of Python+NumPy programs, 2018).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, NamedTuple, Optional, Tuple

from .apart import REFUSED, internal
from .builder import Builder
from .properties import OVERWRITES
from .site import Answer, Ref, Refusal, RefuseError, Site, UseRowsError, refuse_unless

Handler = Callable[[Site, Builder], Tuple[Ref, ...]]


class Rule(NamedTuple):
    """The two handlers of an operator; without `stack` the operator is folded."""

    rows: Optional[Handler] = None
    stack: Optional[Handler] = None


TABLE: Dict[str, Rule] = {}
"""Rules by canonical operator name.  Filled when the package is imported, read-only after that."""


MOST_DIMS = 6
"""Dimensions that oneDNN, which reshapes arrays for MXNet, has at most."""


def rows_rule(*ops: str) -> Callable[[Handler], Handler]:
    """Enter a handler for the rows layout."""

    def enter(handler: Handler) -> Handler:
        for op in ops:
            assert TABLE.get(op, Rule()).rows is None, f"{op} has two rows rules"
            TABLE[op] = TABLE.get(op, Rule())._replace(rows=handler)
        return handler

    return enter


def stack_rule(*ops: str) -> Callable[[Handler], Handler]:
    """Enter a handler for the stack layout."""

    def enter(handler: Handler) -> Handler:
        for op in ops:
            assert TABLE.get(op, Rule()).stack is None, f"{op} has two stack rules"
            TABLE[op] = TABLE.get(op, Rule())._replace(stack=handler)
        return handler

    return enter


def rows(site: Site) -> Answer:
    """Say how to run a site once on the samples' arrays concatenated along axis 0.

    Parameters
    ----------
    site : Site
        The call of one sample.  The leading size of its batched arrays is taken as unknown: the
        rewrite is right for samples of any leading sizes, different ones in one launch included.

    Returns
    -------
    Rewrite or Refusal
    """
    try:
        rule = _rule(site)
        builder = Builder(site, stacked=False)
        return builder.finish(_rows_outputs(rule, site, builder))
    except RefuseError as refused:
        return Refusal(str(refused))


def stack(site: Site) -> Answer:
    """Say how to run a site once on the samples' arrays stacked along a new axis 0.

    Parameters
    ----------
    site : Site
        The call of one sample, whose shapes all samples have.

    Returns
    -------
    Rewrite or Refusal
    """
    try:
        rule = _rule(site)
        refuse_unless(
            max(map(len, site.inputs + site.outputs)) < MOST_DIMS,
            f"With a batch axis, this {site.op} has more dimensions than MXNet can reshape.",
        )
    except RefuseError as refused:
        return Refusal(str(refused))
    attempts = [_direct, _fold, _fold_spread] if rule.stack is not None else [_fold, _fold_spread]
    reason = ""
    for attempt in attempts:
        builder = Builder(site, stacked=True)
        try:
            return builder.finish(attempt(rule, site, builder))
        except RefuseError as refused:
            if not isinstance(refused, UseRowsError):
                reason = reason or str(refused)
    return Refusal(reason)


def adds_up(op: str) -> bool:
    """Say whether MXNet can add an operator's gradients to what is in the arrays for them.

    Parameters
    ----------
    op : str
        Canonical operator name.

    Returns
    -------
    bool
        False for what the table does not have: nobody has looked.
    """
    return op in TABLE and op not in OVERWRITES


def _rule(site: Site) -> Rule:
    if site.op in REFUSED:
        raise RefuseError(f"Operator {site.op} can't be merged: {REFUSED[site.op]}.")
    part = None if site.op in TABLE else internal(site.op)
    if part is not None:
        raise RefuseError(f"Operator {site.op} can't be merged: {part.reason}.")
    if site.op not in TABLE:
        raise RefuseError(
            f"There is no batching rule for operator {site.op}, so its calls run one by one."
        )
    refuse_unless(any(site.batched), f"All inputs of this {site.op} are shared.")
    refuse_unless(
        all(shape and min(shape) > 0 for shape in site.inputs + site.outputs),
        f"Operator {site.op} has an input or output whose shape is empty or unknown.",
    )
    return TABLE[site.op]


def _rows_outputs(rule: Rule, site: Site, builder: Builder) -> Tuple[Ref, ...]:
    refuse_unless(rule.rows is not None, f"Operator {site.op} does not work row by row.")
    leading = {shape[0] for shape, own in zip(site.inputs, site.batched) if own}
    leading.update(shape[0] for shape in site.outputs)
    refuse_unless(
        len(leading) == 1,
        f"The inputs and outputs of this {site.op} do not have the same number of rows.",
    )
    assert rule.rows is not None
    return rule.rows(site, builder)


def _direct(rule: Rule, site: Site, builder: Builder) -> Tuple[Ref, ...]:
    assert rule.stack is not None
    return rule.stack(site, builder)


def _fold(rule: Rule, site: Site, builder: Builder) -> Tuple[Ref, ...]:
    refs = tuple(
        builder.reshape(ref, -1, *shape[1:]) if own else ref
        for ref, shape, own in zip(builder.refs, site.inputs, site.batched)
    )
    inner = Builder(site, stacked=False, refs=refs, steps=builder.steps)
    return builder.restored(_rows_outputs(rule, site, inner))


def _fold_spread(rule: Rule, site: Site, builder: Builder) -> Tuple[Ref, ...]:
    """Fold with a copy of every shared input per sample: dearer, and sometimes the only way."""
    spread = Builder(
        replace(site, batched=(True,) * len(site.inputs)), True, builder.spread_all(), builder.steps
    )
    return _fold(rule, spread.site, spread)
