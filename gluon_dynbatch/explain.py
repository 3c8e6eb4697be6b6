"""Run a script and report what its scopes merged and what they did not, with costs and advice.

An `Observer` is told of every scope and flush, and waits for each launch to measure its time.
Backward passes are not measured.  Each place that opened scopes gets a page.
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
from .show.plot import times

#: Most lines of code, and kinds of calls that did not merge, on a page.
MOST_LINES, MOST_ALONE = 8, 3
COLUMNS = 100


class Line:
    """What calls of one line of the user's came to."""

    def __init__(self) -> None:
        self.calls = self.launches = 0
        #: How many of the calls are of an operator and no block, by its name.
        self.operators: Counter[str] = Counter()
        self.running_ms = 0.0
        #: Of the flush in which most units of the line may merge: units, and kinds of them.
        self.units, self.kinds = 0, 0


class Site:
    """What is known of one place that opens scopes: of the second on, as the first compiles.

    It waits for each launch and gives its time to the lines whose calls it runs.
    """

    def __init__(self, several: bool) -> None:
        self.several = several
        self.reports: List[Report] = []
        self.lines: DefaultDict[Where, Line] = defaultdict(Line)
        #: Milliseconds of each call of ``mx.nd.array``, by line.
        self.arrays: DefaultDict[Where, List[float]] = defaultdict(list)
        #: Milliseconds of launches of MXNet's operators, by block and reason, and a line of each.
        self.by_mxnet: Dict[Tuple[str, str], Tuple[float, Where]] = {}

    def begin(self, tape: Any, graph: Any) -> None:
        """Take note of a flush."""
        #: Per unit, the place that recorded it.
        self._where_of = [tape.wheres[node].where for node in graph.node.tolist()]
        for place, number in zip(tape.wheres, tape.node_entry):
            line = self.lines[place.where]
            line.calls += 1
            if tape.entries[number].block_id is None:
                line.operators[tape.entries[number].name] += 1
        signatures: DefaultDict[Where, List[int]] = defaultdict(list)
        for unit, where in enumerate(self._where_of):
            if graph.segments[graph.segment[unit]].layout != "unbatched":
                signatures[where].append(int(graph.dependencies.signature[unit]))
        for where, own in signatures.items():
            line = self.lines[where]
            line.units, line.kinds = max((line.units, line.kinds), (len(own), len(set(own))))
        self._last = time.perf_counter()

    def launched(self, execution: Any, number: int) -> None:
        """Take note of a launch that was just handed to the engine."""
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
            before, where = self.by_mxnet.get(key, (0.0, self._where_of[unit]))
            self.by_mxnet[key] = before + spent, where


class Observer:
    """Is told what scopes do, as ``RUNTIME.observer``."""

    def __init__(self) -> None:
        self.sites: Dict[Where, Site] = {}

    def opened(self, scope: Batch) -> None:
        """Take note of a scope."""
        place = scope.place.where
        known = self.sites.get(place)
        if known is None or not known.several:
            self.sites[place] = Site(known is not None)
        self.sites[place].reports.append(scope.report)

    def timed(self, array: Any) -> Any:
        """Return ``mx.nd.array``, timed in scopes."""

        @functools.wraps(array)
        def create(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            made = array(*args, **kwargs)
            if STATE.batch is not None:
                arrays = self.sites[STATE.batch.place.where].arrays
                arrays[user_line()].append(1e3 * (time.perf_counter() - started))
            return made

        return create

    def begin_flush(self, tape: Any, graph: Any) -> Site:
        """Return what is told of each launch of a flush."""
        site = self.sites[STATE.batch.place.where]
        site.begin(tape, graph)
        return site

    def pages(self) -> str:
        """Return a page for each place that opened scopes."""
        if not self.sites:
            return "no scope was opened: put `with gluon_dynbatch.batching():` around a minibatch"
        return "\n\n".join("\n".join(_page(*item)) for item in self.sites.items())


def _page(where: Where, site: Site) -> Iterator[str]:
    report = Report.together(site.reports)
    first = " (the first is not counted)" if site.several else ""
    yield f"=== scope at {_short(where)}"
    yield f"scopes: {len(site.reports) + site.several}{first}, flushes: {len(report.flushes)}"
    if report.at_once:
        yield f"{report.at_once} calls ran at once, since recording them costs more"
    elif not site.lines:
        yield NOTHING
    if not site.lines:
        return
    units = sum(sum(flush.widths) for flush in report.flushes)
    wide = f"{units / report.launches:.1f} wide on average"
    yield f"{report.nodes} calls in {report.launches} launches, {wide}"
    own, analysis, running, waiting = times(report).values()
    yield (
        f"milliseconds: recording and the script's own work {own:.1f}, analysis {analysis:.1f}, "
        f"running {running:.1f}, waiting {waiting:.1f}"
    )
    yield from _lines(site, own / report.nodes)
    if report.alone:
        yield "\nnot merged"
    for one in report.alone[:MOST_ALONE]:
        yield f"  {one.calls} x {one.name} at {_short(one.where)}"
        yield _wrapped("    ", one.reason)
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
    spent = times(report)
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
            "all samples wait for each other."
        )
    for one in report.split[:MOST_ALONE]:
        yield f"{one.calls} x {one.name} at {_short(one.where)}: {one.reason}."
    where, line = max(site.lines.items(), key=lambda item: item[1].kinds)
    if line.units >= 8 and 2 * line.kinds > line.units and not report.split:
        yield (
            f"{line.units} calls at {_short(where)} are of {line.kinds} kinds. Calls merge only if "
            "they have the same structure of arguments, dtypes, attributes and shared arrays."
        )
    for (name, reason), (spent_ms, where) in site.by_mxnet.items():
        if spent_ms > total / 10:
            yield (
                f"MXNet's own operators run the launches of {name} at {_short(where)}, which takes "
                f"{spent_ms:.1f} ms: {reason}. Native steps are faster (docs/guides/not-merged.md)."
            )
    for where, took in site.arrays.items():
        if sum(took) > total / 10:
            yield (
                f"mx.nd.array is called {len(took)} x at {_short(where)} and takes {sum(took):.1f} "
                "ms. Create arrays before the scope, or one array per sample: to take rows of it, "
                "x[i : i + 1], costs nothing."
            )
    if spent["recording"] > total / 2:
        yield from _cheaper_recording(site, report)
    if spent["analysis"] > total / 3:
        yield 'Analysis takes much of the time: set analysis_budget, or policy="depth".'


def _cheaper_recording(site: Site, report: Report) -> Iterator[str]:
    """Yield advice on recording fewer calls, or reusing recorded ones."""
    where, line = max(site.lines.items(), key=lambda item: sum(item[1].operators.values()))
    if sum(line.operators.values()) > report.nodes / 4:
        yield (
            f"Recording takes most of the time, and {_short(where)} calls operators "
            f"({', '.join(sorted(line.operators)[:3])}) one by one. Put operators that always run "
            "together into one HybridBlock, whose call is recorded as one."
        )
    for one in report.traced.refused.values():
        yield f"{one.name} is not traced once: {one.reason} ({_short(one.where)})."
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
    """Run a script as Python would, and print at its end what its scopes did."""
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
