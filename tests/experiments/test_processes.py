"""The training program in processes: killed, interrupted, as one of several."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import launch
import tree_lstm_relatedness as program
from relatedness.checkpoint import read_checkpoint
from tests.common import PATIENCE, ROOT
from tests.experiments.test_program import losses_of, parameters

pytestmark = pytest.mark.usefixtures("quick")

TINY = ["--limit", "24", "--embedding-size", "6", "--hidden", "5", "--similarity-hidden", "4",
        "--lr", "0.1", "--granularity", "block", "--policy", "depth",
        "--analysis-budget", "none"]  # fmt: skip


def start(*arguments, program=program):
    mx.nd.waitall()  # a fork during a backward pass hangs
    # A child process inherits that Ctrl-C is ignored, as in background jobs, but not a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", program.__file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    return process


def wait_for_an_epoch(process, output):
    end = time.monotonic() + PATIENCE
    metrics = output / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, process.kill()
        time.sleep(0.005)
    time.sleep(0.03)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_continues_bit_for_bit(tmp_path, stop):
    """A run is killed or interrupted by Ctrl-C within an epoch, and resumed for two more.

    The epoch of the signal depends on timing; the run is compared with one of as many epochs.
    """
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    command = ["train", *TINY, "--batch-size", "2"]
    process = start(*command, "--epochs", 1000, "--output", parts)
    wait_for_an_epoch(process, parts)
    process.send_signal(stop)
    _, message = process.communicate(timeout=PATIENCE)
    before = read_checkpoint(parts / "last").state["epoch"]
    assert 1 <= before < 1000
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert f"holds epoch {before}; use --resume" in message
        assert "Traceback" not in message
    else:
        assert process.returncode == -signal.SIGKILL
    epochs = str(before + 2)
    assert program.main([*command, "--epochs", epochs, "--output", str(parts), "--resume"]) == 0
    assert program.main([*command, "--epochs", epochs, "--output", str(whole)]) == 0
    for name in ("best", "last"):
        assert parameters(parts / name) == parameters(whole / name)
        resumed, uninterrupted = (read_checkpoint(folder / name) for folder in (parts, whole))
        assert resumed.optimizer == uninterrupted.optimizer
        for key in ("epoch", "best", "settings"):
            assert resumed.state[key] == uninterrupted.state[key]
    assert losses_of(parts) == losses_of(whole)
    assert not [path for path in parts.iterdir() if path.suffix == ".tmp"]


def alive(pid):
    """Return whether a process is running; it need not be a child of this one."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_train_like_one_process_and_a_killed_one_loses_nothing(tmp_path):
    """A worker is killed within an epoch: all processes end, and the error names the worker.

    The run is resumed by one process, because checkpoints do not depend on the number of processes.
    """
    two, one = tmp_path / "two", tmp_path / "one"
    command = ["train", *TINY, "--batch-size", 4, "--epochs", 1000, "--output", two]
    process = start("--workers", 2, "--", *command, program=launch)
    lines = [next(process.stdout).split(": process ") for _ in range(4)]
    pids = {name: int(pid) for name, pid in lines}
    assert list(pids) == ["scheduler", "server", "worker 1", "worker 2"]
    wait_for_an_epoch(process, two)
    os.kill(pids["worker 2"], signal.SIGKILL)
    _, message = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    reason = f"worker 2 (process {pids['worker 2']}) was killed by SIGKILL"
    assert reason in message and "train --resume continues" in message
    assert not any(map(alive, pids.values()))
    epochs = str(read_checkpoint(two / "last").state["epoch"] + 1)
    command = ["train", *TINY, "--batch-size", "4", "--epochs", epochs, "--output"]
    assert program.main([*command, str(two), "--resume"]) == 0
    assert program.main([*command, str(one)]) == 0
    losses, expected = losses_of(two), losses_of(one)
    assert len(losses) == 6 * int(epochs) and np.ptp(expected) > 0.01
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
