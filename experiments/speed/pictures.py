"""Speed against batch size, and the bars, as pictures that can be read without a text."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np
from matplotlib.figure import Figure

from timing import axes as look
from timing.contest import KINDS, Outcome

from .bars import Bar
from .contenders import CACHED, PRODUCTS

STYLES = {
    "imperative": (look.GREY, "-", "imperative, pair by pair"),
    "hybridized": (look.PURPLE, "-", "hybridized, pair by pair"),
    "fold": (look.GREEN, "-", "by depth, concat and split"),
    "manual": (look.ORANGE, "-", "batched by hand"),
    "dynamic": (look.BLUE, "-", "gluon_dynbatch"),
    CACHED: (look.SKY, "--", "gluon_dynbatch, plan cached"),
    PRODUCTS: (look.BLACK, ":", "matrix products alone"),
}


def speed(outcomes: Sequence[Outcome], subtitle: str) -> Figure:
    """Draw medians and quartiles of all rounds."""
    title = "Child-sum Tree-LSTM on sentence pairs: speed and batch size"
    figure = look.new_figure(14, 6, title, subtitle)
    columns = figure.subplots(1, len(KINDS))
    for axes, kind in zip(columns, KINDS):
        _draw_kind(axes, [outcome for outcome in outcomes if outcome.kind == kind])
        axes.set_title(kind, fontsize=11)
        axes.set_xlabel("pairs in a minibatch (log scale)")
    columns[0].set_ylabel("pairs per second (log scale)")
    return figure


def _draw_kind(axes: Any, outcomes: Sequence[Outcome]) -> None:
    labels, seen = [], []
    sizes = [outcome.batch_size for outcome in outcomes]
    for name in outcomes[0].by_label:
        colour, line, text = STYLES[name]
        median, low, high = np.array([outcome.spread(name) for outcome in outcomes]).T
        width = 2.6 if colour == look.BLUE else 1.6
        axes.plot(sizes, median, line, color=colour, linewidth=width, marker=".", zorder=3)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(look.Label(sizes[-1], median[-1], f"{text}  {median[-1]:,.0f}", colour))
        seen += [low.min(), high.max()]
    look.finish_counts(axes, sizes, seen, labels)


def bars(held: Dict[str, Sequence[Bar]], subtitle: str) -> Figure:
    """Draw how far each figure is from its bar, for each number of threads."""
    first = next(iter(held.values()))
    height = 2 + 0.3 * len(first)
    figure = look.new_figure(11, height, "What was reached, against the bars", subtitle)
    axes = figure.subplots()
    rows = range(len(first), 0, -1)
    for (threads, own), colour in zip(held.items(), (look.BLUE, look.ORANGE, look.GREEN)):
        known = [(bar, row) for bar, row in zip(own, rows) if bar.figure is not None]
        label = f"OMP_NUM_THREADS={threads}"
        axes.plot([_goodness(bar) for bar, _ in known], [row for _, row in known], "o",
                  color=colour, label=label)  # fmt: skip
    axes.axvline(1, color=look.BLACK, linewidth=1)
    axes.set_yticks(rows, [f"{bar.what}, {bar.kind}  ({bar.wanted})" for bar in first])
    axes.set_ylim(0, len(first) + 1)
    axes.set_xscale("log")
    look.log_axis(axes.xaxis)
    axes.set_xlabel("times as good as the bar asks for (log scale; the bar is at 1)")
    axes.legend(loc="lower right", fontsize=9)
    look.tidy(axes)
    return figure


def _goodness(bar: Bar) -> float:
    figure = max(float(bar.figure or 0), 1e-3)  # noise may take a small time below zero
    return bar.bound / figure if bar.is_most else figure / bar.bound
