"""The other end of the pipe: a process that runs one peer on one workload.

``python -m peers.child MODULE:CLASS DESCRIPTOR`` gets a `Task` from the pipe, answered by what is
known of the peer, and then names of methods of `Peer` with their arguments, answered by what they
return. Needs NumPy alone, as the peers' environment has no MXNet.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import time
from multiprocessing.connection import Connection
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
        values = self.predict(batches[0])
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


def main(name: str, descriptor: str) -> None:
    """Answer requests until there are no more."""
    pipe = Connection(int(descriptor))
    module, kind = name.split(":")
    peer: Peer = getattr(importlib.import_module(module), kind)(Task(*pipe.recv()))
    gc.collect()
    gc.freeze()
    pipe.send({name: getattr(peer, name) for name in ("version", "flags", "same_steps")})
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = pipe.recv()
            pipe.send(getattr(peer, method)(*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
