"""Samples per second of the three modes, on the same pairs from the same parameters."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from .data import Sample
from .running import Runner

KINDS = ("inference", "training")


class Contender(NamedTuple):
    """A mode in the benchmark: runner, trainer, and the parameters every round starts from."""

    runner: Runner
    trainer: gluon.Trainer
    start: Dict[str, mx.nd.NDArray]

    def reset(self) -> None:
        """Go back to the first parameters."""
        for name, parameter in self.runner.model.collect_params().items():
            parameter.set_data(self.start[name])
        mx.nd.waitall()


def compare(
    contenders: Sequence[Contender],
    samples: Sequence[Sample],
    batch_size: int,
    rounds: int,
    warmup: float,
) -> Dict[str, Any]:
    """Time inference and training, round by round, so that all modes see the same machine.

    Parameters
    ----------
    contenders : sequence of Contender
        The first is what the others are compared with.
    samples : sequence of Sample
    batch_size, rounds : int
    warmup : float
        Seconds that each mode runs untimed before the first round.

    Returns
    -------
    dict
        ``samples_per_second`` (kind, mode: one figure per round), ``median``, ``ratio`` (to the
        first contender's median).
    """
    work = [samples[i : i + batch_size] for i in range(0, len(samples), batch_size)]
    actions = {"inference": _infer, "training": _train}
    for contender in contenders:
        for action in actions.values():
            end = time.perf_counter() + warmup / len(actions)
            while True:
                action(contender, work)
                if time.perf_counter() >= end:
                    break
    rates: Dict[str, Dict[str, List[float]]] = {
        kind: {contender.runner.mode: [] for contender in contenders} for kind in KINDS
    }
    for _ in range(rounds):
        for kind, action in actions.items():
            for contender in contenders:
                contender.reset()
                seconds = _timed(action, contender, work)
                rates[kind][contender.runner.mode].append(len(samples) / seconds)
    first = contenders[0].runner.mode
    median = {k: {m: statistics.median(v) for m, v in rates[k].items()} for k in KINDS}
    ratio = {k: {m: v / median[k][first] for m, v in median[k].items()} for k in KINDS}
    return {"samples_per_second": rates, "median": median, "ratio": ratio}


def _infer(contender: Contender, work: Sequence[Sequence[Sample]]) -> None:
    for batch in work:
        contender.runner.predict(batch)


def _train(contender: Contender, work: Sequence[Sequence[Sample]]) -> None:
    for batch in work:
        contender.runner.step(batch, contender.trainer).losses.wait_to_read()
    mx.nd.waitall()


def _timed(action: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def environment() -> Dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def table(result: Dict[str, Any]) -> str:
    """Lay the medians out side by side, each with its ratio to the first mode."""
    rows: List[Tuple[str, ...]] = [("mode", *(f"{kind} samples/s" for kind in KINDS))]
    for mode in result["median"][KINDS[0]]:
        cells = (
            f"{result['median'][kind][mode]:,.0f} ({result['ratio'][kind][mode]:.1f}x)"
            for kind in KINDS
        )
        rows.append((mode, *cells))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
