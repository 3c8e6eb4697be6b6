"""Training epoch by epoch, with checkpoints, losses and metrics as JSON lines, and a picture."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from tqdm import tqdm

from suite.runner import Runner, Step

from .checkpoint import Checkpoint, CheckpointError, whole_file, write_checkpoint
from .data import Loader
from .distributed import Group
from .interruption import Interruption
from .learning_curve import draw_learning_curve

Metrics = Dict[str, Optional[float]]


class DivergedError(ArithmeticError):
    """The loss is no longer a finite number; a smaller learning rate may help."""


def seed_everything(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed Python's, NumPy's and MXNet's generators for one epoch of one run.

    Orders are drawn by NumPy and are those of all processes, dropout by MXNet.
    """
    python, numpy, mxnet = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(python))
    np.random.seed(int(numpy))
    mx.random.seed((int(mxnet) + rank) & 0x7FFFFFFF)


def evaluate(
    runner: Runner, loader: Loader, interruption: Optional[Interruption] = None
) -> Tuple[Metrics, np.ndarray]:
    """Answer for all items; gives the metrics, and the answers in order."""
    answers: List[np.ndarray] = []
    done = 0
    for batch in loader:
        items = loader.items[done : done + len(batch)]
        done += len(batch)
        answers.append(loader.task.answers(runner.predict(batch).asnumpy(), items))
        if interruption is not None:
            interruption.check()
    found = np.concatenate(answers)
    return loader.task.measure(found, loader.items), found


def described(metrics: Metrics, loader: Loader) -> str:
    """Write metrics for people."""
    figures = [f"{k} {'nan' if v is None else format(v, '.4f')}" for k, v in metrics.items()]
    return f"{'  '.join(figures)}  ({len(loader.items)} {loader.task.unit})"


def read_steps(path: Path) -> List[Dict[str, Any]]:
    """Read the losses; a last line that a killed program left unfinished is none.

    Raises
    ------
    CheckpointError
        If a line is something else.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    steps = []
    for number, line in enumerate(lines, 1):
        try:
            step = json.loads(line)
            steps.append({"epoch": int(step["epoch"]), "step": int(step["step"]),
                          "loss": float(step["loss"])})  # fmt: skip
        except (ValueError, TypeError, KeyError):
            raise CheckpointError(f"{path}:{number}: no step of this run; delete it") from None
    return steps


class _Tally:
    """What one epoch has brought so far."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.loss = 0.0
        self.samples = 0
        self.launches: List[int] = []
        self.analysis = 0.0  # seconds

    def add(self, step: Step, loss: float, samples: int) -> None:
        """Take in a step that has finished, and the sum of its losses."""
        self.loss += loss
        self.samples += samples
        if step.report is not None:
            self.launches.append(step.report.launches)
            self.analysis += sum(flush.analysis_ms for flush in step.report.flushes) / 1e3

    def line(self, epoch: int, seconds: float) -> Dict[str, Any]:
        """Sum up, after `seconds` of training, for ``metrics.jsonl``."""
        return {
            "epoch": epoch,
            "loss": self.loss / self.samples,
            "samples_per_second": self.samples / seconds,
            "launches_per_batch": float(np.mean(self.launches)) if self.launches else None,
            "analysis_share": self.analysis / seconds if self.launches else None,
        }


def _said(line: Dict[str, Any], dev: str) -> str:
    note = ""
    if line["launches_per_batch"] is not None:
        note = (
            f", {line['launches_per_batch']:.0f} launches per batch"
            f", {line['analysis_share']:.1%} of the time analysis"
        )
    return (
        f"epoch {line['epoch']}: loss {line['loss']:.4f}  held out: {dev}"
        f"  {line['samples_per_second']:.0f} samples/s{note}"
    )


class Training:
    """A run of training in a folder, from the first epoch or from where a checkpoint left it.

    Parameters
    ----------
    runner : Runner
    train, dev : Loader
        To learn from (shuffled) and to judge every epoch by.
    output : Path
        Folder for ``last``, ``best`` (checkpoints), ``metrics.jsonl``, ``steps.jsonl`` and
        ``learning_curve.png``. Of several processes, the first one writes, and judges.
    settings : dict
        Kept in the checkpoints; needs ``seed``.
    checkpoint : Checkpoint, optional
        Where to go on from; restored into model and trainer.
    group : Group, optional
        The processes that train together.

    Notes
    -----
    A checkpoint is written after every epoch, and every epoch has random numbers of its own. So a
    run that was cut short in an epoch does that epoch again, and repeats an uninterrupted one bit
    for bit if the flushes do: that is, with a granularity, a policy, and no budget in milliseconds,
    since a clock chooses differently each time, and sums differ in their last bits with the order
    of their terms.
    """

    def __init__(
        self,
        runner: Runner,
        train: Loader,
        dev: Loader,
        output: Path,
        settings: Dict[str, Any],
        checkpoint: Optional[Checkpoint] = None,
        group: Optional[Group] = None,
    ) -> None:
        self.runner = runner
        self.model, self.trainer = runner.workload.model, runner.trainer
        self.train = train
        self.dev = dev
        self.output = output
        self.settings = settings
        self.group = group or Group()
        self.epoch = 0
        self.best: Optional[float] = None
        self.history: List[Dict[str, Any]] = []
        if checkpoint is not None:
            with checkpoint.understood():
                state = checkpoint.state
                self.epoch, self.best = int(state["epoch"]), state["best"]
                self.history = [dict(line) for line in state["history"]]
                if [line["epoch"] for line in self.history] != list(range(1, self.epoch + 1)):
                    raise ValueError("not a line of history for every epoch")
            checkpoint.restore(self.model, self.trainer)
        elif self.writes:
            self._save("last")  # something to resume from if the first epoch is interrupted
        self.group.join(self.trainer)

    @property
    def writes(self) -> bool:
        """Whether this process writes files, and judges epochs."""
        return self.group.rank == 0

    def run(self, epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the very first.

        Raises
        ------
        DivergedError
            If the loss is no longer a finite number.
        KeyboardInterrupt
            After Ctrl-C, between two steps.
        """
        gc.freeze()  # the data stay: full collections of garbage need not look through them
        try:
            with contextlib.ExitStack() as stack:
                log = None
                if self.writes:
                    log = stack.enter_context(self._open_log())
                    self._write_history()
                interruption = stack.enter_context(Interruption())
                while self.epoch < epochs:
                    line = self._run_epoch(log, interruption)
                    if log is not None:
                        os.fsync(log.fileno())  # before a checkpoint relies on it
                        self._judge(line, interruption)
                    self.epoch = line["epoch"]
                    if log is not None:
                        self._keep(line)
        finally:
            gc.unfreeze()  # else a distributed key-value store would never take leave of the others
            # A fork while a backward pass is pending, as by `subprocess`, would never return: MXNet
            # waits for the pass, and the pass for Python.
            mx.nd.waitall()
            if self.history and self.writes:
                steps = read_steps(self.output / "steps.jsonl")
                draw_learning_curve(self.history, steps, self.output / "learning_curve.png")

    def _open_log(self) -> Any:
        """Open the list of losses, without those of an epoch that was cut short."""
        path = self.output / "steps.jsonl"
        kept = [line for line in read_steps(path) if line["epoch"] <= self.epoch]
        with whole_file(path) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        return path.open("a", encoding="utf-8", buffering=1)

    def _judge(self, line: Dict[str, Any], interruption: Interruption) -> None:
        line["dev"], _ = evaluate(self.runner, self.dev, interruption)
        print(_said(line, described(line["dev"], self.dev)), flush=True)

    def _keep(self, line: Dict[str, Any]) -> None:
        """Write down what an epoch has brought."""
        self.history.append(line)
        # A figure that is not defined is worse than any, but better than no epoch.
        score = line["dev"][self.dev.task.best_by]
        score = -1.0 if score is None else score
        if self.best is None or score > self.best:
            self.best = score
            self._save("best")
        self._save("last")
        self._write_history()

    def _run_epoch(self, log: Optional[Any], interruption: Interruption) -> Dict[str, Any]:
        epoch = self.epoch + 1
        seed_everything(self.settings["seed"], epoch, self.group.rank)
        decay = self.settings["lr_decay"] ** (epoch - 1)
        self.trainer.set_learning_rate(self.settings["lr"] * decay)
        tally = _Tally()
        previous: Optional[Tuple[int, Step, int]] = None

        def finish(number: int, step: Step, samples: int) -> None:
            loss = self.group.sum(step.losses.asnumpy())
            if not np.isfinite(loss):
                reason = f"a loss became {loss} in epoch {epoch}; try a smaller --lr"
                raise DivergedError(reason)
            tally.add(step, loss, samples)
            if log is not None:
                line = {"epoch": epoch, "step": number, "loss": loss / samples}
                log.write(json.dumps(line) + "\n")

        quiet = not (sys.stderr.isatty() and self.writes)
        bar = tqdm(self.train, desc=f"epoch {epoch}", unit="batch", leave=False, disable=quiet)
        for number, batch in enumerate(bar, 1):
            with self.group.patience():
                step = self.runner.step(
                    self.group.share(batch), len(batch) if self.group.store else None
                )
                # Only now wait for the step before: recording overlaps with running.
                if previous is not None:
                    finish(*previous)
            previous = (number, step, len(batch))
            interruption.check()
        if previous is not None:
            finish(*previous)
        mx.nd.waitall()
        return tally.line(epoch, time.perf_counter() - tally.start)

    def _save(self, name: str) -> None:
        state = {
            "epoch": self.epoch,
            "best": self.best,
            "history": self.history,
            "settings": self.settings,
        }
        path = self.output / name
        write_checkpoint(path, self.model, self.trainer, self.train.vocab, state)

    def _write_history(self) -> None:
        """Write the metrics; the checkpoint's history rules, so resuming cannot double."""
        with whole_file(self.output / "metrics.jsonl") as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in self.history)
