"""A plan as a Graphviz graph: who is launched for how many calls, and what flows where; as HTML.

HTML is for notebooks: in the colours of the page, with nothing installed.
"""

from __future__ import annotations

import math
import shutil
from html import escape
from typing import TYPE_CHECKING, Any, Dict, Iterable, Sequence

from ..errors import MissingError
from .flow import OUTSIDE, WHOLE, bars, flow, groups
from .plot import package

if TYPE_CHECKING:
    from ..plan.plan import Plan

#: More launches than this are grouped by what they run: in a drawing, and in a table.
MOST_NODES, MOST_ROWS = 24, 40
#: Fills for dark text, so that a picture suits light and dark pages; one per name.
FILLS = ("#a8c8ec", "#f4c58b", "#aedcae", "#d3b9e3", "#f0b0b0", "#e2d38a", "#9fd8d2", "#cfcfcf")
#: Of lines and the text at them, which stand on the page.
LINE = "#808080"
UNMERGED = "#d04040"
INSTALL = (
    "install Graphviz (apt install graphviz, brew install graphviz or conda install graphviz); "
    "print(plan) shows the plan as text"
)


def draw(plan: Plan, limit: int = MOST_NODES) -> Any:
    """Draw a plan of either direction; see :meth:`gluon_dynbatch.plan.plan.Plan.draw`."""
    graphviz = package("graphviz")
    if shutil.which("dot") is None:
        what = "the picture needs the program 'dot', which is not on the path"
        raise MissingError(what, advice=INSTALL)
    found = groups(plan, limit)
    edges = flow(plan, found)
    names = {key: f"n{i}" for i, key in enumerate(dict.fromkeys([*found, *sum(edges, ())]))}
    text = {"fontname": "Helvetica,Arial,sans-serif", "fontsize": "11"}
    graph = graphviz.Digraph(
        graph_attr={"bgcolor": "transparent", "ranksep": "0.35"},
        node_attr={**text, "shape": "box", "style": "rounded,filled", "color": LINE},
        edge_attr={**text, "color": LINE, "fontcolor": LINE, "fontsize": "9"},
    )
    # In both directions the same.
    kinds = sorted({group.name for group in found.values()})
    widest = max((max(group.widths) for group in found.values()), default=1)
    for key, group in found.items():
        lines = [f"{group.name} × {sum(group.widths)}", group.title]
        if len(set(group.widths)) > 1:
            lines.append(bars(group.widths))
        look = {"fillcolor": FILLS[kinds.index(group.name) % len(FILLS)]}
        # An area that grows with the logarithm: one call and a thousand fit one picture.
        look["width"] = f"{0.8 + 2.2 * math.log(max(group.widths)) / math.log(max(widest, 2)):.2f}"
        if group.reason:
            lines.append("not merged")
            look.update(color=UNMERGED, penwidth="2", style="rounded,filled,dashed")
        graph.node(names[key], "\n".join(lines), tooltip=group.reason or group.title, **look)
    _draw_ends(graph, plan, names)
    for (maker, reader), rows in edges.items():
        told = [_rows(n, size) if size else _arrays(n) for size, n in sorted(rows.items())]
        graph.edge(names[maker], names[reader], "\n".join(f" {one} " for one in told))
    return graph


def _draw_ends(graph: Any, plan: Plan, names: Dict[Any, str]) -> None:
    """Draw where arrays come from, and where gradients go."""
    look = {"style": "dashed", "fontcolor": LINE}
    backward = bool(plan.results)
    for number, fill in enumerate(plan.fills):
        count = len(fill.externals)
        label = f"gradients of {count} results" if backward else f"{_arrays(count)} from outside"
        if ("fill", number) in names:
            graph.node(names["fill", number], label, **look)
    for key, label in ((WHOLE, "whole arrays"), (OUTSIDE, "gradients of arrays\nfrom outside")):
        if key in names:
            graph.node(names[key], label, **look)


def _rows(count: int, size: int) -> str:
    return f"{count} {'row' if count == 1 else 'rows'} of {size}"


def _arrays(count: int) -> str:
    return "1 array" if count == 1 else f"{count} arrays"


def page(title: str, rows: Iterable[Sequence[str]], text: str) -> str:
    """Show a table below a title, and a text on demand."""
    cell = '<td style="text-align:left">{}</td>'
    lines = ("".join(cell.format(escape(one)) for one in row) for row in rows)
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<div><b>{escape(title)}</b><table>{table}</table>"
        f"<details><summary>as text</summary><pre>{escape(text)}</pre></details></div>"
    )


def plan_html(plan: Plan) -> str:
    """Show a row per launch, with a bar for its calls."""
    rows = [
        (group.title, f"{sum(group.widths)} × {group.name}", bars(group.widths), group.reason)
        for group in groups(plan, MOST_ROWS).values()
    ]
    calls = sum(len(launch.units) for launch in plan.launches)
    title = f"{calls} calls in {len(plan.launches)} launches, {plan.arena_bytes / 1e6:.1f} MB"
    return page(title, rows, str(plan))
