"""Contenders that run in their own processes: other systems, and this library in other settings.

`peers.child` and `suite.child` run in these processes; the former defines the requests.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import mxnet as mx

import cores
from peers.child import Task

from .contest import Contender, DiffersError

#: Interpreters of the environments that `make peers` builds.
ROOT = Path(__file__).resolve().parents[2]
PYTHON, JAX_PYTHON = (ROOT / f".venv-{name}" / "bin" / "python" for name in ("peers", "jax"))
#: By name: the class that runs each workload.
PEERS = {
    **{
        peer: {"sick": f"{module}:Pairs", "tagger": f"{module}:Tagger", "sst": f"{module}:Trees"}
        for peer, module in (("dynet", "peers.on_dynet"), ("torch", "peers.on_torch"))
    },
    "dynet-lstm": {"tagger": "peers.on_dynet:NodeTagger"},
    "torchfold": {"sick": "peers.on_torchfold:Pairs"},
    "dgl": {"sick": "peers.on_dgl:Pairs"},
    "jax": {"sick": "peers.on_jax:Pairs", "tagger": "peers.on_jax:Tagger"},
}
#: Beginnings of the names of variables that set threads of any library.
OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_NUM_THREADS")


def own_threads():
    """Return the number of threads that this process's environment sets; None for none."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() else None


def environment(threads):
    """Return the environment of this process with a number of threads set, or with none (None)."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(OF_THREADS)}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return plain if threads is None else {**plain, **dict.fromkeys(names, str(threads))}


def plain(workload):
    """Convert a workload to plain data."""

    def to_list(value):
        return value.asnumpy().tolist() if isinstance(value, mx.nd.NDArray) else value

    optimizer = workload.trainer.optimizer
    named = workload.model._collect_params_with_prefix().items()
    parameters = {name: parameter.data().asnumpy() for name, parameter in named}
    samples = [(list(map(to_list, s.inputs)), to_list(s.target)) for s in workload.samples]
    return Task(optimizer.learning_rate, optimizer.wd, samples, parameters)


class Process(Contender):
    """A contender in its own process.

    `command` starts it; `greet` sends the `task` and waits for the answer, so that several may
    start at once. A process that ends instead of answering raises `DiffersError`. `threads` are
    set in its environment; None sets nothing.
    """

    def __init__(self, workload, label, command, task, threads, **options):
        super().__init__(workload, label, **options)
        self._numbers = {id(sample): i for i, sample in enumerate(workload.samples)}
        self._task = task
        mx.nd.waitall()  # a fork during a backward pass hangs
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        with ExitStack() as stack:
            stack.enter_context(self._pipe)
            log = self._log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        [*command, str(number)],
                        env={**environment(threads), **self.imports()},
                        pass_fds=[number], stdout=log, stderr=log,
                    )  # fmt: skip
            except OSError as error:
                reason = f"{command[0]} does not run ({error.strerror}); see make peers"
                raise DiffersError(reason) from None
            stack.enter_context(self._process)
            stack.callback(self._process.kill)
            #: Ends the process.
            self.close = stack.pop_all().close

    def imports(self):
        """Return what the process needs in its environment to import its modules."""
        return {"PYTHONPATH": str(ROOT / "experiments")}

    def greet(self):
        """Wait until the process is ready; return its description of itself."""
        try:
            self._send(self._task)
            return self._receive()
        except DiffersError:
            self.close()
            raise

    def check(self, work):  # noqa: D102
        return self._ask("check", self._numbered(work))

    def _numbered(self, work):
        return [[self._numbers[id(sample)] for sample in batch] for batch in work]

    def _ask(self, *request):
        """Send a request and return the answer."""
        self._send(request)
        return self._receive()

    def _send(self, request):
        try:
            self._pipe.send(request)
        except OSError:
            self._fail()

    def _receive(self):
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._fail()

    def _fail(self):
        """Raise an error with the last line of the output of the process, which has ended."""
        status = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        raise DiffersError(lines[-1] if lines else f"its process ended with {status}")


class Remote(Process):
    """A peer, described by `greeting` once it has been greeted."""

    def __init__(self, name, workload, args, label, threads, **options):
        python = args.jax_python if name == "jax" else args.peers_python
        command = [str(python), "-m", "peers.child", PEERS[name][workload.name]]
        super().__init__(workload, label, command, tuple(plain(workload)), threads, **options)

    def greet(self):  # noqa: D102
        self.greeting = super().greet()
        self.same_steps = self.greeting["same_steps"]
        return self.greeting

    def gradients(self, batch):
        """Return the gradients of the loss of a minibatch, by the names of parameters."""
        return self._ask("gradients", *self._numbered([batch]))

    def time(self, kind, work, size, warm=()):  # noqa: D102
        first, *batches = self._numbered([*(warm or [[]]), *work])
        return self.row(kind, work, size, self._ask("time", kind, first, batches))


class Apart(Process):
    """A way of this library, or of MXNet, in a process of its own."""

    def __init__(self, name, workload, args, label, threads, **options):
        command = [sys.executable, "-W", "ignore", "-m", "suite.child"]
        task = workload.name, name, args
        super().__init__(workload, label, command, task, threads, **options)

    def imports(self):  # noqa: D102
        return cores.imports()

    def begin(self):  # noqa: D102
        self._ask("begin")

    def time(self, kind, work, size, warm=()):  # noqa: D102
        row = self._ask("time", kind, self._numbered(work), size, self._numbered(warm))
        return replace(row, way=self.label)
