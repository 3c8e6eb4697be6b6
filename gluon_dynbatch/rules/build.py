"""Append the operators of a merged call to a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence, Tuple

from .site import Ref, Site, public_attrs, require

#: A function that appends an operator, given name, inputs and attributes, and returns output 0.
Append = Callable[[str, Sequence[Ref], Mapping[str, str]], Ref]


@dataclass(frozen=True)
class Builder:
    """Appends the operators that run a site once for many samples."""

    site: Site
    #: True for the stack layout (a new leading axis), False for rows (a longer axis 0).
    stacked: bool
    #: Inputs that all samples must share, and that need no batch axis.
    parameters: Tuple[int, ...]
    #: The merged inputs of the site.
    refs: Tuple[Ref, ...]
    append: Append

    def add(self, op: str, *inputs: Ref, **attrs: object) -> Ref:
        """Append an operator and return its first output."""
        return self.append(op, inputs, {k: str(v) for k, v in attrs.items()})

    def call(self, *inputs: Ref, **changes: object) -> Tuple[Ref, ...]:
        """Append the site's operator with some attributes changed, and return all its outputs."""
        attrs = {**public_attrs(self.site.attrs), **changes}
        position, _ = self.add(self.site.op, *inputs, **attrs)
        return tuple((position, k) for k in range(len(self.site.outputs)))

    def reshape(self, ref: Ref, *shape: int) -> Ref:
        """Append a reshape."""
        return self.add("Reshape", ref, shape=shape)

    def unfold(self, refs: Sequence[Ref]) -> Tuple[Ref, ...]:
        """Reshape every output to its stacked shape: N, followed by the shape of one sample."""
        pairs = zip(refs, self.site.outputs)
        return tuple(self.reshape(ref, -1, *shape) for ref, shape in pairs)

    def broadcast(self, ref: Ref) -> Ref:
        """Broadcast axis 0, of size 1, to all samples."""
        batched = self.refs[self.site.batched.index(True)]
        return self.add("broadcast_like", ref, batched, lhs_axes=(0,), rhs_axes=(0,))

    def batched_input(self, index: int) -> Ref:
        """Return an input; broadcast it to all samples if it is shared and not a parameter."""
        ref = self.refs[index]
        if self.site.batched[index] or index in self.parameters:
            return ref
        require(
            self.stacked,
            f"Operator {self.site.called} pairs the rows of a shared array with those of the "
            "samples.",
        )
        return self.broadcast(self.add("expand_dims", ref, axis=0))

    def inputs(self) -> Tuple[Ref, ...]:
        """Return all inputs as `batched_input` does."""
        return tuple(self.batched_input(index) for index in range(len(self.site.inputs)))

    def same(self, **changes: object) -> Tuple[Ref, ...]:
        """Append the site's operator on all inputs, with some attributes changed."""
        return self.call(*self.inputs(), **changes)

    def same_with_scalars(self, **changes: object) -> Tuple[Ref, ...]:
        """Do as `same`, but return one number per sample as (N, 1); MXNet returns it as (N,)."""
        outputs = self.same(**changes)
        return self.unfold(outputs) if self.stacked and (1,) in self.site.outputs else outputs


Handler = Callable[[Site, Builder], Tuple[Ref, ...]]


def same(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator unchanged."""
    return build.same()


def as_called(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Repeat the operator unchanged, without broadcasting shared inputs."""
    return build.call(*build.refs)
