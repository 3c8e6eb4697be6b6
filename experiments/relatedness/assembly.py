"""From the program's options to the parts it works with: data, vocabulary, model, trainer."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import gluonnlp
import mxnet as mx
from mxnet import gluon

from command import UsageError
from suite.runner import Runner
from workloads.pairs import usable

from .checkpoint import Checkpoint
from .corpora import SPLITS, load_conllu_pairs, read_lines
from .data import Loader, Task, read_vectors
from .distributed import Group
from .options import TASKS, batching_options
from .training import seed_everything
from .trees import Pair

#: What must stay as it was when a run is resumed, or it would be another run.
SETTINGS = ("task", "seed", "batch_size", "optimizer", "lr", "lr_decay", "embedding_lr",
            "weight_decay", "hidden", "similarity_hidden", "dropout", "embedding_size",
            "freeze_embedding", "limit")  # fmt: skip


class Assembly(NamedTuple):
    """Everything a verb works with."""

    task: Task
    vocab: gluonnlp.Vocab
    model: gluon.Block
    settings: Dict[str, Any]


def read_items(
    args: argparse.Namespace, splits: Sequence[str] = SPLITS, task: str = ""
) -> Dict[str, List[Any]]:
    """Read what the task is about: some splits."""
    return TASKS[task or args.task].read(args, splits)


def read_input(args: argparse.Namespace) -> List[Pair]:
    """Read pairs without scores from the file, or the standard input, that ``--input`` names."""
    path, lines = args.input, None
    if str(path) == "-":
        path = Path("<stdin>")
        lines = read_lines(path, sys.stdin.buffer.read())
    return usable(load_conllu_pairs(path, lines, args.on_bad_sample), path)[""][: args.limit]


def fingerprint(items: Dict[str, List[Any]]) -> str:
    """Tell data apart: 64 hexadecimal figures that depend on everything in them."""
    digest = hashlib.sha256()
    for split in sorted(items):
        for item in items[split]:
            digest.update(repr((split, item)).encode())
    return digest.hexdigest()


def assemble(
    args: argparse.Namespace,
    items: Dict[str, List[Any]],
    checkpoint: Optional[Checkpoint] = None,
) -> Assembly:
    """Build the model for some data: new from the options, or as a checkpoint has it."""
    if checkpoint is not None:
        with checkpoint.understood():
            settings = checkpoint.state["settings"]
            task = TASKS[settings["task"]]
            model = task.model(len(checkpoint.vocab), settings, _sparse(args))
            checkpoint.check(model)  # before a model of any size takes up memory
            _initialize(model, settings, args.ctx)
        checkpoint.restore(model)
        return Assembly(task, checkpoint.vocab, model, settings)
    task = TASKS[args.task]
    vocab = task.vocab(item for split in items.values() for item in split)
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["data"] = fingerprint(items)
    vectors = None
    if args.embedding is not None:
        vectors, known = read_vectors(args.embedding, vocab, args.seed)
        settings["embedding_size"] = vectors.shape[1]
        print(f"{args.embedding} has {known} of {len(vocab)} words", file=sys.stderr)
    if settings["freeze_embedding"] is None:
        settings["freeze_embedding"] = vectors is not None
    model = task.model(len(vocab), settings, _sparse(args))
    _initialize(model, settings, args.ctx)
    if vectors is not None:
        model.embedding.weight.set_data(mx.nd.array(vectors))
    return Assembly(task, vocab, model, settings)


def _sparse(args: argparse.Namespace) -> bool:
    """Whether gradients of word vectors may be sparse: no store sums such, nor all optimizers."""
    alone = len(args.ctx) == 1 and not getattr(args, "kvstore", "dist").startswith("dist")
    return alone and args.optimizer in ("adagrad", "adam", "sgd")


def _initialize(model: gluon.Block, settings: Dict[str, Any], ctx: List[mx.Context]) -> None:
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
    samples: Sequence[Any] = (),
    group: Optional[Group] = None,
) -> Runner:
    """Build what runs the model in the given mode, or that of the options.

    Parameters
    ----------
    args : Namespace
    parts : Assembly
    mode : str, optional
    samples : sequence
        Of its workload.
    group : Group, optional
        Processes that train together.
    """
    mode = mode or args.mode
    if mode == "manual" and parts.task is not TASKS["relatedness"]:
        raise UsageError("--mode manual is for relatedness")
    try:
        optimizer = mx.optimizer.create(args.optimizer, learning_rate=args.lr, wd=args.weight_decay)
    except ValueError as error:
        raise UsageError(f"--optimizer: {error}") from None
    distributed = args.kvstore.startswith("dist")
    if distributed and group is None:
        raise UsageError(f"--kvstore {args.kvstore} is for train")
    within = None if args.kvstore == "none" else args.kvstore
    # Updates happen here and not in the store, so that their state can be saved.
    trainer = gluon.Trainer(
        parts.model.collect_params(), optimizer, update_on_kvstore=False,
        kvstore=group.store if group is not None and distributed else within,
    )  # fmt: skip
    workload = parts.task.workload(parts.model, trainer, samples)
    return Runner(workload, mode, batching_options(args), args.ctx)


def make_loader(
    args: argparse.Namespace, parts: Assembly, items: Sequence[Any], shuffle: bool = False
) -> Loader:
    """Serve some data in minibatches, as the options ask for."""
    return Loader(parts.task, items, parts.vocab, args.batch_size, shuffle, args.num_workers)
