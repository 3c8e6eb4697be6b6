"""Composes the steps of a rewrite."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from .site import INPUT, Ref, RefuseError, Rewrite, Shape, Site, Step, public_attrs


class Builder:
    """Collects the steps that replace one site.

    Parameters
    ----------
    site : Site
        The site that is rewritten.
    stacked : bool
        True in the stack layout (a new leading axis), False in the rows layout (longer axis 0).
    refs : sequence of Ref, optional
        Where the site's inputs are found; by default they are the rewrite's own inputs.
    steps : list of Step, optional
        Steps to append to.
    """

    def __init__(
        self,
        site: Site,
        stacked: bool,
        refs: Optional[Sequence[Ref]] = None,
        steps: Optional[List[Step]] = None,
    ) -> None:
        self.site = site
        self.stacked = stacked
        self.steps: List[Step] = [] if steps is None else steps
        own = [(INPUT, i) for i in range(len(site.inputs))]
        self.refs: Tuple[Ref, ...] = tuple(own if refs is None else refs)

    def add(self, op: str, *inputs: Ref, **attrs: object) -> Ref:
        """Append a step and return its first output."""
        self.steps.append(Step(op, {k: str(v) for k, v in attrs.items()}, inputs))
        return (len(self.steps) - 1, 0)

    def call(self, *inputs: Ref, **changes: object) -> Tuple[Ref, ...]:
        """Append the site's own operator, some attributes changed, and return all its outputs."""
        step, _ = self.add(self.site.op, *inputs, **{**public_attrs(self.site.attrs), **changes})
        return tuple((step, k) for k in range(len(self.site.outputs)))

    def reshape(self, ref: Ref, *shape: int) -> Ref:
        """Append a reshape."""
        return self.add("Reshape", ref, shape=shape)

    def restored(self, refs: Sequence[Ref]) -> Tuple[Ref, ...]:
        """Give every output its stacked shape, N in front of what one sample has."""
        pairs = zip(refs, self.site.outputs)
        return tuple(self.reshape(ref, -1, *shape) for ref, shape in pairs)

    @property
    def like(self) -> Ref:
        """An input from which the merged number of rows or samples can be read."""
        return self.refs[self.site.batched.index(True)]

    def spread(self, index: int) -> Ref:
        """Return input `index`; a shared one is repeated until every row or sample has its own.

        In the rows layout a shared array can only be repeated if its axis 0 has size 1: with any
        other size the samples' own call would pair its rows with theirs.
        """
        ref, shape = self.refs[index], self.site.inputs[index]
        if self.site.batched[index]:
            return ref
        if self.stacked:
            ref = self.add("expand_dims", ref, axis=0)
        elif shape[0] != 1:
            raise RefuseError(
                f"Operator {self.site.op} pairs rows of a shared array of shape {shape} with the "
                "rows of each sample."
            )
        return self.add("broadcast_like", ref, self.like, lhs_axes=(0,), rhs_axes=(0,))

    def folded(self, index: int) -> Ref:
        """Return input `index`, of every sample, with the samples of a stack joined to axis 0."""
        return self.reshape(self.spread(index), -1, *self.site.inputs[index][1:])

    def spread_all(self) -> Tuple[Ref, ...]:
        """Return all inputs, the shared ones repeated."""
        return tuple(self.spread(i) for i in range(len(self.site.inputs)))

    def finish(self, outputs: Sequence[Ref]) -> Rewrite:
        """Seal the rewrite."""
        return Rewrite(tuple(self.steps), tuple(outputs))


def padded(shape: Shape, ndim: int) -> Shape:
    """Put ones in front of `shape` until it has `ndim` dimensions."""
    return (1,) * (ndim - len(shape)) + shape
