"""Run the Python of README and of the site's pages, and write what it prints below it.

``python docs/snippets.py`` does so for all pages, ``python docs/snippets.py docs/errors.md`` for
one; a test compares the two.  The ``python`` blocks of a page run one after another, as one
program; a block that an HTML comment ``<!-- run ... -->`` holds runs too, unseen.  A ``text`` block
right below holds what the block above it prints, or the error that it ends with.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

import mxnet as mx

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
#: In these, the first block is run before each of the others.
APART = ("docs/errors.md",)

BLOCK = re.compile(
    r"(?:^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?)"
    r"|^<!-- run\n(?P<hidden>.*?)^-->\n",
    re.DOTALL | re.MULTILINE,
)


class Snippet(NamedTuple):
    """A block of a page: its code, the text below it, and what it prints."""

    code: str
    shown: Optional[str]
    printed: str
    span: Any


def run(code: str, names: Dict[str, Any], line: int = 0) -> str:
    """Return what `code` prints; an error is printed as well if it ends with one."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile("\n" * line + code, "example.py", "exec"), names)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    # MXNet's own messages hold the time of day.
    return re.sub(r"\[\d\d:\d\d:\d\d\]", "[hh:mm:ss]", out.getvalue())


def snippets(name: str) -> Iterator[Snippet]:
    """Run a page and yield its blocks, in their order."""
    text = PAGES[name].read_text(encoding="utf-8")
    first, names = "", {}
    line = 0
    with contextlib.ExitStack() as stack:
        # Blocks are numbered from zero on every page.
        stack.enter_context(mx.name.NameManager())
        for match in BLOCK.finditer(text):
            code = match["code"] or match["hidden"]
            if name in APART:
                with mx.name.NameManager():
                    names = {}
                    run(first, names)
                    printed = run(code, names)
                first = first or code
            else:
                printed = run(code, names, line)
                line += code.count("\n") + 1
            yield Snippet(code, match["shown"], printed, match)


NUMBER = re.compile(r"\d+\.\d+")
TIMED = re.compile(r"[\d.,]+(?= (?:ms|s|us|MB|samples/s|formulas/s)\b)")


def alike(shown: str, printed: str) -> bool:
    """Whether two texts agree but for times, rates and the last digits of other numbers."""
    shown, printed = TIMED.sub("-", shown), TIMED.sub("-", printed)
    if NUMBER.sub("-", shown) != NUMBER.sub("-", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed))
    return all(abs(float(a) - float(b)) <= 0.06 + 0.05 * abs(float(b)) for a, b in pairs)


def main(argv: Any = None) -> None:
    """Bring pages up to date."""
    given = [Path(path).resolve() for path in (sys.argv[1:] if argv is None else argv)]
    for name, page in PAGES.items():
        if given and page not in given:
            continue
        text, done, at = page.read_text(encoding="utf-8"), "", 0
        for snippet in snippets(name):
            match, shown = snippet.span, snippet.shown
            if snippet.printed and match["code"] and not alike(shown or "", snippet.printed):
                end = match.end("code") + len("```\n")
                done += text[at:end] + f"\n```text\n{snippet.printed}```\n"
                at = match.end()
        page.write_text(done + text[at:], encoding="utf-8")


if __name__ == "__main__":
    main()
