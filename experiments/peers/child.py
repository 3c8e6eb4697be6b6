"""The other end of the pipe: a process that runs one peer on one workload.

``python -m peers.child MODULE:CLASS FOLDER`` reads the task in the folder, then requests from its
standard input, one JSON object a line, and answers each by a line:

- nothing is asked for the first line: what is known of the peer, see `Peer`;
- ``{"do": "check", "work": [[3, 14], ...]}``: from the first parameters, the results for the first
  minibatch (``values``) and the loss of each minibatch when they are trained on one by one
  (``losses``);
- ``{"do": "time", "kind": ..., "warm": [...], "work": [[...], ...]}``: the seconds that `work`
  takes, from the first parameters, after the minibatch `warm`, which is not counted.

Needs NumPy alone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from . import task as tasks
from .task import Sample, Task

#: Minibatches that are trained on to compare losses.
STEPS = 3
Minibatch = Sequence[Any]


class Peer:
    """A way of running minibatches; what a subclass overrides is what it does for one of them.

    Attributes
    ----------
    version, flags : str
        For people: what runs, and how it was told to.
    same_steps : int
        For how many minibatches of training the losses are those of ours. The first depends on the
        forward pass alone, those after it on gradients and updates.
    samples : list
        Of the task, in the form that the peer's own data set would have.
    """

    version = ""
    flags = ""
    same_steps = STEPS

    def __init__(self, task: Task) -> None:
        self.task = task
        self.samples = list(map(self.prepare, task.samples))

    def prepare(self, sample: Sample) -> Any:
        """Turn a sample into what `step` and `predict` take; not counted."""
        return sample

    def step(self, batch: Minibatch) -> float:
        """Train on a minibatch; return the mean of its samples' losses."""
        raise NotImplementedError

    def predict(self, batch: Minibatch) -> np.ndarray:
        """Give the model's results for a minibatch."""
        raise NotImplementedError

    def reset(self) -> None:
        """Go back to the first parameters; the optimizer may go on as it is."""
        raise NotImplementedError

    def check(self, work: List[List[int]]) -> Dict[str, Any]:
        """Answer the request of this name."""
        batches = [[self.samples[i] for i in batch] for batch in work]
        values = self.predict(batches[0]).tolist()
        return {"values": values, "losses": [self.step(batch) for batch in batches]}

    def time(self, kind: str, warm: List[int], work: List[List[int]]) -> Dict[str, Any]:
        """Answer the request of this name."""
        run = self.predict if kind == "inference" else self.step
        batches = [[self.samples[i] for i in batch] for batch in work]
        if warm:
            run([self.samples[i] for i in warm])
        self.reset()
        started = time.perf_counter()
        for batch in batches:
            run(batch)
        return {"seconds": time.perf_counter() - started}


def main(name: str, folder: str) -> None:
    """Answer requests until there are no more."""
    # Libraries greet on standard output, so answers go to a descriptor that they don't know.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, kind = name.split(":")
    peer: Peer = getattr(importlib.import_module(module), kind)(tasks.read(Path(folder)))
    gc.collect()
    gc.freeze()
    told = ("version", "flags", "same_steps")
    answer: Dict[str, Any] = {name: getattr(peer, name) for name in told}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        answer = {"check": peer.check, "time": peer.time}[request.pop("do")](**request)


if __name__ == "__main__":
    main(*sys.argv[1:])
