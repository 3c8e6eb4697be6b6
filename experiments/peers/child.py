"""The other end of the pipe: a process that runs one peer on one workload.

``python -m peers.child MODULE:CLASS`` reads from its standard input a pickled `Task`, answered by
what is known of the peer, and then lines of JSON, each the name of a method of `Peer` and its
arguments. All answers are lines of JSON. Needs NumPy alone, as the peers' environment has no MXNet.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import sys
import time
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

#: Minibatches that are trained on to compare losses.
STEPS = 3
Minibatch = Sequence[Any]
Sample = Dict[str, Any]


class Task(NamedTuple):
    """A workload in plain data.

    Attributes
    ----------
    learning_rate, weight_decay : float
        Of AdaGrad as MXNet has it: ``history += grad ** 2``, then ``weight -= learning_rate *
        (grad / sqrt(history + 1e-7) + weight_decay * weight)``.
    samples : list of dict
        - pairs: ``words`` and ``heads`` of both sentences, ``target`` over the scores;
        - tagged sentences: ``words``, ``labels``;
        - trees: ``words``; of all phrases, those within first, ``left`` and ``right`` (numbers of
          phrases, -1 for a word) and ``labels``.
    parameters : dict
        float32, by Gluon's structural names. ``embedding.weight`` is not trained.
    """

    learning_rate: float
    weight_decay: float
    samples: List[Sample]
    parameters: Dict[str, np.ndarray]


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
        """Give results for the first minibatch, and the losses of training on all, one by one."""
        batches = [[self.samples[i] for i in batch] for batch in work]
        values = self.predict(batches[0]).tolist()
        return {"values": values, "losses": [self.step(batch) for batch in batches]}

    def time(self, kind: str, warm: List[int], work: List[List[int]]) -> float:
        """Give the seconds that `work` takes, from the first parameters; `warm` is not counted."""
        run = self.predict if kind == "inference" else self.step
        batches = [[self.samples[i] for i in batch] for batch in work]
        if warm:
            run([self.samples[i] for i in warm])
        self.reset()
        started = time.perf_counter()
        for batch in batches:
            run(batch)
        return time.perf_counter() - started


def main(name: str) -> None:
    """Answer requests until there are no more."""
    # Libraries greet on standard output, so answers go to a descriptor that they don't know.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, kind = name.split(":")
    task = Task(*pickle.load(sys.stdin.buffer))
    peer: Peer = getattr(importlib.import_module(module), kind)(task)
    gc.collect()
    gc.freeze()
    greeting = {name: getattr(peer, name) for name in ("version", "flags", "same_steps")}
    print(json.dumps(greeting), file=answers, flush=True)
    for request in sys.stdin.buffer:
        method, arguments = json.loads(request)
        print(json.dumps(getattr(peer, method)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
