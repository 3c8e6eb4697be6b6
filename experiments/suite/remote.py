"""Contenders in processes of their own, with one thread for each library; all wait for each other.

What a peer computes in, and the requests that it answers, are in `peers.child`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

from workloads.base import Workload

from .contest import Contender, DiffersError, Row, Work

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


class Remote(Contender):
    """A peer on a workload, in a process of its own.

    Parameters
    ----------
    name : str
        Of the peer.
    workload : Workload
    folder : pathlib.Path
        Holds the task that was made of the workload.
    python : pathlib.Path
        Runs the peer.

    Attributes
    ----------
    greeting : dict
        What it says of itself.

    Raises
    ------
    DiffersError
        If it does not start, or later, does not answer.
    """

    def __init__(self, name: str, workload: Workload, folder: Path, python: Path) -> None:
        super().__init__(workload, name)
        self._numbers = {id(sample): i for i, sample in enumerate(workload.samples)}
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 see close
        path = str(Path(__file__).resolve().parents[1])
        try:
            self._process = subprocess.Popen(
                [str(python), "-m", "peers.child", PEERS[name][workload.name], str(folder)],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise DiffersError(
                f"{python} does not run ({error.strerror}); see make peers"
            ) from None
        try:
            self.greeting = self._answer()
        except BaseException:
            self.close()
            raise
        self.same_steps = self.greeting["same_steps"]

    def check(self, work: Work) -> Dict[str, Any]:  # noqa: D102
        return self._ask(do="check", work=self._numbered(work))

    def time(self, kind: str, work: Work, size: int, warm: Sequence[Any] = ()) -> Row:  # noqa: D102
        first, *batches = self._numbered([*(warm or [[]]), *work])
        seconds = self._ask(do="time", kind=kind, warm=first, work=batches)["seconds"]
        return self.row(work, size, seconds)

    def _numbered(self, work: Work) -> List[List[int]]:
        return [[self._numbers[id(sample)] for sample in batch] for batch in work]

    def _ask(self, **request: Any) -> Dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended is the error
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            last = [text for text in self._said.read().splitlines() if text.strip()][-1:]
            raise DiffersError(last[0].strip() if last else f"its process ended with {status}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()
