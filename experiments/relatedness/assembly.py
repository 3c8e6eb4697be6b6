"""From the program's options to the parts it works with: data, vocabulary, model, trainer."""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import gluonnlp
import mxnet as mx
from mxnet import gluon

from command import UsageError
from suite.runner import Runner
from workloads.base import Sample
from workloads.text import count_words, encode, read_vectors

from .checkpoint import Checkpoint
from .distributed import launched
from .options import TASKS, batching_options
from .training import Data, seed_everything

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

    def data(self, args: argparse.Namespace, items: Sequence[Any]) -> Data:
        """Make samples of some items."""
        return Data(self.task, items, encode(items, self.vocab, args.ctx), args.batch_size)


def fingerprint(items: Dict[str, List[Any]]) -> str:
    """Tell data apart: 64 hexadecimal figures that depend on everything in them."""
    digest = hashlib.sha256()
    for split in sorted(items):
        for item in items[split]:
            digest.update(repr((split, item)).encode())
    return digest.hexdigest()


def assemble(args: argparse.Namespace, items: Dict[str, List[Any]]) -> Assembly:
    """Build a new model for some data, as the options say."""
    task = TASKS[args.task]
    vocab = count_words(item.words for split in items.values() for item in split)
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["data"] = fingerprint(items)
    vectors = None
    if args.embedding is not None:
        vectors, known = read_vectors(args.embedding, vocab, args.seed)
        settings["embedding_size"] = vectors.shape[1]
        print(f"{args.embedding} has {known} of {len(vocab)} words", file=sys.stderr)
    if settings["freeze_embedding"] is None:
        settings["freeze_embedding"] = vectors is not None
    model = task.model(len(vocab), settings, _sparse(args.optimizer))
    _initialize(model, settings, args.ctx)
    if vectors is not None:
        model.embedding.weight.set_data(mx.nd.array(vectors))
    return Assembly(task, vocab, model, settings)


def restored(checkpoint: Checkpoint, ctx: Optional[mx.Context] = None) -> Assembly:
    """Build the model of a checkpoint."""
    with checkpoint.understood():
        settings = checkpoint.state["settings"]
        task = TASKS[settings["task"]]
        model = task.model(len(checkpoint.vocab), settings, _sparse(settings["optimizer"]))
        checkpoint.check(model)  # before a model of any size takes up memory
        _initialize(model, settings, ctx or mx.cpu())
    checkpoint.restore(model)
    return Assembly(task, checkpoint.vocab, model, settings)


def _sparse(optimizer: str) -> bool:
    """Whether gradients of word vectors may be sparse: no store sums such, nor all optimizers."""
    return not launched() and optimizer in ("adagrad", "adam", "sgd")


def _initialize(model: gluon.Block, settings: Dict[str, Any], ctx: mx.Context) -> None:
    seed_everything(settings["seed"], 0)
    model.initialize(mx.init.Xavier(), ctx=ctx)
    model.embedding.weight.lr_mult = settings["embedding_lr"]
    if settings["freeze_embedding"]:
        model.embedding.weight.grad_req = "null"


def check_resumable(
    args: argparse.Namespace, items: Dict[str, List[Any]], checkpoint: Checkpoint
) -> None:
    """Refuse to go on with other settings or other data.

    Raises
    ------
    UsageError
    CheckpointError
        If it does not say what its settings were.
    """
    with checkpoint.understood():
        then = {name: checkpoint.state["settings"][name] for name in (*SETTINGS, "data")}
    for name in SETTINGS:
        now = getattr(args, name)
        given_by_file = name == "embedding_size" and args.embedding is not None
        if now != then[name] and not given_by_file and now is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {now} but the run to resume has {then[name]}")
    if then["data"] != fingerprint(items):
        raise UsageError(
            f"{checkpoint.path} was trained on other data; give the same --data and --limit"
        )


def make_runner(
    args: argparse.Namespace,
    parts: Assembly,
    mode: str = "",
    samples: Sequence[Sample] = (),
    store: Optional[Any] = None,
) -> Runner:
    """Build what runs the model in the given mode, or that of the options.

    `samples` are those of its workload, `store` sums the gradients of several processes.
    """
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
