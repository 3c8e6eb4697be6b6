"""The pictures of the study; each can be read without the text beside it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from . import contest, curve, launches
from .axes import (
    BLACK,
    BLUE,
    GRANULARITY_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    BudgetAxis,
    Label,
    finish_counts,
    label_ends,
    log_axis,
    new_figure,
    tidy,
)
from .cost import Prediction
from .results import grouped
from .running import GRANULARITIES, PHASES
from .simulate import Simulated

POLICY_STYLES = {"depth": (ORANGE, "-"), "agenda": (BLUE, "-"), "search": (GREEN, "-")}
PHASE_COLOURS = dict(zip(PHASES, (SKY, RED, ORANGE, GREY)))
RATIO_TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6, 8)


def simulation(rows: Sequence[Simulated], title: str) -> Figure:
    """Draw launches, and the time to find them, against batch size; a column per granularity."""
    figure = new_figure(
        13, 7.6, f"Nodes before, launches after: {title}",
        "median of fresh minibatches, no limit on the analysis",
    )  # fmt: skip
    grid = figure.subplots(2, len(GRANULARITIES), sharey="row")
    by_granularity = grouped(rows, lambda row: row.granularity)
    counts = [value for r in rows for value in (r.nodes, r.lower_bound)]
    times = [row.analysis_ms for row in rows]
    for (above, below), granularity in zip(grid.T, GRANULARITIES):
        own = by_granularity[granularity]
        policies = grouped(own, lambda row: row.policy)
        first = next(iter(policies.values()))
        sizes = [row.batch_size for row in first]
        labels = [
            _line(above, sizes, [r.nodes for r in first], "nodes before", GREY, "-"),
            _line(above, sizes, [r.lower_bound for r in first], "lower bound", BLACK, ":"),
        ]
        low: List[Label] = []
        for policy, group in policies.items():
            colour, style = POLICY_STYLES[policy]
            labels.append(_line(above, sizes, [r.launches for r in group], policy, colour, style))
            low.append(_line(below, sizes, [r.analysis_ms for r in group], policy, colour, style))
        above.set_title(f"granularity {granularity}", fontsize=11)
        for axes, texts, values in ((above, labels, counts), (below, low, times)):
            finish_counts(axes, sizes, values, texts)
        below.set_xlabel("samples in a minibatch")
    grid[0][0].set_ylabel("nodes, launches (log scale)")
    grid[1][0].set_ylabel("analysis of a minibatch, ms (log scale)")
    return figure


def _line(axes: Any, x: Any, y: Any, text: str, colour: str, style: str) -> Label:
    axes.plot(x, y, style, color=colour, linewidth=1.8, marker="o", markersize=3)
    return Label(x[-1], y[-1], text, colour)


def curves(runs: Sequence[curve.CurveRun], title: str) -> Figure:
    """Draw the time of a minibatch against its analysis budget, for one batch size."""
    size, kinds = runs[0].batch_size, list(dict.fromkeys(run.kind for run in runs))
    figure = new_figure(
        6.6 * len(kinds), 5.6, f"What the analysis of a minibatch may cost: {title}",
        f"minibatches of {size}, plans made anew; median and quartiles of fresh minibatches",
    )  # fmt: skip
    grid = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, (kind, _, points) in zip(grid, curve.cases_of(runs)):
        _draw_curves(axes, points)
        axes.set_title(kind, fontsize=11)
    grid[0].set_ylabel("total time of a minibatch, ms (log scale)")
    figure.supxlabel(
        "○ lowest point of the curves    ★ what “auto” chose, and what it took    dotted: budget "
        "that suffices to group all nodes by depth; beyond, agenda and search", fontsize=9,
    )  # fmt: skip
    return figure


def _draw_curves(axes: Any, points: Sequence[curve.Point]) -> None:
    scale = BudgetAxis([p.budget for p in points if p.role == curve.NEW])
    labels: List[Label] = []
    lines = curve.lines_of(points)
    for granularity, own in lines.items():
        colour = GRANULARITY_COLOURS[granularity]
        x = [scale.place(p.budget) for p in own]
        y = [p.total.median for p in own]
        axes.plot(x, y, "-o", color=colour, markersize=4, linewidth=1.8)
        axes.fill_between(x, [p.total.low for p in own], [p.total.high for p in own],
                          color=colour, alpha=0.15, linewidth=0)  # fmt: skip
        labels.append(Label(x[-1], y[-1], granularity, colour))
        ready = [p.units for p in own if p.budget is None]
        axes.axvline(scale.place(ready[0]), color=colour, linewidth=0.9, linestyle=(0, (1, 3)))
    for granularity, own in curve.lines_of(points, curve.CACHED).items():
        colour, y = GRANULARITY_COLOURS[granularity], own[0].total.median
        ends = [scale.place(0), scale.place(None)]
        axes.plot(ends, [y, y], color=colour, linewidth=1, linestyle="--")
        labels.append(Label(scale.place(None), y, f"{granularity}, plan cached", colour))
    for p in points:
        if p.role == curve.AUTO:
            _mark_auto(axes, scale.place(p.budget), p)
    best = min((p for own in lines.values() for p in own), key=lambda p: p.total.median)
    axes.plot(scale.place(best.budget), best.total.median, "o", markersize=13, fillstyle="none",
              color=BLACK)  # fmt: skip
    scale.draw(axes)
    axes.set_yscale("log")
    log_axis(axes.yaxis)
    tidy(axes)
    label_ends(axes, labels, gap=0.05)


def _mark_auto(axes: Any, x: float, p: curve.Point) -> None:
    axes.plot(x, p.total.median, "*", markersize=15, color=PURPLE, markeredgecolor=BLACK, zorder=5)
    axes.annotate(
        f"auto: {p.granularity}\nby {p.policy}, {p.total.median:,.0f} ms",
        (x, p.total.median), (-14, 34), textcoords="offset points", ha="right", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": BLACK, "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip


def shares(runs: Sequence[curve.CurveRun], title: str) -> Figure:
    """Draw where the time goes as the budget grows, for one batch size."""
    found = [
        (kind, granularity, own)
        for kind, _, points in curve.cases_of(runs)
        for granularity, own in curve.lines_of(points).items()
    ]
    kinds = list(dict.fromkeys(kind for kind, _, _ in found))
    columns = len(found) // len(kinds)
    figure = new_figure(
        6.2 * columns, 4.1 * len(kinds) + 0.6, f"Where the time of a minibatch goes: {title}",
        f"minibatches of {runs[0].batch_size}, plans made anew; shares of the medians, and their "
        "sum in ms",
    )  # fmt: skip
    grid = figure.subplots(len(kinds), columns, squeeze=False)
    for axes, (kind, granularity, own) in zip(grid.flat, found):
        _draw_shares(axes, own)
        axes.set_title(f"{kind}, granularity {granularity}", fontsize=11, pad=18)
    for row in grid:
        row[0].set_ylabel("share of the time, %")
    return figure


def _draw_shares(axes: Any, own: Sequence[curve.Point]) -> None:
    scale = BudgetAxis([p.budget for p in own])
    x = [scale.place(p.budget) for p in own]
    parts = np.maximum([[getattr(p, phase) for p in own] for phase in PHASES], 0)
    sums = parts.sum(axis=0)
    percent = 100 * parts / sums
    axes.stackplot(x, *percent, colors=[PHASE_COLOURS[phase] for phase in PHASES])
    for place, total in zip(x, sums):
        axes.text(place, 101.5, f"{total:,.0f}", ha="center", fontsize=8)
    axes.set_ylim(0, 100)
    scale.draw(axes)
    tidy(axes)
    middles = np.cumsum(percent[:, -1]) - percent[:, -1] / 2
    labels = [Label(x[-1], y, phase, PHASE_COLOURS[phase]) for y, phase in zip(middles, PHASES)]
    label_ends(axes, labels, gap=0.07)


def predictions(found: Sequence[Prediction], title: str) -> Figure:
    """Draw the curves that the cost model predicts beside the measured ones."""
    panels = grouped(
        sorted(found, key=lambda p: p.batch_size), lambda p: (p.batch_size, p.kind)
    )  # fmt: skip
    kinds = list(dict.fromkeys(kind for _, kind in panels))
    rows = len(panels) // len(kinds)
    figure = new_figure(
        max(6.0 * len(kinds), 7), 4.0 * rows + 0.6, f"Predicted and measured: {title}",
        "a cost model fitted to other batch sizes; points: measured medians, dashed: predicted",
    )  # fmt: skip
    grid = figure.subplots(rows, len(kinds), squeeze=False)
    for axes, ((size, kind), group) in zip(grid.flat, panels.items()):
        scale = BudgetAxis([p.budget for p in group])
        labels = []
        for granularity, own in grouped(group, lambda p: p.granularity).items():
            colour = GRANULARITY_COLOURS[granularity]
            x = [scale.place(p.budget) for p in own]
            axes.plot(x, [p.measured for p in own], "o", color=colour, markersize=5)
            axes.plot(x, [p.predicted for p in own], "--", color=colour, linewidth=1.8)
            labels.append(Label(x[-1], own[-1].predicted, granularity, colour))
        scale.draw(axes)
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        tidy(axes)
        axes.set_title(f"{kind}, minibatches of {size}", fontsize=11)
        label_ends(axes, labels, gap=0.07)
    for row in grid:
        row[0].set_ylabel("total time, ms (log scale)")
    return figure


def launch_times(
    runs: Sequence[launches.LaunchRun], found: Sequence[launches.LaunchLine], title: str
) -> Figure:
    """Draw single launches against their rows, with the lines through the most frequent kinds."""
    granularities = list(dict.fromkeys(run.granularity for run in runs))
    figure = new_figure(
        6.4 * len(granularities), 5.2, f"The time of one launch: {title}",
        "forward, each waited for; a + b · rows through the most frequent kinds",
    )  # fmt: skip
    grid = figure.subplots(1, len(granularities), squeeze=False, sharey=True)[0]
    for axes, granularity in zip(grid, granularities):
        own = [line for line in found if line.granularity == granularity][:4]
        texts = []
        for line, colour in zip(own, (BLUE, RED, GREEN, PURPLE)):
            group = [r for r in runs if r[1:3] == line[1:3]]
            rows = [r.rows for r in group]
            axes.plot(rows, [r.milliseconds for r in group], ".", color=colour, alpha=0.25,
                      markersize=4, rasterized=True)  # fmt: skip
            ends = sorted({min(rows), *(2**i for i in range(20) if min(rows) < 2**i < max(rows)),
                           max(rows)})  # fmt: skip
            values = [(line.fixed + line.per_row * row) / 1e3 for row in ends]
            axes.plot(ends, values, color=colour, linewidth=2)
            texts.append(f"{line.segment}: {line.fixed:.0f} + {line.per_row:.2f} · rows µs")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rows of the launch (log scale)")
        log_axis(axes.xaxis)
        log_axis(axes.yaxis)
        axes.set_title(f"granularity {granularity}", fontsize=11)
        tidy(axes)
        for i, (text, colour) in enumerate(zip(texts, (BLUE, RED, GREEN, PURPLE))):
            axes.text(0.03, 0.97 - 0.055 * i, text, color=colour, fontsize=9, va="top",
                      transform=axes.transAxes)  # fmt: skip
    grid[0].set_ylabel("time, ms (log scale)")
    return figure


#: The plain loop is drawn where "auto" takes at least so much of its time.
CLOSE = 0.7


def verdicts(found: Sequence[contest.Verdict], titles: Dict[str, str]) -> Figure:
    """Draw how "auto" compares with the best fixed setting, and with the plain loop."""
    panels = grouped(found, lambda v: (v.workload, v.kind))
    close = [v for v in found if v.plain_ratio.median > CLOSE]
    figure = new_figure(
        11, 1.6 + 0.26 * (len(found) + len(close) + 1.2 * len(panels)),
        "“auto” against the best fixed setting of each case",
        "ratio of the times of a minibatch, median and quartiles over rounds; blue is within the "
        "bar, red is not",
    )  # fmt: skip
    axes = figure.subplots()
    y, ticks, names = 0.0, [], []
    for (workload, kind), group in panels.items():
        axes.text(0.0, y, f"{titles[workload]}, {kind}", fontsize=10, fontweight="bold",
                  transform=axes.get_yaxis_transform(), va="center")  # fmt: skip
        y += 1
        for v in group:
            _draw_ratio(axes, y, v.ratio, contest.AUTO_BAR, "o")
            note = f"{v.ratio.median:.2f}   best: {v.best}"
            axes.text(1.02, y, note, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
            ticks.append(y)
            names.append(f"batch {v.batch_size}")
            y += 1
            if v in close:
                _draw_ratio(axes, y, v.plain_ratio, v.plain_bar, "D")
                axes.text(1.02, y, f"{v.plain_ratio.median:.2f}   against the plain loop "
                          f"(bar {v.plain_bar:.2f})", va="center", fontsize=8,
                          transform=axes.get_yaxis_transform())  # fmt: skip
                ticks.append(y)
                names.append(f"◇ plain loop, batch {v.batch_size}")
                y += 1
        y += 0.2
    axes.set_yticks(ticks, names)
    axes.set_ylim(y, -0.8)
    axes.set_xscale("log", base=2)
    ends = [v.ratio for v in found] + [v.plain_ratio for v in close]
    axes.set_xlim(min(0.7, *(e.low / 1.1 for e in ends)), max(1.7, *(e.high * 1.1 for e in ends)))
    axes.xaxis.set_major_locator(FixedLocator(RATIO_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    axes.axvline(contest.AUTO_BAR, color=BLACK, linewidth=1)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("time of “auto” / time of the best fixed setting "
                    f"(line: bar {contest.AUTO_BAR:.2f})")  # fmt: skip
    tidy(axes)
    axes.grid(axis="y", visible=False)
    return figure


def _draw_ratio(axes: Any, y: float, ratio: Any, bar: float, marker: str) -> None:
    colour = BLUE if ratio.median <= bar else RED
    if marker == "D":  # a bar of its own, not the line through all rows
        axes.plot([bar, bar], [y - 0.35, y + 0.35], color=BLACK, linewidth=1)
    axes.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=2)
    axes.plot(ratio.median, y, marker, color=colour, markersize=7,
              fillstyle="full" if marker == "o" else "none")  # fmt: skip
