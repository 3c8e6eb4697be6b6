"""Hand-made pictures that suit light and dark pages: what the other programs here write."""

from __future__ import annotations

import html
from typing import Iterable

INK, PAPER, GRID = "#374151", "#ffffff", "#e5e7eb"
#: Colours on dark pages.  All others suit both.
DARK = {INK: "#d1d5db", PAPER: "#131416", GRID: "#374151"}
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="13"'


def frame(width: float, height: float, title: str, elements: Iterable[str]) -> str:
    """Return an SVG picture with a background, which turns dark where the page is dark."""
    rules = " ".join(
        f'[{name}="{light}"]{{{name}:{dark}}}'
        for light, dark in DARK.items()
        for name in ("fill", "stroke")
    )
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT} fill="{INK}">',
        f"<title>{html.escape(title)}</title>",
        f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="12" fill="{PAPER}"/>',
        *elements,
        "</svg>",
        "",
    ])  # fmt: skip
