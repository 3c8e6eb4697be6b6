"""Contests between ours and the peers: who takes part, whether all compute the same, tables.

The rules are those of `timing.contest`, but each contender runs in a process of its own, with one
thread for each library. All wait while one has its turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np

from timing.contest import Contender, Outcome, Row, contest
from timing.results import Column, Table

from . import task as tasks
from .child import STEPS
from .ours import runner_of
from .registry import OURS, OWN, PEERS, Entry

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
#: Samples in a minibatch whose values are compared with ours, and how far they may differ.
COMPARED, TOLERANCE = 16, 1e-3
#: What is known of one workload, as JSON takes it: ``outcomes`` of contests; ``peers``, what each
#: says of itself and by how much it differs from ours; ``absent``, why some did not take part.
Group = Dict[str, Any]


class PeerError(RuntimeError):
    """A peer that does not answer, or computes something else."""


class Numbered(NamedTuple):
    """A sample as the driver knows it: its number, and words where these are what is counted."""

    number: int
    words: Sequence[Any]


class Remote(Contender):
    """A contender in a process of its own, which answers requests; `peers.child` says which.

    Parameters
    ----------
    entry : Entry
    workload : str
    folder : pathlib.Path
        Holds the task.
    python : pathlib.Path
        Runs the peers; ours runs in this environment.

    Attributes
    ----------
    greeting : dict
        What it says of itself.

    Raises
    ------
    PeerError
        If it does not start.
    """

    most = None
    repeats = mixes = False

    def __init__(self, entry: Entry, workload: str, folder: Path, python: Path) -> None:
        self.label = entry.label
        self.runner: Any = SimpleNamespace(workload=SimpleNamespace(name=workload))
        paths = [str(Path(__file__).resolve().parents[1])]
        if entry is OWN:
            python = Path(sys.executable)
            paths += filter(None, [os.environ.get("PYTHONPATH")])
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 see close
        try:
            self._process = subprocess.Popen(
                [str(python), "-m", "peers.child", entry.classes[workload], str(folder)],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise PeerError(f"{python} does not run ({error.strerror}); see make peers") from None
        try:
            self.greeting = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def adapts(self) -> bool:  # noqa: D102
        return self.label == OURS

    def time(self, kind: str, work: Any, size: int, warm: Sequence[Any] = ()) -> Row:  # noqa: D102
        first, *batches = ([s.number for s in batch] for batch in [*(warm or [[]]), *work])
        figures = self.ask(do="time", kind=kind, size=size, warm=first, work=batches)
        return self.row(work, size, figures.pop("seconds"))._replace(**figures)

    def ask(self, **request: Any) -> Dict[str, Any]:
        """Send a request, and wait for its answer."""
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended is the error
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            last = [text for text in self._said.read().splitlines() if text.strip()][-1:]
            raise PeerError(last[0].strip() if last else f"its process ended with {status}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()


def measure(
    args: argparse.Namespace, argv: Sequence[str], keep: Callable[[str, Group], None]
) -> None:
    """Run all contests that the options ask for; `keep` is called with what each workload gave."""
    for workload in ("pairs", *args.workloads):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            samples, draw = publish(workload, args, argv, folder)
            remotes, group = gather(args, workload, len(samples), folder, stack)
            kinds, sizes, turns = ["training"], [args.workload_size], {}
            if workload == "pairs":
                kinds, sizes = ["inference", "training"], args.batch_sizes
                turns["seconds"] = args.seconds
            else:
                turns["count"] = args.workload_minibatches
            for size in sizes:
                for kind in kinds:
                    outcome = contest(
                        remotes, draw(size), kind, size, args.rounds, args.warmup, **turns
                    )
                    group["outcomes"].append(outcome.as_json())
            keep(workload, group)
            print(*lines(group), sep="\n", flush=True)


def publish(
    workload: str, args: argparse.Namespace, argv: Sequence[str], folder: Path
) -> Tuple[List[Numbered], Callable[[int], Iterator[List[Numbered]]]]:
    """Write the task of a workload; return its samples, and what draws minibatches of a size."""
    made = runner_of(workload, args).workload
    task = tasks.plain(made, argv)
    tasks.write(task, folder)
    mx.nd.waitall()  # see `speed.fresh`: a process is started next
    words = [sample["words"] if workload != "pairs" else (None,) for sample in task.samples]
    samples = [Numbered(*each) for each in enumerate(words)]
    drawing = made._replace(samples=samples)
    return samples, lambda size: drawing.minibatches(size, args.seed)


def gather(
    args: argparse.Namespace, workload: str, samples: int, folder: Path, stack: ExitStack
) -> Tuple[List[Remote], Group]:
    """Start ours and all peers that know a workload; leave out who does not compute the same."""
    size = min(COMPARED, samples // STEPS)
    work = np.arange(STEPS * size).reshape(STEPS, size).tolist()
    group: Group = {"outcomes": [], "peers": {}, "absent": {}}
    remotes: List[Remote] = []
    expected: Dict[str, Any] = {}
    for entry in (OWN, *(PEERS[name] for name in args.peers)):
        if workload not in entry.classes:
            continue
        try:
            remote = Remote(entry, workload, folder, args.peers_python)
            stack.callback(remote.close)
            found = remote.ask(do="check", work=work)
            expected = expected or found
            remote.greeting["difference"] = difference(found, expected, remote.greeting)
        except PeerError as error:
            if entry is OWN:
                raise
            group["absent"][entry.label] = str(error)
        else:
            group["peers"][entry.label] = remote.greeting
            remotes.append(remote)
    return remotes, group


def difference(found: Dict[str, Any], expected: Dict[str, Any], greeting: Dict[str, Any]) -> float:
    """Compare answers to the request "check"; return the largest relative difference.

    Raises
    ------
    PeerError
        If it is more than `TOLERANCE`.
    """
    steps = greeting["same_steps"]
    compared = [(expected["losses"][:steps], found["losses"][:steps])]
    if expected["values"] is not None:
        compared.append((expected["values"], found["values"]))
    apart = [np.abs(np.subtract(theirs, own)).max() / np.abs(own).max() for own, theirs in compared]
    worst = float(np.max(apart))
    if not worst <= TOLERANCE:  # NaN is not
        raise PeerError(f"its losses are {found['losses']} instead of {expected['losses']}")
    return worst


def lines(group: Group) -> Iterator[str]:
    """Write tables, with which flags each ran, and who did not."""
    for outcome in map(Outcome.from_json, group["outcomes"]):
        yield table(outcome, group["peers"]).markdown()
    for label, each in group["peers"].items():
        same = "" if label == OURS else (
            f"; losses of {each['same_steps']} steps of training differ from ours by "
            f"{each['difference']:.0e} at most"
        )  # fmt: skip
        yield f"- {label}: {each['flags']}{same}"
    for label, reason in group["absent"].items():
        yield f"- {label} is left out: {reason}"
    yield ""


def table(outcome: Outcome, peers: Dict[str, Any]) -> Table:
    """Lay out a contest; the last columns are how many times as fast as each ours is."""
    unit = "pairs" if outcome.workload == "pairs" else "words"
    columns = (
        Column("name"), Column("version"), Column(f"{unit}/s", ",.0f"), Column("quartiles"),
        Column("ours / it", ".2f"), Column("quartiles"),
    )  # fmt: skip
    rows: List[Tuple[Any, ...]] = []
    for label in outcome.by_label:
        rate, ratio = outcome.spread(label), outcome.ratio(label, OURS)
        rows.append((label, peers[label]["version"], rate.median, rate.quartiles(",.0f"),
                     ratio.median, ratio.quartiles(".2f")))  # fmt: skip
    title = f"{outcome.workload}, {outcome.kind}, minibatches of {outcome.batch_size}"
    return Table(title, columns, rows)
