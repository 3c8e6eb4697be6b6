"""Plot a report: where the time went, and how wide launches were."""

from __future__ import annotations

import importlib
from itertools import accumulate, chain
from typing import Any, Mapping, Sequence

from ..errors import MissingError

#: Colour of text and axes, readable on light and dark pages.
TEXT = "#808080"
STYLE = {
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor"], TEXT),
    **dict.fromkeys(["xtick.color", "ytick.color"], TEXT),
    **dict.fromkeys(["axes.facecolor", "figure.facecolor", "legend.facecolor"], "none"),
    **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
    "font.size": 8,
    "axes.titlesize": 10,
}
COLORS = {
    "recording": "#4c8eda",
    "analysis": "#e08a3c",
    "dispatch": "#4fa36b",
    "waiting": "#9a7fc0",
}


def import_extra(name: str) -> Any:
    """Import a module that the extra ``draw`` installs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the picture needs {name.split('.')[0]}, which is not installed",
            advice=f"pip install {name.split('.')[0]}",
        ) from None


def plot(
    times: Mapping[str, float], widths: Sequence[Sequence[int]], waiting: Sequence[int]
) -> Any:
    """Plot a report; see :meth:`gluon_dynbatch.Report.plot`.

    Per flush, `widths` has those of its launches, and `waiting` counts samples that waited for it.
    """
    plt = import_extra("matplotlib.pyplot")
    # Not interactive, and closed: otherwise, notebooks show the figure twice, and pyplot keeps it.
    with plt.rc_context(STYLE), plt.ioff():
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(5, 4.2), constrained_layout=True)
        plt.close(figure)
        rows = top.barh(list(times), list(times.values()), color=[COLORS[k] for k in times])
        labels = [f"{ms:.1f}" if ms >= 1 else f"{ms:.2g}" for ms in times.values()]
        top.bar_label(rows, labels, padding=3)
        top.invert_yaxis()
        top.margins(x=0.18)
        top.set(title="Where the time went", xlabel="milliseconds")
        if any(waiting):
            _plot_flushes(bottom, widths, waiting)
        else:
            _plot_launches(bottom, widths)
        bottom.locator_params(integer=True)
    return figure


def _plot_launches(axes: Any, widths: Sequence[Sequence[int]]) -> None:
    """Plot the width of each launch in order, with a dotted line at the end of each flush."""
    axes.stairs([*chain.from_iterable(widths)], fill=True, color=COLORS["dispatch"])
    for end in accumulate(map(len, widths[:-1])):
        axes.axvline(end, color=TEXT, linewidth=0.8, linestyle="dotted")
    axes.set(title="Width of launches, in their order", xlabel="launch", ylabel="calls")


def _plot_flushes(axes: Any, widths: Sequence[Sequence[int]], waiting: Sequence[int]) -> None:
    """Plot the samples that waited for each flush, and the mean width of its launches."""
    numbers = range(1, len(widths) + 1)
    style = {"width": 1.0, "alpha": 0.5, "color": COLORS["waiting"]}
    axes.bar(numbers, waiting, label="samples that wait for it", **style)
    means = [sum(of_flush) / len(of_flush) for of_flush in widths]
    axes.plot(numbers, means, ".-", color=COLORS["dispatch"], label="calls per launch, on average")
    axes.set(title="Width of flushes, in their order", xlabel="flush")
    axes.legend()
