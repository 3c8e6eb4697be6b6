"""Run the Python code of the README and the pages, and write its output into them.

``python docs/snippets.py`` updates outputs that differ in more than times; a test fails if there
are any.  ``python docs/snippets.py docs/errors.md`` updates one page, times included.  ``--draw``
also draws the pictures.

The ``python`` blocks of a page run in order, as one program.  A hidden block, in an HTML comment
``<!-- run ... -->``, runs too.  Directly below a block is its output or error, as a ``text`` block,
or a picture of the value of its last expression.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

import matplotlib
import mxnet as mx

from gluon_dynbatch.show.plot import STYLE
from programs import parser_of

DOCS = Path(__file__).resolve().parent
PAGES = {
    page.relative_to(DOCS.parent).as_posix(): page
    for page in [
        DOCS.parent / "README.md",
        *sorted(DOCS.glob("*.md")),
        *sorted(DOCS.glob("guides/*.md")),
    ]
    if "```python\n" in page.read_text(encoding="utf-8")
}
#: Pages where each block is a program of its own, which begins with the first block.
SEPARATE = ("docs/errors.md",)

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<shown>.*?)^```\n|\n!\[[^\]]*\]\((?P<picture>[^)]*)\)\n)?"
    r"|^<!-- run\n(?P<hidden>.*?)^-->\n",
    re.DOTALL | re.MULTILINE,
)


class Snippet(NamedTuple):
    """A block of a page: its code, the text below it, and its output."""

    code: str
    shown: Optional[str]
    printed: str
    match: Any
    #: What it draws, and the file of the picture in the page.
    picture: Any
    path: Path


def run(code: str, names: Dict[str, Any], line: int = 0) -> str:
    """Return the output of `code`, with the error that ends it, if any.

    The value of its last expression becomes ``names["_"]``.
    """
    output = io.StringIO()
    tree = ast.parse("\n" * line + code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(tree, "example.py", "exec"), names)
            if last is not None:
                names["_"] = eval(compile(ast.Expression(last.value), "example.py", "eval"), names)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    # Messages of MXNet contain the time of day.
    return re.sub(r"\[\d\d:\d\d:\d\d\]", "[hh:mm:ss]", output.getvalue())


def snippets(name: str, draw: bool = False) -> Iterator[Snippet]:
    """Run a page and yield its blocks in order; with `draw`, write its pictures."""
    text = PAGES[name].read_text(encoding="utf-8")
    first, names, line = "", {}, 0
    # Gluon blocks are numbered from zero on each page, and figures suit light and dark pages.
    with mx.name.NameManager(), matplotlib.rc_context(STYLE):
        for match in BLOCK.finditer(text):
            code = match["code"] or match["hidden"]
            if name in SEPARATE:
                with mx.name.NameManager():
                    names = {}
                    run(first, names)
                    printed = run(code, names)
                first = first or code
            else:
                printed = run(code, names, line)
                line += code.count("\n") + 1
            picture, path = None, PAGES[name].parent / (match["picture"] or "")
            if match["picture"]:
                picture = None if printed.startswith("MissingError") else names["_"]
                printed = re.sub(r"^MissingError.*", "", printed, flags=re.DOTALL)
                if draw:
                    write(picture, path)
            yield Snippet(code, match["shown"], printed, match, picture, path)


def write(picture: Any, path: Path) -> None:
    """Write a Graphviz or matplotlib picture as SVG, without dates and random identifiers."""
    path.parent.mkdir(exist_ok=True)
    if hasattr(picture, "pipe"):
        path.write_bytes(picture.pipe("svg"))
    else:
        with matplotlib.rc_context({"svg.hashsalt": path.name}):
            picture.savefig(path, bbox_inches="tight", metadata={"Date": None})


ERROR = re.compile(r"^\w+Error:", re.MULTILINE)
NUMBER = re.compile(r"\d+\.\d+")
TIMED = re.compile(r"[\d.,]+(?= (?:ms|s|us|MB|samples/s|formulas/s)\b)")


def alike(shown: str, printed: str) -> bool:
    """Whether two texts are equal except for times, rates and last digits of other numbers."""
    shown, printed = TIMED.sub("-", shown), TIMED.sub("-", printed)
    if NUMBER.sub("-", shown) != NUMBER.sub("-", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed))
    return all(abs(float(a) - float(b)) <= 0.06 + 0.05 * abs(float(b)) for a, b in pairs)


def main() -> None:
    """Update pages."""
    parser = parser_of(__doc__)
    parser.add_argument("page", nargs="*", type=Path, help="pages to update, times included")
    parser.add_argument("--draw", action="store_true", help="also draw the pictures")
    args = parser.parse_args()
    chosen = [path.resolve() for path in args.page]
    for path in chosen:
        if path not in PAGES.values():
            parser.error(f"{path}: not a page with Python code")
    for name, page in PAGES.items():
        if chosen and page not in chosen:
            continue
        text, updated, at = page.read_text(encoding="utf-8"), "", 0
        for snippet in snippets(name, args.draw):
            match, shown = snippet.match, snippet.shown
            differs = bool(chosen) or not alike(shown or "", snippet.printed)
            if ERROR.search(snippet.printed) and not ERROR.search(shown or ""):
                parser.error(f"{name}: {snippet.printed}")
            if snippet.printed and match["code"] and differs:
                end = match.end("code") + len("```\n")
                updated += text[at:end] + f"\n```text\n{snippet.printed}```\n"
                at = match.end()
        page.write_text(updated + text[at:], encoding="utf-8")


if __name__ == "__main__":
    main()
