"""Speed against batch size, as one picture that can be read without a text."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
from matplotlib.figure import Figure

from relatedness.benchmark import KINDS
from study import axes as look

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


def speed(results: Dict[str, Dict[str, Any]], subtitle: str) -> Figure:
    """Draw medians and quartiles of all rounds; `results` is by batch size."""
    title = "Child-sum Tree-LSTM on sentence pairs: speed and batch size"
    figure = look.new_figure(14, 6, title, subtitle)
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
        width = 2.6 if colour == look.BLUE else 1.6
        axes.plot(sizes, median, line, color=colour, linewidth=width, marker=".", zorder=3)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        labels.append(look.Label(sizes[-1], median[-1], f"{text}  {median[-1]:,.0f}", colour))
        seen += [low.min(), high.max()]
    look.finish_counts(axes, sizes, seen, labels)
