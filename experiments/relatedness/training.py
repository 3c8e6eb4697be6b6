"""Training epoch by epoch, with checkpoints, losses and metrics as JSON lines, and a picture."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from tqdm import tqdm

from suite.runner import Runner, Step

from .checkpoint import Checkpoint, CheckpointError, whole_file, write_checkpoint
from .data import Loader, expected_scores
from .interruption import Interruption
from .learning_curve import draw_learning_curve
from .metrics import Metrics, measure
from .steps import StepLog, read_steps

#: What a checkpoint of a run holds beside its settings.
STATE = {
    "epoch": int,
    "best": (None, float),
    "history": [
        {
            "epoch": int,
            "loss": float,
            "dev": {"pearson": (None, float), "spearman": (None, float),
                    "mse": (None, float), "count": int},
            "samples_per_second": float,
            "launches_per_batch": (None, float),
            "analysis_share": (None, float),
        }
    ],
}  # fmt: skip


def _join_store(trainer: gluon.Trainer) -> None:
    """Let a trainer take its parameters from the store now, in all processes at once.

    By itself it does so in its first step, after the first gradients; what one process takes then
    has been seen to be other than what the next one has.
    """
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()
    mx.nd.waitall()


class DivergedError(ArithmeticError):
    """The loss is no longer a finite number; a smaller learning rate may help."""


def seed_everything(seed: int, epoch: int) -> None:
    """Seed Python's, NumPy's and MXNet's generators for one epoch of one run."""
    python, numpy, mxnet = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(python))
    np.random.seed(int(numpy))
    mx.random.seed(int(mxnet) & 0x7FFFFFFF)


def evaluate(
    runner: Runner, loader: Loader, interruption: Optional[Interruption] = None
) -> Tuple[Metrics, np.ndarray]:
    """Predict the scores of all samples; gives the metrics, and the scores in order."""
    scores = []
    for batch in loader:
        scores.append(expected_scores(runner.predict(batch)))
        if interruption is not None:
            interruption.check()
    predicted = np.concatenate(scores)
    return measure(predicted, np.array([pair.score for pair in loader.pairs])), predicted


class _Tally:
    """What one epoch has brought so far."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.losses: List[float] = []
        self.launches: List[int] = []
        self.analysis = 0.0  # seconds

    def add(self, step: Step, losses: np.ndarray) -> None:
        """Take in a step that has finished. `losses`: shape (N,)."""
        self.losses += losses.tolist()
        if step.report is not None:
            self.launches.append(step.report.launches)
            self.analysis += sum(flush.analysis_ms for flush in step.report.flushes) / 1e3

    def line(self, epoch: int, dev: Metrics, seconds: float) -> Dict[str, Any]:
        """Sum up, after `seconds` of training, for ``metrics.jsonl``; see `STATE`."""
        return {
            "epoch": epoch,
            "loss": float(np.mean(self.losses)),
            "dev": dev.as_json(),
            "samples_per_second": len(self.losses) / seconds,
            "launches_per_batch": float(np.mean(self.launches)) if self.launches else None,
            "analysis_share": self.analysis / seconds if self.launches else None,
        }


def _said(line: Dict[str, Any], dev: Metrics) -> str:
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
        ``learning_curve.png``.
    settings : dict
        Kept in the checkpoints; needs ``seed``.
    checkpoint : Checkpoint, optional
        Where to go on from; restored into model and trainer.

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
    ) -> None:
        self.runner = runner
        self.model, self.trainer = runner.workload.model, runner.trainer
        self.train = train
        self.dev = dev
        self.output = output
        self.settings = settings
        self.epoch = 0
        self.best: Optional[float] = None
        self.history: List[Dict[str, Any]] = []
        if checkpoint is not None:
            checkpoint.expect(STATE)
            if len(checkpoint.state["history"]) != checkpoint.state["epoch"]:
                raise CheckpointError(f"{checkpoint.path}: not a line of history for every epoch")
            checkpoint.restore(self.model, self.trainer)
            self.epoch = checkpoint.state["epoch"]
            self.best = checkpoint.state["best"]
            self.history = checkpoint.state["history"]
        else:
            self._save("last")  # something to resume from if the first epoch is interrupted
        _join_store(self.trainer)

    def run(self, epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the very first.

        Raises
        ------
        DivergedError
            If the loss is no longer a finite number.
        KeyboardInterrupt
            After Ctrl-C, between two steps.
        """
        log = StepLog(self.output / "steps.jsonl", self.epoch)
        self._write_history()
        gc.freeze()  # the data stay: full collections of garbage need not look through them
        try:
            with contextlib.closing(log), Interruption() as interruption:
                while self.epoch < epochs:
                    line, dev = self._run_epoch(log, interruption)
                    print(_said(line, dev), flush=True)
                    log.sync()
                    self._keep(line, dev)
        finally:
            gc.unfreeze()  # else a distributed key-value store would never take leave of the others
            # A fork while a backward pass is pending, as by `subprocess`, would never return: MXNet
            # waits for the pass, and the pass for Python.
            mx.nd.waitall()
            self._draw()

    def _keep(self, line: Dict[str, Any], dev: Metrics) -> None:
        """Write down what an epoch has brought."""
        self.epoch = line["epoch"]
        self.history.append(line)
        # A correlation that is not defined is worse than any, but better than no epoch.
        score = -1.0 if math.isnan(dev.pearson) else dev.pearson
        if self.best is None or score > self.best:
            self.best = score
            self._save("best")
        self._save("last")
        self._write_history()

    def _run_epoch(
        self, log: StepLog, interruption: Interruption
    ) -> Tuple[Dict[str, Any], Metrics]:
        epoch = self.epoch + 1
        seed_everything(self.settings["seed"], epoch)
        decay = self.settings["lr_decay"] ** (epoch - 1)
        self.trainer.set_learning_rate(self.settings["lr"] * decay)
        tally = _Tally()
        previous: Optional[Step] = None

        def finish(number: int, step: Step) -> None:
            losses = step.losses.asnumpy()  # (N,)
            if not np.isfinite(losses).all():
                reason = f"a loss became {losses.sum()} in epoch {epoch}; try a smaller --lr"
                raise DivergedError(reason)
            tally.add(step, losses)
            log.write(epoch, number, float(losses.mean()))

        quiet = not sys.stderr.isatty()
        bar = tqdm(self.train, desc=f"epoch {epoch}", unit="batch", leave=False, disable=quiet)
        for number, batch in enumerate(bar, 1):
            step = self.runner.step(batch)
            # Only now wait for the step before: recording overlaps with running.
            if previous is not None:
                finish(number - 1, previous)
            previous = step
            interruption.check()
        if previous is not None:
            finish(number, previous)
        mx.nd.waitall()
        seconds = time.perf_counter() - tally.start
        dev, _ = evaluate(self.runner, self.dev, interruption)
        return tally.line(epoch, dev, seconds), dev

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

    def _draw(self) -> None:
        if self.history:
            steps = read_steps(self.output / "steps.jsonl")
            draw_learning_curve(self.history, steps, self.output / "learning_curve.png")
