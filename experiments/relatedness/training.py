"""Training epoch by epoch, with checkpoints, losses and metrics as JSON lines, and a picture."""

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
    """What a task has read, and the samples of it; in minibatches of so many."""

    task: Any
    items: Sequence[Any]
    samples: Sequence[Sample]
    batch_size: int

    def minibatches(self, shuffle=False):
        """Draw an order from NumPy's global generator, or take that of the items."""
        return gluon.data.DataLoader(self.samples, self.batch_size, shuffle, batchify_fn=list)


def seed_everything(seed, epoch, rank=0):
    """Seed Python's, NumPy's and MXNet's generators for one epoch of one run.

    Orders are drawn by NumPy and are those of all processes, dropout by MXNet.
    """
    python, numpy, mxnet = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(python))
    np.random.seed(int(numpy))
    mx.random.seed((int(mxnet) + rank) & 0x7FFFFFFF)


@contextlib.contextmanager
def interruptible():
    """Give a function that raises `KeyboardInterrupt` after a first Ctrl-C, which waits for it.

    Python raises `KeyboardInterrupt` wherever it happens to be. If that is a function that MXNet
    called, for instance in the backward pass, the exception is lost and so is what the function had
    to do. The work between two checks is done whole or, after a second Ctrl-C, given up.
    """
    pending = []

    def check():
        if pending:
            raise KeyboardInterrupt

    def note(number, frame):
        check()
        pending.append(number)
        print("\nstopping after this step; press again to stop at once", file=sys.stderr)

    before = signal.getsignal(signal.SIGINT)
    with contextlib.ExitStack() as stack:
        # Only the main thread gets signals; and a program that was told to ignore them, does.
        if threading.current_thread() is threading.main_thread() and callable(before):
            signal.signal(signal.SIGINT, note)
            stack.callback(signal.signal, signal.SIGINT, before)
        yield check
    check()


def evaluate(runner, data, check=lambda: None):
    """Answer for all items; gives the metrics, and the answers in order. `check` may interrupt."""
    outputs = []
    for batch in data.minibatches():
        outputs.append(runner.predict(batch).asnumpy())
        check()
    answers = data.task.answers(np.concatenate(outputs), data.items)
    return data.task.measure(answers, data.items), answers


def described(metrics, data):
    """Write metrics for people."""
    figures = [f"{k} {'nan' if v is None else format(v, '.4f')}" for k, v in metrics.items()]
    return f"{'  '.join(figures)}  ({len(data.items)} {data.task.unit})"


def _said(line, dev):
    said = "epoch {epoch}: loss {loss:.4f}  held out: {0}  {samples_per_second:.0f} samples/s"
    if line["launches_per_batch"] is not None:
        said += ", {launches_per_batch:.0f} launches per batch"
        said += ", analysis {analysis_share:.0%} of the time"
    return said.format(dev, **line)


def draw_learning_curve(history, path):
    """Draw losses of minibatches and epochs, and each metric beside them, as a PNG file."""
    curves = {"training loss": [line["loss"] for line in history]}
    for name in history[0]["dev"]:
        curves[f"held out: {name}"] = [line["dev"][name] for line in history]
    figure = Figure(figsize=(4 * len(curves), 3.8), constrained_layout=True)
    grid = figure.subplots(1, len(curves))
    losses = np.concatenate([line["losses"] for line in history])
    where = np.linspace(0, len(history), len(losses))
    grid[0].plot(where, losses, color="#B0B0B0", lw=0.7, label="minibatch")
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
    """A run of training in a folder, from the first epoch or from where a checkpoint left it.

    `train` is to learn from, shuffled, and `dev` to judge every epoch by. The folder `output` gets
    ``last`` and ``best`` (checkpoints), ``metrics.jsonl`` (a line for each epoch, with the losses
    of all its minibatches) and ``learning_curve.png``. `settings` are kept in the checkpoints; they
    need ``seed``, ``lr`` and ``lr_decay``. Of the `group` of processes that train together, the
    first one writes, and judges. A checkpoint to go on from is restored into model and trainer.

    A checkpoint is written after every epoch, and every epoch has random numbers of its own. So a
    run that was cut short in an epoch does that epoch again, and repeats an uninterrupted one bit
    for bit if the flushes do: that is, with a granularity, a policy, and no budget in milliseconds,
    since a clock chooses differently each time, and sums differ in their last bits with the order
    of their terms.
    """

    def __init__(self, runner, train, dev, vocab, output, settings, group, checkpoint=None):
        self.runner, self.train, self.dev = runner, train, dev
        self.vocab, self.output, self.settings, self.group = vocab, output, settings, group
        #: Whether this process writes files, and judges epochs.
        self.writes = group.rank == 0
        self.epoch, self.best, self.history = 0, None, []
        if checkpoint is not None:
            with checkpoint.understood():
                state = checkpoint.state
                self.epoch, self.best = int(state["epoch"]), state["best"]
                self.history = [dict(line) for line in state["history"]]
                if [line["epoch"] for line in self.history] != list(range(1, self.epoch + 1)):
                    raise ValueError("not a line of history for every epoch")
            checkpoint.restore(runner.workload.model, runner.workload.trainer)
        elif self.writes:
            self._save("last")  # something to resume from if the first epoch is interrupted
        self.group.join(runner.workload.trainer)

    def run(self, epochs):
        """Train until `epochs` epochs are done, counted from the very first, or until Ctrl-C."""
        gc.freeze()  # the data stay: full collections of garbage need not look through them
        try:
            with interruptible() as check:
                self._write_history()
                while self.epoch < epochs:
                    line = self._run_epoch(check)
                    if self.writes:
                        line["dev"], _ = evaluate(self.runner, self.dev, check)
                        print(_said(line, described(line["dev"], self.dev)), flush=True)
                    self.epoch += 1
                    if self.writes:
                        self._keep(line)
        finally:
            gc.unfreeze()  # else a distributed key-value store would never take leave of the others
            # A fork while a backward pass is pending, as by `subprocess`, would never return: MXNet
            # waits for the pass, and the pass for Python.
            mx.nd.waitall()
            if self.history and self.writes:
                draw_learning_curve(self.history, self.output / "learning_curve.png")

    def _keep(self, line):
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

    def _run_epoch(self, check):
        """Train for an epoch; return its line of ``metrics.jsonl``."""
        epoch = self.epoch + 1
        seed_everything(self.settings["seed"], epoch, self.group.rank)
        decay = self.settings["lr_decay"] ** (epoch - 1)
        self.runner.workload.trainer.set_learning_rate(self.settings["lr"] * decay)
        started = time.perf_counter()
        losses, sizes, reports = [], [], []
        for found, report, samples in self._steps(epoch):
            loss = self.group.sum(found.asnumpy())
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
        """Train on all minibatches; tell losses, report and size when the next one has begun."""
        quiet = not (sys.stderr.isatty() and self.writes)
        batches = tqdm(self.train.minibatches(shuffle=True), desc=f"epoch {epoch}", unit="batch",
                       leave=False, disable=quiet)  # fmt: skip

        def begin(batch):
            with self.group.patience():
                whole = len(batch) if self.group.store else None
                found = self.runner.step(self.group.share(batch), whole)
                return found, self.runner.report, len(batch)

        return one_behind(map(begin, batches))

    def _save(self, name):
        state = {name: getattr(self, name) for name in ("epoch", "best", "history", "settings")}
        model, trainer = self.runner.workload.model, self.runner.workload.trainer
        write_checkpoint(self.output / name, model, trainer, self.vocab, state)

    def _write_history(self):
        """Write the metrics; the checkpoint's history rules, so resuming cannot double."""
        if self.writes:
            with whole_file(self.output / "metrics.jsonl") as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in self.history)
