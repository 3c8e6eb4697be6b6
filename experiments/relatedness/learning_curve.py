"""A picture of a run: training loss, and the metrics on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .checkpoint import whole_file

GREY = "#B0B0B0"


def draw_learning_curve(
    history: Sequence[Dict[str, Any]], steps: Sequence[Dict[str, Any]], path: Path
) -> None:
    """Draw the losses, and each metric beside them.

    Parameters
    ----------
    history : sequence of dict
        Lines of ``metrics.jsonl``, at least one.
    steps : sequence of dict
        Lines of ``steps.jsonl``.
    path : Path
        A PNG file.
    """
    names = list(history[0]["dev"])
    figure = Figure(figsize=(4 * (1 + len(names)), 3.8), constrained_layout=True)
    losses, *grid = figure.subplots(1, 1 + len(names))
    epochs = np.array([line["epoch"] for line in history])
    size = max((line["step"] for line in steps), default=1)
    where = [line["epoch"] - 1 + line["step"] / size for line in steps]
    losses.plot(where, [line["loss"] for line in steps], color=GREY, lw=0.7, label="minibatch")
    losses.plot(epochs - 0.5, [line["loss"] for line in history], "o-", ms=4, label="epoch")
    losses.legend(frameon=False)
    for axes, name in zip(grid, names):
        values = np.array([line["dev"][name] for line in history], float)  # None becomes NaN
        axes.plot(epochs, values, "o-", ms=4)
    for axes, title in zip((losses, *grid), ("training loss", *(f"held out: {n}" for n in names))):
        axes.set(title=title, xlabel="epoch", xlim=(0, epochs.max() + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)
