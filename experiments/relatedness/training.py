"""Training epoch by epoch, with checkpoints, metrics as JSON lines, and a learning curve."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import gluonnlp
import mxnet as mx
import numpy as np
from matplotlib.figure import Figure
from mxnet import gluon
from tqdm import tqdm

from .checkpoint import Checkpoint, whole_file, write_checkpoint
from .data import Sample, batches
from .metrics import Metrics, measure
from .running import Runner


class DivergedError(ArithmeticError):
    """The loss is no longer a finite number; a smaller learning rate may help."""


class EpochResult(NamedTuple):
    """One line of metrics.jsonl."""

    epoch: int
    loss: float
    dev: Metrics
    samples_per_second: float
    launches_per_batch: Optional[float]

    def __str__(self) -> str:
        launches = self.launches_per_batch
        note = "" if launches is None else f", {launches:.0f} launches per batch"
        return (
            f"epoch {self.epoch}: loss {self.loss:.4f}  held out: {self.dev}"
            f"  {self.samples_per_second:.0f} samples/s{note}"
        )

    def as_json(self) -> Dict[str, Any]:
        """Give the figures as JSON takes them."""
        return {**self._asdict(), "dev": self.dev.as_json()}


def seed_everything(seed: int, epoch: int) -> None:
    """Seed Python's, NumPy's and MXNet's generators for one epoch of one run."""
    python, numpy, mxnet = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(python))
    np.random.seed(int(numpy))
    mx.random.seed(int(mxnet) & 0x7FFFFFFF)


def evaluate(
    runner: Runner, samples: Sequence[Sample], batch_size: int
) -> Tuple[Metrics, np.ndarray]:
    """Predict the scores of all samples; gives the metrics, and the scores in order."""
    scores = np.concatenate([runner.predict(batch) for batch in batches(samples, batch_size)])
    return measure(scores, np.array([sample.score for sample in samples])), scores


class Training:
    """A run of training in a folder, from the first epoch or from where a checkpoint left it.

    Parameters
    ----------
    runner : Runner
    trainer : gluon.Trainer
    vocab : gluonnlp.Vocab
    output : Path
        Folder for ``last``, ``best`` (checkpoints), ``metrics.jsonl`` and ``learning_curve.png``.
    settings : dict
        Kept in the checkpoints; needs ``seed`` and ``batch_size``.
    checkpoint : Checkpoint, optional
        Where to go on from; restored into model and trainer.

    Notes
    -----
    A resumed run repeats an uninterrupted one bit for bit if the flushes do: that is, with a
    granularity, a policy, and no budget in milliseconds, since a clock chooses differently each
    time, and sums differ in their last bits with the order of their terms.
    """

    def __init__(
        self,
        runner: Runner,
        trainer: gluon.Trainer,
        vocab: gluonnlp.Vocab,
        output: Path,
        settings: Dict[str, Any],
        checkpoint: Optional[Checkpoint] = None,
    ) -> None:
        self.runner = runner
        self.trainer = trainer
        self.vocab = vocab
        self.output = output
        self.settings = settings
        self.epoch = 0
        self.best = -math.inf
        self.history: List[Dict[str, Any]] = []
        if checkpoint is not None:
            checkpoint.restore(runner.model, trainer)
            self.epoch = checkpoint.state["epoch"]
            best = checkpoint.state["best"]
            self.best = -math.inf if best is None else best
            self.history = checkpoint.state["history"]
        else:
            self._save("last")  # something to resume from if the first epoch is interrupted

    def run(self, train: Sequence[Sample], dev: Sequence[Sample], epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the very first."""
        self._write_history()
        while self.epoch < epochs:
            result = self._run_epoch(train, dev)
            print(result, flush=True)
            self.epoch = result.epoch
            self.history.append(result.as_json())
            if result.dev.pearson > self.best:
                self.best = result.dev.pearson
                self._save("best")
            self._save("last")
            self._write_history()

    def _run_epoch(self, train: Sequence[Sample], dev: Sequence[Sample]) -> EpochResult:
        epoch = self.epoch + 1
        seed_everything(self.settings["seed"], epoch)
        size = self.settings["batch_size"]
        total = 0.0
        launches = []
        previous = None
        start = time.perf_counter()
        with tqdm(total=len(train), desc=f"epoch {epoch}", unit="pair", leave=False,
                  disable=not sys.stderr.isatty()) as progress:
            for batch in batches(train, size, shuffle=True):
                step = self.runner.step(batch, self.trainer)
                # Only now wait for the step before: recording overlaps with running.
                total += _finished(previous, epoch)
                previous = step
                if step.report is not None:
                    launches.append(step.report.launches)
                    progress.set_postfix(launches=launches[-1], refresh=False)
                progress.update(len(batch))
            total += _finished(previous, epoch)
        mx.nd.waitall()
        seconds = time.perf_counter() - start
        return EpochResult(
            epoch,
            total / len(train),
            evaluate(self.runner, dev, size)[0],
            len(train) / seconds,
            float(np.mean(launches)) if launches else None,
        )

    def _save(self, name: str) -> None:
        state = {
            "epoch": self.epoch,
            "best": None if math.isinf(self.best) else self.best,
            "history": self.history,
            "settings": self.settings,
        }
        path = self.output / name
        write_checkpoint(path, self.runner.model, self.trainer, self.vocab, state)

    def _write_history(self) -> None:
        """Write metrics and picture; the checkpoint's history rules, so resuming cannot double."""
        with whole_file(self.output / "metrics.jsonl") as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in self.history)
        if self.history:
            draw_learning_curve(self.history, self.output / "learning_curve.png")


def _finished(step: Optional[Any], epoch: int) -> float:
    """Wait for a step and give the sum of its losses."""
    if step is None:
        return 0.0
    loss = float(step.losses.asnumpy().sum())
    if not math.isfinite(loss):
        raise DivergedError(f"the loss became {loss} in epoch {epoch}; try a smaller --lr")
    return loss


def draw_learning_curve(history: Sequence[Dict[str, Any]], path: Path) -> None:
    """Draw training loss and held-out metrics over the epochs."""
    epochs = [line["epoch"] for line in history]
    figure = Figure(figsize=(7, 4), constrained_layout=True)
    left = figure.add_subplot()
    for name in ("pearson", "spearman"):
        values = [line["dev"][name] for line in history]
        left.plot(epochs, [math.nan if v is None else v for v in values], marker=".", label=name)
    left.set(xlabel="epoch", ylabel="held-out correlation")
    right = left.twinx()
    right.plot(epochs, [line["dev"]["mse"] for line in history], "k--", label="MSE")
    right.plot(epochs, [line["loss"] for line in history], "k:", label="training loss")
    right.set_ylabel("held-out MSE, training loss")
    right.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=4)
    figure.savefig(path, dpi=120)
