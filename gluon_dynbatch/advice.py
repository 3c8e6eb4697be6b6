"""What a user can do about what a report finds: texts for reports and for `explain`."""

from __future__ import annotations

import importlib.metadata
import textwrap
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from .errors import Where
from .findings import Finding

#: Width of a text in characters, and of the labels at its left.
COLUMNS, LABELS = 100, 12
#: Most findings of one kind that a text shows.
MOST = 5


class FindingKind(NamedTuple):
    """What is the same for all findings of one kind.

    Attributes
    ----------
    label : str
        Name of its row in a report.
    reason : str
        Why this matters; empty if each finding has a reason of its own.
    advice : str
        What to do; empty if there is nothing to do, or if each finding has advice of its own.
    """

    label: str
    reason: str = ""
    advice: str = ""


FEW_CALLS = (
    "recording pays if a scope has more calls that can share launches: put more samples into one "
    "scope, with batching() around the loop over a minibatch, not inside it"
)
NOTHING = "none was recorded"
EACH_TIME = "each time, the calls recorded so far are run"
#: In the order in which they are shown.
KINDS: Dict[str, FindingKind] = {
    "at once": FindingKind("at once"),
    "one by one": FindingKind(
        "one by one",
        "no call shared a launch with another one",
        FEW_CALLS,
    ),
    "at best": FindingKind("at best"),
    "none": FindingKind(
        "calls",
        NOTHING,
        "a scope records calls of hybridized blocks, so call hybridize() on the outermost block, "
        "and call the block inside the scope",
    ),
    "ordinary": FindingKind("at once"),
    "idle": FindingKind(
        "hybridize",
        "",
        "call hybridize() on the outermost block, which does not reach blocks in Python lists and "
        "dictionaries: hold these in nn.HybridSequential, or pass them to register_child",
    ),
    "alone": FindingKind("ran alone"),
    "split": FindingKind("split"),
    "unkept": FindingKind("not kept"),
    "backward": FindingKind(
        "backward",
        f"computes gradients in the scope: {EACH_TIME}",
        "collect the losses in a list, and call autograd.backward(losses) once, after the scope; "
        "it adds up the gradients of all losses",
    ),
    "index": FindingKind(
        "index read",
        f"reads an array that is an index beside numbers or slices: {EACH_TIME}",
        "use take(array, index, axis) of mx.nd or mx.np, which is recorded; if an index may be "
        'negative, pass mode="wrap"',
    ),
    "change": FindingKind(
        "changed",
        f"changes an array that pending calls read: {EACH_TIME}",
        "change arrays and parameters before or after the scope; do not fill an array piece by "
        "piece, but collect the pieces in a list, and join them",
    ),
    "value": FindingKind(
        "value read",
        f"reads a value: {EACH_TIME}",
        "read values after the scope; if they decide what is computed next, use gdb.map, where one "
        "flush serves all samples; if they only enter arithmetic, keep the array instead",
    ),
    "map": FindingKind(
        "read in map",
        "samples wait there for each other, and one flush serves all of them: as intended",
        "only if a sample reads several values in a row: let it compute all of them before it "
        "reads the first, so that one flush serves them",
    ),
    "turn": FindingKind(
        "in turn",
        "samples waited there until all earlier ones had ended, since these may change it",
        "pass such values as arguments and results, or set them before they are read",
    ),
    # Found by `explain`, which measures:
    "arithmetic": FindingKind(
        "arithmetic",
        "",
        "if the number is not needed otherwise, leave out the read, and calculate with the array: "
        "this is recorded, and nothing has to wait",
    ),
    "one waits": FindingKind(
        "read in map",
        "each flush serves at most one sample of map",
        "map more samples at a time, and let samples read at the same time: compute all scores of "
        "a round first, and read them together",
    ),
    "chain": FindingKind(
        "in a row",
        "",
        "if they add up arrays, call mx.nd.add_n(*arrays) once, or mx.np.stack(arrays).sum(axis=0);"
        " if they are steps of one long sample, more samples in a scope share its launches",
    ),
    "kinds": FindingKind(
        "kinds",
        "",
        "calls merge only if they have the same structure of arguments, dtypes, attributes and "
        "shared arrays",
    ),
    "by MXNet": FindingKind("by MXNet"),
    "arrays": FindingKind(
        "arrays",
        "",
        "create arrays before the scope, or one array per sample: taking rows of it with "
        "x[i : i + 1] costs nothing",
    ),
    "one shape": FindingKind(
        "one shape",
        "",
        "without a scope, one call on all samples costs no recording: give the model one array of "
        "them instead, concatenated along axis 0 if that is its batch axis, or else stacked",
    ),
    "recording": FindingKind("recording"),
    "analysis": FindingKind(
        "analysis",
        "takes much of the time",
        'set analysis_budget, or use policy="depth"',
    ),
}
#: The reason for operators on ordinary arrays if they are within a cell that is not hybridized.
IN_IDLE_CELL = "within a block that is not hybridized"
#: What to do if operators on ordinary arrays run at once.
FUNCTIONS = (
    "a scope records operators on the results of hybridized blocks; put others into "
    "hybrid_forward of a HybridBlock, hybridize it, and call it in the scope"
)
AT_ONCE = "these calls of blocks ran at once, because recording them costs more than it saves"
EARLIER = "; what else is said here is from the last scope here that recorded calls"
AT_BEST = "{} launches ran them: at this granularity, no policy needs fewer than {}"
LARGER_BUDGET = "a larger analysis_budget may find a plan with fewer"
SEARCH = 'policy="search" may find a plan with fewer'
STILL_PENDING = (
    "none was computed yet: the scope computes its calls when it ends, or when a value is read"
)


def page(name: str, title: str) -> str:
    """Return where a page of the documentation is: its address, if the package has one."""
    try:
        urls = importlib.metadata.metadata("gluon_dynbatch").get_all("Project-URL") or ()
    except importlib.metadata.PackageNotFoundError:
        urls = ()
    for url in urls:
        label, _, address = url.partition(", ")
        if label == "Documentation":
            return f"{address.rstrip('/')}/{name}.html"
    return f"the page '{title}' of the documentation"


def remedy(reason: str) -> str:
    """Return what to do about calls that no rule allows to merge, for a reason."""
    if "its gradient ignores the head gradient" in reason:
        return (
            "make one such call after the scope, on the concatenated inputs of all samples; or "
            "use a loss of gluon.loss, which merges"
        )
    if "BatchNorm in training mode" in reason:
        return (
            "LayerNorm merges, and so does BatchNorm(use_global_stats=True); both change the model"
        )
    if "parameters of its own" in reason:
        return (
            "if a layer of Gluon calls it, hybridize the layer: it joins its parameters anew for "
            "each call, and a hybridized one does so once for all"
        )
    return f"use operators that merge: see {page('operators', 'Operators')}"


def ordinary(name: str, where: Where, in_idle_cell: bool) -> Finding:
    """Return a finding for an operator on ordinary arrays, perhaps within an `IdleCell`."""
    return Finding("ordinary", name, IN_IDLE_CELL * in_idle_cell, 1, where, FUNCTIONS)


def completed(finding: Finding) -> Finding:
    """Return a finding with the reason and the advice of its kind, where it has none of its own."""
    kind = KINDS[finding.kind]
    advice = finding.advice or (remedy(finding.reason) if finding.kind == "alone" else kind.advice)
    return finding._replace(reason=finding.reason or kind.reason, advice=advice)


def rows_of(
    findings: Iterable[Finding], place: Callable[[Where], str] = str
) -> Iterator[Tuple[str, List[str]]]:
    """Yield for each finding, ordered by kind, the label of its row and its lines.

    The last line is the advice, after an arrow, unless a row before has the same advice.
    """
    told: Set[str] = set()
    groups: Dict[str, List[Finding]] = {kind: [] for kind in KINDS}
    for finding in findings:
        groups[finding.kind].append(completed(finding))
    for kind, group in groups.items():
        for finding in group[:MOST]:
            lines = finding.lines(place)
            if finding.advice and finding.advice not in told:
                lines.append(f"-> {finding.advice}")
                told.add(finding.advice)
            yield KINDS[kind].label, lines
        if len(group) > MOST:
            yield KINDS[kind].label, [f"and {len(group) - MOST} more: see batch.report.findings"]


def wrapped(label: str, lines: Iterable[str]) -> str:
    """Return a row of a report as text: a label, and lines beside it that fit a terminal.

    The first line is not broken: if it has a line of the user's, terminals make a link of that.
    """
    indent = " " * LABELS
    first, *others = lines
    text = "\n".join(
        textwrap.fill(
            line,
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=indent + "   " * line.startswith("-> "),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in others
    )
    return f"{label:{LABELS}}{first}" + f"\n{text}" * bool(text)
