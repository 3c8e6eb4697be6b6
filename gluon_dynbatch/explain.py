"""Run a script and report what its scopes merged and what they did not, with costs and advice.

The runtime calls an `Observer` for every scope and flush, and the `Site` of the scope after each
launch; it waits for the results, to measure the time of the launch.  Backward passes are not
measured.  Each place that opened scopes gets a page.
"""

from __future__ import annotations

import functools
import linecache
import math
import os
import runpy
import sys
import textwrap
import time
import traceback
from collections import Counter, defaultdict
from typing import Any, DefaultDict, Dict, Iterator, List, Tuple

import mxnet as mx

from .advice import FEW_CALLS, KEEP_ARRAY, KINDS, STACK, Cause, remedy_of
from .errors import Where
from .record.lazy import LazyNDArray
from .record.recorder import Recorder
from .record.state import STATE
from .record.tape import parameters_of
from .record.where import user_line
from .report import NOTHING, Report
from .scope import RUNTIME, Batch
from .show.plot import stage_times

#: Most lines of code on a page, and most entries of calls that did not merge.
MOST_LINES, MOST_ALONE = 8, 3
#: Width of a page in characters.
COLUMNS = 100
#: Calls per launch from which on stacking samples pays; elements of arrays whose numbers are noted.
MANY_SAMPLES, FEW_ELEMENTS = 8, 64
#: MXNet's engine is idle if so many new arrays in a row are computed so quickly.
QUICK_PROBES, QUICK_S, MOST_PROBES = 3, 1e-3, 1000


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
    """Statistics of scopes opened at one place: of the first, or of all others."""

    def __init__(self, compiles: bool) -> None:
        #: Whether it is of a first scope, whose analysis includes compiling.
        self.compiles = compiles
        self.reports: List[Report] = []
        self.lines: DefaultDict[Where, Line] = defaultdict(Line)
        #: Milliseconds of each call of ``mx.nd.array``, by line.
        self.array_ms: DefaultDict[Where, List[float]] = defaultdict(list)
        #: By block and reason: milliseconds of launches that MXNet's operators run, and a line.
        self.by_mxnet: Dict[Tuple[str, str], Tuple[float, Where]] = {}
        #: Milliseconds for which flushes waited for work from before.
        self.earlier_ms = 0.0
        #: Greatest common divisor of the calls per launch; 1 if a launch has several array sizes.
        self.stacked = 0
        #: Lines that read numbers, by the number; and the lines that calculate with these.
        self.numbers: Dict[float, Where] = {}
        self.arithmetic: Dict[Where, Where] = {}

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
        batched = launch.segment.layout in ("rows", "stack") and len(launch.parts) == 1
        self.stacked = math.gcd(self.stacked, len(launch.units)) if batched else 1
        reason, graph, unit = launch.segment.kernels, execution.plan.graph, launch.units[0]
        if isinstance(reason, str) and launch.segment.layout != "unbatched":
            key = graph.name(unit), reason
            total, where = self.by_mxnet.get(key, (0.0, self._where_of[unit]))
            self.by_mxnet[key] = total + spent, where


class Observer:
    """Collects statistics of all scopes by the places that open them, as ``RUNTIME.observer``."""

    def __init__(self) -> None:
        #: Per place its first scope, which compiles what the others use, and all others.
        self.sites: Dict[Where, List[Site]] = {}

    def opened(self, scope: Batch) -> None:
        """Add the report of a scope to its site."""
        sites = self.sites.setdefault(scope.place.where, [])
        if len(sites) < 2:
            sites.append(Site(compiles=not sites))
        sites[-1].reports.append(scope.report)

    @property
    def site(self) -> Site:
        """The site of the open scope."""
        return self.sites[STATE.batch.place.where][-1]

    def timed(self, array: Any) -> Any:
        """Wrap ``mx.nd.array`` to measure its time in scopes."""

        @functools.wraps(array)
        def create(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = array(*args, **kwargs)
            if STATE.batch is not None:
                self.site.array_ms[user_line()].append(1e3 * (time.perf_counter() - started))
            return result

        return create

    def noting(self, original: Any) -> Any:
        """Wrap ``LazyNDArray.asnumpy`` to note which line reads which numbers in scopes."""

        @functools.wraps(original)
        def asnumpy(array: Any) -> Any:
            pending = STATE.recorder is not None and array.pending
            values = original(array)
            if pending and STATE.batch is not None and values.size <= FEW_ELEMENTS:
                where = user_line()
                # Whole numbers may be equal by chance.
                fractions = (x for x in map(float, values.flat) if not x.is_integer())
                self.site.numbers.update(dict.fromkeys(fractions, where))
            return values

        return asnumpy

    def calculating(self, lift_number: Any) -> Any:
        """Wrap ``Recorder.lift_number`` to find which numbers were read before."""

        @functools.wraps(lift_number)
        def lift(recorder: Any, token: Any, arrays: Any) -> Any:
            site, number = self.site, float(dict(zip(*token[2:])).get("scalar", 0))
            if abs(number) in site.numbers or -abs(number) in site.numbers:
                where = site.numbers.get(number, site.numbers.get(-number))
                assert where is not None
                site.arithmetic.setdefault(where, user_line())
            return lift_number(recorder, token, arrays)

        return lift

    def settle(self, tape: Any) -> None:
        """Wait for work from before a flush, so that its launches are not charged with it.

        Not by ``waitall``, which would raise the errors of work that has nothing to do with the
        flush, and would take them from the script.
        """
        started = time.perf_counter()
        for array in tape.externals:
            if type(array) is mx.nd.NDArray:  # a lazy one is the result of an earlier launch
                array.wait_to_read()
        for parameter in parameters_of(tape.entries.values()):
            for array in parameter.list_data():
                array.wait_to_read()
        quick = 0
        for _ in range(MOST_PROBES):  # a new array waits for nothing but busy threads
            probed = time.perf_counter()
            mx.nd.zeros((1,)).wait_to_read()
            quick = quick + 1 if time.perf_counter() - probed < QUICK_S else 0
            if quick == QUICK_PROBES:
                break
        self.site.earlier_ms += 1e3 * (time.perf_counter() - started)

    def begin_flush(self, tape: Any, graph: Any) -> Site:
        """Return the site of the open scope, whose `launched` is called after each launch."""
        site = self.site
        site.begin(tape, graph)
        return site

    def pages(self) -> str:
        """Return a page of text for each place that opened scopes."""
        if not self.sites:
            return "no scope was opened: put `with gluon_dynbatch.batching():` around a minibatch"
        return "\n\n".join("\n".join(_page(*item)) for item in self.sites.items())


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
    recording, analysis, running, waiting = stage_times(report).values()
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
        advice = [FEW_CALLS]
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
    yield from _reads(site, report)
    yield from dict.fromkeys(remedy_of(alone.reason) for alone in report.alone)
    for split in report.split[:MOST_ALONE]:
        yield f"{split.calls} x {split.name} at {_short(split.where)}: {split.reason}."
    if report.unrecorded:
        yield report.unrecorded + "."
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
        elif not (cause.kind == "value" and cause.in_map and shared):
            by_kind[cause.kind].append((where, times))
    for name, lines in by_kind.items():
        kind = KINDS[name]
        places = ", ".join(f"{times} x at {_short(where)}" for where, times in lines[:MOST_ALONE])
        remedy = kind.remedy[0].upper() + kind.remedy[1:]
        yield f"{kind.happens}, {places}. Each time, the calls recorded so far are run. {remedy}."


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
    watched = (
        (mx.nd, "array", observer.timed),
        (LazyNDArray, "asnumpy", observer.noting),
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
        print(f"\n{observer.pages()}")
