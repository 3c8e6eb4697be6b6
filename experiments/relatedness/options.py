"""From the command line to the parts that the verbs work with: data, vocabulary, model, trainer."""

import argparse
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, NamedTuple

import gluonnlp
import mxnet as mx
from mxnet import gluon

import gluon_dynbatch as gdb
from command import POSITIVE, UsageError, at_least
from suite.runner import MODES, Runner
from workloads.pairs import RELATEDNESS
from workloads.text import build_vocab, encode, read_vectors
from workloads.trees import SENTIMENT

from .distributed import launched
from .training import Data, seed_everything

#: By name, objects with
#:
#: - ``unit``, what an item is, in the plural; ``best_by``, the metric that the best epoch has the
#:   most of; ``defaults``, options whose default differs;
#: - ``read(args, splits)``, the items of each split, as `workloads.text.encode` takes them;
#: - ``model(vocab_size, settings, sparse)``, whose word vectors are its ``embedding`` and may have
#:   sparse gradients; ``workload(model, trainer, samples)``;
#: - ``answers(outputs, items)``, an answer for each item, of the model's results for them;
#: - ``measure(answers, items)``, the metrics, None for one that is not defined.
TASKS = {"relatedness": RELATEDNESS, "sentiment": SENTIMENT}
OUTPUT = Path("runs/relatedness")
# MXNet would tell at length that the sparse gradient of word vectors was a dense one for a while.
os.environ.setdefault("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")


def context(text):
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
        ("--freeze-embedding", None, None, None, "do not train the word vectors (default with "
         "--embedding)"),
        ("--no-freeze-embedding", None, False, None, "train the word vectors"),
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
#: What must stay as it was when a run is resumed, or it would be another run.
SETTINGS = ("task", "seed", "batch_size", "optimizer", "lr", "lr_decay", "embedding_lr",
            "weight_decay", "hidden", "similarity_hidden", "dropout", "embedding_size",
            "freeze_embedding", "limit")  # fmt: skip


class Assembly(NamedTuple):
    """Everything a verb works with."""

    task: Any
    vocab: gluonnlp.Vocab
    model: gluon.Block
    settings: Dict[str, Any]

    def data(self, args, items):
        """Make samples of some items."""
        return Data(self.task, items, encode(items, self.vocab, args.ctx), args.batch_size)


def fingerprint(items):
    """Tell data apart: 64 hexadecimal figures that depend on everything in them."""
    text = "".join(repr((split, item)) for split in sorted(items) for item in items[split])
    return hashlib.sha256(text.encode()).hexdigest()


def assemble(args, items):
    """Build a new model for some data, as the options say."""
    vocab = build_vocab(item.words for split in items.values() for item in split)
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["data"] = fingerprint(items)
    vectors = None
    if args.embedding is not None:
        vectors, known = read_vectors(args.embedding, vocab, args.seed)
        settings["embedding_size"] = vectors.shape[1]
        print(f"{args.embedding} has {known} of {len(vocab)} words", file=sys.stderr)
    if settings["freeze_embedding"] is None:
        settings["freeze_embedding"] = vectors is not None
    parts = _initialized(vocab, settings, args.ctx)
    if vectors is not None:
        parts.model.embedding.weight.set_data(mx.nd.array(vectors))
    return parts


def restored(checkpoint, ctx=None):
    """Build the model of a checkpoint."""
    with checkpoint.understood():
        settings = checkpoint.state["settings"]
        parts = _initialized(checkpoint.vocab, settings, ctx or mx.cpu(), checkpoint.check)
    checkpoint.restore(parts.model)
    return parts


def _initialized(vocab, settings, ctx, check=lambda model: None):
    """Build a model; `check` it before one of any size takes up memory."""
    task = TASKS[settings["task"]]
    # No store sums sparse gradients of word vectors, nor do all optimizers take them.
    sparse = not launched() and settings["optimizer"] in ("adagrad", "adam", "sgd")
    model = task.model(len(vocab), settings, sparse)
    check(model)
    seed_everything(settings["seed"], 0)
    model.initialize(mx.init.Xavier(), ctx=ctx)
    model.embedding.weight.lr_mult = settings["embedding_lr"]
    if settings["freeze_embedding"]:
        model.embedding.weight.grad_req = "null"
    return Assembly(task, vocab, model, settings)


def check_resumable(args, items, checkpoint):
    """Refuse to go on with other settings or other data."""
    with checkpoint.understood():
        then = {name: checkpoint.state["settings"][name] for name in (*SETTINGS, "data")}
    for name in SETTINGS:
        now = getattr(args, name)
        given_by_file = name == "embedding_size" and args.embedding is not None
        if now != then[name] and not given_by_file and now is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {now} but the run to resume has {then[name]}")
    if then["data"] != fingerprint(items):
        reason = "was trained on other data; give the same --data and --limit"
        raise UsageError(f"{checkpoint.path} {reason}")


def batching_options(args):
    """Options of `gluon_dynbatch.batching` as given on the command line; checked there."""
    names = ("analysis_budget", "granularity", "policy")
    options = {name: getattr(args, name) for name in names}
    gdb.batching(**options)
    return options


def make_runner(args, parts, mode="", samples=(), store=None):
    """Build what runs the model on samples; `store` sums the gradients of several processes."""
    mode = mode or args.mode
    if mode == "manual" and parts.task is not TASKS["relatedness"]:
        raise UsageError("--mode manual is for relatedness")
    try:
        optimizer = mx.optimizer.create(args.optimizer, learning_rate=args.lr, wd=args.weight_decay)
    except ValueError as error:
        raise UsageError(f"--optimizer: {error}") from None
    # Updates happen here and not in the store, so that their state can be saved.
    parameters = parts.model.collect_params()
    trainer = gluon.Trainer(parameters, optimizer, kvstore=store, update_on_kvstore=False)
    workload = parts.task.workload(parts.model, trainer, samples)
    return Runner(workload, mode, batching_options(args))
