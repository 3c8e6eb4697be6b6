"""Draw the speeds of the README: speed.svg from its table, threads.svg from threads.csv.

Run ``python docs/draw_speed.py`` after a change of either; a test fails if a picture is stale, or
the table of threads in performance.md. ``python docs/draw_speed.py --threads runs/threads`` first
takes the figures from a run of ``experiments/benchmark.py --threads``.
"""

from __future__ import annotations

import csv
import html
import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from programs import parser_of
from themes import frame

DOCS = Path(__file__).resolve().parent
README, PICTURE = DOCS.parent / "README.md", DOCS / "speed.svg"
PAGE, FIGURES, THREADS = DOCS / "performance.md", DOCS / "threads.csv", DOCS / "threads.svg"
OURS, OTHERS = "#2a9d8f", "#b6bcc6"
LABELS, PANEL, VALUE, ROW, BAR, TOP, MARGIN = 360, 210, 56, 24, 15, 44, 12
#: The workload whose speed over threads is shown, its sample, and the minibatch of the picture.
WORKLOAD, UNIT, SIZE = "sick", "pairs", 256
#: The ways in `FIGURES`, as a reader knows them; those of this package first.
WAYS = {
    "gdb-once": "each structure traced once",
    "gdb": "a new plan for every minibatch",
    "torch": "PyTorch, batched by hand",
}
#: Kind, samples, way and threads of a figure, which is a rate.
Figures = Dict[Tuple[str, int, str, str], float]


class Row(NamedTuple):
    """A line of a picture: its name, whether its bars are this package's, and their numbers.

    A row without numbers is a heading.
    """

    name: str
    ours: bool
    speeds: Tuple[float, ...]
    bold: bool


def marked(text: str, name: str) -> Tuple[str, str, str]:
    """Return what is before, between and after the marks of a table in a text."""
    before, rest = text.split(f"<!-- {name} -->")
    table, after = rest.split(f"<!-- /{name} -->")
    return before, table, after


def read(text: str) -> Tuple[List[str], List[Row]]:
    """Return the header and the rows of the table of speeds in a text."""
    _, table, _ = marked(text, "speed")
    header, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()
    ]
    rows = []
    for name, *cells in lines:
        speeds = tuple(float(re.sub(r"[^\d.]", "", cell) or 0) for cell in cells)
        ours = "**" in cells[0]
        rows.append(Row(plain(name), ours, speeds, ours))
    return [plain(cell) for cell in header], rows


def plain(text: str) -> str:
    """Return Markdown without links, code and emphasis."""
    return re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", text)


def to_csv(measured: Dict[str, Any]) -> Iterator[List[Any]]:
    """Yield the lines of `FIGURES`: medians over the rounds of a benchmark over threads."""
    rates = defaultdict(list)
    for row in measured["workloads"][WORKLOAD]["rows"]:
        way, setting = row["way"].split("@")
        rates[row["kind"], row["size"], way, setting].append(row["rate"])
    yield ["kind", "samples", "way", "threads", f"{UNIT} per second"]
    for key, each in rates.items():
        yield [*key, round(median(each))]


def read_csv(text: str) -> Figures:
    """Return the figures of `FIGURES`."""
    _, *lines = csv.reader(text.splitlines())
    return {(kind, int(size), way, n): float(rate) for kind, size, way, n, rate in lines}


def settings_of(figures: Figures) -> Dict[str, str]:
    """Return the settings of threads, as in `FIGURES` and as a reader knows them."""
    names = dict.fromkeys(threads for *_, threads in figures)
    return {n: f"{n} thread{'s' * (n != '1')}" if n.isdigit() else n for n in names}


def to_table(figures: Figures) -> str:
    """Return the figures as a table in Markdown, with ratios to PyTorch's best setting."""
    settings = settings_of(figures)
    columns = [f"{UNIT} per second", "way", *settings.values(), "nothing set / PyTorch's best"]
    lines = [columns, ["---"] * 2 + ["---:"] * (len(settings) + 1)]
    for kind, size in dict.fromkeys(key[:2] for key in figures):
        best = max(figures[kind, size, "torch", each] for each in settings)
        for way, name in WAYS.items():
            rates = [figures[kind, size, way, each] for each in settings]
            ratio = f"{rates[-1] / best:.2f}" if way != "torch" else ""
            cells = [f"{rate:,.0f}" for rate in rates]
            lines.append([f"{kind}, {size:,}", name, *cells, ratio])
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def over_threads(figures: Figures) -> Tuple[List[str], List[Row]]:
    """Return the header and the rows of the picture of speed over threads."""
    settings, rows = settings_of(figures), []
    kinds = [*dict.fromkeys(kind for kind, *_ in figures)]
    for way, name in WAYS.items():
        ours = way != "torch"
        rows.append(Row(name, ours, (), bold=True))
        for setting, title in settings.items():
            speeds = tuple(figures[kind, SIZE, way, setting] for kind in kinds)
            rows.append(Row(title, ours, speeds, bold=False))
    return [f"{UNIT} per second, minibatches of {SIZE}", *kinds], rows


def to_svg(header: List[str], rows: List[Row]) -> str:
    """Return a picture of bars, with a panel for each column of numbers."""
    width = 2 * MARGIN + LABELS + PANEL * (len(header) - 1)
    height = TOP + ROW * len(rows) + MARGIN
    parts = []

    def write(x: float, y: float, text: str, style: str = "") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}"{style}>{html.escape(text)}</text>')

    bold = ' font-weight="bold"'
    write(MARGIN, TOP - 18, header[0], bold)
    for column, title in enumerate(header[1:]):
        left = MARGIN + LABELS + PANEL * column
        write(left, TOP - 18, title, bold)
        most = max(row.speeds[column] for row in rows if row.speeds)
        for number, row in enumerate(rows):
            speed, y = row.speeds[column] if row.speeds else 0, TOP + ROW * number
            if speed:
                length = max((PANEL - VALUE - MARGIN) * speed / most, 1)
                fill = OURS if row.ours else OTHERS
                parts.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{fill}"/>'
                )
                write(left + length + 5, y + 12, f"{speed:,.0f}", bold * row.bold)
    for number, row in enumerate(rows):
        write(MARGIN, TOP + ROW * number + 12, shorten(row.name), bold * row.bold)
    return frame(width, height, header[0], parts)


def shorten(name: str) -> str:
    """Return a name without its last parts, if it is too long for its place."""
    parts = name.split(", ")
    while len(", ".join(parts)) > 46 and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


def main() -> None:
    """Draw both pictures, and write the table of threads."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--threads", type=Path, metavar="FOLDER", help="the --output of a benchmark over threads"
    )
    folder = parser.parse_args().threads
    if folder:
        measured = parser.read_json(folder / "threads.json")
        try:
            lines = [*to_csv(measured)]
        except (ValueError, KeyError, TypeError, AttributeError):
            parser.error(f"{folder}: has no measurement of {WORKLOAD} over threads")
        with FIGURES.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    figures = read_csv(FIGURES.read_text(encoding="utf-8"))
    before, _, after = marked(PAGE.read_text(encoding="utf-8"), "threads")
    table = f"<!-- threads -->\n{to_table(figures)}\n<!-- /threads -->"
    PAGE.write_text(f"{before}{table}{after}", encoding="utf-8")
    THREADS.write_text(to_svg(*over_threads(figures)), encoding="utf-8")
    PICTURE.write_text(to_svg(*read(README.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
