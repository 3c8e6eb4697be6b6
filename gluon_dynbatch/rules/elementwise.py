"""Operators that look at one element (and its partners under broadcasting) at a time."""

from __future__ import annotations

from typing import Hashable, Iterable, Tuple

from .builder import Builder, padded
from .site import Ref, Shape, Site, UseRowsError, flag, integers, refuse_unless, words
from .table import rows_rule, stack_rule

UNARY = words(
    "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees erf erfinv exp "
    "expm1 fix floor gamma gammaln log log10 log1p log2 logical_not negative radians rcbrt "
    "reciprocal relu rint round rsqrt sigmoid sign sin sinh softsign sqrt square tan tanh trunc "
    "Activation BlockGrad Cast _contrib_gradientmultiplier _contrib_quadratic _contrib_round_ste "
    "_contrib_sign_ste _copy amp_cast clip hard_sigmoid ones_like smooth_l1 zeros_like"
)
SCALAR = frozenset(
    f"_{name}_scalar"
    for name in words(
        "div equal greater greater_equal hypot lesser lesser_equal logical_and logical_or "
        "logical_xor maximum minimum minus mod mul not_equal plus power rdiv rminus rmod rpower"
    )
)
_DISTRIBUTIONS = words(
    "exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform"
)
RANDOM_LIKE = frozenset(f"_random_{name}_like" for name in _DISTRIBUTIONS)
SAMPLE = frozenset(f"_sample_{name}" for name in _DISTRIBUTIONS)
DENSITY = frozenset(f"_random_pdf_{name}" for name in (*_DISTRIBUTIONS, "dirichlet"))
_BROADCAST = words(
    "equal greater greater_equal hypot lesser lesser_equal logical_and logical_or logical_xor "
    "maximum minimum mod not_equal power"
)
ELEMWISE = {
    **{f"elemwise_{name}": f"broadcast_{name}" for name in ("add", "sub", "mul", "div")},
    **{f"_{name}": f"broadcast_{name}" for name in _BROADCAST},
}
"""Operators on two equal shapes, with the one that also takes a shared operand."""
BROADCAST = frozenset(ELEMWISE.values())

MAX_GROUPS = 5
"""MXNet's broadcasting and reducing kernels know at most this many groups of axes."""


def axis_groups(kinds: Iterable[Hashable]) -> int:
    """Count runs of equal kinds: MXNet joins neighbouring axes that are treated alike."""
    groups, last = 0, None
    for kind in kinds:
        groups += kind != last
        last = kind
    return groups


def check_groups(site: Site, kinds: Iterable[Hashable]) -> None:
    """Refuse if the merged call had more groups of axes than MXNet's kernels take."""
    refuse_unless(
        axis_groups(kinds) <= MAX_GROUPS,
        f"With a batch axis, operator {site.op} has more dimensions than MXNet supports.",
    )


def shared_row(site: Site, index: int, ndim: int) -> None:
    """Refuse if the shared input reaches axis 0 with more than one row."""
    shape = site.inputs[index]
    refuse_unless(
        len(shape) < ndim or shape[0] == 1,
        f"Operator {site.op} pairs rows of a shared array of shape {shape} with a sample's rows.",
    )


@rows_rule(*UNARY, *SCALAR, *RANDOM_LIKE)
@stack_rule(*UNARY, *SCALAR, *RANDOM_LIKE)
def _unary(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs)


@rows_rule("MakeLoss", "make_loss")
@stack_rule("MakeLoss", "make_loss")
def _loss(site: Site, build: Builder) -> Tuple[Ref, ...]:
    normalization = site.attrs.get("normalization", "null")
    refuse_unless(
        not site.training and normalization == "null",
        f"Operator {site.op} sets its own gradient for the whole array, wanted or not; leave it "
        "out, or return the loss as Gluon's losses do.",
    )
    return build.call(*build.refs)


@rows_rule(*BROADCAST, *ELEMWISE)
def _binary_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if all(site.batched):
        refuse_unless(
            len(site.inputs[0]) == len(site.inputs[1]),
            f"Operator {site.op} aligns the rows of one operand with another axis of the other.",
        )
        return build.call(*build.refs)
    ndim = len(site.outputs[0])
    own = site.batched.index(True)
    refuse_unless(
        len(site.inputs[own]) == ndim,
        f"The shared operand of {site.op} has more dimensions than a sample's.",
    )
    shared_row(site, 1 - own, ndim)
    return (build.add(ELEMWISE.get(site.op, site.op), *build.refs),)


def _pair_kinds(left: Shape, right: Shape) -> Iterable[Tuple[bool, bool]]:
    return ((a == 1, b == 1) for a, b in zip(left, right) if a != 1 or b != 1)


@stack_rule(*BROADCAST, *ELEMWISE)
def _binary_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if all(site.batched) and site.inputs[0] == site.inputs[1]:
        return build.call(*build.refs)
    ndim = len(site.outputs[0])
    refs = list(build.refs)
    full = []
    for index, shape in enumerate(site.inputs):
        # N stands for any number that is not 1: axes are joined by what broadcasts, not by size.
        full.append((2 if site.batched[index] else 1, *padded(shape, ndim)))
        if site.batched[index] and len(shape) < ndim:
            refs[index] = build.reshape(refs[index], -1, *padded(shape, ndim))
    check_groups(site, _pair_kinds(full[0], full[1]))
    return (build.add(ELEMWISE.get(site.op, site.op), *refs),)


def _sum_of(build: Builder, batched: bool) -> Ref:
    refs = [ref for ref, own in zip(build.refs, build.site.batched) if own == batched]
    return refs[0] if len(refs) == 1 else build.add("add_n", *refs, num_args=len(refs))


@rows_rule("add_n")
@stack_rule("add_n")
def _add_n(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if all(site.batched):
        return build.call(*build.refs)
    for index, own in enumerate(site.batched):
        if not own and not build.stacked:
            shared_row(site, index, len(site.outputs[0]))
    return (build.add("broadcast_add", _sum_of(build, True), _sum_of(build, False)),)


@rows_rule("amp_multicast")
@stack_rule("amp_multicast")
def _amp_multicast(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.spread_all())


@rows_rule("where")
def _where(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.spread_all())


@stack_rule("where")
def _where_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if site.inputs[0] != site.inputs[1]:
        raise UseRowsError("a condition for each row")
    return build.call(*build.spread_all())


@rows_rule("LeakyReLU")
@stack_rule("LeakyReLU")
def _leaky_relu(site: Site, build: Builder) -> Tuple[Ref, ...]:
    act_type = site.attrs.get("act_type", "leaky")
    refuse_unless(act_type != "rrelu", "LeakyReLU with random slopes (rrelu) has no batching rule.")
    return _prelu(site, build) if act_type == "prelu" else build.call(*build.refs)


def _prelu(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Write prelu as ``relu(x) + slope * min(x, 0)``.

    MXNet 1.9.1 computes the slopes' gradient after it has overwritten the head gradient if the two
    share memory, which they do inside a symbol.  The sum does not have that fault.
    """
    data, slope = site.inputs
    aligned = slope
    if len(slope) < len(data):
        # A vector of slopes lies along axis 1.
        aligned = (1, slope[0]) + (1,) * (len(data) - 2)
    if not build.stacked:
        refuse_unless(
            site.batched[0] and (aligned == slope if site.batched[1] else aligned[0] == 1),
            "The slopes of this LeakyReLU are not laid out by rows.",
        )
    refs = list(build.refs)
    if build.stacked:
        refs[0] = refs[0] if site.batched[0] else build.add("expand_dims", refs[0], axis=0)
        refs[1] = build.reshape(refs[1], -1 if site.batched[1] else 1, *aligned)
    elif aligned != slope:
        refs[1] = build.reshape(refs[1], *aligned)
    below = build.add("broadcast_mul", build.add("_minimum_scalar", refs[0], scalar=0), refs[1])
    return (build.add("broadcast_add", build.add("relu", refs[0]), below),)


@rows_rule("Dropout")
def _dropout(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        0 not in integers(site, "axes"), "This Dropout uses one mask for all rows: axes contains 0."
    )
    return build.call(*build.refs)


@stack_rule("Dropout")
def _dropout_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.call(*build.refs, axes=tuple(axis + 1 for axis in integers(site, "axes")))


@rows_rule(*SAMPLE)
@stack_rule(*SAMPLE)
def _sample(site: Site, build: Builder) -> Tuple[Ref, ...]:
    outputs = build.call(*build.spread_all())
    return build.restored(outputs) if build.stacked else outputs


@rows_rule("_sample_multinomial")
def _multinomial(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        len(site.inputs[0]) == 2, "Axis 0 of this sample_multinomial is the distribution."
    )
    _no_probability(site)
    return build.call(*build.refs)


def _no_probability(site: Site) -> None:
    refuse_unless(
        not flag(site, "get_prob"), "sample_multinomial with get_prob=True has no batching rule."
    )


@stack_rule("_sample_multinomial")
def _multinomial_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _no_probability(site)
    if len(site.inputs[0]) > 1:
        raise UseRowsError("a distribution for each row")
    return build.restored(build.call(*build.refs))


@rows_rule(*DENSITY)
def _density(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(
        site.op != "_random_pdf_dirichlet" or len(site.inputs[1]) > 1,
        "Axis 0 of the parameter of this random_pdf_dirichlet is the distribution.",
    )
    return build.call(*build.spread_all())
