"""Training with checkpoints, metrics as JSON lines, and a picture of the learning curve."""

import contextlib
import gc
import json
import random
import signal
import sys
import threading
import time
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mxnet import gluon
from tqdm import tqdm

import gluon_dynbatch as gdb
from command import UsageError
from suite.runner import one_behind
from workloads.base import Sample

from .checkpoint import whole_file, write_checkpoint


class Data(NamedTuple):
    """The items that a task has read, and their samples, in minibatches of `batch_size`."""

    task: Any
    items: Sequence[Any]
    samples: Sequence[Sample]
    batch_size: int

    def minibatches(self, shuffle=False):
        """Return the minibatches, shuffled by NumPy's global generator or in order."""
        return gluon.data.DataLoader(self.samples, self.batch_size, shuffle, batchify_fn=list)


def seed_everything(seed, epoch, rank=0):
    """Seed Python's, NumPy's and MXNet's generators for one epoch of one run.

    NumPy draws the order of samples, which is the same in all processes; MXNet draws dropout.
    """
    python, numpy, mxnet = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(python))
    np.random.seed(int(numpy))
    mx.random.seed((int(mxnet) + rank) & 0x7FFFFFFF)


@contextlib.contextmanager
def interruptible():
    """Delay Ctrl-C: yield a function that raises `KeyboardInterrupt` if it was pressed.

    Python raises `KeyboardInterrupt` at any instruction. In a function that MXNet called, for
    example in the backward pass, the exception is lost and the function does not finish. The first
    Ctrl-C therefore waits for the next check; a second one raises at once.
    """
    pending = []

    def check():
        if pending:
            raise KeyboardInterrupt

    def handle(number, frame):
        check()
        pending.append(number)
        print("\nstopping after this step; press again to stop at once", file=sys.stderr)

    previous = signal.getsignal(signal.SIGINT)
    with contextlib.ExitStack() as stack:
        # Only the main thread can set handlers. A program that ignores the signal keeps doing so.
        if threading.current_thread() is threading.main_thread() and callable(previous):
            signal.signal(signal.SIGINT, handle)
            stack.callback(signal.signal, signal.SIGINT, previous)
        yield check
    check()


def evaluate(runner, data, check=lambda: None):
    """Return the metrics and the answers for all items; call `check` after each minibatch."""
    outputs = []
    for batch in data.minibatches():
        outputs.append(runner.predict(batch).asnumpy())
        check()
    answers = data.task.answers(np.concatenate(outputs), data.items)
    return data.task.measure(answers, data.items), answers


def described(metrics, data):
    """Format metrics for people."""
    figures = [f"{k} {'nan' if v is None else format(v, '.4f')}" for k, v in metrics.items()]
    return f"{'  '.join(figures)}  ({len(data.items)} {data.task.unit})"


def _summary(line, dev):
    text = "epoch {epoch}: loss {loss:.4f}  held out: {0}  {samples_per_second:.0f} samples/s"
    if line["launches_per_batch"] is not None:
        text += ", {launches_per_batch:.0f} launches per batch"
        text += ", analysis {analysis_share:.0%} of the time"
    return text.format(dev, **line)


def draw_learning_curve(history, path):
    """Draw the losses, and each metric in its own panel, as a PNG file."""
    curves = {"training loss": [line["loss"] for line in history]}
    for name in history[0]["dev"]:
        curves[f"held out: {name}"] = [line["dev"][name] for line in history]
    figure = Figure(figsize=(4 * len(curves), 3.8), constrained_layout=True)
    grid = figure.subplots(1, len(curves))
    losses = np.concatenate([line["losses"] for line in history])
    x = np.linspace(0, len(history), len(losses))
    grid[0].plot(x, losses, color="#B0B0B0", lw=0.7, label="minibatch")
    epochs = np.arange(1, len(history) + 1)
    for axes, (title, values) in zip(grid, curves.items()):
        axes.plot(epochs, np.array(values, float), "o-", ms=4, label="epoch")  # None becomes NaN
        axes.set(title=title, xlabel="epoch", xlim=(0, epochs[-1] + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].legend(frameon=False)
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


class Training:
    """A run of training with an output folder, from the first epoch or from a checkpoint.

    The model is trained on `train`, shuffled, and evaluated on `dev` after every epoch. The folder
    `output` gets ``last`` and ``best`` (checkpoints), ``metrics.jsonl`` (a line for each epoch,
    with the losses of all its minibatches) and ``learning_curve.png``. `settings` are saved in the
    checkpoints; they need ``seed``, ``lr`` and ``lr_decay``. The first process of the `group`
    evaluates and writes the files. A `checkpoint` is restored into model and trainer.

    A checkpoint is written after every epoch, and every epoch seeds its random numbers. So a run
    that was interrupted repeats the epoch, and gives the same results as an uninterrupted run. They
    are equal bit for bit with a fixed granularity and policy and no budget in milliseconds: choices
    by the clock differ, and the last bits of a sum depend on the order of its terms.
    """

    def __init__(self, runner, train, dev, vocab, output, settings, group, checkpoint=None):
        self.runner, self.train, self.dev = runner, train, dev
        self.vocab, self.output, self.settings, self.group = vocab, output, settings, group
        #: Whether this process evaluates and writes files.
        self.writes = group.rank == 0
        self.epoch, self.best, self.history = 0, None, []
        if checkpoint is not None:
            with checkpoint.validation():
                state = checkpoint.state
                self.epoch, self.best = int(state["epoch"]), state["best"]
                self.history = [dict(line) for line in state["history"]]
                if [line["epoch"] for line in self.history] != list(range(1, self.epoch + 1)):
                    raise ValueError("the history does not have a line for every epoch")
            checkpoint.restore(runner.workload.model, runner.workload.trainer)
        elif self.writes:
            self._save("last")  # for --resume, if the first epoch is interrupted
        self.group.join(runner.workload.trainer)

    def run(self, epochs):
        """Train until `epochs` epochs are complete, including earlier ones, or until Ctrl-C."""
        gc.freeze()  # keeps the garbage collector from scanning the data
        try:
            with interruptible() as check:
                self._write_history()
                while self.epoch < epochs:
                    line = self._run_epoch(check)
                    if self.writes:
                        line["dev"], _ = evaluate(self.runner, self.dev, check)
                        print(_summary(line, described(line["dev"], self.dev)), flush=True)
                    self.epoch += 1
                    if self.writes:
                        self._save_epoch(line)
        finally:
            gc.unfreeze()  # so that a distributed key-value store is collected and disconnects
            # A fork (`subprocess`) during a backward pass deadlocks: MXNet waits for the pass, and
            # the pass for Python.
            mx.nd.waitall()
            if self.history and self.writes:
                draw_learning_curve(self.history, self.output / "learning_curve.png")

    def _save_epoch(self, line):
        """Add an epoch to the history, and write checkpoints and metrics."""
        self.history.append(line)
        # An undefined metric is the worst, but better than no epoch.
        score = line["dev"][self.dev.task.best_by]
        score = -1.0 if score is None else score
        if self.best is None or score > self.best:
            self.best = score
            self._save("best")
        self._save("last")
        self._write_history()

    def _run_epoch(self, check):
        """Train for an epoch; return its line of ``metrics.jsonl``."""
        epoch = self.epoch + 1
        seed_everything(self.settings["seed"], epoch, self.group.rank)
        decay = self.settings["lr_decay"] ** (epoch - 1)
        self.runner.workload.trainer.set_learning_rate(self.settings["lr"] * decay)
        started = time.perf_counter()
        losses, sizes, reports = [], [], []
        for step_losses, report, samples in self._steps(epoch):
            loss = self.group.sum(step_losses.asnumpy())
            if not np.isfinite(loss):
                raise UsageError(f"a loss became {loss} in epoch {epoch}; try a smaller --lr")
            losses.append(loss / samples)
            sizes.append(samples)
            if report is not None:
                reports.append(report)
            check()
        mx.nd.waitall()
        seconds = time.perf_counter() - started
        report = gdb.Report.together(reports)
        analysis_ms = sum(flush.analysis_ms for flush in report.flushes)
        return {
            "epoch": epoch,
            "loss": float(np.average(losses, weights=sizes)),
            "samples_per_second": len(self.train.samples) / seconds,
            "launches_per_batch": report.launches / len(reports) if reports else None,
            "analysis_share": 1e-3 * analysis_ms / seconds if reports else None,
            "losses": losses,
        }

    def _steps(self, epoch):
        """Train on all minibatches; yield losses, report and size once the next has started."""
        quiet = not (sys.stderr.isatty() and self.writes)
        batches = tqdm(self.train.minibatches(shuffle=True), desc=f"epoch {epoch}", unit="batch",
                       leave=False, disable=quiet)  # fmt: skip

        def begin(batch):
            with self.group.patience():
                whole = len(batch) if self.group.store else None
                losses = self.runner.step(self.group.share(batch), whole)
                return losses, self.runner.report, len(batch)

        return one_behind(map(begin, batches))

    def _save(self, name):
        state = {name: getattr(self, name) for name in ("epoch", "best", "history", "settings")}
        model, trainer = self.runner.workload.model, self.runner.workload.trainer
        write_checkpoint(self.output / name, model, trainer, self.vocab, state)

    def _write_history(self):
        """Write the whole history, so that resuming a run cannot repeat lines."""
        if self.writes:
            with whole_file(self.output / "metrics.jsonl") as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in self.history)
