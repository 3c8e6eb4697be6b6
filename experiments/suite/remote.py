"""Contenders in processes of their own, with one thread for each library; all wait for each other.

What runs in such a process, and what it is asked, is in `peers.child`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx

from peers.child import Task
from workloads.base import Sample, Workload

from .contest import Contender, DiffersError, Work
from .tables import Row

#: Environment that `make peers` builds.
PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
#: By name: the class that runs each workload; a new one is a file and a line here.
PEERS: Dict[str, Dict[str, str]] = {
    "dynet": {
        "sick": "peers.on_dynet:Pairs",
        "tagger": "peers.on_dynet:Tagger",
        "sst": "peers.on_dynet:Trees",
    },
    "dynet-lstm": {"tagger": "peers.on_dynet:NodeTagger"},
    "torch": {
        "sick": "peers.on_torch:Pairs",
        "tagger": "peers.on_torch:Tagger",
        "sst": "peers.on_torch:Trees",
    },
    "torchfold": {"sick": "peers.on_torchfold:Pairs"},
    "dgl": {"sick": "peers.on_dgl:Pairs"},
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def plain(workload: Workload) -> Task:
    """Turn a workload into plain data."""
    optimizer = workload.trainer.optimizer
    named = workload.model._collect_params_with_prefix().items()
    parameters = {name: parameter.data().asnumpy() for name, parameter in named}
    samples = list(map(_plain, workload.samples))
    return Task(optimizer.learning_rate, optimizer.wd, samples, parameters)


def _plain(sample: Sample) -> Dict[str, Any]:
    words, *more = sample.inputs
    words, target = words.asnumpy().tolist(), sample.target.asnumpy()
    if len(more) == 3:
        tree, others, other_tree = more
        return {
            "words": [words, others.asnumpy().tolist()],
            "heads": [list(tree.heads), list(other_tree.heads)],
            "target": target[0].tolist(),
        }
    found = {"words": words, "labels": target.astype(int).tolist()}
    if more:
        found["left"], found["right"] = map(list, zip(*_phrases(more[0], [])))
    return found


def _phrases(shape: Any, found: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """List the parts of all phrases, those within first."""
    parts = (-1, -1)
    if not isinstance(shape, int):
        parts = tuple(len(_phrases(part, found)) - 1 for part in shape)
    found.append(parts)
    return found


class Remote(Contender):
    """A peer on a workload, in a process of its own, run by `python`.

    Attributes
    ----------
    greeting : dict
        What it says of itself.

    Raises
    ------
    DiffersError
        If it does not start, or later, does not answer.
    """

    def __init__(self, name: str, workload: Workload, python: Path) -> None:
        super().__init__(workload, name)
        self._numbers = {id(sample): i for i, sample in enumerate(workload.samples)}
        mx.nd.waitall()  # a fork that meets a pending backward pass would never return
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 see close
        path = str(Path(__file__).resolve().parents[1])
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [str(python), "-m", "peers.child", PEERS[name][workload.name], str(number)],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                pass_fds=[number], stdout=self._said, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            reason = f"{python} does not run ({error.strerror}); see make peers"
            raise DiffersError(reason) from None
        finally:
            theirs.close()
        try:
            self.greeting = self._answer(tuple(plain(workload)))
        except BaseException:
            self.close()
            raise
        self.same_steps = self.greeting["same_steps"]

    def check(self, work: Work) -> Dict[str, Any]:  # noqa: D102
        return self._ask("check", self._numbered(work))

    def time(self, kind: str, work: Work, size: int, warm: Sequence[Any] = ()) -> Row:  # noqa: D102
        first, *batches = self._numbered([*(warm or [[]]), *work])
        return self.row(kind, work, size, self._ask("time", kind, first, batches))

    def _numbered(self, work: Work) -> List[List[int]]:
        return [[self._numbers[id(sample)] for sample in batch] for batch in work]

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._answer((method, arguments))

    def _answer(self, request: Any) -> Any:
        """Send a request, and wait for its answer."""
        try:
            self._pipe.send(request)
            return self._pipe.recv()
        except (EOFError, OSError):  # what it said before it ended is the error
            status = self._process.wait()
        self._said.seek(0)
        last = [text for text in self._said.read().splitlines() if text.strip()][-1:]
        raise DiffersError(last[0].strip() if last else f"its process ended with {status}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._said.close()
