"""Contenders that run in their own processes, one at a time, with one thread for each library.

`peers.child` runs in these processes and defines the requests.
"""

import os
import subprocess
import tempfile
from contextlib import ExitStack
from multiprocessing import Pipe
from pathlib import Path

import mxnet as mx

from peers.child import Task

from .contest import Contender, DiffersError

#: Interpreter of the environment that `make peers` builds.
PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
#: By name: the class that runs each workload.
PEERS = {
    **{
        peer: {"sick": f"{module}:Pairs", "tagger": f"{module}:Tagger", "sst": f"{module}:Trees"}
        for peer, module in (("dynet", "peers.on_dynet"), ("torch", "peers.on_torch"))
    },
    "dynet-lstm": {"tagger": "peers.on_dynet:NodeTagger"},
    "torchfold": {"sick": "peers.on_torchfold:Pairs"},
    "dgl": {"sick": "peers.on_dgl:Pairs"},
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def plain(workload):
    """Convert a workload to plain data."""

    def to_list(value):
        return value.asnumpy().tolist() if isinstance(value, mx.nd.NDArray) else value

    optimizer = workload.trainer.optimizer
    named = workload.model._collect_params_with_prefix().items()
    parameters = {name: parameter.data().asnumpy() for name, parameter in named}
    samples = [(list(map(to_list, s.inputs)), to_list(s.target)) for s in workload.samples]
    return Task(optimizer.learning_rate, optimizer.wd, samples, parameters)


class Remote(Contender):
    """A peer in its own process, described by `greeting`; without an answer, `DiffersError`."""

    def __init__(self, name, workload, python):
        super().__init__(workload, name)
        self._numbers = {id(sample): i for i, sample in enumerate(workload.samples)}
        mx.nd.waitall()  # a fork during a backward pass hangs
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        command = [str(python), "-m", "peers.child", PEERS[name][workload.name], str(number)]
        path = str(Path(__file__).resolve().parents[1])
        with ExitStack() as stack:
            stack.enter_context(self._pipe)
            log = self._log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        command, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                        pass_fds=[number], stdout=log, stderr=log,
                    )  # fmt: skip
            except OSError as error:
                reason = f"{python} does not run ({error.strerror}); see make peers"
                raise DiffersError(reason) from None
            stack.enter_context(self._process)
            stack.callback(self._process.kill)
            self.greeting = self._ask(*plain(workload))
            self.same_steps = self.greeting["same_steps"]
            #: Ends the process.
            self.close = stack.pop_all().close

    def check(self, work):  # noqa: D102
        return self._ask("check", self._numbered(work))

    def time(self, kind, work, size, warm=()):  # noqa: D102
        first, *batches = self._numbered([*(warm or [[]]), *work])
        return self.row(kind, work, size, self._ask("time", kind, first, batches))

    def _numbered(self, work):
        return [[self._numbers[id(sample)] for sample in batch] for batch in work]

    def _ask(self, *request):
        """Send a request and return the answer."""
        try:
            self._pipe.send(request)
            return self._pipe.recv()
        except (EOFError, OSError):  # the last line of its output is the reason
            status = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        raise DiffersError(lines[-1] if lines else f"its process ended with {status}")
