"""Run a script and report what its scopes merged and what they did not, with costs and advice.

Each place that opened scopes gets a page.  `observe.py` collects what it says.
"""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import textwrap
import traceback
from collections import defaultdict
from typing import Any, Callable, DefaultDict, Iterator, List, Tuple

import mxnet as mx

from .advice import FEW_CALLS, KEEP_ARRAY, KINDS, NOTHING, ONE_WAITS, STACK, remedy_of
from .errors import Where
from .findings import Cause
from .observe import Line, Observer, Site
from .record.lazy import Lazy
from .record.recorder import Recorder
from .report import Report
from .scope import RUNTIME

#: Most lines of code on a page, and most entries of calls that did not merge.
MOST_LINES, MOST_ALONE = 8, 3
#: Width of a page in characters.
COLUMNS = 100
#: Calls per launch from which on stacking samples pays.
MANY_SAMPLES = 8


def pages(observer: Observer) -> str:
    """Return a page of text for each place that opened scopes."""
    if not observer.sites:
        return "no scope was opened: put `with gluon_dynbatch.batching():` around a minibatch"
    return "\n\n".join("\n".join(_page(*item)) for item in observer.sites.items())


def _page(where: Where, sites: List[Site]) -> Iterator[str]:
    first, site = sites[0], sites[-1]
    reports = [report for each in sites for report in each.reports]
    at_once = sum(report.at_once for report in reports)
    counted = ""
    if site is not first:
        counted = " (the first is not counted)"
        if first.lines and not site.lines:
            site, counted = first, " (what follows is from the first, the only one that recorded)"
    report = Report.together(site.reports)
    report.add_missing(Report.together(first.reports).reasons)
    yield f"=== scope at {_short(where)}"
    yield f"scopes: {len(reports)}{counted}, flushes: {len(report.flushes)}"
    if at_once:
        yield f"{at_once} calls ran immediately, because recording them costs more than it saves"
    elif not site.lines:
        yield _wrapped("", str(report) if report.ordinary else NOTHING)
    if not site.lines:
        return
    if not report.launches:
        yield "no flush succeeded: the error of the script says why"
        return
    units = sum(sum(flush.widths) for flush in report.flushes)
    width = units / report.launches
    yield f"{report.nodes} calls in {report.launches} launches, {width:.1f} wide on average"
    recording, analysis, running, waiting = report.stage_times.values()
    yield (
        f"milliseconds: recording and the script's own work {recording:.1f}, "
        f"analysis {analysis:.1f}, running {running:.1f}, waiting {waiting:.1f}, "
        f"work from before {site.earlier_ms:.1f}"
    )
    yield from _lines(site, recording / report.nodes)
    if report.alone:
        yield "\nnot merged"
    for alone in report.alone[:MOST_ALONE]:
        yield f"  {alone.calls} x {alone.name} at {_short(alone.where)}"
        yield _wrapped("    ", alone.reason)
    if len(report.alone) > MOST_ALONE:
        yield f"  and {len(report.alone) - MOST_ALONE} more"
    advice = [*_advice(site, report)]
    if at_once and not advice:
        advice = [_sentence(FEW_CALLS)]
    yield "\nwhat to change" if advice else "\nnothing to change"
    yield from (_wrapped("  - ", text) for text in advice)


def _lines(site: Site, recording_ms: float) -> Iterator[str]:
    """Yield a table of the lines that recorded calls, the most expensive first."""

    def cost(item: Tuple[Where, Line]) -> float:
        return item[1].running_ms + recording_ms * item[1].calls

    yield f"\n{'calls':>9}{'launches':>10}{'ms':>9}  line"
    for where, line in sorted(site.lines.items(), key=cost, reverse=True)[:MOST_LINES]:
        text = linecache.getline(where.filename, where.line).strip()
        figures = f"{line.calls:9}{line.launches:10}{cost((where, line)):9.1f}"
        yield f"{figures}  {_short(where)}: {text}"[:COLUMNS]
    if len(site.lines) > MOST_LINES:
        yield f"  and {len(site.lines) - MOST_LINES} more"


def _advice(site: Site, report: Report) -> Iterator[str]:
    """Yield advice, the most important first."""
    spent = report.stage_times
    total = sum(spent.values())
    yield from _reads(site, report)
    yield from dict.fromkeys(remedy_of(alone.reason) for alone in report.alone)
    for split in report.split[:MOST_ALONE]:
        yield f"{split.calls} x {split.name} at {_short(split.where)}: {split.reason}."
    if report.unrecorded:
        yield _sentence(report.unrecorded)
    where, line = max(site.lines.items(), key=lambda item: item[1].kinds[1])
    units, signatures = line.kinds
    if units >= 8 and 2 * signatures > units and not report.split:
        yield (
            f"{units} calls at {_short(where)} are of {signatures} kinds. Calls merge only if they "
            "have the same structure of arguments, dtypes, attributes and shared arrays."
        )
    told = " ".join(split.reason for split in report.split)
    for (name, reason), (spent_ms, where) in site.by_mxnet.items():
        if spent_ms > total / 10 and reason not in told:
            yield (
                f"MXNet's own operators run the launches of {name} at {_short(where)}, which takes "
                f"{spent_ms:.1f} ms: {reason}. Native steps are faster: see the page 'Finding "
                "what did not merge' of the documentation."
            )
    for where, times in site.array_ms.items():
        if sum(times) > total / 10:
            yield (
                f"mx.nd.array is called {len(times)} x at {_short(where)} and takes "
                f"{sum(times):.1f} ms. Create arrays before the scope, or one array per sample: "
                "taking rows of it with x[i : i + 1] costs nothing."
            )
    if site.stacked >= MANY_SAMPLES and not report.forced:
        yield STACK.format(site.stacked)
    elif spent["recording"] > total / 2:
        yield from _cheaper_recording(site, report)
    if spent["analysis"] > total / 3 and not (site.compiles or report.forced):
        yield 'Analysis takes much of the time: set analysis_budget, or use policy="depth".'


def _reads(site: Site, report: Report) -> Iterator[str]:
    """Yield advice on lines that end a batch early, by kinds of lines."""
    shared = any(flush.waiting > 1 for flush in report.flushes)
    by_kind: DefaultDict[str, List[Tuple[Where, int]]] = defaultdict(list)
    for where, times in sorted(report.forced.items(), key=lambda item: -item[1]):
        cause = report.causes.get(where, Cause())
        if where in site.arithmetic:
            yield KEEP_ARRAY.format(_short(where), _short(site.arithmetic[where]))
        elif not (cause.kind == "value" and cause.in_map):
            by_kind[cause.kind].append((where, times))
        elif not shared:
            by_kind["map"].append((where, times))
    for name, lines in by_kind.items():
        places = ", ".join(f"{times} x at {_short(where)}" for where, times in lines[:MOST_ALONE])
        if name == "map":
            yield ONE_WAITS.format(places)
            continue
        kind = KINDS[name]
        yield (
            f"{kind.happens}, {places}. Each time, the calls recorded so far are run. "
            f"{_sentence(kind.remedy)}"
        )


def _cheaper_recording(site: Site, report: Report) -> Iterator[str]:
    """Yield advice on recording fewer calls, or reusing recorded ones."""
    where, line = max(site.lines.items(), key=lambda item: sum(item[1].operators.values()))
    if sum(line.operators.values()) > report.nodes / 4:
        yield (
            f"Recording takes most of the time, and {_short(where)} calls operators "
            f"({', '.join(sorted(line.operators)[:3])}) one by one. Put operators that always run "
            "together into one HybridBlock, whose call is recorded as one."
        )
    for refused in report.traced.refused.values():
        yield f"{refused.name} is not traced once: {refused.reason} ({_short(refused.where)})."
    if not (report.traced.known or report.traced.refused):
        yield (
            "Recording takes most of the time. If samples repeat their structures, make the outer "
            "block a DynamicHybridBlock: net.hybridize(trace_once=True) then runs its forward once "
            "per structure."
        )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _short(where: Where) -> str:
    path = min(where.filename, os.path.relpath(where.filename), key=len)
    return f"{path}:{where.line} in {where.function}"


def _wrapped(start: str, text: str) -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=start, subsequent_indent=" " * len(start))


def unreadable(script: str) -> str:
    """Return why Python cannot run a script at all, in one line; empty if it can."""
    if os.path.isdir(script):
        return f"{script!r} is a folder, not a program"
    try:
        with open(script, "rb") as file:
            compile(file.read(), script, "exec", dont_inherit=True)
    except FileNotFoundError:
        return f"there is no file {script!r}"
    except OSError as error:
        return f"cannot read {script!r}: {error.strerror}"
    except SyntaxError as error:
        return f"{script}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"
    except ValueError as error:
        return f"{script!r} is not a Python program: {error}"
    return ""


def main(script: str, arguments: List[str]) -> None:
    """Run a script as Python would, then print the pages of its scopes."""
    observer = RUNTIME.observer = Observer()
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    watched: Tuple[Tuple[Any, str, Callable[[Any], Any]], ...] = (
        (mx.nd, "array", observer.timed),
        (Lazy, "asnumpy", observer.noting),
        (Recorder, "lift_number", observer.calculating),
    )
    originals = [getattr(owner, name) for owner, name, _ in watched]
    for owner, name, wrap in watched:
        setattr(owner, name, wrap(getattr(owner, name)))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)
    finally:
        RUNTIME.observer = None
        for (owner, name, _), original in zip(watched, originals):
            setattr(owner, name, original)
        print(f"\n{pages(observer)}")
