"""Command lines of the programs here, which write pages and pictures: a mistake gives one line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print a message and exit."""
        self.exit(2, f"error: {message}\n")

    def read_json(self, path: Path) -> Any:
        """Return the content of a file that the command line names."""
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            self.error(f"{path}: {error.strerror}")
        except ValueError:
            self.error(f"{path}: not a file of JSON")


def parser_of(doc: str) -> Parser:
    """Return a parser for a program with a docstring."""
    return Parser(description=doc.splitlines()[0])
