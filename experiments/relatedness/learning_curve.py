"""A picture of a run: training loss, and the metrics on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .checkpoint import whole_file


def draw_learning_curve(history: Sequence[Dict[str, Any]], path: Path) -> None:
    """Draw the losses, and each metric beside them, as a PNG file.

    `history` has the lines of ``metrics.jsonl``, at least one.
    """
    names = list(history[0]["dev"])
    figure = Figure(figsize=(4 * (1 + len(names)), 3.8), constrained_layout=True)
    losses, *grid = figure.subplots(1, 1 + len(names))
    epochs = np.array([line["epoch"] for line in history])
    each = np.concatenate([line["losses"] for line in history])
    where = np.concatenate(
        [line["epoch"] - 1 + np.linspace(0, 1, len(line["losses"])) for line in history]
    )
    losses.plot(where, each, color="#B0B0B0", lw=0.7, label="minibatch")
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
