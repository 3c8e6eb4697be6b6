"""The child process: it runs one peer on one workload, and answers requests on a pipe.

``python -m peers.child MODULE:CLASS DESCRIPTOR`` receives a `Task` and answers with a description
of the peer. It then receives names of methods of `Peer` with arguments, and answers with the
results. The peers' environment has no MXNet.
"""

import contextlib
import gc
import importlib
import sys
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

#: Number of training steps whose losses are compared.
STEPS = 3
#: The epsilon of MXNet's AdaGrad, which adds it to the history of gradients.
EPSILON = 1e-7


class Task(NamedTuple):
    """A workload as plain data.

    The optimizer is MXNet's AdaGrad: ``history += grad ** 2``, then ``weight -= learning_rate *
    (grad / sqrt(history + EPSILON) + weight_decay * weight)``.
    """

    learning_rate: float
    weight_decay: float
    samples: list  # inputs and target of each, with lists instead of arrays
    parameters: dict  # float32 arrays by Gluon's structural names; embedding.weight is not trained


class Peer:
    """Runs minibatches of samples, in the format that suits the system.

    A subclass has ``step(batch)``, which trains on a minibatch and returns the mean of its samples'
    losses; ``predict(batch)``, which returns the model's results as an array; and ``reset()``,
    which restores the first parameters (the optimizer may keep its state).
    """

    #: For people: the version, and the settings.
    version = flags = ""
    #: Number of training steps whose losses must agree with the loop's. The first loss depends only
    #: on the forward pass, later ones also on gradients and updates.
    same_steps = STEPS

    def __init__(self, task):
        self.samples = list(map(self.prepare, task.samples))

    def prepare(self, sample):
        """Convert a sample to the format of `step` and `predict`; not timed."""
        return sample

    def batches(self, work):
        """Look up samples by their numbers."""
        return [[self.samples[i] for i in batch] for batch in work]

    def check(self, work):
        """Return the results of the first minibatch, and the losses of training on all."""
        batches = self.batches(work)
        values = self.predict(batches[0])
        return {"values": values, "losses": [self.step(batch) for batch in batches]}

    def time(self, kind, warm, work):
        """Return the seconds that `work` takes from the first parameters, after `warm`, untimed."""
        run = self.predict if kind == "inference" else self.step
        first, *batches = self.batches([warm, *work])
        self.compile(kind, batches)
        if warm:
            run(first)
        self.reset()
        started = time.perf_counter()
        for batch in batches:
            run(batch)
        self.finish()
        return time.perf_counter() - started

    def compile(self, kind, batches):
        """Compile what minibatches need that is not compiled yet; not timed."""

    def finish(self):
        """Wait until all has been computed."""


def answer(pipe, target, greeting=()):
    """Send a greeting, and then what methods of an object return, until the pipe is closed."""
    gc.collect()
    gc.freeze()
    pipe.send(greeting)
    with contextlib.suppress(EOFError):
        while True:
            method, *arguments = pipe.recv()
            pipe.send(getattr(target, method)(*arguments))


def main(name, descriptor):
    """Answer requests until the pipe is closed."""
    pipe = Connection(int(descriptor))
    module, class_name = name.split(":")
    peer = getattr(importlib.import_module(module), class_name)(Task(*pipe.recv()))
    answer(pipe, peer, {name: getattr(peer, name) for name in ("version", "flags", "same_steps")})


if __name__ == "__main__":
    main(*sys.argv[1:])
