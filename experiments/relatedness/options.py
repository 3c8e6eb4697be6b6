"""The options that all verbs of the program share, and their checks."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, Dict

import mxnet as mx

import gluon_dynbatch as gdb
from command import POSITIVE, at_least
from suite.runner import MODES
from workloads.pairs import RELATEDNESS
from workloads.trees import SENTIMENT

#: By name, objects with
#:
#: - ``unit``, what an item is, in the plural; ``best_by``, the metric that the best epoch has the
#:   most of; ``defaults``, options whose default differs;
#: - ``read(args, splits)``, the items of each split, as `workloads.text.encode` takes them;
#: - ``model(vocab_size, settings, sparse)``, whose word vectors are its ``embedding`` and may have
#:   sparse gradients; ``workload(model, trainer, samples)``;
#: - ``answers(outputs, items)``, an answer for each item, of the model's results for them;
#: - ``measure(answers, items)``, the metrics, None for one that is not defined.
TASKS: Dict[str, Any] = {"relatedness": RELATEDNESS, "sentiment": SENTIMENT}
OUTPUT = Path("runs/relatedness")
# MXNet would tell at length that the sparse gradient of word vectors was a dense one for a while.
os.environ.setdefault("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")


def context(text: str) -> mx.Context:
    """Read a context such as "cpu" or "gpu(0)"."""
    match = re.fullmatch(r"(cpu|gpu)(?:\((\d+)\))?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f'{text!r} is no context; say "cpu" or "gpu(0)"')
    kind, number = match.group(1), int(match.group(2) or 0)
    if kind == "gpu" and number >= mx.context.num_gpus():
        raise argparse.ArgumentTypeError(f"MXNet finds no {text.strip()} here")
    return mx.Context(kind, number)


_ABOVE_ZERO = at_least(float, 0, exclusive=True)
#: By group: option, type or choices, default, how its value is called, help.
OPTIONS = {
    "data": (
        ("--task", tuple(TASKS), "relatedness", None, "of pairs of sentences, or the sentiment of "
         "sentences by a binary Tree-LSTM over phrases"),
        ("--data", Path, None, "DIR", "folder with the data; without it, those built in"),
        ("--on-bad-sample", ("error", "skip"), "error", None, "stop at a pair that cannot be used, "
         "or leave it out and say so"),
        ("--limit", POSITIVE, None, "N", "first N of every split"),
        ("--embedding", Path, None, "FILE", "word vectors, GloVe text"),
    ),
    "model": (
        ("--embedding-size", POSITIVE, 300, "N", "without --embedding"),
        ("--hidden", POSITIVE, 150, "N", "states of the Tree-LSTM"),
        ("--similarity-hidden", POSITIVE, 50, "N", "hidden layer of the relatedness head"),
        ("--dropout", at_least(float, 0), 0.0, None, "share of word vectors and states, sentiment"),
    ),
    "training": (
        ("--batch-size", POSITIVE, 25, "N", "in a minibatch, of all processes"),
        ("--epochs", POSITIVE, 12, "N", "the best on the held-out pairs is kept"),
        ("--seed", at_least(int, 0), 1, None, "of parameters and orders"),
        ("--ctx", context, mx.cpu(), "CTX", '"cpu" or "gpu(0)"'),
        ("--kvstore-timeout", _ABOVE_ZERO, 300.0, "S", "seconds to wait for the other processes of "
         "launch.py"),
        ("--optimizer", str, "adagrad", "NAME", "any of MXNet's optimizers"),
        ("--lr", _ABOVE_ZERO, 0.05, None, "learning rate of the first epoch"),
        ("--lr-decay", _ABOVE_ZERO, 0.8, None, "each epoch has this times the rate before"),
        ("--embedding-lr", _ABOVE_ZERO, 1.0, None, "of word vectors that are trained, times --lr"),
        # MXNet's AdaGrad takes it from the weights themselves, not through the gradient's history:
        # for the strength of an L2 term of 1e-4 in the gradient, as in the paper, it is larger.
        ("--weight-decay", at_least(float, 0), 0.03, None, "of the weights, times the rate"),
    ),
    "batching": (
        ("--mode", MODES, "dynamic", None, "how minibatches are run"),
        ("--analysis-budget", str, "auto", "MS", 'milliseconds per flush, "none", or "auto"'),
        ("--granularity", str, "auto", None, '"graph", "block", "operator" or "auto"'),
        ("--policy", str, "auto", None, '"depth", "agenda", "search" or "auto"'),
    ),
    "files": (
        ("--output", Path, None, "DIR", f"where train writes ({OUTPUT}), and predict if given"),
        ("--checkpoint", Path, None, "FILE", "a checkpoint that train wrote, such as DIR/best; it "
         "brings the options of the model, the vocabulary and its vectors"),
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add the shared options; `defaults` replaces those that differ."""
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, kind, default, metavar, text in options:
            checked = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
            shown = defaults.get(name[2:].replace("-", "_"), default)
            if isinstance(shown, (str, int, float)):
                text = f"{text} (default {shown})"
            group.add_argument(name, default=default, metavar=metavar, help=text, **checked)
    for name, value, text in (
        ("--freeze-embedding", True, "do not train the word vectors (default with --embedding)"),
        ("--no-freeze-embedding", False, "train the word vectors"),
    ):
        parser.add_argument(
            name, dest="freeze_embedding", action="store_const", const=value, help=text
        )
    parser.set_defaults(**defaults)


def batching_options(args: argparse.Namespace) -> Dict[str, Any]:
    """Options of `gluon_dynbatch.batching` as given on the command line; checked there."""
    options = {
        "analysis_budget": args.analysis_budget,
        "granularity": args.granularity,
        "policy": args.policy,
    }
    gdb.batching(**options)
    return options
