"""Speed against batch size, as one picture that can be read without a text."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
from matplotlib.figure import Figure

from relatedness.benchmark import KINDS
from study.axes import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Label,
    count_axis,
    label_ends,
    limits,
    log_axis,
    new_figure,
    tidy,
)

from .contenders import CACHED, PRODUCTS

STYLES = {
    "imperative": (GREY, "-", "imperative, pair by pair"),
    "hybridized": (PURPLE, "-", "hybridized, pair by pair"),
    "fold": (GREEN, "-", "by depth, concat and split"),
    "manual": (ORANGE, "-", "batched by hand"),
    "dynamic": (BLUE, "-", "gluon_dynbatch"),
    CACHED: (SKY, "--", "gluon_dynbatch, plan cached"),
    PRODUCTS: (BLACK, ":", "matrix products alone"),
}


def speed(results: Dict[str, Dict[str, Any]], subtitle: str) -> Figure:
    """Draw medians and quartiles of all rounds; `results` is by batch size."""
    figure = new_figure(14, 6, "Child-sum Tree-LSTM on sentence pairs: speed and batch size",
                        subtitle)  # fmt: skip
    sizes = sorted(int(size) for size in results)
    columns = figure.subplots(1, len(KINDS))
    for axes, kind in zip(columns, KINDS):
        _draw_kind(axes, kind, sizes, results)
        axes.set_title(kind, fontsize=11)
        axes.set_xlabel("pairs in a minibatch (log scale)")
    columns[0].set_ylabel("pairs per second (log scale)")
    return figure


def _draw_kind(axes: Any, kind: str, sizes: List[int], results: Dict[str, Dict[str, Any]]) -> None:
    labels, seen = [], []
    rates = [results[str(size)]["samples_per_second"][kind] for size in sizes]
    for name in rates[0]:
        colour, line, text = STYLES[name]
        low, median, high = np.array([np.percentile(r[name], (25, 50, 75)) for r in rates]).T
        width = 2.6 if colour == BLUE else 1.6
        axes.plot(sizes, median, line, color=colour, linewidth=width, marker=".", zorder=3)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(Label(sizes[-1], median[-1], f"{text}  {median[-1]:,.0f}", colour))
        seen += [low.min(), high.max()]
    axes.set_yscale("log")
    log_axis(axes.yaxis)
    axes.set_ylim(*limits(seen))
    count_axis(axes, sizes)
    tidy(axes)
    label_ends(axes, labels)
