"""Draw the load test of the decoder's service: serving.svg from serving.csv.

Run ``python docs/draw_serving.py`` after a change; a test fails if the picture is stale. ``python
docs/draw_serving.py --figures runs/serving/decoder.json`` first takes the figures from a run of
``experiments/serve_load.py``.
"""

from __future__ import annotations

import csv
import html
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from programs import parser_of
from themes import GRID, frame

DOCS = Path(__file__).resolve().parent
FIGURES, PICTURE = DOCS / "serving.csv", DOCS / "serving.svg"
#: The ways in `FIGURES`, in the order of the legend: as a reader knows them, and their colours.
WAYS = {
    "continuous": ("requests join at every step", "#2a9d8f"),
    "to its end": ("each minibatch runs to its end", "#e76f51"),
    "one at a time": ("one request at a time", "#6b7280"),
}
#: Columns of `FIGURES` beside the way and its words a second, with the titles of their panels.
PANELS = {
    "p99": "a request, p99",
    "short99": "a request of at most 20 words, p99",
    "first50": "until the first word, p50",
    "each50": "between words, p50",
}
WIDTH, HEIGHT, LEFT, GAP, TOP = 260, 130, 56, 56, 70


class Point(NamedTuple):
    """What one way did at one rate: words a second, and seconds by column of `PANELS`."""

    words: float
    seconds: Dict[str, float]


#: The points by way, from the lowest rate to the highest.
Figures = Dict[str, List[Point]]


def to_csv(measured: Dict[str, Any]) -> Iterator[List[Any]]:
    """Yield the lines of the figures of a load test, without rates at which requests were lost."""
    yield ["way", "words per second", *PANELS]
    for way, rows in measured.items():
        for row in rows:
            if not row["lost"]:
                yield [way, round(row["words"]), *(f"{row[name]:.6f}" for name in PANELS)]


def read_csv(text: str) -> Figures:
    """Return the points in a text."""
    figures: Figures = {}
    for row in csv.DictReader(text.splitlines()):
        seconds = {name: float(row[name]) for name in PANELS}
        point = Point(float(row["words per second"]), seconds)
        figures.setdefault(row["way"], []).append(point)
    return figures


def decades(values: List[float]) -> Tuple[int, int]:
    """Return the powers of ten that enclose some values."""
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def seconds_as_text(power: int) -> str:
    """Return a power of ten in seconds, as a reader likes it."""
    return f"{10.0**power:g} s" if power >= 0 else f"{10.0 ** (power + 3):g} ms"


def panel(figures: Figures, name: str, left: float, top: float) -> Iterator[str]:
    """Yield the elements of a panel: seconds, in a logarithmic scale, over words a second."""
    values = [point.seconds[name] for points in figures.values() for point in points]
    low, high = decades(values)
    most = max(point.words for points in figures.values() for point in points)
    step = 10 ** math.floor(math.log10(most))
    # Three to five numbers fit below a panel.
    step *= next(factor for factor in (0.5, 1, 2) if most / step / factor < 5)

    def at(words: float, seconds: float) -> Tuple[float, float]:
        across = words / (1.05 * most)
        up = (math.log10(seconds) - low) / (high - low)
        return round(left + WIDTH * across, 1), round(top + HEIGHT * (1 - up), 1)

    yield f'<text x="{left}" y="{top - 10}" font-weight="bold">{html.escape(PANELS[name])}</text>'
    for power in range(low, high + 1):
        _, y = at(0, 10.0**power)
        yield f'<path d="M{left} {y}h{WIDTH}" stroke="{GRID}"/>'
        yield f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{seconds_as_text(power)}</text>'
    for number in range(int(most / step) + 1):
        x, y = at(number * step, 10.0**low)
        yield f'<text x="{x}" y="{y + 16}" text-anchor="middle">{number * step:,.0f}</text>'
    middle = left + WIDTH / 2
    yield f'<text x="{middle}" y="{top + HEIGHT + 32}" text-anchor="middle">words per second</text>'
    for way, points in figures.items():
        spots = [at(point.words, point.seconds[name]) for point in points]
        line = " ".join(f"{x},{y}" for x, y in spots)
        colour = WAYS[way][1]
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in spots)


def to_svg(figures: Figures) -> str:
    """Return the picture of some figures."""
    width, height = 2 * (LEFT + WIDTH) + GAP, TOP + 2 * (HEIGHT + LEFT)
    title = "Times of requests over words per second"
    elements = []
    for number, (way, (text, colour)) in enumerate(WAYS.items()):
        if way in figures:
            x = LEFT + number * 225
            elements.append(f'<circle cx="{x}" cy="18" r="5" fill="{colour}"/>')
            elements.append(f'<text x="{x + 10}" y="22">{html.escape(text)}</text>')
    for number, name in enumerate(PANELS):
        row, column = divmod(number, 2)
        left, top = LEFT + column * (WIDTH + GAP + 20), TOP + row * (HEIGHT + LEFT + 20)
        elements += panel(figures, name, left, top)
    return frame(width, height, title, elements)


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="decoder.json of a load test")
    args = parser.parse_args()
    if args.figures is not None:
        measured = parser.read_json(args.figures)
        try:
            lines = [*to_csv(measured)]
        except (KeyError, TypeError, AttributeError):
            parser.error(f"{args.figures}: not written by a load test of the decoder")
        with FIGURES.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    PICTURE.write_text(to_svg(read_csv(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
