"""Run a script and report what its scopes merged and what they did not, with costs and advice.

The runtime calls an `Observer` for every scope and flush, and the `Site` of the scope after each
launch; it waits for the results, to measure the time of the launch.  Backward passes are not
measured.  Each place that opened scopes gets a page.
"""

from __future__ import annotations

import functools
import linecache
import os
import runpy
import sys
import textwrap
import time
import traceback
from collections import Counter, defaultdict
from typing import Any, DefaultDict, Dict, Iterator, List, Tuple

import mxnet as mx

from .errors import Where
from .record.state import STATE
from .record.where import user_line
from .report import NOTHING, Report
from .scope import RUNTIME, Batch
from .show.plot import stage_times

#: Most lines of code on a page, and most entries of calls that did not merge.
MOST_LINES, MOST_ALONE = 8, 3
#: Width of a page in characters.
COLUMNS = 100


class Line:
    """Statistics of the calls of one line of the user's code."""

    def __init__(self) -> None:
        self.calls = self.launches = 0
        #: Number of calls of operators outside of blocks, by name.
        self.operators: Counter[str] = Counter()
        self.running_ms = 0.0
        #: Units that may merge, and their different signatures, in the flush with most such units.
        self.kinds = 0, 0


class Site:
    """Statistics of the scopes opened at one place, without the first if there are several."""

    def __init__(self, warmed_up: bool) -> None:
        #: Whether the place has opened a scope before, which compiled what these scopes use.
        self.warmed_up = warmed_up
        self.reports: List[Report] = []
        self.lines: DefaultDict[Where, Line] = defaultdict(Line)
        #: Milliseconds of each call of ``mx.nd.array``, by line.
        self.array_ms: DefaultDict[Where, List[float]] = defaultdict(list)
        #: By block and reason: milliseconds of launches that MXNet's operators run, and a line.
        self.by_mxnet: Dict[Tuple[str, str], Tuple[float, Where]] = {}

    def begin(self, tape: Any, graph: Any) -> None:
        """Count the calls and units of a flush by line, before its launches run."""
        #: Per unit, the line that recorded it.
        self._where_of = [tape.places[node].where for node in graph.node.tolist()]
        for place, number in zip(tape.places, tape.node_entry):
            line, entry = self.lines[place.where], tape.entries[number]
            line.calls += 1
            if entry.block_id is None:
                line.operators[entry.name] += 1
        signatures: DefaultDict[Where, List[int]] = defaultdict(list)
        for unit, where in enumerate(self._where_of):
            if graph.segments[graph.segment[unit]].layout != "unbatched":
                signatures[where].append(int(graph.dependencies.signature[unit]))
        for where, numbers in signatures.items():
            line = self.lines[where]
            line.kinds = max(line.kinds, (len(numbers), len(set(numbers))))
        self._last = time.perf_counter()

    def launched(self, execution: Any, number: int) -> None:
        """Wait for the launch just pushed, and divide its time among the lines of its units."""
        launch = execution.plan.launch(number)
        for region in launch.regions:
            execution.region(region).wait_to_read()
        now = time.perf_counter()
        spent, self._last = 1e3 * (now - self._last), now
        for where, units in Counter(self._where_of[unit] for unit in launch.units).items():
            self.lines[where].launches += 1
            self.lines[where].running_ms += spent * units / len(launch.units)
        reason, graph, unit = launch.segment.kernels, execution.plan.graph, launch.units[0]
        if isinstance(reason, str) and launch.segment.layout != "unbatched":
            key = graph.name(unit), reason
            total, where = self.by_mxnet.get(key, (0.0, self._where_of[unit]))
            self.by_mxnet[key] = total + spent, where


class Observer:
    """Collects statistics of all scopes by the places that open them, as ``RUNTIME.observer``."""

    def __init__(self) -> None:
        self.sites: Dict[Where, Site] = {}

    def opened(self, scope: Batch) -> None:
        """Add the report of a scope to its site; the second scope of a site replaces the first."""
        where = scope.place.where
        site = self.sites.get(where)
        if site is None or not site.warmed_up:
            site = self.sites[where] = Site(warmed_up=site is not None)
        site.reports.append(scope.report)

    def timed(self, array: Any) -> Any:
        """Wrap ``mx.nd.array`` to measure its time in scopes."""

        @functools.wraps(array)
        def create(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = array(*args, **kwargs)
            if STATE.batch is not None:
                site = self.sites[STATE.batch.place.where]
                site.array_ms[user_line()].append(1e3 * (time.perf_counter() - started))
            return result

        return create

    def begin_flush(self, tape: Any, graph: Any) -> Site:
        """Return the site of the open scope, whose `launched` is called after each launch."""
        site = self.sites[STATE.batch.place.where]
        site.begin(tape, graph)
        return site

    def pages(self) -> str:
        """Return a page of text for each place that opened scopes."""
        if not self.sites:
            return "no scope was opened: put `with gluon_dynbatch.batching():` around a minibatch"
        return "\n\n".join("\n".join(_page(*item)) for item in self.sites.items())


def _page(where: Where, site: Site) -> Iterator[str]:
    report = Report.together(site.reports)
    first = " (the first is not counted)" if site.warmed_up else ""
    yield f"=== scope at {_short(where)}"
    yield f"scopes: {len(site.reports) + site.warmed_up}{first}, flushes: {len(report.flushes)}"
    if report.at_once:
        yield (
            f"{report.at_once} calls ran immediately, because recording them costs more than it "
            "saves"
        )
    elif not site.lines:
        yield NOTHING
    if not site.lines:
        return
    if not report.launches:
        yield "no flush succeeded: the error of the script says why"
        return
    units = sum(sum(flush.widths) for flush in report.flushes)
    width = units / report.launches
    yield f"{report.nodes} calls in {report.launches} launches, {width:.1f} wide on average"
    recording, analysis, running, waiting = stage_times(report).values()
    yield (
        f"milliseconds: recording and the script's own work {recording:.1f}, "
        f"analysis {analysis:.1f}, running {running:.1f}, waiting {waiting:.1f}"
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
    spent = stage_times(report)
    total = sum(spent.values())
    if report.alone:
        yield (
            "Calls that are not merged run sample by sample. Make one such call after the scope, "
            "on mx.nd.concat of the inputs of all samples, or use an operator that merges "
            "(docs/operators.md)."
        )
    if report.forced and all(flush.waiting < 2 for flush in report.flushes):
        where, count = max(report.forced.items(), key=lambda item: item[1])
        yield (
            f"A value is read while calls are pending, {count} x at {_short(where)}. Each read "
            "runs the calls recorded so far. Read values after the scope, or use gdb.map, where "
            "one flush serves all samples that wait for a value."
        )
    for split in report.split[:MOST_ALONE]:
        yield f"{split.calls} x {split.name} at {_short(split.where)}: {split.reason}."
    where, line = max(site.lines.items(), key=lambda item: item[1].kinds[1])
    units, signatures = line.kinds
    if units >= 8 and 2 * signatures > units and not report.split:
        yield (
            f"{units} calls at {_short(where)} are of {signatures} kinds. Calls merge only if they "
            "have the same structure of arguments, dtypes, attributes and shared arrays."
        )
    for (name, reason), (spent_ms, where) in site.by_mxnet.items():
        if spent_ms > total / 10:
            yield (
                f"MXNet's own operators run the launches of {name} at {_short(where)}, which takes "
                f"{spent_ms:.1f} ms: {reason}. Native steps are faster (docs/guides/not-merged.md)."
            )
    for where, times in site.array_ms.items():
        if sum(times) > total / 10:
            yield (
                f"mx.nd.array is called {len(times)} x at {_short(where)} and takes "
                f"{sum(times):.1f} ms. Create arrays before the scope, or one array per sample: "
                "taking rows of it with x[i : i + 1] costs nothing."
            )
    if spent["recording"] > total / 2:
        yield from _cheaper_recording(site, report)
    if spent["analysis"] > total / 3:
        yield 'Analysis takes much of the time: set analysis_budget, or use policy="depth".'


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


def _short(where: Where) -> str:
    path = min(where.filename, os.path.relpath(where.filename), key=len)
    return f"{path}:{where.line} in {where.function}"


def _wrapped(start: str, text: str) -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=start, subsequent_indent=" " * len(start))


def main(script: str, arguments: List[str]) -> None:
    """Run a script as Python would, then print the pages of its scopes."""
    observer = RUNTIME.observer = Observer()
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    array, mx.nd.array = mx.nd.array, observer.timed(mx.nd.array)
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
        RUNTIME.observer, mx.nd.array = None, array
        print(f"\n{observer.pages()}")
