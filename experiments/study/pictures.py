"""The pictures of the study; each can be read without the text beside it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from timing import axes as look
from timing.contest import Outcome
from timing.results import grouped

from . import auto, curve
from .settings import AUTO, GRANULARITIES
from .simulate import Simulated

POLICY_COLOURS = {"depth": look.ORANGE, "agenda": look.BLUE, "search": look.GREEN}
GRANULARITY_COLOURS = dict(zip(GRANULARITIES, (look.BLUE, look.RED, look.GREEN)))
PHASE_COLOURS = {
    "recording": look.SKY,
    "analysis": look.RED,
    "dispatch": look.ORANGE,
    "running": look.GREY,
}
RATIO_TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6, 8)


def simulation(rows: Sequence[Simulated], title: str) -> Figure:
    """Draw launches, and the time to find them, against batch size; a column per granularity."""
    figure = look.new_figure(
        13, 7.6, f"Nodes before, launches after: {title}",
        "median of fresh minibatches, no limit on the analysis",
    )  # fmt: skip
    grid = figure.subplots(2, len(GRANULARITIES), sharey="row")
    counts = [value for r in rows for value in (r.nodes, r.lower_bound)]
    times = [row.analysis_ms for row in rows]
    by_granularity = grouped(rows, lambda row: row.granularity)
    for (above, below), (granularity, own) in zip(grid.T, by_granularity.items()):
        policies = grouped(own, lambda row: row.policy)
        first = next(iter(policies.values()))
        sizes = [row.batch_size for row in first]
        labels = [
            _line(above, sizes, [r.nodes for r in first], "nodes before", look.GREY),
            _line(above, sizes, [r.lower_bound for r in first], "lower bound", look.BLACK, ":"),
        ]
        low: List[look.Label] = []
        for policy, group in policies.items():
            colour = POLICY_COLOURS[policy]
            labels.append(_line(above, sizes, [r.launches for r in group], policy, colour))
            low.append(_line(below, sizes, [r.analysis_ms for r in group], policy, colour))
        above.set_title(f"granularity {granularity}", fontsize=11)
        for axes, texts, values in ((above, labels, counts), (below, low, times)):
            look.finish_counts(axes, sizes, values, texts)
        below.set_xlabel("samples in a minibatch")
    grid[0][0].set_ylabel("nodes, launches (log scale)")
    grid[1][0].set_ylabel("analysis of a minibatch, ms (log scale)")
    return figure


def _line(axes: Any, x: Any, y: Any, text: str, colour: str, style: str = "-") -> look.Label:
    axes.plot(x, y, style, color=colour, linewidth=1.8, marker="o", markersize=3)
    return look.Label(x[-1], y[-1], text, colour)


def curves(outcomes: Sequence[Outcome], title: str) -> Figure:
    """Draw the time of a minibatch against its analysis budget, for one batch size."""
    figure = look.new_figure(
        6.6 * len(outcomes), 5.6, f"What the analysis of a minibatch may cost: {title}",
        f"minibatches of {outcomes[0].batch_size}, plans made anew; median and quartiles of fresh "
        "minibatches",
    )  # fmt: skip
    grid = figure.subplots(1, len(outcomes), squeeze=False)[0]
    for axes, outcome in zip(grid, outcomes):
        _draw_curves(axes, outcome)
        axes.set_title(outcome.kind, fontsize=11)
    grid[0].set_ylabel("total time of a minibatch, ms (log scale)")
    figure.supxlabel(
        "○ lowest point of the curves    ★ what “auto” took    dotted: as many visits as there are "
        "nodes, which group all of them by depth; beyond, agenda and search", fontsize=9,
    )  # fmt: skip
    return figure


def _draw_curves(axes: Any, outcome: Outcome) -> None:
    lines = curve.curves(outcome)
    scale = look.BudgetAxis([point.budget for own in lines.values() for point in own])
    labels: List[look.Label] = []
    for granularity, own in lines.items():
        colour = GRANULARITY_COLOURS[granularity]
        x = [scale.place(point.budget) for point in own]
        y, low, high = np.array([point.total for point in own]).T
        axes.plot(x, y, "-o", color=colour, markersize=4, linewidth=1.8)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(look.Label(x[-1], y[-1], granularity, colour))
        ready = scale.place(outcome.median(own[-1].label, "nodes"))
        axes.axvline(ready, color=colour, linewidth=0.9, linestyle=(0, (1, 3)))
        cached = f"{granularity}, {curve.CACHED}"
        y = outcome.median(cached, "ms")
        axes.plot([scale.place(0), x[-1]], [y, y], color=colour, linewidth=1, linestyle="--")
        labels.append(look.Label(x[-1], y, cached, colour))
    best = curve.best(outcome)
    axes.plot(scale.place(best.budget), best.total.median, "o", markersize=13, fillstyle="none",
              color=look.BLACK)  # fmt: skip
    _mark_auto(axes, scale.place(None), outcome)
    scale.draw(axes)
    axes.set_yscale("log")
    look.log_axis(axes.yaxis)
    look.tidy(axes)
    look.label_ends(axes, labels, gap=0.05)


def _mark_auto(axes: Any, x: float, outcome: Outcome) -> None:
    y, setting = outcome.median(AUTO, "ms"), outcome.by_label[AUTO][-1].setting
    axes.plot(x, y, "*", markersize=15, color=look.PURPLE, markeredgecolor=look.BLACK, zorder=5)
    axes.annotate(
        f"auto: {setting}\n{y:,.0f} ms",
        (x, y), (-14, 34), textcoords="offset points", ha="right", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": look.BLACK, "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip


def shares(outcomes: Sequence[Outcome], title: str) -> Figure:
    """Draw where the time goes as the budget grows, for one batch size."""
    columns = len(curve.curves(outcomes[0]))
    figure = look.new_figure(
        6.2 * columns, 4.1 * len(outcomes) + 0.6, f"Where the time of a minibatch goes: {title}",
        f"minibatches of {outcomes[0].batch_size}, plans made anew; shares of the medians, and "
        "their sum in ms",
    )  # fmt: skip
    grid = figure.subplots(len(outcomes), columns, squeeze=False)
    for row, outcome in zip(grid, outcomes):
        for axes, (granularity, own) in zip(row, curve.curves(outcome).items()):
            _draw_shares(axes, outcome, own)
            title = f"{outcome.kind}, granularity {granularity}"
            axes.set_title(title, fontsize=11, pad=18)
        row[0].set_ylabel("share of the time, %")
    return figure


def _draw_shares(axes: Any, outcome: Outcome, own: Sequence[curve.Point]) -> None:
    scale = look.BudgetAxis([point.budget for point in own])
    x = [scale.place(point.budget) for point in own]
    medians = [[outcome.median(p.label, phase) for p in own] for phase in PHASE_COLOURS]
    parts = np.maximum(medians, 0)
    sums = parts.sum(axis=0)
    percent = 100 * parts / sums
    axes.stackplot(x, *percent, colors=list(PHASE_COLOURS.values()))
    for place, total in zip(x, sums):
        axes.text(place, 101.5, f"{total:,.0f}", ha="center", fontsize=8)
    axes.set_ylim(0, 100)
    scale.draw(axes)
    look.tidy(axes)
    middles = np.cumsum(percent[:, -1]) - percent[:, -1] / 2
    labels = [look.Label(x[-1], y, *item) for y, item in zip(middles, PHASE_COLOURS.items())]
    look.label_ends(axes, labels, gap=0.07)


#: The plain loop is drawn where "auto" takes at least so much of its time.
CLOSE = 0.7


def verdicts(found: Sequence[auto.Verdict], titles: Dict[str, str]) -> Figure:
    """Draw how "auto" compares with the best fixed setting, and with the plain loop."""
    panels = grouped(found, lambda v: (v.final.workload, v.final.kind))
    close = [v for v in found if v.plain_ratio.median > CLOSE]
    figure = look.new_figure(
        11, 1.6 + 0.26 * (len(found) + len(close) + 1.2 * len(panels)),
        "“auto” against the best fixed setting of each case",
        "ratio of the times of a minibatch, median and quartiles over rounds; blue is within the "
        "bar, red is not",
    )  # fmt: skip
    axes = figure.subplots()
    beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
    y, ticks = 0.0, {}
    for (workload, kind), group in panels.items():
        axes.text(0, y, f"{titles[workload]}, {kind}", fontsize=10, fontweight="bold", **beside)
        for v in group:
            y += 1
            size = v.final.batch_size
            _draw_ratio(axes, y, v.ratio, auto.AUTO_BAR, "o")
            axes.text(1.02, y, f"{v.ratio.median:.2f}   best: {v.best}", fontsize=8, **beside)
            ticks[y] = f"batch {size}"
            if v in close:
                y += 1
                _draw_ratio(axes, y, v.plain_ratio, v.plain_bar, "D")
                text = (
                    f"{v.plain_ratio.median:.2f}   against the plain loop (bar {v.plain_bar:.2f})"
                )
                axes.text(1.02, y, text, fontsize=8, **beside)
                ticks[y] = f"◇ plain loop, batch {size}"
        y += 1.2
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(y, -0.8)
    _finish_ratios(axes, [v.ratio for v in found] + [v.plain_ratio for v in close])
    return figure


def _finish_ratios(axes: Any, drawn: Sequence[Any]) -> None:
    axes.set_xscale("log", base=2)
    low, high = min(e.low for e in drawn) / 1.1, max(e.high for e in drawn) * 1.1
    axes.set_xlim(min(0.7, low), max(1.7, high))
    axes.xaxis.set_major_locator(FixedLocator(RATIO_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    axes.axvline(auto.AUTO_BAR, color=look.BLACK, linewidth=1)
    axes.axvline(1, color=look.GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("time of “auto” / time of the best fixed setting "
                    f"(line: bar {auto.AUTO_BAR:.2f})")  # fmt: skip
    look.tidy(axes)
    axes.grid(axis="y", visible=False)


def _draw_ratio(axes: Any, y: float, ratio: Any, bar: float, marker: str) -> None:
    colour = look.BLUE if ratio.median <= bar else look.RED
    if marker == "D":  # a bar of its own, not the line through all rows
        axes.plot([bar, bar], [y - 0.35, y + 0.35], color=look.BLACK, linewidth=1)
    axes.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=2)
    axes.plot(ratio.median, y, marker, color=colour, markersize=7,
              fillstyle="full" if marker == "o" else "none")  # fmt: skip
