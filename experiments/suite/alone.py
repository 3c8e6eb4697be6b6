"""What only a fresh process can tell: the first minibatch, and how much memory one way takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import mxnet as mx

from .contest import Contender


class AloneError(RuntimeError):
    """A process that ended without figures."""


def measure_in_process(argv: Sequence[str], workload: str, way: str, kind: str) -> Dict[str, Any]:
    """Start the benchmark anew for one way and nothing else; return what `measure` gave there."""
    mx.nd.waitall()  # a fork that meets a pending backward pass would never return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        program = Path(__file__).resolve().parents[1] / "benchmark.py"
        command = [sys.executable, str(program), *argv, "--workloads", workload]
        ended = subprocess.run(
            [*command, "--alone", way, kind, str(file)], text=True, capture_output=True
        )
        if ended.returncode or not file.exists():
            said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
            raise AloneError(f"{workload}, {way}, {kind}: its process said {said}")
        return json.loads(file.read_text(encoding="utf-8"))


def measure(contender: Contender, kind: str, size: int, count: int, seed: int) -> Dict[str, Any]:
    """Run a contender for `count` new minibatches.

    Memory is that of the whole process in MB, and None where the system does not tell.

    Returns
    -------
    dict
        ``first_seconds`` (the first minibatch, with tracing, compiling and planning), ``start_mb``
        (memory before it), ``peak_mb`` (the most until the last), ``size``.
    """
    size = min(size, len(contender.workload.samples))
    fresh = contender.workload.minibatches(size, seed)
    start = _memory("VmRSS")
    first = 1e-3 * contender.time(kind, [next(fresh)], size).ms
    for _ in range(count - 1):
        contender.time(kind, [next(fresh)], size)
    return {"first_seconds": first, "start_mb": start, "peak_mb": _memory("VmHWM"), "size": size}


def _memory(field: str) -> Optional[float]:
    """Read a figure of this process in MB; getrusage would tell of the parent's memory as well."""
    try:
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 1024 if found else None
