"""The child process: it runs one way of this library on one workload; see `suite.remote.Apart`.

``python -m suite.child DESCRIPTOR`` receives the name of a workload, that of a way and the options
of the benchmark, makes the same samples and first parameters as its parent, and then answers
requests with numbers of samples, as `peers.child` does.
"""

import sys
from contextlib import ExitStack
from multiprocessing.connection import Connection

from peers.child import answer

from .ways import Roster


class Child:
    """Answers requests for a contender in this process."""

    def __init__(self, contender):
        self._contender = contender
        self.begin = contender.begin

    def _batches(self, work):
        return [[self._contender.workload.samples[i] for i in batch] for batch in work]

    def check(self, work):
        """Return the results of the first minibatch, and the losses of training on all."""
        return self._contender.check(self._batches(work))

    def time(self, kind, work, size, warm):
        """Return the row of a turn."""
        return self._contender.time(kind, self._batches(work), size, self._batches(warm))


def main(descriptor):
    """Answer requests until the pipe is closed."""
    pipe = Connection(int(descriptor))
    name, way, args = pipe.recv()
    with ExitStack() as stack:
        contender = Roster(name, args, stack).make(way)
        if contender is None:
            sys.exit(f"{name} has no such way")
        answer(pipe, Child(contender))


if __name__ == "__main__":
    main(sys.argv[1])
