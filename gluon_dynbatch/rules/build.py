"""Appends the operators of a merged call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence, Tuple

from .site import Ref, Site, public_attrs, require

#: Appends an operator to a program, given its inputs and attributes, and returns its first output.
Append = Callable[[str, Sequence[Ref], Mapping[str, str]], Ref]


@dataclass(frozen=True)
class Builder:
    """Appends what runs once in the place of a site of many samples."""

    site: Site
    #: Whether it is for the stack layout (a new leading axis), not for rows (longer axis 0).
    stacked: bool
    #: Inputs that all samples share by their nature, and that are passed on as they are.
    parameters: Tuple[int, ...]
    #: The merged inputs of the site.
    refs: Tuple[Ref, ...]
    append: Append

    def add(self, op: str, *inputs: Ref, **attrs: object) -> Ref:
        """Append an operator and return its first output."""
        return self.append(op, inputs, {k: str(v) for k, v in attrs.items()})

    def call(self, *inputs: Ref, **changes: object) -> Tuple[Ref, ...]:
        """Append the site's own operator, some attributes changed, and return all its outputs."""
        row, _ = self.add(self.site.op, *inputs, **{**public_attrs(self.site.attrs), **changes})
        return tuple((row, k) for k in range(len(self.site.outputs)))

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

    def reduced(self, **changes: object) -> Tuple[Ref, ...]:
        """As `same`, where MXNet returns one number of a sample in an array of one axis."""
        outputs = self.same(**changes)
        return self.restored(outputs) if self.stacked and (1,) in self.site.outputs else outputs


Handler = Callable[[Site, Builder], Tuple[Ref, ...]]


def same(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator as it is: the rule of most operators."""
    return build.same()


def call(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator on its inputs as they are, shared ones too."""
    return build.call(*build.refs)
