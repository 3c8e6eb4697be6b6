"""The verbs of the training program, with a tiny model and corpus."""

import json
import re
import shutil
from argparse import Namespace
from functools import partial

import numpy as np
import pytest

import tree_lstm_relatedness as program
from relatedness import training
from relatedness.checkpoint import read_checkpoint
from relatedness.corpora import BUILT_IN
from relatedness.training import draw_learning_curve
from workloads.trees import SENTIMENT

TINY = ["--limit", "12", "--embedding-size", "6", "--hidden", "5", "--batch-size", "4", "--lr",
        "0.1"]  # fmt: skip
# "auto" decides by the clock, and the last bits of a sum depend on its order.
FIXED = ["--granularity", "block", "--policy", "depth", "--analysis-budget", "none"]


pytestmark = pytest.mark.usefixtures("quick")


def run(*arguments):
    return program.main([str(argument) for argument in arguments])


def train(output, *more):
    return run("train", *TINY, "--output", output, *more)


def parameters(path):
    return {name: array.tobytes() for name, array in read_checkpoint(path).arrays.items()}


def losses_of(folder):
    history = read_checkpoint(folder / "last").state["history"]
    return [loss for line in history for loss in line["losses"]]


def test_training_writes_checkpoints_metrics_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "draw_learning_curve", draw_learning_curve)
    assert train(tmp_path, "--epochs", 2) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best", "last", "learning_curve.png", "metrics.jsonl",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert set(lines[0]["dev"]) == {"pearson", "spearman", "mse"}
    assert lines[0]["launches_per_batch"] > 1
    for line in lines:
        assert len(line["losses"]) == 3 and line["loss"] == pytest.approx(np.mean(line["losses"]))
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"^epoch \d: loss .* pearson ", capsys.readouterr().out, re.M)) == 2


def test_the_best_epoch_is_kept_and_resuming_a_complete_run_changes_nothing(tmp_path, capsys):
    train(tmp_path, "--epochs", 5)
    state = read_checkpoint(tmp_path / "best").state
    history = read_checkpoint(tmp_path / "last").state["history"]
    scores = [line["dev"]["pearson"] for line in history]
    assert state["epoch"] == 1 + int(np.argmax(scores))
    assert state["best"] == max(scores)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert train(tmp_path, "--epochs", 5, "--resume") == 0
    assert "epoch 5 of 5 is already complete" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_demo_prints_epochs_a_report_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "contest", partial(program.contest, share=0))
    options = ("--output", tmp_path, "--epochs", 1, "--pairs", 4, "--rounds", 1)
    assert run("demo", *TINY, *options) == 0
    printed = capsys.readouterr().out
    assert re.search(r"epoch 1: loss(.|\n)*calls .* launches(.|\n)*\n\| dynamic", printed)


def test_sentiment_is_trained_resumed_and_evaluated(tmp_path, capsys):
    """With dropout, and sparse gradients of word vectors."""
    options = ("--task", "sentiment", *FIXED)
    train(tmp_path / "whole", *options, "--epochs", 3)
    train(tmp_path / "parts", *options, "--epochs", 1)
    assert train(tmp_path / "parts", *options, "--epochs", 3, "--resume") == 0
    assert parameters(tmp_path / "parts" / "last") == parameters(tmp_path / "whole" / "last")
    losses = losses_of(tmp_path / "parts")
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    common = ("--limit", 12, "--checkpoint", tmp_path / "whole" / "best", "--split", "dev")
    capsys.readouterr()
    assert run("evaluate", *common) == run("predict", *common) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    answers = [float(row.split("\t")[1]) for row in rows]
    items = SENTIMENT.read(Namespace(data=None, limit=12), ["dev"])["dev"]
    labels = [item.labels[-1] for item in items]
    assert first == f"dev: accuracy {np.mean(np.equal(answers, labels)):.4f}  (12 sentences)"


def test_a_run_is_not_overwritten_or_resumed_with_other_settings_or_data(tmp_path, capsys):
    train(tmp_path, "--epochs", 1)
    before = (tmp_path / "last").read_bytes()
    assert train(tmp_path, "--epochs", 1) == 2
    assert "continue from it with --resume" in capsys.readouterr().err
    assert train(tmp_path, "--epochs", 2, "--resume", "--hidden", 7) == 2
    assert "--hidden is 7 but the run to resume has 5" in capsys.readouterr().err
    shutil.copytree(BUILT_IN, tmp_path / "data")
    scores = tmp_path / "data" / "train" / "sim.txt"
    scores.write_text(scores.read_text().replace("4", "3", 1))
    assert train(tmp_path, "--epochs", 2, "--resume", "--data", tmp_path / "data") == 2
    assert "last was trained on other data" in capsys.readouterr().err
    assert (tmp_path / "last").read_bytes() == before
