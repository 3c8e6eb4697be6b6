"""What all pictures share: colours, labels beside lines, an axis of budgets, saving."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#777777"

#: Distance of the places "0" and "no limit" from the others, in decades.
GAP = 0.5


class Label(NamedTuple):
    """A text at the end of a line, in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def new_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """Start a picture, in inches, with title and subtitle above everything."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.62 / height))
    for text, inches, style in (
        (title, 0.12, {"fontsize": 13, "fontweight": "bold"}),
        (subtitle, 0.38, {"fontsize": 10, "color": "#444444"}),
    ):
        figure.text(0.5, 1 - inches / height, text, ha="center", va="top", **style)
    return figure


def tidy(axes: Any) -> None:
    """Leave out what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def label_ends(axes: Any, labels: Sequence[Label], size: float = 9, gap: float = 0.055) -> None:
    """Write labels to the right of their points, moved apart where they would overlap.

    Call this when the limits of the axes are final.
    """
    transform = axes.transData + axes.transAxes.inverted()
    placed = [(transform.transform((label.x, label.y)), label) for label in labels]
    placed.sort(key=lambda item: item[0][1])
    heights = spread_apart([float(place[1]) for place, _ in placed], gap)
    for (place, label), height in zip(placed, heights):
        axes.annotate(
            label.text,
            (label.x, label.y),
            (place[0] + 0.02, height),
            textcoords="axes fraction",
            va="center",
            fontsize=size,
            color=label.colour,
            annotation_clip=False,
        )


def spread_apart(heights: Sequence[float], gap: float) -> List[float]:
    """Move increasing heights apart to at least `gap`, each cluster around its own middle."""
    clusters: List[List[float]] = []  # of (wanted) heights
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _bottom(clusters[-1], gap) - _top(clusters[-2], gap) < gap:
            last = clusters.pop()
            clusters[-1] += last
    return [_bottom(c, gap) + i * gap for c in clusters for i in range(len(c))]


def _bottom(cluster: Sequence[float], gap: float) -> float:
    return sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2


def _top(cluster: Sequence[float], gap: float) -> float:
    return sum(cluster) / len(cluster) + gap * (len(cluster) - 1) / 2


class BudgetAxis:
    """Places for budgets: 0 at the left, a logarithmic scale, "no limit" at the right."""

    def __init__(self, budgets: Sequence[Optional[float]]) -> None:
        logs = [math.log10(b) for b in budgets if b]
        self.first, self.last = min(logs), max(logs)

    def place(self, budget: Optional[float]) -> float:
        """Give the horizontal position of a budget."""
        if budget is None:
            return self.last + GAP
        return math.log10(budget) if budget >= 1 else self.first - GAP

    def draw(self, axes: Any) -> None:
        """Label the axis."""
        decades = range(math.ceil(self.first), math.floor(self.last) + 1)
        places = [self.place(0), *decades, self.place(None)]
        axes.set_xticks(places, ["0", *(f"{10**d:,}" for d in decades), "no\nlimit"])
        axes.set_xlim(self.place(0) - 0.15, self.place(None) + 0.15)
        axes.set_xlabel("analysis budget, visits (log scale)")


def save(figure: Figure, path: Path) -> List[Path]:
    """Write a picture as PNG and SVG beside each other."""
    paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for each in paths:
        # A fixed salt and no date: equal figures give equal files.
        metadata = {"Date": None} if each.suffix == ".svg" else {}
        figure.savefig(each, dpi=140, metadata=metadata)
    return paths


def count_axis(axes: Any, sizes: Sequence[int]) -> None:
    """Make the horizontal axis one of batch sizes, powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(min(sizes) * 0.9, max(sizes) * 1.1)


def finish_counts(
    axes: Any, sizes: Sequence[int], values: Sequence[float], labels: Sequence[Label]
) -> None:
    """Finish what is drawn against batch sizes, both axes logarithmic, and label its lines."""
    count_axis(axes, sizes)
    axes.set_yscale("log")
    axes.set_ylim(*limits(values))
    log_axis(axes.yaxis)
    tidy(axes)
    label_ends(axes, labels)


def log_axis(axis: Any) -> None:
    """Put ticks at 1, 2 and 5 of each decade, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))


def limits(values: Sequence[float]) -> Tuple[float, float]:
    """Give limits of a logarithmic axis with some air."""
    return min(values) / 1.4, max(values) * 1.4
