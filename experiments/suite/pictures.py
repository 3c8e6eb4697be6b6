"""Speed against batch size, workloads side by side, time against the analysis budget: pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from .outcome import Outcome
from .results import grouped
from .tables import CACHED, Measured
from .ways import CURVES

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"
COLOURS = {"gdb": BLUE, "imperative": GREY, "hybridized": BLACK, "hand": ORANGE}
OTHERS = (RED, PURPLE, SKY, GREEN, "#8C564B", "#17BECF")
#: Distance of the places "0" and "no limit" from the others, in decades.
GAP = 0.5


class Label(NamedTuple):
    """A text at the end of a line, in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def draw(found: Dict[str, Measured], output: Path) -> List[Path]:
    """Draw all that was measured, as PNG and SVG."""
    paths = []
    if len(found) > 1 and any(
        "hybridized" in o.by_label for m in found.values() for o in m.outcomes
    ):
        paths += save(overview(found), output / "overview")
    for name, measured in found.items():
        if len({outcome.batch_size for outcome in measured.outcomes}) > 1:
            paths += save(speed(measured), output / f"speed-{name}")
        by_size = grouped(measured.outcomes, lambda outcome: outcome.batch_size)
        for size, outcomes in by_size.items():
            if all(list(curves(outcome)) for outcome in outcomes):
                paths += save(budget(measured.title, outcomes), output / f"curve-{name}-{size}")
    return paths


def speed(measured: Measured) -> Figure:
    """Draw medians and quartiles of all ways of one workload."""
    kinds = grouped(measured.outcomes, lambda outcome: outcome.kind)
    figure = new_figure(7 * len(kinds), 6, f"{measured.title}: speed and batch size",
                        "median and quartiles of interleaved rounds")  # fmt: skip
    columns = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, (kind, outcomes) in zip(columns, kinds.items()):
        _draw_speed(axes, outcomes)
        axes.set_title(kind, fontsize=11)
        axes.set_xlabel("samples in a minibatch (log scale)")
    columns[0].set_ylabel(f"{measured.unit} per second (log scale)")
    return figure


def _draw_speed(axes: Any, outcomes: Sequence[Outcome]) -> None:
    labels = []
    names = dict.fromkeys(row.label for outcome in outcomes for row in outcome.rows)
    for name, colour in zip(names, colours(list(names))):
        own = [outcome for outcome in outcomes if name in outcome.by_label]
        sizes = [outcome.batch_size for outcome in own]
        median, low, high = zip(*(outcome.spread(name) for outcome in own))
        axes.plot(sizes, median, color=colour, linewidth=2.6 if name == "gdb" else 1.6, marker=".")
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(Label(sizes[-1], median[-1], f"{name}  {median[-1]:,.0f}", colour))
    sizes = [outcome.batch_size for outcome in outcomes]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_yscale("log")
    log_axis(axes.yaxis)
    tidy(axes)
    label_ends(axes, labels)


def overview(found: Dict[str, Measured]) -> Figure:
    """Draw how many times as fast as the hybridized loop each way is, workload by workload."""
    rows = [
        (f"{name}, {outcome.kind}, {outcome.batch_size}", outcome)
        for name, measured in found.items()
        for outcome in {each.kind: each for each in measured.outcomes}.values()
        if "hybridized" in outcome.by_label
    ]
    figure = new_figure(10, 2 + 0.3 * len(rows), "Speed as a multiple of the hybridized loop",
                        "median and quartiles of the ratio within each round")  # fmt: skip
    axes = figure.subplots()
    names = list(dict.fromkeys(row.label for _, outcome in rows for row in outcome.rows))
    for name, colour in zip(names, colours(names)):
        places = [i for i, (_, outcome) in enumerate(rows) if name in outcome.by_label]
        ratios = [rows[i][1].ratio(name, "hybridized") for i in places]
        axes.plot([ratio.median for ratio in ratios], places, "o", color=colour, label=name)
        axes.hlines(places, [r.low for r in ratios], [r.high for r in ratios], color=colour)
    axes.set_yticks(range(len(rows)), [text for text, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    log_axis(axes.xaxis)
    tidy(axes)
    axes.legend(loc="best", fontsize=9)
    return figure


class Point(NamedTuple):
    """A place on a curve; the budget is in visits, None is no limit."""

    label: str
    budget: Optional[int]


def curves(outcome: Outcome) -> Iterator[List[Point]]:
    """Find the points of each granularity's curve, in order of their budgets."""
    for granularity in CURVES:
        prefix = f"gdb:{granularity}:search"
        limits = [label[len(prefix) + 1 :] for label in outcome.by_label if prefix in label]
        visits = sorted(int(limit) for limit in limits if limit.isdigit())
        points = [Point(f"{prefix}:{each}", each) for each in visits]
        if points and prefix in outcome.by_label:
            yield [*points, Point(prefix, None)]


def budget(title: str, outcomes: Sequence[Outcome]) -> Figure:
    """Draw the time of a minibatch against its analysis budget, for one batch size."""
    figure = new_figure(
        7 * len(outcomes), 5.8, f"Analysis budget: {title}",
        f"minibatches of {outcomes[0].batch_size}, plans made anew; median and quartiles",
    )  # fmt: skip
    grid = figure.subplots(1, len(outcomes), squeeze=False)[0]
    for axes, outcome in zip(grid, outcomes):
        _draw_budget(axes, outcome)
        axes.set_title(outcome.kind, fontsize=11)
    grid[0].set_ylabel("total time of a minibatch, ms (log scale)")
    figure.supxlabel(
        "○ lowest point    ★ what “auto” took    dotted: as many visits as there are nodes,\n"
        "which group all of them by depth; beyond, agenda and search", fontsize=9,
    )  # fmt: skip
    return figure


def _draw_budget(axes: Any, outcome: Outcome) -> None:
    found = list(curves(outcome))
    budgets = [point.budget for own in found for point in own if point.budget]
    first, last = math.log10(min(budgets)), math.log10(max(budgets))

    def place(visits: Optional[float]) -> float:
        if visits is None:
            return last + GAP
        return math.log10(visits) if visits >= 1 else first - GAP

    labels, lowest = [], []
    for granularity, own, colour in zip(CURVES, found, (BLUE, RED)):
        x = [place(point.budget) for point in own]
        y, low, high = zip(*(outcome.spread(point.label, "ms") for point in own))
        axes.plot(x, y, "-o", color=colour, markersize=4, linewidth=1.8)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(Label(x[-1], y[-1], granularity, colour))
        lowest += zip(y, x)
        nodes = outcome.median(own[-1].label, "nodes")
        axes.axvline(place(nodes), color=colour, linewidth=0.9, linestyle=(0, (1, 3)))
        cached = outcome.median(f"{own[-1].label}{CACHED}", "ms")
        if cached is not None:
            axes.hlines(cached, x[0], x[-1], color=colour, linewidth=1, linestyle="--")
            labels.append(Label(x[-1], cached, f"{granularity}, plan cached", colour))
    y, x = min(lowest)
    axes.plot(x, y, "o", markersize=13, fillstyle="none", color=BLACK)
    if "gdb" in outcome.by_label:
        _mark_auto(axes, place(None), outcome)
    decades = range(math.ceil(first), math.floor(last) + 1)
    ticks = [place(0), *decades, place(None)]
    axes.set_xticks(ticks, ["0", *(f"{10**d:,}" for d in decades), "no\nlimit"])
    axes.set_xlabel("analysis budget, visits (log scale)")
    axes.set_yscale("log")
    log_axis(axes.yaxis)
    tidy(axes)
    label_ends(axes, labels)


def _mark_auto(axes: Any, x: float, outcome: Outcome) -> None:
    y, setting = outcome.median("gdb", "ms"), outcome.by_label["gdb"][-1].setting
    axes.plot(x, y, "*", markersize=15, color=PURPLE, markeredgecolor=BLACK, zorder=5)
    axes.annotate(
        f"auto: {setting}\n{y:,.0f} ms",
        (x, y), (-14, 34), textcoords="offset points", ha="right", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": BLACK, "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip


def colours(names: Sequence[str]) -> List[str]:
    """Give each way its colour."""
    others = [name for name in names if name not in COLOURS]
    return [COLOURS.get(n) or OTHERS[others.index(n) % len(OTHERS)] for n in names]


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


def label_ends(axes: Any, labels: Sequence[Label], gap: float = 0.055) -> None:
    """Write labels to the right of their points, moved up where they would overlap.

    Call this when the limits of the axes are final.
    """
    transform = axes.transData + axes.transAxes.inverted()
    placed = sorted((*transform.transform((label.x, label.y)), label) for label in labels)
    height = -1.0
    for x, y, label in sorted(placed, key=lambda item: item[1]):
        height = max(y, height + gap)
        axes.annotate(
            label.text, (label.x, label.y), (x + 0.02, height), textcoords="axes fraction",
            va="center", fontsize=9, color=label.colour, annotation_clip=False,
        )  # fmt: skip


def log_axis(axis: Any) -> None:
    """Put ticks at 1, 2 and 5 of each decade, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))


def save(figure: Figure, path: Path) -> List[Path]:
    """Write a picture as PNG and SVG beside each other."""
    paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for each in paths:
        # No date: equal figures give equal files.
        metadata = {"Date": None} if each.suffix == ".svg" else {}
        figure.savefig(each, dpi=140, metadata=metadata)
    return paths
