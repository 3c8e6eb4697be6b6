"""Pictures: speed against batch size, phases of a minibatch, time against the analysis budget."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from gluon_dynbatch.show.plot import COLORS, STYLE, TEXT

from . import threads
from .tables import CACHED, Rows
from .ways import CURVES

# The colours of Okabe and Ito, which are safe for all kinds of colour vision, but for their black,
# which a dark page hides.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8A63D2", "#E69F00", "#56B4E9", "#CC79A7", TEXT)
#: Colours of recording, analysis, dispatch, and the rest.
PHASES = (*COLOURS[:3], COLOURS[-1])
#: Width in inches: that of a telephone, where text of 8 points can be read.
WIDTH = 4.2
#: Distance of "0" and "no limit" from the other budgets, in decades.
GAP = 0.5
#: Metadata by format; without a date, so that equal figures give equal files.
SUFFIXES = {".png": {}, ".svg": {"Date": None}}
SPREADS = "median and quartiles of interleaved rounds"


def draw(measured, output):
    """Draw all pictures of all workloads as PNG and SVG; return their paths.

    Small, and without a background, to be read on a narrow page that is light or dark.
    """
    paths = []
    for name, workload in measured.items():
        for file, title, subtitle, rows, draw_panel in _pictures(name, workload):
            kinds = rows.by("kind")
            with matplotlib.rc_context({**STYLE, "svg.hashsalt": file}):
                height = 2.4 if draw_panel is not _draw_phases else 0.5 + 0.4 * len(rows.by("way"))
                size = WIDTH, 0.9 + height * len(kinds)
                figure = Figure(figsize=size, layout="constrained")
                figure.suptitle(f"{workload.title}:\n{title}\n({subtitle})", fontsize=8)
                grid = figure.subplots(len(kinds), 1, squeeze=False)[:, 0]
                for axes, (kind, rows_of_kind) in zip(grid, kinds.items()):
                    axes.set_title(kind, loc="left")
                    draw_panel(axes, rows_of_kind)
                if draw_panel is not _draw_speed:  # otherwise, labels have figures of their panel
                    handles, labels = grid[0].get_legend_handles_labels()
                    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
                paths += _save(figure, output / file)
    return paths


def _save(figure, path):
    """Save a picture in each format; return the paths."""
    paths = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for each in paths:
        figure.savefig(each, dpi=200, metadata=SUFFIXES[each.suffix])
    return paths


def _pictures(name, measured):
    """Yield file, title, subtitle and rows of each picture, and the function that draws a kind."""
    sizes, rate = measured.rows.by("size"), f"{measured.unit} per second"
    if len(sizes) > 1:
        yield f"speed-{name}", rate, SPREADS, measured.rows, _draw_speed
    for size, rows in sizes.items():
        title = f"ms of a minibatch of {size}"
        ours = Rows(row for row in rows if row.recording is not None)
        if len(ours.by("way")) > 1:  # for a single way, the table is enough
            yield f"parts-{name}-{size}", title, "medians of interleaved rounds", ours, _draw_phases
        if list(curves(rows)):
            title += ", plans made anew"
            yield f"curve-{name}-{size}", title, SPREADS, rows, _draw_budget


#: Names and colours of the ways whose speed over threads is drawn, and of others in turn.
LINES = {
    "gdb-once": ("here, known structures", COLORS["recording"]),
    "gdb": ("here, new structures", COLORS["dispatch"]),
    "torch": ("PyTorch by hand", COLORS["analysis"]),
}
OTHERS = (COLORS["waiting"], TEXT)


def draw_threads(measured, output):
    """Draw the speed over threads of all workloads and sizes, as PNG and SVG; return the paths.

    Small, and without a background, to be read on a page that is light or dark.
    """
    paths = []
    for name, workload in measured.items():
        for size, rows in workload.rows.by("size").items():
            kinds = rows.by("kind")
            with matplotlib.rc_context(STYLE):
                figure = Figure(figsize=(WIDTH, 0.8 + 1.9 * len(kinds)), layout="constrained")
                grid = figure.subplots(len(kinds), 1, squeeze=False)[:, 0]
                for axes, (kind, of_kind) in zip(grid, kinds.items()):
                    axes.set_title(f"{kind}, minibatches of {size}", loc="left")
                    axes.set_ylabel(f"1,000 {workload.unit}/s")
                    _draw_over_threads(axes, of_kind)
                grid[-1].set_xlabel("threads; ring: the best number")
                handles, labels = grid[0].get_legend_handles_labels()
                figure.legend(handles, labels, loc="outside upper center", ncols=2)
                paths += _save(figure, output / f"threads-{name}-{size}")
    return paths


def _draw_over_threads(axes, rows):
    """Draw a line for each way over numbers of threads, with nothing set at the right."""
    whole, _ = threads.curves(rows)
    others = iter(OTHERS * len(whole))
    for curve in whole:
        label, colour = LINES.get(curve.way) or (curve.way, next(others))
        numbers = [each for each in curve.settings if each != threads.UNSET]
        y = [curve.spread(each)[0] / 1e3 for each in curve.settings]
        end = len(numbers)
        axes.plot(range(end), y[:end], "o-", markersize=3.5, color=colour, label=label)
        axes.plot(range(end, len(y)), y[end:], "D", markersize=4.5, color=colour)
        if curve.best in numbers:
            best = numbers.index(curve.best)
            axes.plot(best, y[best], "o", markersize=9, markerfacecolor="none", color=colour)
    ticks = max((curve.settings for curve in whole), key=len)
    axes.set_xticks(range(len(ticks)), [str(each).replace(" ", "\n") for each in ticks])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.08)


def _draw_speed(axes, rows):
    """Draw medians and quartiles of all ways."""
    for i, (way, turns) in enumerate(rows.by("way").items()):
        sizes = turns.by("size")
        spreads = [each.spread(way) for each in sizes.values()]
        label = f"{way}  {spreads[-1][0]:,.0f}"
        _line(axes, list(sizes), spreads, label, COLOURS[i % len(COLOURS)])
    sizes = list(rows.by("size"))
    axes.set_xscale("log", base=2)
    _tidy(axes, "samples in a minibatch (log scale)")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.legend(fontsize=7)


def _draw_phases(axes, rows):
    """Draw a bar for each way, divided into the phases of a minibatch."""
    ways, ends = list(rows.by("way")), [0.0] * len(rows.by("way"))
    for phase, colour in zip(("recording", "analysis", "dispatch", "running"), PHASES):
        times = [rows.median(way, phase) or 0.0 for way in ways]
        axes.barh(ways, times, left=ends, color=colour, label=phase)
        ends = [end + time for end, time in zip(ends, times)]
    axes.invert_yaxis()
    axes.set_xlabel("ms")


def curves(rows):
    """Yield the curve of each granularity: pairs of way and visits, at the end None (no limit)."""
    for granularity in CURVES:
        way = f"gdb:{granularity}:search"
        limits = [each[len(way) + 1 :] for each in rows.by("way") if each.startswith(f"{way}:")]
        visits = sorted(int(limit) for limit in limits if limit.isdigit())
        if visits and way in rows.by("way"):
            yield [*((f"{way}:{each}", each) for each in visits), (way, None)]


def _draw_budget(axes, rows):
    """Draw the time of a minibatch against its analysis budget."""
    points = list(curves(rows))
    budgets = [visits for curve in points for _, visits in curve if visits]
    first, last = min(budgets), max(budgets)
    unlimited = last * 10**GAP
    axes.set_xscale("symlog", linthresh=first, linscale=GAP)
    for granularity, curve, colour in zip(CURVES, points, COLOURS):
        x = [unlimited if visits is None else visits for _, visits in curve]
        _line(axes, x, [rows.spread(way, "ms") for way, _ in curve], granularity, colour)
        way = curve[-1][0]
        nodes, cached = rows.median(way, "nodes"), rows.median(way + CACHED, "ms")
        label = f"{granularity}, a visit per unit"  # groups all of them by depth
        axes.axvline(nodes, color=colour, linewidth=0.9, linestyle=":", label=label)
        if cached is not None:
            label = f"{granularity}, plan cached"
            axes.hlines(cached, x[0], x[-1], color=colour, linestyle="--", label=label)
    auto = rows.by("way").get("gdb")
    if auto:
        y, label = auto.median("gdb", "ms"), f"auto: {auto[-1].setting}"
        axes.plot(unlimited, y, "*", markersize=11, color=COLOURS[2], label=label)
    decades = [10**d for d in range(9) if first <= 10**d <= last]
    _tidy(axes, "analysis budget, visits (log scale)")
    axes.set_xticks([0, *decades, unlimited], ["0", *map("{:,}".format, decades), "no\nlimit"])


def _line(axes, x, spreads, label, colour):
    median, low, high = zip(*spreads)
    axes.plot(x, median, "-o", color=colour, markersize=3, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _tidy(axes, x):
    """Format a logarithmic axis: ticks at 1, 2 and 5 of each decade, as plain numbers."""
    axes.set_xlabel(x)
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.grid(axis="y", color=TEXT, alpha=0.3, linewidth=0.6)
