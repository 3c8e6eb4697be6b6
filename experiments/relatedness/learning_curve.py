"""A picture of a run: training loss, and correlations and error on held-out pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .checkpoint import whole_file

# Okabe and Ito's colours, which colour-blind people can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#B0B0B0"


def draw_learning_curve(
    history: Sequence[Dict[str, Any]], steps: Sequence[Dict[str, Any]], path: Path
) -> None:
    """Draw a run side by side: losses, held-out correlations, held-out error.

    Parameters
    ----------
    history : sequence of dict
        Lines of ``metrics.jsonl``, at least one.
    steps : sequence of dict
        Lines of ``steps.jsonl``.
    path : Path
        A PNG file.
    """
    figure = Figure(figsize=(12, 3.8), constrained_layout=True)
    losses, correlations, errors = figure.subplots(1, 3)
    epochs = [line["epoch"] for line in history]

    size = max((line["step"] for line in steps), default=1)
    where = [line["epoch"] - 1 + line["step"] / size for line in steps]
    losses.plot(where, [line["loss"] for line in steps], color=GREY, lw=0.7, label="minibatch")
    middles = [epoch - 0.5 for epoch in epochs]
    _line(losses, middles, [line["loss"] for line in history], "mean of epoch", ORANGE)
    losses.legend(frameon=False)
    losses.set(title="Training loss", ylabel="KL divergence per pair (nats)")

    held_out = {name: _column(history, name) for name in ("pearson", "spearman", "mse")}
    _line(correlations, epochs, held_out["pearson"], "Pearson r", BLUE)
    _line(correlations, epochs, held_out["spearman"], "Spearman ρ", GREEN)
    correlations.legend(frameon=False, loc="lower right")
    correlations.set(title="Correlation on held-out pairs", ylabel="correlation")
    _mark_best(correlations, epochs, held_out["pearson"])

    _line(errors, epochs, held_out["mse"], "MSE", ORANGE)
    errors.set(title="Error on held-out pairs", ylabel="mean squared error (points²)")
    for axes in (losses, errors):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    for axes in (losses, correlations, errors):
        axes.set_xlabel("epoch")
        axes.set_xlim(0, max(epochs) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E8E8E8")
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


def _column(history: Sequence[Dict[str, Any]], name: str) -> List[float]:
    values: List[Optional[float]] = [line["dev"][name] for line in history]
    return [math.nan if value is None else value for value in values]


def _line(
    axes: Axes, where: Sequence[float], values: Sequence[float], label: str, colour: str
) -> None:
    axes.plot(where, values, color=colour, marker="o", ms=4, label=label)


def _mark_best(axes: Axes, epochs: Sequence[int], values: Sequence[float]) -> None:
    defined = [(value, epoch) for value, epoch in zip(values, epochs) if not math.isnan(value)]
    if not defined:
        return
    best = max(defined, key=lambda one: one[0])[0]
    epoch = epochs[list(values).index(best)]
    axes.plot([epoch], [best], "o", ms=11, mfc="none", mec=BLUE)
    axes.annotate(
        f"best: r = {best:.3f}", (epoch, best), (0, 9), textcoords="offset points",
        ha="right" if epoch > max(epochs) / 2 else "left", color=BLUE,
    )  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
