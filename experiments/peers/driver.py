"""Contests between ours and the peers: who takes part, whether all compute the same, tables.

The rules are those of `timing.contest`, but each contender runs in a process of its own, with one
thread for each library. All wait while one has its turn.
"""

from __future__ import annotations

import argparse
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

from command import UsageError
from timing.contest import Contender, Outcome, Row, contest
from timing.results import Column, Table

from . import task as tasks
from .child import STEPS
from .ours import runner_of
from .registry import OURS, OWN, PEERS, Entry

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
TOLERANCE = 1e-3
#: Samples of a minibatch whose values are compared.
COMPARED = 16


class PeerError(RuntimeError):
    """A process that does not answer; the message says why."""


class Child:
    """A process that answers requests; see `peers.child` for what they are.

    Parameters
    ----------
    command : sequence of str
    environment : dict
        All variables that the process has.

    Attributes
    ----------
    greeting : dict
        What it says of itself.

    Raises
    ------
    PeerError
        If it does not start.
    """

    def __init__(self, command: Sequence[str], environment: Dict[str, str]) -> None:
        self._said = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        try:
            self._process = subprocess.Popen(
                command, env=environment, text=True, encoding="utf-8",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise PeerError(f"{command[0]} does not run ({error.strerror})") from None
        try:
            self.greeting = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> Dict[str, Any]:
        """Send a request, and wait for its answer."""
        try:
            self._stdin.write(json.dumps(request) + "\n")
            self._stdin.flush()
        except BrokenPipeError:
            pass  # what it said before it ended is the error
        return self._answer()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _answer(self) -> Dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            last = [text for text in self._said.read().splitlines() if text.strip()][-1:]
            raise PeerError(last[0].strip() if last else f"ended with {status}")
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def start(entry: Entry, workload: str, folder: Path, python: Path) -> Child:
    """Start the process of an entry of the registry for the task in a folder."""
    experiments = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, **ONE_THREAD, "OMP_WAIT_POLICY": "passive"}
    paths = [experiments]
    if entry is OWN:
        python = Path(sys.executable)
        paths += filter(None, [environment.get("PYTHONPATH")])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [str(python), "-m", "peers.child", entry.classes[workload], str(folder)]
    return Child(command, environment)


class Numbered(NamedTuple):
    """A sample as the driver knows it: its number, and words where these are what is counted."""

    number: int
    words: Sequence[Any]


class Remote(Contender):
    """A contender that runs in a process of its own."""

    def __init__(self, label: str, child: Child, workload: str, adapts: bool) -> None:
        self.runner = SimpleNamespace(workload=SimpleNamespace(name=workload))  # type: ignore
        self.label = label
        self.child = child
        self.most = None
        self.repeats = self.mixes = False
        self._adapts = adapts

    @property
    def adapts(self) -> bool:  # noqa: D102
        return self._adapts

    def time(self, kind: str, work: Any, size: int, warm: Sequence[Any] = ()) -> Row:  # noqa: D102
        batches = [[sample.number for sample in batch] for batch in [*work, *warm]]
        first = batches[len(work)] if warm else []
        figures = self.child.ask(
            do="time", kind=kind, size=size, warm=first, work=batches[: len(work)]
        )
        row = self.row(work, size, figures.pop("seconds"))
        return row._replace(**figures)


class Group(NamedTuple):
    """What came of one workload.

    Attributes
    ----------
    outcomes : list of Outcome
    greetings : dict
        By label: ``version``, ``flags``, and how far the losses were the same as ours:
        ``difference`` (the largest one, relative) over ``same_steps`` minibatches of training.
    absent : dict
        By label, why it did not take part.
    """

    outcomes: List[Outcome]
    greetings: Dict[str, Dict[str, Any]]
    absent: Dict[str, str]

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        return {**self._asdict(), "outcomes": [each.as_json() for each in self.outcomes]}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Group:
        """Read what `as_json` gave."""
        outcomes = [Outcome.from_json(each) for each in content["outcomes"]]
        return cls(outcomes, content["greetings"], content["absent"])

    def table(self, outcome: Outcome) -> Table:
        """Lay out one contest; the last columns are how many times as fast as each ours is."""
        columns = (
            Column("name"), Column("version"), Column("per second", ",.0f"), Column("quartiles"),
            Column("ours is so many times as fast", ".2f"), Column("quartiles"),
        )  # fmt: skip
        rows = []
        for label in outcome.by_label:
            rate, ratio = outcome.spread(label), outcome.ratio(label, OURS)
            rows.append((label, self.greetings[label]["version"], rate.median,
                         rate.quartiles(",.0f"), ratio.median, ratio.quartiles(".2f")))  # fmt: skip
        unit = "pairs" if outcome.workload == "pairs" else "words"
        title = f"{outcome.workload}, {outcome.kind}, minibatches of {outcome.batch_size}: {unit}"
        return Table(title, columns, rows)

    def notes(self) -> Iterator[str]:
        """Say with which flags each ran, and who did not."""
        for label, each in self.greetings.items():
            same = ""
            if label != OURS:
                same = (
                    f"; losses differ from ours by {each['difference']:.0e} at most, in "
                    f"{each['same_steps']} of {STEPS} steps of training compared"
                )
            yield f"{label}: {each['flags']}{same}"
        for label, reason in self.absent.items():
            yield f"{label} is left out: {reason}"


def measure(
    args: argparse.Namespace, argv: Sequence[str], keep: Callable[[str, Group], None]
) -> None:
    """Run all contests that the options ask for; `keep` is called with what each workload gave."""
    for workload in ("pairs", *args.workloads):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            numbered, draw = publish(workload, args, argv, folder)
            remotes, group = gather(args, workload, numbered, folder, stack)
            if workload == "pairs":
                kinds, sizes, turns = ("inference", "training"), args.batch_sizes, {}
                turns["seconds"] = args.seconds
            else:
                kinds, sizes = ("training",), [args.workload_size]
                turns = {"count": args.workload_minibatches}
            for size in sizes:
                for kind in kinds:
                    outcome = contest(
                        remotes, draw(size), kind, size, args.rounds, args.warmup, **turns
                    )
                    group.outcomes.append(outcome)
                    print(group.table(outcome).markdown(), flush=True)
            keep(workload, group)
            print(*group.notes(), sep="\n", end="\n\n", flush=True)


def publish(
    workload: str, args: argparse.Namespace, argv: Sequence[str], folder: Path
) -> Tuple[List[Numbered], Callable[[int], Iterator[List[Numbered]]]]:
    """Write the task of a workload into a folder.

    Returns
    -------
    samples : list of Numbered
    draw : callable
        Gives minibatches of a size without end.
    """
    made = runner_of(workload, args).workload
    task = tasks.plain(made, argv)
    tasks.write(task, folder)
    mx.nd.waitall()  # see `speed.fresh`: a process is started next
    words = [s["words"] if workload != "pairs" else (None,) for s in task.samples]
    numbered = [Numbered(*each) for each in enumerate(words)]
    plain = made._replace(samples=numbered)
    return numbered, lambda size: plain.minibatches(min(size, len(numbered)), args.seed)


def gather(
    args: argparse.Namespace,
    workload: str,
    samples: Sequence[Numbered],
    folder: Path,
    stack: ExitStack,
) -> Tuple[List[Remote], Group]:
    """Start ours and all peers that know a workload; compare what they compute."""
    count = min(COMPARED, len(samples) // STEPS)
    work = np.arange(STEPS * count).reshape(STEPS, count).tolist()
    group = Group([], {}, {})
    remotes = []
    ours: Dict[str, Any] = {}
    for entry in (OWN, *(PEERS[name] for name in args.peers)):
        if workload not in entry.classes:
            continue
        try:
            child = start(entry, workload, folder, args.peers_python)
            stack.enter_context(child)
            found = child.ask(do="check", work=work)
            ours = ours or found
            child.greeting["difference"] = difference(found, ours, child.greeting["same_steps"])
        except PeerError as error:
            if entry is OWN:
                raise
            group.absent[entry.label] = str(error)
            continue
        group.greetings[entry.label] = child.greeting
        remotes.append(Remote(entry.label, child, workload, entry is OWN))
    if len(remotes) == 1:
        raise UsageError(f"--peers: none for {workload}: {'; '.join(group.notes())}")
    return remotes, group


def difference(found: Dict[str, Any], ours: Dict[str, Any], steps: int) -> float:
    """Compare the answers to the request "check"; return how far losses differ, relatively.

    Raises
    ------
    PeerError
        If it is more than `TOLERANCE`.
    """
    losses, expected = (np.array(each["losses"][:steps]) for each in (found, ours))
    worst = float(np.abs(losses / expected - 1).max())
    if ours["values"] is not None:
        values = np.abs(np.array(found["values"]) - np.array(ours["values"]))
        worst = max(worst, float(values.max() / np.abs(ours["values"]).max()))
    if not worst <= TOLERANCE:
        raise PeerError(f"losses {losses.tolist()} instead of {expected.tolist()}")
    return worst
