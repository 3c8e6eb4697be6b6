"""Statistics of all scopes of a script, by the places that open them, and what they show.

The runtime calls an `Observer` for every scope and flush, and the `ScopeSite` of the scope after
each launch; it waits for the results, to measure the time of the launch.  Backward passes are not
measured.  `explain` adds the findings of a site to those of its reports.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
import time
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any, DefaultDict, Dict, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..auto import CALL, FLUSH, LAUNCH, RECORDED
from ..errors import Where
from ..handle import MANY_UNITS
from ..lower.graph import Graph
from ..record.lazy_base import Lazy
from ..record.recorder import Recorder
from ..record.state import STATE, ThreadScope
from ..record.tape import Tape, parameters_of
from ..record.where import user_line
from ..report.advice import NOT_MERGED, page
from ..report.findings import READS, Finding
from ..report.report import Report
from ..rules.spelling import signed
from ..run.execute import Pass
from ..schedule import lower_bound

#: Most elements of an array whose numbers are noted.
FEW_ELEMENTS = 64
#: A call that makes an array takes longer, unless it finds an equal one that was made before.
SLOW_ARRAY_MS = 0.012
#: Arithmetic operations in products that take about a microsecond, as those of `auto` do.
WORK_PER_MICROSECOND = 100_000
#: Calls per launch from which on stacking samples pays.
MANY_SAMPLES = 8
TOGETHER = (
    "put operators that always run together, or after a cell, into one HybridBlock: its call is one"
)
#: Functions that make arrays, by the modules that users take them from.
MAKERS = tuple(
    (module, f"mx.{name}", maker)
    for module, name in ((mx.nd, "nd"), (mx.np, "np"))
    for maker in ("array", "zeros", "ones", "full", "arange", "eye", "linspace")
)
#: MXNet's engine is idle if so many new arrays in a row are computed so quickly.
QUICK_PROBES, QUICK_S, MOST_PROBES = 3, 1e-3, 1000


class Line:
    """Statistics of the calls of one line of the user's code."""

    def __init__(self) -> None:
        self.calls = 0
        #: Launches of its units; one with units of other lines counts by its share of the units.
        self.launches = Fraction(0)
        #: Number of calls of operators outside of blocks, by name.
        self.operators: Counter[str] = Counter()
        self.running_ms = 0.0
        #: Units that may merge, and their different signatures, in the flush with most such units.
        self.kinds = 0, 0


class ScopeSite:
    """Statistics of scopes opened at one place: of the first, or of all others."""

    def __init__(self, compiles: bool) -> None:
        #: Whether it is of a first scope, whose analysis includes compiling.
        self.compiles = compiles
        self.reports: List[Report] = []
        self.lines: DefaultDict[Where, Line] = defaultdict(Line)
        #: Milliseconds of each call of a function that makes an array, by line and function; those
        #: that the thread worked, which do not depend on what else the machine does.
        self.array_ms: DefaultDict[Tuple[Where, str], List[float]] = defaultdict(list)
        #: By block and reason: milliseconds and number of launches that MXNet's operators run, and
        #: the calls in them with a line.
        self.by_mxnet: Dict[Tuple[str, str], Tuple[float, int, int, Where]] = {}
        #: Arithmetic operations in products.
        self.work = 0
        #: Milliseconds of flushes that `begin` took.
        self.own_ms = 0.0
        #: How many launches the flushes need at least; None if it takes too long to find out.
        self.fewest_launches: Optional[int] = 0
        #: Milliseconds for which flushes waited for work from before.
        self.earlier_ms = 0.0
        #: Greatest common divisor of the calls per launch; 1 if a launch has several array sizes.
        self.stacked = 0
        #: Lines that read numbers, by the number; and the lines that calculate with these.
        self.numbers: Dict[float, Where] = {}
        self.arithmetic: Dict[Where, Where] = {}

    def begin(self, tape: Tape, graph: Graph) -> None:
        """Count the calls and units of a flush by line, before its launches run."""
        started = time.perf_counter()
        by_node = [tape.place(node).where for node in range(len(tape.node_entry))]
        #: Per unit, the line that recorded it.
        self._where_of = [by_node[node] for node in graph.node.tolist()]
        entries: Dict[int, Any] = tape.entries
        for place, number in zip(by_node, tape.node_entry):
            line, entry = self.lines[place], entries[number]
            line.calls += 1
            self.work += entry.work
            if entry.block_id is None:
                line.operators[entry.name] += 1
        if self.fewest_launches is not None:
            dependencies = graph.dependencies
            few = dependencies.size < MANY_UNITS
            self.fewest_launches = self.fewest_launches + lower_bound(dependencies) if few else None
        signatures: DefaultDict[Where, List[int]] = defaultdict(list)
        for unit, where in enumerate(self._where_of):
            if graph.segments[graph.segment[unit]].layout != "unbatched":
                signatures[where].append(int(graph.dependencies.signature[unit]))
        for where, numbers in signatures.items():
            line = self.lines[where]
            line.kinds = max(line.kinds, (len(numbers), len(set(numbers))))
        self._last = time.perf_counter()
        self.own_ms += 1e3 * (self._last - started)

    @contextlib.contextmanager
    def launch(self, run: Pass, number: int) -> Iterator[None]:
        """Wait for the results of a launch, and divide its time among the lines of its units."""
        launch = run.plan.launch(number)
        yield
        run.wait(launch)
        now = time.perf_counter()
        spent, self._last = 1e3 * (now - self._last), now
        for where, units in Counter(self._where_of[unit] for unit in launch.units).items():
            share = Fraction(units, len(launch.units))
            self.lines[where].launches += share
            self.lines[where].running_ms += spent * float(share)
        batched = launch.segment.layout in ("rows", "stack") and len(launch.parts) == 1
        self.stacked = math.gcd(self.stacked, len(launch.units)) if batched else 1
        plan, unit = run.plan, launch.units[0]
        reason, graph = plan.kernels_of(number), plan.graph
        if isinstance(reason, str) and launch.segment.layout != "unbatched":
            key = graph.name(unit), reason
            total, count, calls, where = self.by_mxnet.get(key, (0.0, 0, 0, self._where_of[unit]))
            self.by_mxnet[key] = total + spent, count + 1, calls + len(launch.units), where

    def findings(self, report: Report) -> Iterator[Finding]:
        """Yield what a report of these scopes finds, and what their counts show."""
        found = report.causes
        yield from self._reads(report, found)
        split = report.split
        where, line = max(self.lines.items(), key=lambda item: item[1].kinds[1])
        units, signatures = line.kinds
        if units >= 8 and 2 * signatures > units and not split:
            yield Finding("kinds", "", f"these calls are of {signatures} kinds", units, where)
        told = " ".join(finding.reason for finding in split)
        for (name, reason), (spent_ms, launches, calls, where) in self.by_mxnet.items():
            if launches > report.launches / 10 and reason not in told:
                share = f"{launches} of {report.launches} launches, in {spent_ms:.1f} ms"
                why = f"MXNet's own operators run {share}: {reason}"
                advice = f"native steps are faster: see {page(*NOT_MERGED)}"
                yield Finding("by MXNet", name, why, calls, where, advice)
        for (where, name), times in self.array_ms.items():
            if len(times) > report.nodes / 10 and statistics.median(times) > SLOW_ARRAY_MS:
                reason = f"making arrays takes {sum(times):.1f} ms"
                yield Finding("arrays", name, reason, len(times), where)
        yield from self._costs(report, bool(report.forced))

    def _reads(self, report: Report, found: List[Finding]) -> Iterator[Finding]:
        """Yield the findings of a report; for a read, with what happens to the value."""
        shared = any(flush.waiting > 1 for flush in report.flushes)
        for finding in found:
            if finding.where in self.arithmetic and finding.kind in READS:
                used = self.arithmetic[finding.where]
                reason = f"the number that is read enters arithmetic at {short(used)}"
                yield finding._replace(kind="arithmetic", reason=reason)
            elif finding.kind == "map" and not shared:
                yield finding._replace(kind="one waits")
            else:
                yield finding

    def _costs(self, report: Report, reads: bool) -> Iterator[Finding]:
        """Yield findings about what costs most; by counts, as a clock says what others do, too."""
        where, line = max(self.lines.items(), key=lambda item: item[1].calls)
        if self.stacked >= MANY_SAMPLES and not reads:
            reason = (
                f"all samples make the same calls on arrays of equal shapes: {self.stacked} in "
            )
            yield Finding("one shape", "", f"{reason}each launch", line.calls, where)
        else:
            yield from self._recording(report)
        new = [flush for flush in report.flushes if not flush.cached]
        slow = dict.fromkeys(flush.policy for flush in new if flush.policy != "depth")
        if slow and 2 * len(new) > len(report.flushes) and not (self.compiles or reads):
            flushes = f"{len(new)} of {len(report.flushes)} flushes"
            reason = f"{flushes} have new plans, for which policy {', '.join(slow)} takes long"
            yield Finding("analysis", "", reason, report.nodes, where)

    def _recording(self, report: Report) -> Iterator[Finding]:
        """Yield advice on recording fewer calls, or reusing recorded ones, if that costs most."""
        by_mxnet = sum(launches for _, launches, *_ in self.by_mxnet.values())
        others: float = FLUSH[0] * len(report.flushes) + LAUNCH[0] * report.launches
        others += (CALL[0] - LAUNCH[0]) * by_mxnet + self.work / WORK_PER_MICROSECOND
        if report.traced.known or RECORDED[0] * report.nodes <= others:
            return
        launches = f"{report.launches} launch{'es' * (report.launches != 1)}"
        reason = f"to record {report.nodes} calls costs more than {launches}"
        operators = {where: sum(line.operators.values()) for where, line in self.lines.items()}
        total, where = sum(operators.values()), max(operators, key=operators.__getitem__)
        names, calls, advice = "", operators[where], []
        if total > report.nodes / 4 and not report.found_of("idle", "forward"):
            names = ", ".join(sorted(set(map(signed, self.lines[where].operators)))[:3])
            reason += f"; {total} of these calls are operators outside of cells"
            advice = [TOGETHER]
        else:
            where, line = max(self.lines.items(), key=lambda item: item[1].calls)
            calls = line.calls
        if not (report.found_of("unkept") or report.forced):
            advice.append(
                "if samples repeat their structures, make the outer block a DynamicHybridBlock: "
                "net.hybridize(trace_once=True) then runs its forward once per structure"
            )
        if advice:
            yield Finding("recording", names, reason, calls, where, "; and ".join(advice))


def short(where: Where) -> str:
    """Write a line with the shorter of the absolute and the relative path of its file."""
    path = min(where.filename, os.path.relpath(where.filename), key=len)
    return str(where._replace(filename=path))


class Observer:
    """Collects statistics of all scopes by the places that open them, as ``RUNTIME.observer``."""

    def __init__(self) -> None:
        #: Per place its first scope, which compiles what the others use, and all others.
        self.sites: Dict[Where, List[ScopeSite]] = {}
        self._is_making = False

    def opened(self, scope: ThreadScope) -> None:
        """Add the report of a scope to its site."""
        sites = self.sites.setdefault(scope.place.where, [])
        if len(sites) < 2:
            sites.append(ScopeSite(compiles=not sites))
        sites[-1].reports.append(scope.report)

    def time_makers(self) -> None:
        """Wrap functions that make arrays, again when a scope has replaced some of them."""
        for module, prefix, name in MAKERS:
            make = getattr(module, name)
            if not hasattr(make, "timed"):
                setattr(module, name, self._timed(make, f"{prefix}.{name}"))

    def close(self) -> None:
        """Put the functions back that `time_makers` has wrapped."""
        for module, _, name in MAKERS:
            make = getattr(module, name)
            setattr(module, name, getattr(make, "timed", make))

    @property
    def site(self) -> ScopeSite:
        """The site of the open scope."""
        assert STATE.scope is not None
        return self.sites[STATE.scope.place.where][-1]

    def _timed(self, make: Any, name: str) -> Any:
        """Wrap a function that makes an array to measure its time in scopes."""

        @functools.wraps(make)
        def create(*args: Any, **kwargs: Any) -> Any:
            # In a flush, neither is set; and one function may call another.
            is_user = STATE.recorder is not None or STATE.at_once
            if not is_user or self._is_making:
                return make(*args, **kwargs)
            started = time.thread_time()
            self._is_making = True
            try:
                return make(*args, **kwargs)
            finally:
                self._is_making = False
                spent = 1e3 * (time.thread_time() - started)
                self.site.array_ms[user_line(), name].append(spent)

        create.timed = make  # type: ignore[attr-defined]
        return create

    def noting(self, original: Any) -> Any:
        """Wrap a method that reads arrays to note which line reads which numbers in scopes."""

        def read(array: Any, *args: Any) -> Any:
            pending = STATE.recorder is not None and array.pending
            values = original(array, *args)
            if pending and STATE.scope is not None and np.size(values) <= FEW_ELEMENTS:
                where = user_line()
                # Whole numbers may be equal by chance.
                fractions = (x for x in map(float, np.ravel(values)) if not x.is_integer())
                self.site.numbers.update(dict.fromkeys(fractions, where))
            return values

        # Reports name the function that the user's line calls.
        read.__code__ = read.__code__.replace(co_name=original.__name__)
        return read

    def calculating(self, lift_number: Any) -> Any:
        """Wrap ``Recorder.lift_number`` to find which numbers were read before."""

        @functools.wraps(lift_number)
        def lift(recorder: Recorder, token: Any, arrays: Any) -> Any:
            site, number = self.site, float(dict(zip(*token[2:])).get("scalar", 0))
            if abs(number) in site.numbers or -abs(number) in site.numbers:
                where = site.numbers.get(number, site.numbers.get(-number))
                assert where is not None
                site.arithmetic.setdefault(where, user_line())
            return lift_number(recorder, token, arrays)

        return lift

    def settle(self, tape: Tape) -> None:
        """Wait for work from before a flush, so that its launches are not charged with it.

        Not by ``waitall``, which would raise the errors of work that has nothing to do with the
        flush, and would take them from the script.
        """
        started = time.perf_counter()
        for array in tape.externals:
            if not isinstance(array, Lazy):  # a lazy one is the result of an earlier launch
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

    def begin_flush(self, tape: Tape, graph: Graph) -> ScopeSite:
        """Return the site of the open scope, whose `launch` surrounds each launch."""
        site = self.site
        site.begin(tape, graph)
        return site
