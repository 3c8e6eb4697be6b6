"""Draw the committed pictures of measurements from measured.csv.

Run ``python experiments/draw_measured.py`` after a change; a test fails if a picture is stale.
``python experiments/draw_measured.py --figures runs/benchmark.json`` first takes the figures of
all pictures that this run of ``benchmark.py`` has.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import List, NamedTuple

from command import Parser, UsageError, path, run_program
from suite.pictures import draw
from suite.tables import Measured, Row, Rows

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "experiments" / "measured.csv"
WORKLOAD, TITLE = "sick", "child-sum Tree-LSTM, SICK"
#: Columns of `FIGURES` after the name of the picture, and their types.
COLUMNS = {
    "kind": str, "size": int, "way": str, "round": int, "ms": float, "recording": float,
    "analysis": float, "dispatch": float, "nodes": float, "setting": str,
}  # fmt: skip


class Picture(NamedTuple):
    """A committed picture: its file, the samples of a minibatch, and the ways that it shows."""

    path: Path
    size: int
    ways: List[str]
    #: Whether it shows the phases of a minibatch, not the whole time alone.
    phases: bool

    def rows(self, measured):
        """Return the rows of a benchmark that the picture shows, without other figures."""
        kept = [name for name in COLUMNS if self.phases or COLUMNS[name] is not float]
        kept += ["ms", "nodes"]
        return Rows(
            make_row({name: getattr(row, name) for name in kept})
            for row in measured
            if row.size == self.size and any(fits(row.way, way) for way in self.ways)
        )


def fits(way, shown):
    """Return whether a way is one of those that a picture shows; "*" stands for any end."""
    return way.startswith(shown[:-1]) if shown.endswith("*") else way == shown


PICTURES = {
    "parts": Picture(ROOT / "docs/pictures/parts.svg", 256, ["gdb", "gdb-once"], True),
    "budget": Picture(
        ROOT / "experiments/budget.svg", 128,
        ["gdb", "gdb:operator:search*", "gdb:block:search*"], False,
    ),
}  # fmt: skip


def make_row(figures):
    """Return a row with the figures of the pictures, and none of the others."""
    return Row(**{"minibatches": 1, "samples": figures["size"], "rate": 0.0, **figures})


def read_csv(text):
    """Return the rows of each picture in a text."""
    rows = {name: Rows() for name in PICTURES}
    for line in csv.DictReader(text.splitlines()):
        values = {name: kind(line[name]) for name, kind in COLUMNS.items() if line[name]}
        rows[line["picture"]].append(make_row(values))
    return rows


def write_csv(rows, path):
    """Write the rows of each picture."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["picture", *COLUMNS])
        for picture, figures in rows.items():
            for row in figures:
                cells = [getattr(row, name) for name in COLUMNS]
                cells = [f"{cell:.3f}" if isinstance(cell, float) else cell for cell in cells]
                writer.writerow([picture, *cells])


def to_svg(rows):
    """Return the picture of some rows."""
    measured = Measured(TITLE, "pairs", "", "", 0, {}, {}, rows)
    with tempfile.TemporaryDirectory() as folder:
        (path,) = (p for p in draw({WORKLOAD: measured}, Path(folder)) if p.suffix == ".svg")
        return path.read_text(encoding="utf-8")


def update(file):
    """Take the figures of the pictures that a run has."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        measured = Measured.from_json(content["workloads"][WORKLOAD]).rows
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file}: has no measurement of {WORKLOAD}") from None
    rows = read_csv(FIGURES.read_text(encoding="utf-8"))
    new = {name: picture.rows(measured) for name, picture in PICTURES.items()}
    rows.update({name: figures for name, figures in new.items() if figures})
    write_csv(rows, FIGURES)


def main(argv=None):
    """Draw the pictures; `argv` defaults to the command line."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=path, metavar="FILE", help="benchmark.json to take from")
    args = parser.parse_args(argv)

    def run():
        if args.figures is not None:
            update(args.figures)
        for name, rows in read_csv(FIGURES.read_text(encoding="utf-8")).items():
            PICTURES[name].path.write_text(to_svg(rows), encoding="utf-8")

    return run_program(run)


if __name__ == "__main__":
    sys.exit(main())
