"""A picture of a load: latencies against the words that are answered in a second."""

import matplotlib
from matplotlib.figure import Figure

from gluon_dynbatch.show.plot import COLORS, STYLE

PANELS = (
    ("p99", "a request, p99, s", 1),
    ("short99", "a short request, p99, s", 1),
    ("first50", "until the first word, p50, ms", 1e3),
    ("each50", "between words, p50, ms", 1e3),
)


def draw(figures, output):
    """Draw all ways as PNG and SVG; return the paths."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        grid = figure.subplots(2, 2).flat
        for axes, (name, title, scale) in zip(grid, PANELS):
            for (way, rows), colour in zip(figures.items(), COLORS.values()):
                rows = [row for row in rows if not row.lost]
                y = [getattr(row, name) * scale for row in rows]
                axes.plot([row.words / 1e3 for row in rows], y, "o-", ms=3, color=colour, label=way)
            axes.set_title(title, loc="left")
            axes.set_yscale("log")
            axes.set_xlabel("1,000 words/s")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        paths = [output / f"decoder.{suffix}" for suffix in ("png", "svg")]
        for path, metadata in zip(paths, ({}, {"Date": None})):
            figure.savefig(path, dpi=200, metadata=metadata)
    return paths
