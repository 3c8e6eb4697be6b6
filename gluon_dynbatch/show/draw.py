"""Draw a plan with Graphviz, and write it as HTML."""

from __future__ import annotations

import math
import shutil
from collections import Counter, defaultdict
from html import escape
from typing import Any, DefaultDict, List, Mapping, NamedTuple, Sequence, Tuple

from ..errors import MissingError
from .html import Bar, html_page, table
from .plot import import_extra

#: More launches than this are folded: in a drawing, and in a table.
MOST_NODES, MOST_TABLE_ROWS = 12, 40
#: If there are more arrows than this, their rows are tooltips, so that the picture stays narrow.
MOST_LABELS = 12
#: Colours of nodes, by name.  Their text is dark, so a picture suits light and dark pages.
FILLS = ("#a8c8ec", "#f4c58b", "#aedcae", "#d3b9e3", "#f0b0b0", "#e2d38a", "#9fd8d2", "#cfcfcf")
#: Colour of lines and of text on the page.
LINE = "#808080"
#: Border of calls that did not merge.
UNMERGED = "#d04040"
#: Colour of bars in a node; their width and greatest height in points, and most bars in a row.
BAR_FILL = "#505050"
BAR_WIDTH, BAR_HEIGHT, MOST_BARS = 6, 16, 16
#: Attributes of a table without lines.
PLAIN = 'border="0" cellborder="0" cellspacing="0" cellpadding="0"'
INSTALL = (
    "install Graphviz (apt install graphviz, brew install graphviz or conda install graphviz); "
    "print(plan) shows the plan as text"
)


class LaunchNode(NamedTuple):
    """Launches that are drawn as one node."""

    name: str
    #: What the launches run of each call; empty if all of it.
    piece: str
    #: The numbers of the launches.
    title: str
    #: Number of units of each launch.
    widths: Sequence[int]
    #: Why the calls did not merge; empty if they may merge.
    reason: str

    @property
    def full_name(self) -> str:
        """The name, with the piece if it is one."""
        return f"{self.name}: {self.piece}" if self.piece else self.name


class Picture(NamedTuple):
    """What is drawn of a plan."""

    nodes: Mapping[Any, LaunchNode]
    #: Labels of what is read or written that is no result of a launch, by key.
    ends: Mapping[Any, str]
    #: From writer to reader, the number of rows by their size.
    edges: Mapping[Tuple[Any, Any], Mapping[int, int]]


def draw(picture: Picture) -> Any:
    """Draw the launches of a plan, and the rows that flow between them.

    What a launch reads from outside, or writes there, is a text beside it: an arrow from one place
    to each reader would cross the others.
    """
    nodes = picture.nodes
    graphviz = import_extra("graphviz")
    if shutil.which("dot") is None:
        message = "the picture needs the program 'dot', which is not on the path"
        raise MissingError(message, advice=INSTALL)
    # Browsers show the names when the mouse is over them; no two nodes have the same launches.
    ids = {key: node.title for key, node in nodes.items()}
    font = {"fontname": "Helvetica,Arial,sans-serif", "fontsize": "12"}
    graph = graphviz.Digraph(
        "plan",
        graph_attr={"bgcolor": "transparent", "ranksep": "0.3", "nodesep": "0.2"},
        node_attr={**font, "shape": "box", "style": "rounded,filled", "color": LINE},
        edge_attr={**font, "color": LINE, "fontcolor": LINE, "fontsize": "10"},
    )
    # Sorted, so that a name has the same colour in both directions.
    names = sorted({node.name for node in nodes.values()})
    widest = max((max(node.widths) for node in nodes.values()), default=1)
    for key, node in nodes.items():
        lines = [f"{node.full_name} × {sum(node.widths)}", node.title]
        style = {"fillcolor": FILLS[names.index(node.name) % len(FILLS)]}
        # Logarithmic, so that launches of one call and of a thousand fit into one picture.
        style["width"] = f"{0.8 + 2.2 * math.log(max(node.widths)) / math.log(max(widest, 2)):.2f}"
        if node.reason:
            lines.append("not merged")
            style.update(color=UNMERGED, penwidth="2", style="rounded,filled,dashed")
        varied = len(set(node.widths)) > 1
        label = with_bars(lines, node.widths) if varied else "\n".join(lines)
        graph.node(ids[key], label, tooltip=node.reason or node.title, **style)
    outside: DefaultDict[Tuple[str, bool, str], Counter[int]] = defaultdict(Counter)
    inside = sum(writer in nodes and reader in nodes for writer, reader in picture.edges)
    for (writer, reader), rows in picture.edges.items():
        if writer in nodes and reader in nodes:
            text = "\n".join(f" {text} " for text in _counts(rows))
            shown = {"label": text} if inside <= MOST_LABELS else {"edgetooltip": text}
            graph.edge(ids[writer], ids[reader], **shown)
        else:
            inner, end = (reader, writer) if reader in nodes else (writer, reader)
            if inner in nodes:
                outside[ids[inner], inner is reader, picture.ends[end]].update(rows)
    for (inner, is_read, label), rows in outside.items():
        name = f"{label} {'to' if is_read else 'from'} {inner}"
        text = "\n".join([label, *_counts(rows)])
        graph.node(name, text, shape="plaintext", style="", fontcolor=LINE, fontsize="10")
        graph.edge(*((name, inner) if is_read else (inner, name)), style="dashed")
    return graph


def _counts(rows: Mapping[int, int]) -> List[str]:
    return [count(number, size) for size, number in sorted(rows.items())]


def with_bars(lines: Sequence[str], widths: Sequence[int]) -> str:
    """Return a label with lines of text, and below them a row of bars for widths.

    The bars are shapes: fonts draw characters for bars at different heights, or not at all.
    """
    row = "".join(f"<td>{_bar(height)}</td>" for height in bars(widths))
    text = "".join(f"<tr><td>{escape(line)}</td></tr>" for line in lines)
    return f"<<table {PLAIN}>{text}<tr><td><table {PLAIN}><tr>{row}</tr></table></td></tr></table>>"


def _bar(height: int) -> str:
    """Return a table of one bar, with space above it."""
    sizes = (BAR_HEIGHT - height, ""), (height, f' bgcolor="{BAR_FILL}"')
    cells = (
        f'<tr><td fixedsize="true" width="{BAR_WIDTH}" height="{size}"{fill}></td></tr>'
        for size, fill in sizes
        if size
    )
    return f"<table {PLAIN}>{''.join(cells)}</table>"


def bars(widths: Sequence[int]) -> List[int]:
    """Return the heights of bars for widths; if there are many, for the largest of each range.

    >>> bars([8, 4, 2, 0])
    [16, 8, 4, 1]
    """
    step = -(-len(widths) // MOST_BARS)
    shown = [max(widths[i : i + step]) for i in range(0, len(widths), step)]
    return [max(round(BAR_HEIGHT * width / max(shown)), 1) for width in shown]


def count(count: int, size: int = 0) -> str:
    """Count rows of a size, or whole arrays."""
    noun = ("row" if size else "array") + "s" * (count != 1)
    return f"{count} {noun}" + f" of {size}" * bool(size)


def plan_html(title: str, nodes: Sequence[LaunchNode], text: str) -> str:
    """Return HTML of a plan: a row per node, with a bar for the calls of its widest launch."""
    most = max((max(node.widths) for node in nodes), default=1)
    rows = (
        (
            node.title,
            f"{sum(node.widths)} × {node.full_name}",
            Bar(max(node.widths), most),
            node.reason,
        )
        for node in nodes
    )
    return html_page(title, [table(rows)], text)
