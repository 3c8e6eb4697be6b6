"""Plans and reports as HTML for notebooks.

It has the colours of the page, so it suits light and dark ones, and needs no package.
"""

from __future__ import annotations

from html import escape
from typing import Iterable, NamedTuple, Sequence, Union

#: Between light and dark, so that bars are seen on both.
COLOR = "#4c8eda"
CELL = "text-align:left;vertical-align:top;padding:.15em 1em .15em 0;white-space:"


class Bar(NamedTuple):
    """A bar to scale: a value, and the value whose bar is as wide as the column."""

    value: float
    most: float

    def __str__(self) -> str:
        width = 100 * self.value / self.most if self.most else 0
        style = f"background:{COLOR};height:.8em;margin-top:.3em;width:{width:.1f}%;min-width:1px"
        return f'<div style="width:12em"><div style="{style}"></div></div>'


class PageLink(NamedTuple):
    """A text, and the address to which it is a link, unless that is empty."""

    text: str
    address: str

    def __str__(self) -> str:
        text = escape(self.text)
        return f'<a href="{escape(self.address)}">{text}</a>' if self.address else text


#: What a cell of a table may contain.
Content = Union[str, Bar, PageLink]


def table(rows: Iterable[Sequence[Content]], folded: str = "") -> str:
    """Return HTML of a table; with `folded`, below a title that opens it."""
    cells = ((_cell(row[0], "nowrap"), *map(_cell, row[1:])) for row in rows)
    text = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    text = f'<table style="border:0;background:none">{text}</table>'
    return f"<details><summary>{escape(folded)}</summary>{text}</details>" if folded else text


def html_page(title: str, tables: Iterable[str], text: str) -> str:
    """Return HTML of tables below a title, and of a text that is folded."""
    style = "overflow-x:auto;white-space:pre"
    return (
        f"<div><b>{escape(title)}</b>{''.join(tables)}<details><summary>as text</summary>"
        f'<pre style="{style}">{escape(text)}</pre></details></div>'
    )


def _cell(content: Content, wrapping: str = "pre-wrap") -> str:
    text = escape(content) if isinstance(content, str) else str(content)
    return f'<td style="{CELL}{wrapping}">{text}</td>'
