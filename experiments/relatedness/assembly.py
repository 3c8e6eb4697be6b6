"""From the program's options to the parts it works with: pairs, vocabulary, model, trainer."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import gluonnlp
import mxnet as mx
from mxnet import gluon

from command import UsageError
from suite.runner import Runner
from workloads.pairs import relate

from .checkpoint import Checkpoint
from .corpora import (
    BUILT_IN,
    SPLITS,
    DataError,
    load_conllu_pairs,
    load_corpus,
    read_lines,
)
from .data import Loader, Sample, build_vocab, read_vectors
from .model import RelatednessModel
from .options import batching_options
from .training import seed_everything
from .trees import Corpus, Pair

#: What must stay as it was when a run is resumed, or it would be another run.
SETTINGS = {
    "seed": int,
    "batch_size": int,
    "optimizer": str,
    "lr": float,
    "lr_decay": float,
    "weight_decay": float,
    "hidden": int,
    "similarity_hidden": int,
    "embedding_size": int,
    "freeze_embedding": bool,
    "limit": (None, int),
}
#: What a launcher of distributed training sets for every process.
LAUNCHED = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER",
            "DMLC_NUM_SERVER")  # fmt: skip


class Assembly(NamedTuple):
    """Everything a verb works with."""

    vocab: gluonnlp.Vocab
    model: RelatednessModel
    settings: Dict[str, Any]


def read_pairs(args: argparse.Namespace, splits: Sequence[str] = SPLITS) -> Dict[str, List[Pair]]:
    """Read the pairs of some splits, and say what was skipped."""
    directory = args.data or BUILT_IN
    return _usable(load_corpus(directory, args.on_bad_sample, splits), args.limit, directory)


def read_input(args: argparse.Namespace) -> List[Pair]:
    """Read pairs without scores from the file, or the standard input, that ``--input`` names."""
    path, lines = args.input, None
    if str(path) == "-":
        path = Path("<stdin>")
        lines = read_lines(path, sys.stdin.buffer.read())
    return _usable(load_conllu_pairs(path, lines, args.on_bad_sample), args.limit, path)[""]


def _usable(corpus: Corpus, limit: Optional[int], path: Path) -> Dict[str, List[Pair]]:
    for reason in corpus.skipped:
        print(f"skipped: {reason}", file=sys.stderr)
    if corpus.skipped:
        print(f"skipped {len(corpus.skipped)} pairs", file=sys.stderr)
    for split, pairs in corpus.splits.items():
        if not pairs:
            raise DataError(path / split, 0, "no usable pairs")
    return {split: pairs[:limit] for split, pairs in corpus.splits.items()}


def fingerprint(pairs: Dict[str, List[Pair]]) -> str:
    """Tell corpora apart: 64 hexadecimal figures that depend on everything in the pairs."""
    digest = hashlib.sha256()
    for split in sorted(pairs):
        for a, tree_a, b, tree_b, score, name in pairs[split]:
            digest.update(repr((split, a, tree_a.heads, b, tree_b.heads, score, name)).encode())
    return digest.hexdigest()


def assemble(
    args: argparse.Namespace,
    pairs: Dict[str, List[Pair]],
    checkpoint: Optional[Checkpoint] = None,
) -> Assembly:
    """Build the model for some pairs: new from the options, or as a checkpoint has it."""
    if checkpoint is None:
        vocab = build_vocab(pair for split in pairs.values() for pair in split)
        settings = {name: getattr(args, name) for name in SETTINGS}
        settings["data"] = fingerprint(pairs)
        vectors = None
        if args.embedding is not None:
            vectors = read_vectors(args.embedding, vocab, args.seed)
            settings["embedding_size"] = vectors.shape[1]
        if settings["freeze_embedding"] is None:
            settings["freeze_embedding"] = vectors is not None
    else:
        checkpoint.expect({"settings": {**SETTINGS, "data": str}})
        vocab, settings, vectors = checkpoint.vocab, checkpoint.state["settings"], None
    model = RelatednessModel(
        len(vocab), settings["embedding_size"], settings["hidden"], settings["similarity_hidden"]
    )
    if checkpoint is not None:
        checkpoint.check(model)  # before a model of any size takes up memory
    seed_everything(settings["seed"], 0)
    model.initialize(mx.init.Xavier(), ctx=args.ctx)
    if settings["freeze_embedding"]:
        model.embedding.weight.grad_req = "null"
    if vectors is not None:
        model.embedding.weight.set_data(mx.nd.array(vectors))
    if checkpoint is not None:
        checkpoint.restore(model)
    return Assembly(vocab, model, settings)


def check_resumable(
    args: argparse.Namespace, pairs: Dict[str, List[Pair]], checkpoint: Checkpoint
) -> None:
    """Refuse to go on with other settings or other pairs.

    Raises
    ------
    UsageError
    CheckpointError
        If it does not say what its settings were.
    """
    checkpoint.expect({"settings": {**SETTINGS, "data": str}})
    then = checkpoint.state["settings"]
    for name in SETTINGS:
        now = getattr(args, name)
        given_by_file = name == "embedding_size" and args.embedding is not None
        if now != then[name] and not given_by_file and now is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {now} but the run to resume has {then[name]}")
    if then["data"] != fingerprint(pairs):
        raise UsageError(
            f"{checkpoint.path} was trained on other pairs; give the same --data and --limit"
        )


def open_store(name: str) -> Optional[mx.kv.KVStore]:
    """Join the other processes of distributed training; None for a store within this process.

    Raises
    ------
    UsageError
        If no launcher has started this process: MXNet would wait for the others for ever.
    """
    if not name.startswith("dist"):
        return None
    missing = [variable for variable in LAUNCHED if not os.environ.get(variable)]
    if missing:
        raise UsageError(
            f"--kvstore {name} needs a launcher such as MXNet's tools/launch.py, "
            f"which starts all processes and sets {', '.join(missing)}"
        )
    return mx.kv.create(name)


def make_runner(
    args: argparse.Namespace,
    parts: Assembly,
    mode: str = "",
    samples: Sequence[Sample] = (),
    store: Optional[mx.kv.KVStore] = None,
) -> Runner:
    """Build what runs the model in the given mode, or that of the options.

    Parameters
    ----------
    args : Namespace
    parts : Assembly
    mode : str, optional
    samples : sequence of Sample
        Of its workload.
    store : KVStore, optional
        What `open_store` gave.
    """
    workers = 1 if store is None else store.num_workers
    try:
        optimizer = mx.optimizer.create(
            args.optimizer,
            learning_rate=args.lr,
            wd=args.weight_decay,
            rescale_grad=1 / workers,  # the store adds the gradients of all processes up
        )
    except ValueError as error:
        raise UsageError(f"--optimizer: {error}") from None
    if store is None and args.kvstore.startswith("dist"):
        raise UsageError(f"--kvstore {args.kvstore} is for train")
    within = None if args.kvstore == "none" else args.kvstore
    # Updates happen here and not in the store, so that their state can be saved.
    trainer = gluon.Trainer(
        parts.model.collect_params(), optimizer, kvstore=store or within, update_on_kvstore=False
    )
    workload = relate(parts.model, trainer, samples)
    return Runner(workload, mode or args.mode, batching_options(args), args.ctx)


def make_loader(
    args: argparse.Namespace, pairs: Sequence[Pair], vocab: gluonnlp.Vocab, shuffle: bool = False
) -> Loader:
    """Serve some pairs in minibatches, as the options ask for."""
    return Loader(pairs, vocab, args.batch_size, shuffle, args.num_workers)
