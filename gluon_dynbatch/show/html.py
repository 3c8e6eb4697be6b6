"""Plans and reports as HTML, for notebooks: in the colours of the page, with nothing installed."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, List, Sequence

from .flow import groups
from .plot import COLORS, times

if TYPE_CHECKING:
    from ..plan.plan import Plan
    from ..report import Report

#: More launches than this are grouped by what they run.
MOST_ROWS = 40


def plan_html(plan: Plan) -> str:
    """Show a row per launch, with a bar for its calls; the plan as text on demand."""
    found = list(groups(plan, MOST_ROWS).values())
    widest = max((max(group.widths) for group in found), default=1)
    rows = []
    for group in found:
        low, high = min(group.widths), max(group.widths)
        wide = str(low) if low == high else f"{low} to {high}"
        rows.append((group.title, group.name, wide, _Bar(high / widest), group.reason))
    calls = sum(len(launch.units) for launch in plan.launches)
    title = f"{calls} calls in {len(plan.launches)} launches, {plan.arena_bytes / 1e6:.1f} MB"
    return _page(title, _table(("", "calls of", "wide", "", "not merged because"), rows), str(plan))


def report_html(report: Report) -> str:
    """Show where the time went, and what did not merge; the report as text on demand."""
    spent = times(report)
    total = sum(spent.values()) or 1.0
    parts = "".join(
        f'<span style="display:inline-block;height:1em;width:{100 * ms / total:.2f}%;'
        f'background:{COLORS[kind]}" title="{kind} {ms:.1f} ms"></span>'
        for kind, ms in spent.items()
    )
    legend = " · ".join(
        f'<span style="color:{COLORS[kind]}">■</span> {kind} {ms:.1f} ms'
        for kind, ms in spent.items()
    )
    body = f'<div style="width:30em;white-space:nowrap">{parts}</div><div>{legend}</div>'
    unmerged = [*report.alone, *report.split]
    if unmerged:
        rows = [(f"{one.calls} ×", one.name, one.reason, one.where) for one in unmerged]
        body += _table(("calls", "not merged", "because", "at"), rows)
    read = [(f"{times} ×", where) for where, times in report.forced.items()]
    if read:
        body += _table(("value read", "at"), read)
    title = f"{report.nodes} calls in {report.launches} launches; flushes: {len(report.flushes)}"
    return _page(title, body, str(report))


class _Bar(float):
    """A share of one, shown as a bar."""

    def __str__(self) -> str:
        look = f"width:{10 * self:.2f}em;height:0.8em;background:{COLORS['dispatch']}"
        return f'<div style="{look}"></div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        shown = (str(c) if isinstance(c, _Bar) else escape(str(c)) for c in cells)
        inner = "".join(f'<{tag} style="text-align:left">{cell}</{tag}>' for cell in shown)
        return f"<tr>{inner}</tr>"

    lines: List[str] = [line(head, "th"), *(line(row, "td") for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _page(title: str, body: str, text: str) -> str:
    return (
        f"<div><b>{escape(title)}</b>{body}"
        f"<details><summary>as text</summary><pre>{escape(text)}</pre></details></div>"
    )
