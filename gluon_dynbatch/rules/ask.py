"""How a call merges in rows or in a stack, or why it does not.

A rows rule is enough: an operator that treats axis 0 as independent rows is stacked by folding the
new axis into axis 0 and unfolding it afterwards, as the batching rules of JAX do for operators that
carry a batch axis of their own (Bradbury et al., JAX: composable transformations of Python+NumPy
programs, 2018).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Sequence, Tuple

from .build import Append, Builder
from .operators import of
from .rule import Rule
from .site import Ref, RefuseError, Site, require

MOST_DIMS = 6
"""Dimensions that oneDNN, which reshapes arrays for MXNet, has at most."""


def merge(site: Site, stacked: bool, inputs: Sequence[Ref], append: Append) -> Tuple[Ref, ...]:
    """Append what runs a site once for many samples, and return its outputs.

    The site is the call of one sample.  In the stack layout, all samples have its shapes.  In rows,
    the leading size of its batched arrays is taken as unknown: what is appended is right for
    samples of any leading sizes, different ones in one launch included, if the call itself is
    possible with any, and has results of as many rows and of the same shapes but for that.  Who
    asks infers shapes for more rows to know that.

    Raises
    ------
    RefuseError
        With the reason why it has to run sample by sample, as a sentence for the user.
    """
    rule = _rule(site)
    build = Builder(site, stacked, rule.parameters, tuple(inputs), append)
    if not stacked:
        return _rows(rule, build)
    require(
        max(map(len, site.inputs + site.outputs)) < MOST_DIMS,
        f"With a batch axis, this {site.op} has more dimensions than MXNet can reshape.",
    )
    try:
        if rule.stack is not None:
            return rule.stack(site, build)
    except RefuseError as refused:
        if str(refused):
            raise
    return _fold(rule, build)


@lru_cache(maxsize=4096)
def why_not(site: Site, stacked: bool) -> str:
    """Say why `merge` refuses a site, or nothing if it does not.

    The cells of a tree ask for the same operators again and again.
    """
    inputs = [(k, 0) for k in range(len(site.inputs))]
    try:
        merge(site, stacked, inputs, lambda op, inputs, attrs: (0, 0))
    except RefuseError as refused:
        return str(refused)
    return ""


def _rule(site: Site) -> Rule:
    """Return the rule of a site's operator, unless that says that the site never merges."""
    op, rule = site.op, of(site.op)
    require(not rule.reason, f"Operator {op} can't be merged: {rule.reason}.")
    require(
        rule.merges, f"There is no batching rule for operator {op}, so its calls run one by one."
    )
    require(any(site.batched), f"All inputs of this {op} are shared.")
    require(
        all(shape and min(shape) > 0 for shape in site.inputs + site.outputs),
        f"Operator {op} has an input or output whose shape is empty or unknown.",
    )
    require(
        not any(own for k, own in enumerate(site.batched) if k in rule.parameters),
        f"Every sample has {rule.called} of its own for this {op}.",
    )
    name, _, value = rule.not_with.partition("=")
    given = site.attrs.get(name, "")
    require(
        not value or given != value and (given, value) != ("1", "True"),
        f"Operator {op} with {name}={given} has no batching rule.",
    )
    return rule


def _rows(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    site = build.site
    if rule.rows is None:
        raise RefuseError(f"Operator {site.op} does not work row by row.")
    leading = {shape[0] for shape, own in zip(site.inputs, site.batched) if own}
    leading.update(shape[0] for shape in site.outputs)
    require(
        len(leading) == 1,
        f"The inputs and outputs of this {site.op} do not have the same number of rows.",
    )
    site.keep_rows(len(site.inputs[0]) >= rule.row_dims)
    return rule.rows(site, build)


def _fold(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    site = build.site
    batched = tuple(k not in rule.parameters for k in range(len(site.inputs)))
    refs = tuple(
        build.reshape(ref, -1, *shape[1:]) if own else ref
        for ref, shape, own in zip(build.inputs(), site.inputs, batched)
    )
    inner = replace(build, site=replace(site, batched=batched), stacked=False, refs=refs)
    return build.restored(_rows(rule, inner))
