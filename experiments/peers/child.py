"""The other end of the pipe: a process that runs one peer on one workload.

``python -m peers.child MODULE:CLASS DESCRIPTOR`` gets a `Task` from the pipe, answered by what is
known of the peer, and then names of methods of `Peer` with their arguments, answered by what they
return. The peers' environment has no MXNet.
"""

import contextlib
import gc
import importlib
import sys
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

#: Minibatches that are trained on to compare losses.
STEPS = 3
#: What MXNet's AdaGrad adds to the history of gradients.
EPSILON = 1e-7


class Task(NamedTuple):
    """A workload in plain data.

    AdaGrad is as MXNet has it: ``history += grad ** 2``, then ``weight -= learning_rate * (grad /
    sqrt(history + EPSILON) + weight_decay * weight)``.
    """

    learning_rate: float
    weight_decay: float
    samples: list  # inputs and target of each, with lists in place of arrays
    parameters: dict  # float32 arrays by Gluon's structural names; embedding.weight is not trained


class Peer:
    """A way of running minibatches of samples, in the form that its own data set would have.

    A subclass has ``step(batch)``, which trains on a minibatch and returns the mean of its samples'
    losses; ``predict(batch)``, which gives the model's results as an array; and ``reset()``, which
    goes back to the first parameters; the optimizer may go on as it is.
    """

    #: For people: what runs, and how it was told to.
    version = flags = ""
    #: For how many minibatches of training the losses are those of ours. The first depends on the
    #: forward pass alone, those after it on gradients and updates.
    same_steps = STEPS

    def __init__(self, task):
        self.samples = list(map(self.prepare, task.samples))

    def prepare(self, sample):
        """Turn a sample into what `step` and `predict` take; not counted."""
        return sample

    def batches(self, work):
        """Give the samples of minibatches of their numbers."""
        return [[self.samples[i] for i in batch] for batch in work]

    def check(self, work):
        """Give results for the first minibatch, and the losses of training on all, one by one."""
        batches = self.batches(work)
        values = self.predict(batches[0])
        return {"values": values, "losses": [self.step(batch) for batch in batches]}

    def time(self, kind, warm, work):
        """Give the seconds that `work` takes, from the first parameters; `warm` is not counted."""
        run = self.predict if kind == "inference" else self.step
        first, *batches = self.batches([warm, *work])
        if warm:
            run(first)
        self.reset()
        started = time.perf_counter()
        for batch in batches:
            run(batch)
        return time.perf_counter() - started


def main(name, descriptor):
    """Answer requests until there are no more."""
    pipe = Connection(int(descriptor))
    module, kind = name.split(":")
    peer = getattr(importlib.import_module(module), kind)(Task(*pipe.recv()))
    gc.collect()
    gc.freeze()
    pipe.send({name: getattr(peer, name) for name in ("version", "flags", "same_steps")})
    with contextlib.suppress(EOFError):
        while True:
            method, *arguments = pipe.recv()
            pipe.send(getattr(peer, method)(*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
