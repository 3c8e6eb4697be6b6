"""Plans and reports as HTML, for notebooks: in the colours of the page, with nothing installed."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Iterable, Sequence

from .flow import bars, groups

if TYPE_CHECKING:
    from ..plan.plan import Plan

#: More launches than this are grouped by what they run.
MOST_ROWS = 40


def page(title: str, rows: Iterable[Sequence[str]], text: str) -> str:
    """Show a table below a title, and a text on demand."""
    cell = '<td style="text-align:left">{}</td>'
    lines = ("".join(cell.format(escape(one)) for one in row) for row in rows)
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<div><b>{escape(title)}</b><table>{table}</table>"
        f"<details><summary>as text</summary><pre>{escape(text)}</pre></details></div>"
    )


def plan_html(plan: Plan) -> str:
    """Show a row per launch, with a bar for its calls."""
    rows = [
        (group.title, f"{sum(group.widths)} × {group.name}", bars(group.widths), group.reason)
        for group in groups(plan, MOST_ROWS).values()
    ]
    calls = sum(len(launch.units) for launch in plan.launches)
    title = f"{calls} calls in {len(plan.launches)} launches, {plan.arena_bytes / 1e6:.1f} MB"
    return page(title, rows, str(plan))
