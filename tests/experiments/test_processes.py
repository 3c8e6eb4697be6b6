"""The program as a process of its own: killed, interrupted, in a pipe, as one of several."""

import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import tree_lstm_relatedness as program
from relatedness.checkpoint import read_checkpoint
from relatedness.steps import read_steps

pytestmark = pytest.mark.usefixtures("quick")

EXAMPLE = Path(__file__).with_name("pairs.conllu")
TINY = ["--limit", "24", "--embedding-size", "6", "--hidden", "5", "--similarity-hidden", "4",
        "--lr", "0.1", "--granularity", "block", "--policy", "depth",
        "--analysis-budget", "none"]  # fmt: skip
BATCH = ["--batch-size", "2"]


def start(*arguments, **environment):
    mx.nd.waitall()  # a fork that meets a pending backward pass never returns
    root = Path(program.__file__).parents[1]
    # A process inherits that Ctrl-C is ignored, as it is in the background, but not who handles it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", program.__file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    return process


def wait_for_step(process, output, epoch, step, seconds=120):
    """Wait until a process has written the loss of a step."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        lines = read_steps(output / "steps.jsonl")
        if lines and (lines[-1]["epoch"], lines[-1]["step"]) >= (epoch, step):
            return
        time.sleep(0.005)
    process.kill()
    raise AssertionError(f"no step {step} of epoch {epoch} after {seconds} s")


def as_bytes(tree):
    """Give a tree with its arrays as bytes, to compare it bit for bit."""
    if isinstance(tree, dict):
        return {key: as_bytes(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [as_bytes(value) for value in tree]
    return tree.tobytes() if isinstance(tree, np.ndarray) else tree


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, stop):
    """Killed, or interrupted by Ctrl-C, in mid-epoch and with workers; then resumed for two more.

    How far it came before the signal is chance, so it is compared with a run of as many epochs.
    """
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    command = ["train", *TINY, *BATCH]
    process = start(*command, "--epochs", 1000, "--output", parts, "--num-workers", 1)
    wait_for_step(process, parts, 2, 4)
    process.send_signal(stop)
    _, message = process.communicate(timeout=120)
    before = read_checkpoint(parts / "last").state["epoch"]
    assert 1 <= before < 1000
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert f"holds epoch {before}, --resume goes on" in message
        assert "Traceback" not in message
    else:
        assert process.returncode == -signal.SIGKILL
    epochs = str(before + 2)
    assert program.main([*command, "--epochs", epochs, "--output", str(parts), "--resume"]) == 0
    assert program.main([*command, "--epochs", epochs, "--output", str(whole)]) == 0
    for name in ("best", "last"):
        one, other = (read_checkpoint(folder / name) for folder in (parts, whole))
        assert as_bytes(one.parameters) == as_bytes(other.parameters)
        assert as_bytes(one.trainer) == as_bytes(other.trainer)
        assert all(one.state[key] == other.state[key] for key in ("epoch", "best", "settings"))
    assert read_steps(parts / "steps.jsonl") == read_steps(whole / "steps.jsonl")
    assert not [path for path in parts.iterdir() if path.suffix == ".tmp"]


def test_pairs_from_a_pipe_are_scored(tmp_path, monkeypatch, capsys):
    program.main(["train", *TINY, "--epochs", "1", "--output", str(tmp_path)])
    command = ["predict", "--checkpoint", str(tmp_path / "best"), "--input"]
    capsys.readouterr()
    assert program.main([*command, str(EXAMPLE)]) == 0
    from_file = capsys.readouterr()
    names, scores = zip(*(line.split("\t") for line in from_file.out.splitlines()))
    assert names == ("1", "tea") and all(1 <= float(score) <= 5 for score in scores)
    assert " of 17 words are not in the vocabulary of " in from_file.err
    text = EXAMPLE.read_text()
    assert start(*command, "-").communicate(text, timeout=120)[0] == from_file.out
    wrong = io.BytesIO(text.replace("\n3\twake", "\n4\twake").encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(wrong))
    assert program.main([*command, "-"]) == 2
    assert capsys.readouterr().err == "error: <stdin>:7: word id 4, expected 3\n"


def test_processes_of_a_launcher_train_one_model(tmp_path, corpus, write_pairs):
    """Two workers whose halves are equal train as one process does that has one of the halves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port),
              "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}  # fmt: skip
    for times in (1, 2):
        pairs = [pair for pair in corpus.splits["train"][:10] for _ in range(times)]
        named = [pair._replace(name=str(i)) for i, pair in enumerate(pairs)]
        write_pairs(tmp_path / f"data{times}", named)
    command = ["train", *TINY, "--batch-size", "4", "--epochs", "2"]
    arguments = [*command, "--kvstore", "dist_sync", "--data", tmp_path / "data2"]
    processes = [
        start(*arguments, "--output", tmp_path / "two", DMLC_ROLE=role, **common)
        for role in ("scheduler", "server", "worker", "worker")
    ]
    try:
        for process in processes:
            # Four of them start at once, and may have to share the machine.
            assert process.communicate(timeout=300)[1] == "" and process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    program.main([*command, "--data", str(tmp_path / "data1"), "--output", str(tmp_path / "one")])
    one, first, second = (
        [step["loss"] for step in read_steps(tmp_path / name / "steps.jsonl")]
        for name in ("one", "two", "two/worker-1")
    )
    assert len(one) == 6 and np.ptp(one) > 0.01
    np.testing.assert_allclose(first, one, rtol=1e-4)
    assert first == second
    checkpoints = [read_checkpoint(tmp_path / "two" / name) for name in ("last", "worker-1/last")]
    assert as_bytes(checkpoints[0].parameters) == as_bytes(checkpoints[1].parameters)
