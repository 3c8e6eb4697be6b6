"""What only a fresh process can tell: first minibatch and peak memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx

from timing.contest import Contender

from .contenders import Pairs, make_runners

MARK = "fresh process: "


class FreshError(RuntimeError):
    """A process that ended without figures; the message has the last line of what it said."""


def run_process(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, once MXNet has done what it was asked for.

    On Python 3.8 and 3.9, `subprocess` forks, and while a backward pass is pending this would never
    return: MXNet waits for the pass, and the pass for Python.
    """
    mx.nd.waitall()
    return subprocess.run([sys.executable, *command], text=True, **options)


def measure_in_process(program: Path, argv: Sequence[str], mode: str, kind: str) -> Dict[str, Any]:
    """Start `program` anew with the same options to measure one mode in one kind of work."""
    ended = run_process([str(program), *argv, "--fresh", mode, kind], capture_output=True)
    for line in ended.stdout.splitlines():
        if ended.returncode == 0 and line.startswith(MARK):
            return json.loads(line[len(MARK) :])
    said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
    raise FreshError(f"the process for {mode}, {kind} ended with {ended.returncode}: {said}")


def report_own_figures(args: argparse.Namespace, pairs: Pairs, mode: str, kind: str) -> None:
    """Be the process that `measure_in_process` starts."""
    print(MARK + json.dumps(measure(args, pairs, mode, kind)), flush=True)


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
        lines: List[str] = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 1024 if found else None
