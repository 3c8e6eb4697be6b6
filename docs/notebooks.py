"""Write the notebook of a page, ``docs/ten-minutes.ipynb``, without outputs.

Run ``python docs/notebooks.py`` after a change of the page; a test fails if the notebook is stale.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List

from programs import parser_of

DOCS = Path(__file__).resolve().parent
#: Pages with a notebook beside them.
PAGES = (DOCS / "ten-minutes.md",)
#: A block of code, with the output or the picture below it, which the notebook computes itself.
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n|\n!\[[^\]]*\]\([^)]*\)\n)?",
    re.DOTALL | re.MULTILINE,
)


def cell(kind: str, text: str, number: int) -> Dict[str, Any]:
    """Return a cell of a notebook."""
    content = {"id": f"cell{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    outputs = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, **content, **outputs}


def notebook(text: str) -> str:
    """Return the notebook of a page, as JSON."""
    cells: List[Dict[str, Any]] = []
    # Text and code alternate: `re.split` keeps what the group holds.
    for number, part in enumerate(BLOCK.split(text)):
        if part.strip():
            cells.append(cell("code" if number % 2 else "markdown", part.strip("\n"), number))
    language = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": language, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebooks."""
    parser_of(__doc__).parse_args()
    for page in PAGES:
        text = notebook(page.read_text(encoding="utf-8"))
        page.with_suffix(".ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
