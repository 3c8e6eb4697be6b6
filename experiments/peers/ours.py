"""gluon_dynbatch as a peer among the others, with the options that the benchmark was given."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from relatedness.assembly import assemble, make_runner, read_pairs
from relatedness.options import batching_options
from speed import options
from timing.contest import Contender
from workloads.registry import make
from workloads.runner import Runner

from .child import Minibatch, Peer
from .task import Task


def runner_of(workload: str, args: argparse.Namespace) -> Runner:
    """Make the workload as the rest of the benchmark does, and what runs it."""
    if workload == "pairs":
        return make_runner(args, assemble(args, read_pairs(args, ("train",))), "dynamic", "train")
    return Runner(make(workload, args, **args.sizes), "dynamic", batching_options(args))


class Ours(Peer):
    """Times like the contests of the benchmark, of which a turn of its tells all figures."""

    def __init__(self, task: Task) -> None:
        args = options.parse(task.argv, "")
        self.task = task
        self.runner = runner_of(task.workload, args)
        self.samples = list(self.runner.workload.samples)
        self.contender = Contender(self.runner)
        self.contest = ("", 0)
        self.version = f"{gdb.__version__}, MXNet {mx.__version__}"
        self.flags = ", ".join(f"{name}={value}" for name, value in self.runner.options.items())

    def step(self, batch: Minibatch) -> float:  # noqa: D102
        return float(self.runner.step(batch).losses.asnumpy().mean())

    def predict(self, batch: Minibatch) -> np.ndarray:  # noqa: D102
        return self.runner.predict(batch).asnumpy()

    def time(  # noqa: D102
        self, kind: str, size: int, warm: List[int], work: List[List[int]]
    ) -> Dict[str, Any]:
        if self.contest != (kind, size):
            STATE.sites.clear()  # "auto" settles anew, as in a new process
            self.contest = kind, size
        batches = [[self.samples[i] for i in batch] for batch in work]
        first = [[self.samples[i] for i in warm]] if warm else []
        row = self.contender.time(kind, batches, size, first)
        samples = sum(map(len, work))
        figures = row._asdict()
        kept = ("recording", "analysis", "dispatch", "nodes", "launches", "cached", "setting",
                "trying")  # fmt: skip
        seconds = 1e-3 * row.ms * samples / size
        return {"seconds": seconds, **{name: figures[name] for name in kept}}
