"""Run a script and report what its scopes merged and what they did not, with costs and advice.

Each place that opened scopes gets a page: what its reports find, and what `observe.py` measures.
"""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import traceback
from fractions import Fraction
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ..errors import Where
from ..record.lazy import LazyNDArray, LazyNumPy
from ..record.lazy_base import Lazy
from ..record.recorder import Recorder
from ..report.advice import COLUMNS, NOT_MERGED, page, rows_of, wrapped
from ..report.report import Report
from ..report.summary import summary
from ..scope import RUNTIME
from .observe import Observer, ScopeSite, short

#: Most lines of code on a page, unless the user says how many.
MOST_LINES = 8


def pages(observer: Observer, lines: Optional[int] = MOST_LINES) -> str:
    """Return a page of text for each place that opened scopes, with so many lines of code."""
    if not observer.sites:
        return "no scope was opened: put `with gluon_dynbatch.batching():` around a minibatch"
    return "\n\n".join("\n".join(_page(*item, lines)) for item in observer.sites.items())


def _page(where: Where, sites: List[ScopeSite], most: Optional[int]) -> Iterator[str]:
    first, site = sites[0], sites[-1]
    reports = [report for each in sites for report in each.reports]
    counted = ""
    if site is not first:
        counted = " (the first is not counted)"
        if first.lines and not site.lines:
            site, counted = first, " (what follows is from the first, the only one that recorded)"
    report = Report.together(site.reports)
    report.at_once = at_once = sum(report.at_once for report in reports)
    report.fewest_launches = lambda: site.fewest_launches
    yield f"=== scope at {short(where)}"
    yield wrapped("scopes", [f"{len(reports)}{counted}"])
    if not site.lines:
        yield str(report)
        return
    if not report.launches:
        yield "no flush succeeded: the error of the script says why"
        return
    recording, analysis, dispatch, waiting = report.stage_times.values()
    running = sum(line.running_ms for line in site.lines.values())
    times = (
        f"recording and the script's own work {recording:.1f} ms, analysis {analysis:.1f} ms,",
        f"dispatch {max(dispatch - running - site.own_ms, 0):.1f} ms, "
        f"running {running:.1f} ms, waiting {waiting:.1f} ms,",
        f"work from before {site.earlier_ms:.1f} ms",
    )
    rows = dict(summary(report.flushes))
    yield from (wrapped(name, rows[name][:1]) for name in ("calls", "flushes") if name in rows)
    yield wrapped("time", times)
    yield from _table(site, recording, most)
    report.add_earlier(Report.together(first.reports).causes)
    found = [*site.findings(report)]
    if at_once:  # recording does not pay, however long it takes
        found = [finding for finding in found if finding.kind not in ("recording", "analysis")]
    changes = [wrapped(*row) for row in rows_of([*report.of_all_calls(found), *found], short)]
    yield "\nwhat to change" if changes else "\nnothing to change"
    yield from changes
    if changes:
        yield wrapped("read on", [f"{page(*NOT_MERGED)} explains each row"])


class Figures(NamedTuple):
    """A row of the table of lines; those of all lines add up to the totals of the page."""

    calls: int
    launches: Fraction
    recording_ms: float
    running_ms: float

    @classmethod
    def total(cls, rows: Iterable[Figures]) -> Figures:
        """Return the sum of rows."""
        return cls(*map(sum, zip(*rows)))  # type: ignore[arg-type]

    def row(self, shares: bool, text: str) -> str:
        """Return the row as text; if lines share launches, these are no whole numbers."""
        launches = f"{float(self.launches):.{int(shares)}f}"
        figures = f"{self.calls:9}{launches:>10}{self.recording_ms:11.2f}{self.running_ms:9.2f}"
        row = f"{figures}  {text}"
        return row if len(row) <= COLUMNS else f"{row[: COLUMNS - 3]}..."


def _table(site: ScopeSite, recording_ms: float, most: Optional[int]) -> Iterator[str]:
    """Yield a table of the lines that recorded calls, the most expensive first."""
    per_call = recording_ms / sum(line.calls for line in site.lines.values())
    rows = [
        (Figures(line.calls, line.launches, per_call * line.calls, line.running_ms), where)
        for where, line in site.lines.items()
    ]
    rows.sort(key=lambda row: -row[0].recording_ms - row[0].running_ms)
    shares = any(figures.launches.denominator > 1 for figures, _ in rows)
    yield f"\n{'calls':>9}{'launches':>10}{'recording':>11}{'running':>9}  line (times in ms)"
    for figures, where in rows[:most]:
        text = linecache.getline(where.filename, where.line).strip()
        yield figures.row(shares, f"{short(where)}: {text}")
    others = [figures for figures, _ in rows[len(rows) if most is None else most :]]
    if others:
        text = f"{len(others)} other line{'s' * (len(others) != 1)}: explain --lines all shows them"
        yield Figures.total(others).row(shares, text)
    if len(rows) > 1:
        text = "all lines" + "; launches of several are divided by their calls" * shares
        yield Figures.total(figures for figures, _ in rows).row(shares, text)


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


def run_script(script: str, arguments: List[str], lines: Optional[int] = MOST_LINES) -> None:
    """Run a script as Python would, then print the pages of its scopes.

    A page shows at most `lines` lines of code, or all if it is None.
    """
    observer = RUNTIME.observer = Observer()
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    watched: Tuple[Tuple[Any, str, Callable[[Any], Any]], ...] = (
        (Lazy, "asnumpy", observer.noting),
        *((each, each._reader, observer.noting) for each in (LazyNDArray, LazyNumPy)),
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
        observer.close()
        print(f"\n{pages(observer, lines)}")
