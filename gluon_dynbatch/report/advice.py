"""What a user can do about what a report finds: texts for reports and for `explain`."""

from __future__ import annotations

import importlib.metadata
import textwrap
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from ..errors import Where
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
    section : str
        Where the documentation explains the row: a page and a section of it.
    """

    label: str
    reason: str = ""
    advice: str = ""
    section: str = ""


#: The page about what did not merge, for `page`.
NOT_MERGED = "guides/not-merged", "Finding what did not merge"
READ = f"{NOT_MERGED[0]}#a-value-is-read"
FEW_CALLS = (
    "recording pays if a scope has more calls that can share launches: put more samples into one "
    "scope, with batching() around the loop over a minibatch, not inside it"
)
NOTHING = "none was recorded"
EACH_TIME = "each time, the calls recorded so far are run"
#: In the order in which they are shown.
KINDS: Dict[str, FindingKind] = {
    "at once": FindingKind("at once", section=f"{NOT_MERGED[0]}#nothing-was-recorded"),
    "one by one": FindingKind(
        "one by one",
        "no call shared a launch with another one",
        FEW_CALLS,
        f"{NOT_MERGED[0]}#a-scope-for-each-sample",
    ),
    "at best": FindingKind("at best", section="guides/reports#is-the-number-of-launches-good"),
    "none": FindingKind(
        "calls",
        NOTHING,
        "a scope records calls of hybridized blocks, so call hybridize() on the outermost block, "
        "and call the block inside the scope",
        f"{NOT_MERGED[0]}#nothing-was-recorded",
    ),
    "ordinary": FindingKind("at once", section=f"{NOT_MERGED[0]}#nothing-was-recorded"),
    "idle": FindingKind(
        "hybridize",
        "",
        "call hybridize() on the outermost block, which does not reach blocks in Python lists and "
        "dictionaries: hold these in nn.HybridSequential, or pass them to register_child",
        f"{NOT_MERGED[0]}#a-cell-is-not-hybridized",
    ),
    "forward": FindingKind(
        "forward",
        "",
        "if it needs neither shapes nor values, override hybrid_forward(self, F, ...) of a "
        "HybridBlock instead, with F for mx.nd or F.np for mx.np, and hybridize it: a call of it "
        "is then one recorded call",
        f"{NOT_MERGED[0]}#a-block-overrides-forward",
    ),
    "alone": FindingKind("ran alone", section=f"{NOT_MERGED[0]}#an-operator-has-no-rule"),
    "split": FindingKind("split", section=f"{NOT_MERGED[0]}#the-shapes-differ"),
    "chain": FindingKind(
        "in a row",
        "",
        "if they add up arrays, call mx.nd.add_n(*arrays) once, or mx.np.stack(arrays).sum(axis=0);"
        " if they are steps of one long sample, more samples in a scope share its launches",
        f"{NOT_MERGED[0]}#calls-wait-for-each-other",
    ),
    "unkept": FindingKind("not kept", section="guides/trace-once#when-a-recording-is-not-kept"),
    "backward": FindingKind(
        "backward",
        f"computes gradients in the scope: {EACH_TIME}",
        "collect the losses in a list, and call autograd.backward(losses) once, after the scope; "
        "it adds up the gradients of all losses",
        f"{NOT_MERGED[0]}#gradients-are-computed-for-each-sample",
    ),
    "index": FindingKind(
        "index read",
        f"reads an array that is an index beside numbers or slices: {EACH_TIME}",
        "use take(array, index, axis) of mx.nd or mx.np, which is recorded; if an index may be "
        'negative, pass mode="wrap"',
        READ,
    ),
    "change": FindingKind(
        "changed",
        f"changes an array that pending calls read: {EACH_TIME}",
        "change arrays and parameters before or after the scope; do not fill an array piece by "
        "piece, but collect the pieces in a list, and join them",
        f"{NOT_MERGED[0]}#gradients-are-computed-for-each-sample",
    ),
    "value": FindingKind(
        "value read",
        f"reads a value: {EACH_TIME}",
        "read values after the scope; if they decide what is computed next, use gdb.map, where one "
        "flush serves all samples; if they only enter arithmetic, keep the array instead",
        READ,
    ),
    "map": FindingKind(
        "read in map",
        "samples wait there for each other, and one flush serves all of them: as intended",
        "only if a sample reads several values in a row: let it compute all of them before it "
        "reads the first, so that one flush serves them",
        "values#values-that-steer-the-program",
    ),
    "turn": FindingKind(
        "in turn",
        "samples waited there until all earlier ones had ended, since these may change it",
        "pass such values as arguments and results, or set them before they are read",
        "values#shared-data",
    ),
    # Found by `explain`, which measures:
    "arithmetic": FindingKind(
        "arithmetic",
        "",
        "if the number is not needed otherwise, leave out the read, and calculate with the array: "
        "this is recorded, and nothing has to wait",
        READ,
    ),
    "one waits": FindingKind(
        "read in map",
        "each flush serves at most one sample of map",
        "map more samples at a time, and let samples read at the same time: compute all scores of "
        "a round first, and read them together",
        "values#values-that-steer-the-program",
    ),
    "kinds": FindingKind(
        "kinds",
        "",
        "calls merge only if they have the same structure of arguments, dtypes, attributes and "
        "shared arrays",
        f"{NOT_MERGED[0]}#the-block-is-not-the-same-one",
    ),
    "by MXNet": FindingKind(
        "by MXNet", section=f"{NOT_MERGED[0]}#mxnets-own-operators-run-a-launch"
    ),
    "arrays": FindingKind(
        "arrays",
        "",
        "create arrays before the scope, or one array per sample: taking rows of it with "
        "x[i : i + 1] costs nothing",
        "guides/reports#the-report",
    ),
    "one shape": FindingKind(
        "one shape",
        "",
        "without a scope, one call on all samples costs no recording: give the model one array of "
        "them instead, concatenated along axis 0 if that is its batch axis, or else stacked",
        f"{NOT_MERGED[0]}#all-samples-have-one-shape",
    ),
    "recording": FindingKind("recording", section="guides/reports#the-report"),
    "analysis": FindingKind(
        "analysis",
        "",
        'set analysis_budget, or use policy="depth"',
        "guides/budget#budget",
    ),
}
#: By label of a row, the section of the documentation about it.
SECTIONS = {kind.label: kind.section for kind in KINDS.values()}
#: Part of the reason for calls of a layer that joins its parameters anew for each call.
OWN_PARAMETERS = "parameters of its own"
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


def address(section: str) -> str:
    """Return the address of a page or a section on the site; empty if the package has no site.

    The address of the site is that of the package's metadata, which `setup.py` sets.
    """
    try:
        urls = importlib.metadata.metadata("gluon_dynbatch").get_all("Project-URL") or ()
    except importlib.metadata.PackageNotFoundError:
        urls = ()
    for url in urls:
        label, _, site = url.partition(", ")
        if label == "Documentation":
            name, sign, title = section.partition("#")
            return f"{site.rstrip('/')}/{name}.html{sign}{title}"
    return ""


def page(name: str, title: str) -> str:
    """Return where a page of the documentation is: its address, or else its title and its file."""
    return address(name) or f"the page '{title}' (docs/{name}.md)"


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
    if OWN_PARAMETERS in reason:
        return (
            "if a layer of Gluon calls it, hybridize the layer: it joins its parameters anew for "
            "each call, and a hybridized one does so once for all"
        )
    if "register_op_hook shows" in reason:
        return "leave out register_op_hook, which cannot be undone, or call the block outside"
    return f"use operators that merge: see {page('operators', 'Operators')}"


#: What to do so that a call is traced once, by a part of the reason why it is not.
KEEPING: Dict[str, str] = {
    "reads a value": "calculate with the array instead; or let the caller read the value, and pass "
    "it as an argument",
    "flushes the scope": "call flush() outside of forward, and let it compute nothing that is read",
    "which runs at once": "make such arrays before the call, and pass them as arguments",
    "needs the memory": "make the array before the call, and pass it as an argument",
    "makes a large or empty array": "use the array itself instead of a copy; make a large one "
    "before the scope, and hold it as an attribute of the block",
    "writes to an array": "compute a new array: x = x + y instead of x += y, and join pieces with "
    "concat or stack instead of assigning to elements",
    "returns a part of an array": "make the array in the size that is returned",
    "drawn in Python": "draw the number before the call, and pass it as an argument",
    "held elsewhere": "return the array as well, and store it after the call",
    "changes an attribute": "return the new value as well, and set the attribute after the call",
    "no attribute of the block": "hold that block as an attribute: self.name = block in __init__",
    "neither an argument": "pass the array as an argument, or hold it as an attribute of the "
    "block; of an argument, use BlockGrad(x) instead of x.detach()",
    "of another sample": "pass the array as an argument",
    "an earlier sample may change": "pass the attribute as an argument, and return its new value",
    "no call recorded": "return results of calls and arguments; pass other arrays as arguments",
    "cut from the gradient graph": "return the array itself, and call detach() after the call",
    "changes its arguments": "make new lists and objects instead of changing the arguments, and "
    "enter autograd.record() or pause() outside of forward",
    "whose changes cannot be noticed": "pass or hold what it gives instead: numbers, strings, "
    "arrays, or lists, tuples, dictionaries and plain objects of these",
    "nested too deeply": "pass a list of nodes, each with the indices of its children",
    "returns an object of type": "return arrays, or lists, tuples and dictionaries of arrays",
    "it ends with": "nothing for the report: a call that ends without an exception is traced",
    "has hooks": "detach the hooks, or hybridize without trace_once",
}


def keeping(reason: str) -> str:
    """Return what to do so that a call is traced once, given why it is not."""
    return next((advice for part, advice in KEEPING.items() if part in reason), "")


def ordinary(name: str, where: Where, in_idle_cell: bool) -> Finding:
    """Return a finding for an operator on ordinary arrays, perhaps within an `IdleCell`."""
    return Finding("ordinary", name, IN_IDLE_CELL * in_idle_cell, 1, where, FUNCTIONS)


def completed(finding: Finding) -> Finding:
    """Return a finding with the reason and the advice of its kind, where it has none of its own."""
    kind, by_reason = KINDS[finding.kind], {"alone": remedy, "unkept": keeping}
    find = by_reason.get(finding.kind)
    advice = finding.advice or (find(finding.reason) if find else kind.advice)
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
