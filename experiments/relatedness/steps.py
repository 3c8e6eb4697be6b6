"""The loss of every minibatch as JSON lines, so that runs can be compared step by step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

from .checkpoint import CheckpointError, conform, whole_file


class StepLog:
    """Writes ``{"epoch": 1, "step": 1, "loss": 0.61}`` per minibatch; the loss is a sample's mean.

    Parameters
    ----------
    path : Path
    epoch : int
        The last epoch that is done. Lines of later ones are dropped: their epoch was cut short, and
        is run again.
    """

    def __init__(self, path: Path, epoch: int) -> None:
        kept = [line for line in read_steps(path) if line["epoch"] <= epoch] if epoch else []
        with whole_file(path) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        self._file = path.open("a", encoding="utf-8")

    def write(self, epoch: int, step: int, loss: float) -> None:
        """Add a line; it is in the file at once, for whoever follows it."""
        self._file.write(json.dumps({"epoch": epoch, "step": step, "loss": loss}) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Have the lines on the disk before a checkpoint relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_steps(path: Path) -> List[Dict[str, Any]]:
    """Read the lines; a last one that a killed program left unfinished is no line.

    Raises
    ------
    CheckpointError
        If a line is something else.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [_read_step(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _read_step(line: str, place: str) -> Dict[str, Any]:
    try:
        step = json.loads(line)
        conform(step, {"epoch": int, "step": int, "loss": float}, "step")
    except (ValueError, RecursionError):
        raise CheckpointError(f"{place}: no step of this run; delete the line") from None
    return dict(step)
