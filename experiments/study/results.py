"""Rows of figures: as JSON and back, as tables, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Type, TypeVar

import gluonnlp
import mxnet as mx
import numpy as np
import scipy

import gluon_dynbatch as gdb

Row = TypeVar("Row", bound=tuple)


class ResultsError(ValueError):
    """Results that cannot be read; the message names the file."""


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one value."""
        known = list(values)
        low, median, high = np.percentile(known, (25, 50, 75)).tolist()
        return cls(median, low, high, len(known))


def middle(rows: Sequence[Any], field: str) -> float:
    """Give the median of one field."""
    return statistics.median(getattr(row, field) for row in rows)


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> Dict[Any, List[Row]]:
    """Collect rows by key, in order of first appearance."""
    groups: Dict[Any, List[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def to_json(rows: Sequence[Any]) -> List[Dict[str, Any]]:
    """Turn rows (named tuples of numbers, strings and None) into what JSON can hold."""
    return [row._asdict() for row in rows]


def from_json(kind: Type[Row], rows: Sequence[Dict[str, Any]]) -> List[Row]:
    """Turn what `to_json` made back into rows."""
    return [kind(**row) for row in rows]


class Column(NamedTuple):
    """A column of a table: its heading, and how its cells are written."""

    title: str
    format: str = "s"


class Table(NamedTuple):
    """A table for people."""

    title: str
    columns: Tuple[Column, ...]
    rows: List[Tuple[Any, ...]]

    def cells(self) -> List[List[str]]:
        """Write headings and cells as text; None is a dash."""
        body = [
            ["–" if v is None else format(v, c.format) for v, c in zip(row, self.columns)]
            for row in self.rows
        ]
        return [[column.title for column in self.columns], *body]

    def markdown(self) -> str:
        """Write the table as Markdown, aligned so that it reads well as plain text, too."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.cells()]
        widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(self.columns))]
        left = [column.format == "s" for column in self.columns]
        rule = ["-" * w if a else "-" * (w - 1) + ":" for w, a in zip(widths, left)]
        lines = [
            "| " + " | ".join(
                cell.ljust(w) if a else cell.rjust(w) for cell, w, a in zip(row, widths, left)
            ) + " |"
            for row in (cells[0], rule, *cells[1:])
        ]  # fmt: skip
        return "\n".join([f"### {self.title}", "", *lines, ""])


def environment() -> Dict[str, Any]:
    """Describe what figures are measured on."""
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
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        "MXNET_ENGINE_TYPE": os.environ.get("MXNET_ENGINE_TYPE"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor()


def write_results(
    path: Path, settings: Dict[str, Any], results: Dict[str, Sequence[Any]], **extra: Any
) -> None:
    """Write rows by name, with what they were measured on and with, as JSON."""
    content = {
        "environment": environment(),
        "settings": {name: _plain(value) for name, value in settings.items()},
        **extra,
        "results": {name: to_json(rows) for name, rows in results.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def read_results(path: Path, kinds: Dict[str, Type[Any]]) -> Dict[str, Any]:
    """Read what `write_results` wrote.

    Parameters
    ----------
    path : Path
    kinds : dict
        Type of the rows, by name.

    Raises
    ------
    ResultsError
        If the file is not there or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["results"] = {
            name: from_json(kind, content["results"][name]) for name, kind in kinds.items()
        }
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: not written by this program ({error!r})") from None
    return content
