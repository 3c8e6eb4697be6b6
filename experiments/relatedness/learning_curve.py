"""A picture of a run: training loss, and correlations and error on held-out pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
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
    epochs = np.array([line["epoch"] for line in history])
    held_out = {
        name: np.array([line["dev"][name] for line in history], float)  # None becomes NaN
        for name in ("pearson", "spearman", "mse")
    }
    size = max((line["step"] for line in steps), default=1)
    where = [line["epoch"] - 1 + line["step"] / size for line in steps]
    losses.plot(where, [line["loss"] for line in steps], color=GREY, lw=0.7, label="minibatch")
    for axes, x, values, label, colour in (
        (losses, epochs - 0.5, [line["loss"] for line in history], "mean of epoch", ORANGE),
        (correlations, epochs, held_out["pearson"], "Pearson r", BLUE),
        (correlations, epochs, held_out["spearman"], "Spearman \u03c1", GREEN),
        (errors, epochs, held_out["mse"], "MSE", ORANGE),
    ):
        axes.plot(x, values, color=colour, marker="o", ms=4, label=label)
    for axes, title, unit in (
        (losses, "Training loss", "KL divergence per pair (nats)"),
        (correlations, "Correlation on held-out pairs", "correlation"),
        (errors, "Error on held-out pairs", "mean squared error (points\u00b2)"),
    ):
        axes.set(title=title, ylabel=unit, xlabel="epoch", xlim=(0, epochs.max() + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E8E8E8")
        axes.legend(frameon=False)
    if np.isfinite(held_out["pearson"]).any():
        best = int(np.nanargmax(held_out["pearson"]))
        r = held_out["pearson"][best]
        correlations.plot(epochs[best], r, "o", ms=11, mfc="none", mec=BLUE, label="")
        correlations.set_title(f"Correlation on held-out pairs (best r = {r:.3f})")
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)
