"""Draw a plan with Graphviz, and write plans and reports as HTML.

The HTML is for notebooks: it has the colours of the page and needs no package.
"""

from __future__ import annotations

import math
import shutil
from html import escape
from typing import TYPE_CHECKING, Any, Dict, Iterable, Sequence

from ..errors import MissingError
from .flow import OUTSIDE, WHOLE, bars, flow, groups
from .plot import import_extra

if TYPE_CHECKING:
    from ..plan.plan import Plan

#: More launches than this are grouped by their segments: in a drawing, and in a table.
MOST_NODES, MOST_ROWS = 24, 40
#: Colours of nodes, by name.  Their text is dark, so a picture suits light and dark pages.
FILLS = ("#a8c8ec", "#f4c58b", "#aedcae", "#d3b9e3", "#f0b0b0", "#e2d38a", "#9fd8d2", "#cfcfcf")
#: Colour of lines and of text on the page.
LINE = "#808080"
#: Border of calls that did not merge.
UNMERGED = "#d04040"
INSTALL = (
    "install Graphviz (apt install graphviz, brew install graphviz or conda install graphviz); "
    "print(plan) shows the plan as text"
)


def draw(plan: Plan, limit: int = MOST_NODES) -> Any:
    """Draw a plan of either direction; see :meth:`gluon_dynbatch.plan.plan.Plan.draw`."""
    graphviz = import_extra("graphviz")
    if shutil.which("dot") is None:
        message = "the picture needs the program 'dot', which is not on the path"
        raise MissingError(message, advice=INSTALL)
    nodes = groups(plan, limit)
    edges = flow(plan, nodes)
    ids = {key: f"n{i}" for i, key in enumerate(dict.fromkeys([*nodes, *sum(edges, ())]))}
    font = {"fontname": "Helvetica,Arial,sans-serif", "fontsize": "11"}
    graph = graphviz.Digraph(
        graph_attr={"bgcolor": "transparent", "ranksep": "0.35"},
        node_attr={**font, "shape": "box", "style": "rounded,filled", "color": LINE},
        edge_attr={**font, "color": LINE, "fontcolor": LINE, "fontsize": "9"},
    )
    # Sorted, so that a name has the same colour in both directions.
    names = sorted({group.name for group in nodes.values()})
    widest = max((max(group.widths) for group in nodes.values()), default=1)
    for key, group in nodes.items():
        lines = [f"{group.name} × {sum(group.widths)}", group.title]
        if len(set(group.widths)) > 1:
            lines.append(bars(group.widths))
        style = {"fillcolor": FILLS[names.index(group.name) % len(FILLS)]}
        # Logarithmic, so that launches of one call and of a thousand fit into one picture.
        style["width"] = f"{0.8 + 2.2 * math.log(max(group.widths)) / math.log(max(widest, 2)):.2f}"
        if group.reason:
            lines.append("not merged")
            style.update(color=UNMERGED, penwidth="2", style="rounded,filled,dashed")
        graph.node(ids[key], "\n".join(lines), tooltip=group.reason or group.title, **style)
    _draw_ends(graph, plan, ids)
    for (writer, reader), rows in edges.items():
        labels = [f" {_count(n, size)} " for size, n in sorted(rows.items())]
        graph.edge(ids[writer], ids[reader], "\n".join(labels))
    return graph


def _draw_ends(graph: Any, plan: Plan, ids: Dict[Any, str]) -> None:
    """Draw the nodes that are no launches: where arrays come from, and where gradients go."""
    style = {"style": "dashed", "fontcolor": LINE}
    backward = bool(plan.results)
    for number, fill in enumerate(plan.fills):
        count = len(fill.externals)
        label = f"gradients of {count} results" if backward else f"{_count(count)} from outside"
        if ("fill", number) in ids:
            graph.node(ids["fill", number], label, **style)
    for key, label in ((WHOLE, "whole arrays"), (OUTSIDE, "gradients of arrays\nfrom outside")):
        if key in ids:
            graph.node(ids[key], label, **style)


def _count(count: int, size: int = 0) -> str:
    """Count rows of a size, or whole arrays."""
    noun = ("row" if size else "array") + "s" * (count != 1)
    return f"{count} {noun}" + f" of {size}" * bool(size)


def page(title: str, rows: Iterable[Sequence[str]], text: str) -> str:
    """Return HTML of a table below a title, and of a text that is folded."""
    cell = '<td style="text-align:left">{}</td>'
    lines = ("".join(cell.format(escape(field)) for field in row) for row in rows)
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<div><b>{escape(title)}</b><table>{table}</table>"
        f"<details><summary>as text</summary><pre>{escape(text)}</pre></details></div>"
    )


def plan_html(plan: Plan) -> str:
    """Return HTML of a plan: a row per launch or group of launches, with bars for their calls."""
    rows = [
        (group.title, f"{sum(group.widths)} × {group.name}", bars(group.widths), group.reason)
        for group in groups(plan, MOST_ROWS).values()
    ]
    calls = sum(len(launch.units) for launch in plan.launches)
    title = f"{calls} calls in {len(plan.launches)} launches, {plan.arena_bytes / 1e6:.1f} MB"
    return page(title, rows, str(plan))
