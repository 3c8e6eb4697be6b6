"""Speed against batch size, and time against the analysis budget: pictures."""

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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#E69F00", "#56B4E9", "#CC79A7", "#777777")
#: Distance of the places "0" and "no limit" from the others, in decades.
GAP = 0.5


def draw(found: Dict[str, Measured], output: Path) -> List[Path]:
    """Draw what was measured at several sizes, or with several budgets, as PNG and SVG."""
    paths = []
    for name, measured in found.items():
        if len({outcome.batch_size for outcome in measured.outcomes}) > 1:
            kinds = grouped(measured.outcomes, lambda outcome: outcome.kind)
            figure = _figure(f"{measured.title}: {measured.unit} per second", len(kinds))
            for axes, outcomes in zip(figure.axes, kinds.values()):
                _draw_speed(axes, outcomes)
            paths += _save(figure, output / f"speed-{name}")
        by_size = grouped(measured.outcomes, lambda outcome: outcome.batch_size)
        for size, outcomes in by_size.items():
            if all(list(curves(outcome)) for outcome in outcomes):
                title = f"{measured.title}: ms of a minibatch of {size}, plans made anew"
                figure = _figure(title, len(outcomes))
                for axes, outcome in zip(figure.axes, outcomes):
                    _draw_budget(axes, outcome)
                paths += _save(figure, output / f"curve-{name}-{size}")
    return paths


def _draw_speed(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Draw medians and quartiles of all ways."""
    names = dict.fromkeys(row.label for outcome in outcomes for row in outcome.rows)
    for i, name in enumerate(names):
        own = [outcome for outcome in outcomes if name in outcome.by_label]
        sizes = [outcome.batch_size for outcome in own]
        spreads = [outcome.spread(name) for outcome in own]
        _line(axes, sizes, spreads, f"{name}  {spreads[-1].median:,.0f}", COLOURS[i % len(COLOURS)])
    sizes = [outcome.batch_size for outcome in outcomes]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    _tidy(axes, outcomes[0].kind, "samples in a minibatch")


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


def _draw_budget(axes: Any, outcome: Outcome) -> None:
    """Draw the time of a minibatch against its analysis budget.

    Dotted lines: as many visits as there are nodes, which group all of them by depth.
    """
    found = list(curves(outcome))
    budgets = [point.budget for own in found for point in own if point.budget]
    first, last = math.log10(min(budgets)), math.log10(max(budgets))

    def place(visits: Optional[float]) -> float:
        if visits is None:
            return last + GAP
        return math.log10(visits) if visits >= 1 else first - GAP

    for granularity, own, colour in zip(CURVES, found, COLOURS):
        x = [place(point.budget) for point in own]
        _line(axes, x, [outcome.spread(p.label, "ms") for p in own], granularity, colour)
        nodes = outcome.median(own[-1].label, "nodes")
        axes.axvline(place(nodes), color=colour, linewidth=0.9, linestyle=":")
        cached = outcome.median(f"{own[-1].label}{CACHED}", "ms")
        if cached is not None:
            label = f"{granularity}, plan cached"
            axes.hlines(cached, x[0], x[-1], color=colour, linestyle="--", label=label)
    if "gdb" in outcome.by_label:
        label = f"auto: {outcome.by_label['gdb'][-1].setting}"
        y = outcome.median("gdb", "ms")
        axes.plot(place(None), y, "*", markersize=15, color=COLOURS[3], label=label)
    decades = range(math.ceil(first), math.floor(last) + 1)
    ticks = [place(0), *decades, place(None)]
    axes.set_xticks(ticks, ["0", *(f"{10**d:,}" for d in decades), "no\nlimit"])
    _tidy(axes, outcome.kind, "analysis budget, visits")


def _line(axes: Any, x: Sequence[float], spreads: Sequence[Any], label: str, colour: str) -> None:
    median, low, high = zip(*spreads)
    axes.plot(x, median, "-o", color=colour, markersize=4, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _figure(title: str, columns: int) -> Figure:
    figure = Figure(figsize=(7 * columns, 6), layout="constrained")
    figure.suptitle(f"{title}\nmedian and quartiles of interleaved rounds", fontsize=12)
    figure.subplots(1, columns)
    return figure


def _tidy(axes: Any, title: str, x: str) -> None:
    """Put ticks at 1, 2 and 5 of each decade, as plain numbers; leave out what tells nothing."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(f"{x} (log scale)")
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)


def _save(figure: Figure, path: Path) -> List[Path]:
    """Write a picture as PNG and SVG beside each other."""
    paths = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for each in paths:
        # No date: equal figures give equal files.
        metadata = {"Date": None} if each.suffix == ".svg" else {}
        figure.savefig(each, dpi=140, metadata=metadata)
    return paths
