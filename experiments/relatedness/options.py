"""Options of the training program, and what they create: data, vocabulary, model, trainer."""

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

from command import ABOVE_ZERO, FRACTION, POSITIVE, SECONDS, SEED, SIZE, UsageError, between, budget
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.schedule import POLICIES
from suite.runner import MODES, Runner
from workloads.pairs import RELATEDNESS
from workloads.text import build_vocab, encode, read_vectors
from workloads.trees import SENTIMENT

from .distributed import launched
from .training import Data, seed_everything

#: By name, objects with
#:
#: - ``unit``, the plural noun for items; ``best_by``, the metric of which the best epoch has the
#:   highest value; ``defaults``, options with other defaults;
#: - ``read(args, splits)``, which returns the items of each split, as for `workloads.text.encode`;
#: - ``model(vocab_size, settings, sparse)``, with word vectors in ``embedding``, whose gradients
#:   are sparse if so specified; ``workload(model, trainer, samples)``;
#: - ``answers(outputs, items)``, which converts the model's outputs to an answer for each item;
#: - ``measure(answers, items)``, which computes the metrics; an undefined one is None.
TASKS = {"relatedness": RELATEDNESS, "sentiment": SENTIMENT}
OUTPUT = Path("runs/relatedness")
# No long warning that MXNet converts the sparse gradient of word vectors to a dense one.
os.environ.setdefault("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")


def context(text):
    """Parse a context such as "cpu" or "gpu(0)"."""
    match = re.fullmatch(r"(cpu|gpu)(?:\((\d{1,4})\))?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f'{text!r} is not a context; use "cpu" or "gpu(0)"')
    device, number = match.group(1), int(match.group(2) or 0)
    if device == "gpu" and number >= mx.context.num_gpus():
        raise argparse.ArgumentTypeError(f"MXNet finds no {text.strip()} here")
    return mx.Context(device, number)


def optimizer(text):
    """Check the name of an optimizer."""
    names = sorted({*mx.optimizer.Optimizer.opt_registry} - NO_OPTIMIZERS)
    if text.lower() not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
    return text.lower()


#: Names that MXNet lists, but which do not train this model: one takes only matrices.
NO_OPTIMIZERS = {"groupadagrad", "test"}
#: By group: option, type or choices, default, name of its value, help.
OPTIONS = {
    "data": (
        ("--task", tuple(TASKS), "relatedness", None, "relatedness of pairs of sentences, or "
         "sentiment of sentences by a binary Tree-LSTM over phrases"),
        ("--data", Path, None, "DIR", "folder with the data (default: built-in corpus)"),
        ("--on-bad-sample", ("error", "skip"), "error", None, "stop at an invalid pair, or skip it "
         "with a message (relatedness)"),
        ("--limit", POSITIVE, None, "N", "use only the first N samples of every split"),
        ("--embedding", Path, None, "FILE", "word vectors, GloVe text"),
    ),
    "model": (
        ("--embedding-size", SIZE, 300, "N", "size of word vectors, without --embedding"),
        ("--hidden", SIZE, 150, "N", "size of the states of the Tree-LSTM"),
        ("--similarity-hidden", SIZE, 50, "N", "hidden size of the head (relatedness)"),
        ("--freeze-embedding", None, None, None, "do not train the word vectors (default with "
         "--embedding)"),
        ("--no-freeze-embedding", None, False, None, "train the word vectors"),
        ("--dropout", FRACTION, 0.0, None, "dropout of word vectors and states (sentiment)"),
    ),
    "training": (
        ("--batch-size", POSITIVE, 25, "N", "samples of a minibatch, over all processes"),
        ("--epochs", POSITIVE, 12, "N", "epochs; the best on the held-out data is kept"),
        ("--seed", SEED, 1, None, "seed of all random numbers"),
        ("--ctx", context, mx.cpu(), "CTX", '"cpu" or "gpu(0)"'),
        ("--kvstore-timeout", SECONDS, 300.0, "S", "seconds to wait for the other processes of "
         "launch.py"),
        ("--optimizer", optimizer, "fusedadagrad", "NAME", "any of MXNet's and this package's"),
        ("--lr", ABOVE_ZERO, 0.05, None, "learning rate of the first epoch"),
        ("--lr-decay", ABOVE_ZERO, 0.8, None, "factor of the learning rate after each epoch"),
        ("--embedding-lr", ABOVE_ZERO, 1.0, None, "factor of --lr for word vectors"),
        # MXNet's AdaGrad subtracts it from the weights instead of adding it to the gradient, so it
        # must be larger than the paper's 1e-4.
        ("--weight-decay", between(float, 0), 0.03, None, "weight decay, times learning rate"),
    ),
    "batching": (
        ("--mode", MODES, "dynamic", None, "how minibatches are run"),
        ("--analysis-budget", budget, "auto", "MS", 'milliseconds per flush, "none", or "auto"'),
        ("--granularity", ("auto", *GRANULARITIES), "auto", None, "how much of a call is a unit"),
        ("--policy", ("auto", *POLICIES), "auto", None, "how calls are grouped"),
    ),
    "files": (
        ("--output", Path, None, "DIR", f"folder for the files of train ({OUTPUT}) or predict "
         "(default: standard output)"),
        ("--checkpoint", Path, None, "FILE", "a checkpoint that train wrote, such as DIR/best; it "
         "includes options of the model, vocabulary and vectors"),
    ),
}  # fmt: skip
#: Options of `gluon_dynbatch.batching`.
BATCHING = ("analysis_budget", "granularity", "policy")
#: Options of one task only.
OF_ONE_TASK = {"dropout": "sentiment", "similarity_hidden": "relatedness",
               "on_bad_sample": "relatedness"}  # fmt: skip
#: Options that only training has: a checkpoint contains what they have chosen.
OF_TRAINING = ("--task", "--embedding", *(row[0] for row in OPTIONS["model"]), "--epochs", "--seed",
               "--kvstore-timeout", "--optimizer", "--lr", "--lr-decay", "--embedding-lr",
               "--weight-decay")  # fmt: skip
#: Options that cannot change when a run is resumed.
SETTINGS = ("task", "seed", "batch_size", "optimizer", "lr", "lr_decay", "embedding_lr",
            "weight_decay", "hidden", "similarity_hidden", "dropout", "embedding_size",
            "freeze_embedding", "limit")  # fmt: skip


class Assembly(NamedTuple):
    """A task with its vocabulary, model and settings."""

    task: Any
    vocab: gluonnlp.Vocab
    model: gluon.Block
    settings: Dict[str, Any]

    def data(self, args, items):
        """Make samples of items."""
        return Data(self.task, items, encode(items, self.vocab, args.ctx), args.batch_size)


def check_effect(args, defaults):
    """Raise an error if an option that differs from its default would have no effect."""
    changed = {name for name, value in vars(args).items() if value != vars(defaults).get(name)}
    for name in OF_ONE_TASK.keys() & changed:
        if args.task != OF_ONE_TASK[name]:
            raise UsageError(f"{_option(name)} is only for --task {OF_ONE_TASK[name]}")
    for name in BATCHING:
        if name in changed and args.mode != "dynamic":
            raise UsageError(f"{_option(name)} is only for --mode dynamic")
    if args.mode == "manual" and args.task != "relatedness":
        raise UsageError("--mode manual is only for --task relatedness")
    if args.embedding is not None and "embedding_size" in changed:
        raise UsageError("--embedding-size is not for --embedding, whose vectors have a size")
    if args.freeze_embedding and args.no_freeze_embedding:
        raise UsageError("--freeze-embedding and --no-freeze-embedding exclude each other")


def _option(name):
    return "--" + name.replace("_", "-")


def fingerprint(items):
    """Return a hash of the data, as 64 hexadecimal digits."""
    text = "".join(repr((split, item)) for split in sorted(items) for item in items[split])
    return hashlib.sha256(text.encode()).hexdigest()


def assemble(args, items):
    """Build a new model for some data from the options."""
    vocab = build_vocab(item.words for split in items.values() for item in split)
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["data"] = fingerprint(items)
    vectors = None
    if args.embedding is not None:
        vectors, count = read_vectors(args.embedding, vocab, args.seed)
        settings["embedding_size"] = vectors.shape[1]
        print(f"{args.embedding} has {count} of {len(vocab)} words", file=sys.stderr)
    if settings["freeze_embedding"] is None:
        settings["freeze_embedding"] = vectors is not None
    parts = _initialized(vocab, settings, args.ctx)
    if vectors is not None:
        parts.model.embedding.weight.set_data(mx.nd.array(vectors))
    return parts


def restored(checkpoint, ctx=None):
    """Build the model of a checkpoint."""
    with checkpoint.validation():
        settings = checkpoint.state["settings"]
        parts = _initialized(checkpoint.vocab, settings, ctx or mx.cpu(), checkpoint.check)
    checkpoint.restore(parts.model)
    return parts


def _initialized(vocab, settings, ctx, check=lambda model: None):
    """Build a model; `check` it before memory is allocated for its parameters."""
    task = TASKS[settings["task"]]
    # Key-value stores and some optimizers do not support sparse gradients.
    optimizer = settings["optimizer"].replace("fused", "")
    sparse = not launched() and optimizer in ("adagrad", "adam", "sgd")
    model = task.model(len(vocab), settings, sparse)
    check(model)
    seed_everything(settings["seed"], 0)
    model.initialize(mx.init.Xavier(), ctx=ctx)
    model.embedding.weight.lr_mult = settings["embedding_lr"]
    if settings["freeze_embedding"]:
        model.embedding.weight.grad_req = "null"
    return Assembly(task, vocab, model, settings)


def check_resumable(args, items, checkpoint):
    """Raise an error if a run would be resumed with other settings or other data."""
    with checkpoint.validation():
        saved = {name: checkpoint.state["settings"][name] for name in (*SETTINGS, "data")}
    for name in SETTINGS:
        value = getattr(args, name)
        from_file = name == "embedding_size" and args.embedding is not None
        if value != saved[name] and not from_file and value is not None:
            raise UsageError(f"{_option(name)} is {value} but the run to resume has {saved[name]}")
    if saved["data"] != fingerprint(items):
        reason = "was trained on other data; use the same --data and --limit"
        raise UsageError(f"{checkpoint.path} {reason}")


def make_runner(args, parts, mode="", samples=(), store=None):
    """Make a `Runner`; `store` sums the gradients of several processes."""
    mode = mode or args.mode
    if mode == "manual" and parts.task is not TASKS["relatedness"]:
        raise UsageError("--mode manual is only for relatedness")
    optimizer = mx.optimizer.create(args.optimizer, learning_rate=args.lr, wd=args.weight_decay)
    # The optimizer runs here and not in the store, so that its state can be saved.
    parameters = parts.model.collect_params()
    trainer = gluon.Trainer(parameters, optimizer, kvstore=store, update_on_kvstore=False)
    workload = parts.task.workload(parts.model, trainer, samples)
    return Runner(workload, mode, {name: getattr(args, name) for name in BATCHING})
