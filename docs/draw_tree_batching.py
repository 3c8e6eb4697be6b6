"""Draw tree_batching.svg: the trees of three samples, and the launches that run their nodes.

Run ``python docs/draw_tree_batching.py``; a test fails if the picture is stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

from programs import parser_of
from themes import INK, PAPER, frame

#: A tree is the list of its children.
TREES = (
    [[[], []], [[], [[], []]]],
    [[], [[], []]],
    [[[], []], [[], []]],
)
COLOURS = ("#2a9d8f", "#e9a23b", "#d1495b", "#4a6fa5")
RADIUS, STEP, LEVEL, MARGIN, GAP = 11, 34, 54, 26, 26


class Dot(NamedTuple):
    """A node of a tree, or a member of a launch."""

    x: float
    y: float
    launch: int


class Drawing(NamedTuple):
    """The shapes of the picture, from back to front."""

    width: float
    height: float
    #: Bands and boxes: x, y, width, height, launch, opacity.
    boxes: List[Tuple[float, float, float, float, int, float]]
    edges: List[Tuple[Dot, Dot]]
    #: Arrows: x and y of the tail, x of the head, launch.
    arrows: List[Tuple[float, float, float, int]]
    dots: List[Dot]


def lay_out() -> Drawing:
    """Place trees, with nodes of equal height on one line, and their launches to the right."""
    levels = len(COLOURS)
    edges: List[Tuple[Dot, Dot]] = []
    trees: List[Dot] = []
    left = MARGIN + RADIUS

    def level_y(launch: int) -> float:
        return MARGIN / 2 + LEVEL * (levels - 1 - launch) + LEVEL / 2

    def place(tree: list, leaves: Iterator[float]) -> Dot:
        children = [place(child, leaves) for child in tree]
        launch = 1 + max(child.launch for child in children) if children else 0
        x = sum(child.x for child in children) / len(children) if children else next(leaves)
        dot = Dot(x, level_y(launch), launch)
        edges.extend((dot, child) for child in children)
        trees.append(dot)
        return dot

    for tree in TREES:
        before = len(trees)
        place(tree, iter([left + STEP * k for k in range(99)]))
        left = max(dot.x for dot in trees[before:]) + STEP + GAP
    right = left - GAP - STEP + RADIUS + 12
    column = right + 66
    boxes, arrows, members = [], [], []
    by_launch: Dict[int, List[Dot]] = {}
    for dot in trees:
        by_launch.setdefault(dot.launch, []).append(dot)
    for launch, dots in by_launch.items():
        y = level_y(launch)
        boxes.append((MARGIN - 12, y - 20, right - MARGIN + 12, 40, launch, 0.14))
        width = 2 * RADIUS * len(dots) + 4 * (len(dots) - 1) + 20
        boxes.append((column, y - 20, width, 40, launch, 0.35))
        arrows.append((right + 8, y, column - 8, launch))
        for k in range(len(dots)):
            members.append(Dot(column + 10 + RADIUS + k * (2 * RADIUS + 4), y, launch))
    width = max(x + w for x, _, w, _, _, _ in boxes) + MARGIN - 12
    return Drawing(width, LEVEL * levels + MARGIN, boxes, edges, arrows, trees + members)


def to_svg(drawing: Drawing) -> str:
    """Return a drawing as SVG."""
    out = []
    for x, y, w, h, launch, opacity in drawing.boxes:
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="14" '
            f'fill="{COLOURS[launch]}" fill-opacity="{opacity}"/>'
        )
    for a, b in drawing.edges:
        out.append(
            f'<line x1="{a.x:.1f}" y1="{a.y:.1f}" x2="{b.x:.1f}" y2="{b.y:.1f}" '
            f'stroke="{INK}" stroke-width="2"/>'
        )
    for tail, y, head, launch in drawing.arrows:
        out.append(
            f'<path d="M{tail:.1f} {y:.1f}H{head - 10:.1f}" stroke="{COLOURS[launch]}" '
            f'stroke-width="4"/>'
        )
        out.append(f'<path d="M{head:.1f} {y:.1f}l-13 -8v16z" fill="{COLOURS[launch]}"/>')
    for dot in drawing.dots:
        out.append(
            f'<circle cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="{RADIUS}" '
            f'fill="{COLOURS[dot.launch]}" stroke="{PAPER}" stroke-width="2"/>'
        )
    title = "Nodes of equal height in three trees run in one launch"
    return frame(drawing.width, drawing.height, title, out)


def main() -> None:
    """Write the picture."""
    parser_of(__doc__).parse_args()
    picture = to_svg(lay_out())
    Path(__file__).with_name("tree_batching.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
