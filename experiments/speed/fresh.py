"""What only a fresh process can tell: first minibatch, peak memory, other numbers of threads."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import mxnet as mx

from timing.contest import Contender

from .contenders import Pairs, make_runners


class FreshError(RuntimeError):
    """A process that ended without figures."""


def measure_in_process(
    program: str, argv: Sequence[str], what: str, quiet: bool = False, **environment: str
) -> Any:
    """Start `program` anew, and return the JSON that it writes to the file ``--collect``.

    Parameters
    ----------
    program : str
    argv : sequence of str
        Its options.
    what : str
        Says in an error which process it was.
    quiet : bool
        Whether what it prints is kept back; an error has the last line of it.
    **environment : str
        Variables for the process.
    """
    # On Python 3.8 and 3.9, `subprocess` forks, and while a backward pass is pending this would
    # never return: MXNet waits for the pass, and the pass for Python.
    mx.nd.waitall()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        ended = subprocess.run(
            [sys.executable, program, *argv, "--collect", str(file)],
            text=True,
            capture_output=quiet,
            env={**os.environ, **environment},
        )
        if ended.returncode or not file.exists():
            said = f": {(ended.stderr.strip().splitlines() or ['nothing'])[-1]}" if quiet else ""
            raise FreshError(f"the process {what} ended with {ended.returncode}{said}")
        return json.loads(file.read_text(encoding="utf-8"))


def measure(args: argparse.Namespace, pairs: Pairs, mode: str, kind: str) -> Dict[str, Any]:
    """Run one mode, and nothing else, for `args.fresh_minibatches` new minibatches.

    Memory is that of the whole process in MB, and None where the system does not tell.

    Returns
    -------
    dict
        ``first_seconds`` (the first minibatch, with tracing, compiling and planning), ``start_mb``
        (memory before it), ``peak_mb`` (the most until the last), ``minibatches``.
    """
    (runner,) = make_runners(args, pairs, [mode])
    size = min(args.fresh_size, len(runner.workload.samples))
    fresh = runner.workload.minibatches(size, args.seed)
    contender = Contender(runner)
    mx.nd.waitall()
    start = _memory("VmRSS")
    first = 1e-3 * contender.time(kind, [next(fresh)], size).ms
    for _ in range(args.fresh_minibatches - 1):
        contender.run(kind, [next(fresh)])
    return {"first_seconds": first, "start_mb": start, "peak_mb": _memory("VmHWM"),
            "minibatches": args.fresh_minibatches}  # fmt: skip


def _memory(field: str) -> Optional[float]:
    """Read a figure of this process in MB; getrusage would tell of the parent's memory as well."""
    try:
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 1024 if found else None
