"""Figures for people and programs: tables, spreads, JSON, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Tuple, TypeVar

import gluonnlp
import mxnet as mx
import numpy as np
import scipy

import gluon_dynbatch as gdb

Item = TypeVar("Item")


class ResultsError(ValueError):
    """Results that cannot be read; the message names the file."""


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one value."""
        low, median, high = np.percentile(list(values), (25, 50, 75)).tolist()
        return cls(median, low, high)

    def quartiles(self, form: str) -> str:
        """Write both quartiles in a number format."""
        return f"{self.low:{form}}–{self.high:{form}}"


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> Dict[Any, List[Item]]:
    """Collect items by key, in order of first appearance."""
    groups: Dict[Any, List[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class Table(NamedTuple):
    """A table for people; `columns` says for each heading how cells below it are written."""

    title: str
    columns: Dict[str, str]
    rows: List[Tuple[Any, ...]]

    def cells(self) -> List[List[str]]:
        """Write headings and cells as text; None is a dash."""
        body = [
            ["–" if v is None else format(v, form) for v, form in zip(row, self.columns.values())]
            for row in self.rows
        ]
        return [list(self.columns), *body]

    def markdown(self) -> str:
        """Write the table as Markdown, aligned so that it reads well as plain text, too."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.cells()]
        widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(self.columns))]
        left = [form == "s" for form in self.columns.values()]
        rule = ["-" * w if a else "-" * (w - 1) + ":" for w, a in zip(widths, left)]
        lines = []
        for row in (cells[0], rule, *cells[1:]):
            padded = [c.ljust(w) if a else c.rjust(w) for c, w, a in zip(row, widths, left)]
            lines.append(f"| {' | '.join(padded)} |")
        return "\n".join([f"### {self.title}", "", *lines, ""])


def environment() -> Dict[str, Any]:
    """Describe what figures are measured on."""
    threads = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MXNET_ENGINE_TYPE")
    return {
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "gluonnlp": gluonnlp.__version__,
        "gluon_dynbatch": gdb.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        **{name: os.environ.get(name) for name in threads},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor()


def write_json(path: Path, content: Dict[str, Any]) -> None:
    """Write figures; paths and contexts by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


def read_json(path: Path) -> Dict[str, Any]:
    """Read what `write_json` wrote.

    Raises
    ------
    ResultsError
        If the file is not there or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ResultsError(f"{path}: not written by this program")
    return content
