"""Apply the rule of an operator to a call: merge it in rows or in a stack, or say why not.

An operator with a rows rule needs no stack rule.  If it treats the rows of axis 0 independently,
the new axis of a stack can be folded into axis 0 and unfolded afterwards.  The batching rules of
JAX do the same for operators that have a batch axis themselves (Bradbury et al., JAX: composable
transformations of Python+NumPy programs, 2018).
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
"""Most dimensions of an array in oneDNN, which reshapes arrays for MXNet."""


def merge(site: Site, stacked: bool, inputs: Sequence[Ref], append: Append) -> Tuple[Ref, ...]:
    """Append the operators that run a site once for many samples, and return their outputs.

    The site is the call of one sample.  In the stack layout, all samples have its shapes.  In rows,
    the leading sizes of batched arrays are unknown and may differ within a launch.  The appended
    operators are right for any of them, provided that the call accepts any number of rows and
    returns as many, with the other axes unchanged.  The caller checks this by shape inference.

    Raises `RefuseError` with a sentence for the user: why the call has to run sample by sample.
    """
    rule = _rule(site)
    build = Builder(site, stacked, rule.parameters, tuple(inputs), append)
    if not stacked:
        return _rows(rule, build)
    require(
        max(map(len, site.inputs + site.outputs)) < MOST_DIMS,
        f"With a batch axis, this {site.called} has more dimensions than MXNet can reshape.",
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
    """Return why `merge` refuses a site; empty if it does not.

    Cached, because many cells contain equal calls.
    """
    inputs = [(k, 0) for k in range(len(site.inputs))]
    try:
        merge(site, stacked, inputs, lambda op, inputs, attrs: (0, 0))
    except RefuseError as refused:
        return str(refused)
    return ""


def _rule(site: Site) -> Rule:
    """Return the rule of a site's operator; refuse sites that it excludes in both layouts."""
    op, rule = site.called, of(site.op)
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
        not any(batched for k, batched in enumerate(site.batched) if k in rule.parameters),
        f"Each call of {op} has {rule.called} of its own; those that share them merge.",
    )
    name, _, refused = rule.not_with.partition("=")
    value = site.attrs.get(name, "")
    require(
        not refused or value != refused and (value, refused) != ("1", "True"),
        f"Operator {op} with {name}={value} has no batching rule.",
    )
    return rule


def _rows(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    """Apply the rows rule."""
    site = build.site
    if rule.rows is None:
        raise RefuseError(f"Operator {site.called} does not work row by row.")
    leading = {shape[0] for shape, batched in zip(site.inputs, site.batched) if batched}
    leading.update(shape[0] for shape in site.outputs)
    require(
        len(leading) == 1,
        f"The inputs and outputs of this {site.called} do not have the same number of rows.",
    )
    site.keep_rows(len(site.inputs[0]) >= rule.row_dims)
    return rule.rows(site, build)


def _fold(rule: Rule, build: Builder) -> Tuple[Ref, ...]:
    """Fold the stack into rows, apply the rows rule, and unfold its outputs."""
    site = build.site
    have_rows = tuple(k not in rule.parameters for k in range(len(site.inputs)))
    refs = tuple(
        build.reshape(ref, -1, *shape[1:]) if has_rows else ref
        for ref, shape, has_rows in zip(build.inputs(), site.inputs, have_rows)
    )
    in_rows = replace(build, site=replace(site, batched=have_rows), stacked=False, refs=refs)
    return build.unfold(_rows(rule, in_rows))
