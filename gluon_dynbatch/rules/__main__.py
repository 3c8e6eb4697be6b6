"""Print the page of all operators: ``python -m gluon_dynbatch.rules > docs/operators.md``."""

from __future__ import annotations

from .pages import reference

if __name__ == "__main__":
    print(reference(), end="")
