"""Shrinks a program that crashes or hangs, which Hypothesis cannot do in its own process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, List, Optional

#: Seconds after which a program counts as hanging; on a busy machine a short one takes long.
PATIENCE = 60.0
#: How a program ends that hangs.
HANGS = None


def ending(script: str, patience: float = PATIENCE) -> Optional[int]:
    """Run a script in a process of its own and return its exit code; `HANGS` if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(path)]
        try:
            done = subprocess.run(command, timeout=patience, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            return HANGS
        return done.returncode


def shrink(lines: List[str], same: Callable[[List[str]], bool], most: int = 120) -> List[str]:
    """Leave out lines, many at a time at first, as long as `same` says that the failure stays.

    This is the ``ddmin`` of Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
    Input (IEEE TSE 28, 2002), without its test of subsets.

    Parameters
    ----------
    lines : list of str
        What fails.
    same : callable
        Whether some of the lines fail in the same way.
    most : int, optional
        How often `same` is asked at most.
    """
    size = max(1, len(lines) // 2)
    while size:
        at = 0
        while at < len(lines) and most:
            fewer = lines[:at] + lines[at + size :]
            most -= 1
            if same(fewer):
                lines = fewer
            else:
                at += size
        size //= 2
    return lines
