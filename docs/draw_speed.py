"""Draw speed.svg, the table of speeds in the README as bars: one panel for each column.

Run ``python docs/draw_speed.py`` after a change of the table; a test fails if the picture is stale.
"""

from __future__ import annotations

import argparse
import html
import re
from pathlib import Path
from typing import List, NamedTuple, Tuple

DOCS = Path(__file__).resolve().parent
README, PICTURE = DOCS.parent / "README.md", DOCS / "speed.svg"
OURS, OTHERS, INK, PAPER = "#2a9d8f", "#b6bcc6", "#374151", "#ffffff"
LABELS, PANEL, VALUE, ROW, BAR, TOP, MARGIN = 300, 210, 56, 24, 15, 44, 12
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="13"'


class Row(NamedTuple):
    """A line of the table: its name, whether it is this package, and a number for each column."""

    name: str
    ours: bool
    speeds: Tuple[float, ...]


def read(text: str) -> Tuple[List[str], List[Row]]:
    """Return the header and the rows of the table of speeds in a text."""
    table = text.split("<!-- speed -->")[1].split("<!-- /speed -->")[0]
    header, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()
    ]
    rows = []
    for name, *cells in lines:
        speeds = tuple(float(re.sub(r"[^\d.]", "", cell) or 0) for cell in cells)
        rows.append(Row(plain(name), "**" in cells[0], speeds))
    return [plain(cell) for cell in header], rows


def plain(text: str) -> str:
    """Return Markdown without links, code and emphasis."""
    return re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", text)


def to_svg(header: List[str], rows: List[Row]) -> str:
    """Return the picture."""
    width = 2 * MARGIN + LABELS + PANEL * (len(header) - 1)
    height = TOP + ROW * len(rows) + MARGIN
    parts = [f'<rect width="{width}" height="{height}" fill="{PAPER}"/>']

    def write(x: float, y: float, text: str, style: str = "") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}"{style}>{html.escape(text)}</text>')

    bold = ' font-weight="bold"'
    write(MARGIN, TOP - 18, header[0], bold)
    for column, title in enumerate(header[1:]):
        left = MARGIN + LABELS + PANEL * column
        write(left, TOP - 18, title, bold)
        most = max(row.speeds[column] for row in rows)
        for number, row in enumerate(rows):
            speed, y = row.speeds[column], TOP + ROW * number
            if speed:
                length = max((PANEL - VALUE - MARGIN) * speed / most, 1)
                fill = OURS if row.ours else OTHERS
                parts.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{fill}"/>'
                )
                write(left + length + 5, y + 12, f"{speed:,.0f}", bold * row.ours)
    for number, row in enumerate(rows):
        write(MARGIN, TOP + ROW * number + 12, shorten(row.name), bold * row.ours)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" {FONT} fill="{INK}">\n{body}\n</svg>\n'
    )


def shorten(name: str) -> str:
    """Return a name without its last parts, if it is too long for its place."""
    parts = name.split(", ")
    while len(", ".join(parts)) > 46 and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PICTURE.write_text(to_svg(*read(README.read_text(encoding="utf-8"))), encoding="utf-8")
