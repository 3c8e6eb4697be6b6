"""The two questions that can be asked of a call: how it merges in rows, and how in a stack.

A rows rule is enough: an operator that treats axis 0 as independent rows is stacked by folding the
new axis into axis 0 and unfolding it afterwards, as the batching rules of JAX do for operators that
carry a batch axis of their own (Bradbury et al., JAX: composable transformations of Python+NumPy
programs, 2018).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Callable, Tuple

from .build import Builder
from .operators import of
from .rule import Rule
from .site import Answer, Ref, Refusal, RefuseError, Rewrite, Site, require

MOST_DIMS = 6
"""Dimensions that oneDNN, which reshapes arrays for MXNet, has at most."""

#: The cells of a tree ask for the same operators again and again.
_remembered = lru_cache(maxsize=4096)


@_remembered
def rows(site: Site) -> Answer:
    """Say how to run a site once on the samples' arrays concatenated along axis 0.

    The site is the call of one sample.  The leading size of its batched arrays is taken as unknown:
    the rewrite is right for samples of any leading sizes, different ones in one launch included, if
    the call itself is possible with any, and has results of as many rows and of the same shapes but
    for that.  Who asks infers shapes for more rows to know that.
    """
    return _answer(site, False, _rows)


@_remembered
def stack(site: Site) -> Answer:
    """Say how to run a site once on the samples' arrays stacked along a new axis 0.

    The site is the call of one sample, whose shapes all samples have.
    """
    found = _answer(site, True, _direct)
    return _answer(site, True, _fold) if found == Refusal("") else found


def _answer(site: Site, stacked: bool, ask: Callable[[Rule, Builder], Tuple[Ref, ...]]) -> Answer:
    try:
        rule = _rule(site)
        build = Builder(site, stacked, rule.parameters)
        outputs = ask(rule, build)
    except RefuseError as refused:
        return Refusal(str(refused))
    return Rewrite(tuple(build.steps), outputs)


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


def _direct(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    site = build.site
    require(
        max(map(len, site.inputs + site.outputs)) < MOST_DIMS,
        f"With a batch axis, this {site.op} has more dimensions than MXNet can reshape.",
    )
    if rule.stack is None:
        raise RefuseError
    return rule.stack(site, build)


def _fold(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    site = build.site
    batched = tuple(k not in rule.parameters for k in range(len(site.inputs)))
    refs = tuple(
        build.reshape(ref, -1, *shape[1:]) if own else ref
        for ref, shape, own in zip(build.inputs(), site.inputs, batched)
    )
    inner = Builder(replace(site, batched=batched), False, rule.parameters, refs, build.steps)
    return build.restored(_rows(rule, inner))
