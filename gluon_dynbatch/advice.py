"""What a user can do about what a report shows: texts for reports and for `explain`."""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, NamedTuple, Tuple

from .errors import Where
from .findings import Cause


class Kind(NamedTuple):
    """A kind of line that ends a batch early.

    Attributes
    ----------
    label : str
        Name of its row in a report.
    happens : str
        What happens, as the beginning of a sentence.
    remedy : str
        What to do instead.
    """

    label: str
    happens: str
    remedy: str


KINDS: Dict[str, Kind] = {
    "backward": Kind(
        "backward",
        "Gradients are computed in the scope",
        "collect the losses in a list, and call autograd.backward(losses) once, after the scope; "
        "it adds up the gradients of all losses",
    ),
    "index": Kind(
        "index read",
        "An array is an index beside numbers or slices, which reads values",
        "use mx.nd.take(array, index, axis), which is recorded; if an index may be negative, pass "
        'mode="wrap"',
    ),
    "change": Kind(
        "changed",
        "An array that pending calls read is changed",
        "change arrays and parameters before or after the scope",
    ),
    "value": Kind(
        "value read",
        "A value is read while calls are pending",
        "read values after the scope; if they decide what is computed next, use gdb.map, where one "
        "flush serves all samples; if they only enter arithmetic, keep the array instead",
    ),
}
IN_MAP = "read in map"


def describe_reads(
    forced: Mapping[Where, int], causes: Mapping[Where, Cause]
) -> Iterator[Tuple[str, str]]:
    """Yield rows of a report for the lines that end a batch early, with one remedy per kind."""
    advised = set()
    for where, times in sorted(forced.items(), key=lambda item: -item[1]):
        cause = causes.get(where, Cause())
        kind = KINDS[cause.kind]
        text = f"{times} x at {where}" + f", by {cause.call}" * bool(cause.call)
        if cause.kind == "value" and cause.in_map:
            yield IN_MAP, f"{text}: samples wait there for each other, as intended"
            continue
        if kind not in advised:
            text += f"\n{'':12}{kind.remedy}"
            advised.add(kind)
        yield kind.label, text


AT_ONCE = "{} calls, because recording them costs more than it saves"
EARLIER = "; what follows is from the last scope here that recorded calls"
NOTHING = (
    "nothing was recorded, or the scope is still open: a scope records calls of hybridized\n"
    "blocks, so call hybridize() on the outermost block, and call the block inside the scope"
)
ORDINARY = "{} operators on ordinary arrays, most often {} at {}: "
FUNCTIONS = (
    "a scope records operators on the results of hybridized blocks; put others into "
    "hybrid_forward of a HybridBlock, hybridize it, and call it in the scope"
)
INACTIVE = (
    "block {} is not hybridized; call hybridize() on the outermost block, which does not reach "
    "blocks in Python lists and dictionaries: hold these in nn.HybridSequential, or pass them to "
    "register_child"
)

ALONE = "Calls that are not merged run sample by sample. "
#: What to do about calls that do not merge, by a part of the reason.
REMEDIES = {
    "its gradient ignores the head gradient": (
        "Make one such call after the scope, on mx.nd.concat of the inputs of all samples; or use "
        "a loss of gluon.loss, which merges."
    ),
    "BatchNorm in training mode": (
        "LayerNorm merges, and so does BatchNorm(use_global_stats=True); both change the model."
    ),
    "": "Use operators that merge: see the page 'Operators' of the documentation.",
}


def remedy_of(reason: str) -> str:
    """Return what to do about calls that do not merge for a reason."""
    return ALONE + next(text for part, text in REMEDIES.items() if part in reason)


FEW_CALLS = (
    "recording pays if a scope has more calls that can share launches: put more samples into one "
    "scope, with batching() around the loop over a minibatch, not inside it"
)
ONE_WAITS = (
    "Each flush serves at most one sample of map, {}. Map more samples at a time, and let samples "
    "read at the same time: compute all scores of a round first, and read them together."
)
STACK = (
    "All samples make the same calls on arrays of equal shapes, {} calls in each launch. Without a "
    "scope, one call on all samples costs no recording: give the model mx.nd.concat(*samples, "
    "dim=0) instead, if axis 0 is its batch axis, or mx.nd.stack(*samples) and a batch axis."
)
KEEP_ARRAY = (
    "The number read at {} enters arithmetic at {}. If it is not needed otherwise, leave out the "
    "read, and calculate with the array: this is recorded, and nothing has to wait."
)
TURNS = (
    "{} samples waited for earlier ones, which may change {}:\n            {}\n"
    "            pass such values as arguments and results, or set them before they are read"
)
