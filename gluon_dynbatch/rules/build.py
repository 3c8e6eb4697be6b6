"""Composes the steps of a rewrite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, List, Sequence, Tuple

from .site import INPUT, Ref, Site, Step, public_attrs, require


@dataclass
class Builder:
    """Collects the steps that replace one site."""

    site: Site
    #: Whether it is for the stack layout (a new leading axis), not for rows (longer axis 0).
    stacked: bool
    #: Inputs that all samples share by their nature, and that are passed on as they are.
    parameters: Tuple[int, ...]
    #: Where the site's inputs are found; by default they are the rewrite's own inputs.
    refs: Tuple[Ref, ...] = ()
    steps: List[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refs = self.refs or tuple((INPUT, i) for i in range(len(self.site.inputs)))

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
        """Return input `index`; in the stack layout a shared one is repeated for every sample."""
        ref = self.refs[index]
        if self.site.batched[index] or index in self.parameters:
            return ref
        require(
            self.stacked, f"Operator {self.site.op} pairs rows of a shared array with the samples'."
        )
        ref = self.add("expand_dims", ref, axis=0)
        return self.add("broadcast_like", ref, self.like, lhs_axes=(0,), rhs_axes=(0,))

    def inputs(self) -> Tuple[Ref, ...]:
        """Return all inputs; those that samples only happen to share are repeated."""
        return tuple(self.spread(i) for i in range(len(self.site.inputs)))

    def same(self, **changes: object) -> Tuple[Ref, ...]:
        """Append the site's own operator on all inputs, some attributes changed."""
        return self.call(*self.inputs(), **changes)


Handler = Callable[[Site, Builder], Tuple[Ref, ...]]


def same(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator as it is: the rule of most operators."""
    return build.same()


def call(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator on its inputs as they are, shared ones too."""
    return build.call(*build.refs)
