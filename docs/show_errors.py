"""Run the examples of errors.md and write the text that each prints below it.

Run ``python docs/show_errors.py`` after a message has changed; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

import mxnet as mx

PAGE = Path(__file__).with_name("errors.md")
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def run(code: str, names: Dict[str, Any]) -> str:
    """Return what Python prints last when `code` fails; empty if it does not."""
    try:
        exec(compile(code, "example.py", "exec"), names)
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        # MXNet's own messages hold the time of day.
        return re.sub(r"\[\d\d:\d\d:\d\d\]", "[hh:mm:ss]", text)
    return ""


def examples(page: str) -> List[Tuple[str, str, str]]:
    """Return code, printed text as it stands, and printed text as it is, of every example.

    The first block of the page is run before each of the others.
    """
    setup, *others = EXAMPLE.findall(page)
    found = []
    for code, text in others:
        names: Dict[str, Any] = {}
        # Blocks are numbered from zero in every example.
        with mx.name.NameManager():
            exec(compile(setup[0], "setup.py", "exec"), names)
            found.append((code, text, run(code, names)))
    return found


def main() -> None:
    """Bring the page up to date."""
    page = PAGE.read_text(encoding="utf-8")
    for code, _, text in examples(page):
        start = page.index(f"```python\n{code}```\n")
        old = EXAMPLE.match(page, start)
        assert old is not None
        new = f"```python\n{code}```\n\n```text\n{text}```\n"
        page = page[:start] + new + page[old.end() :]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
