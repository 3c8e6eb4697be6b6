"""Child-sum Tree-LSTM on sentence relatedness: train, evaluate, predict, benchmark, demo.

The task and the model are those of Tai, Socher, Manning 2015 (arXiv:1503.00075). Pairs come from a
folder in the layout of Stanford's treelstm distribution (SICK), or from a small built-in corpus.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import gluonnlp
import mxnet as mx
from mxnet import gluon

import gluon_dynbatch as gdb
from relatedness import benchmark
from relatedness.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from relatedness.data import (
    SPLITS,
    DataError,
    Sample,
    build_vocab,
    encode,
    load_corpus,
    read_vectors,
)
from relatedness.grammar import make_corpus
from relatedness.model import RelatednessModel
from relatedness.options import OUTPUT, add_options, at_least, batching_options
from relatedness.running import Runner
from relatedness.training import DivergedError, Training, evaluate, seed_everything
from relatedness.trees import Pair

#: What must stay as it was when a run is resumed, or it would be another run.
SETTINGS = ("seed", "batch_size", "optimizer", "lr", "weight_decay", "hidden", "similarity_hidden",
            "embedding_size", "freeze_embedding", "limit")  # fmt: skip


class UsageError(ValueError):
    """Options that do not go together."""


class Assembly(NamedTuple):
    """Everything a verb works with."""

    pairs: Dict[str, List[Pair]]
    vocab: gluonnlp.Vocab
    model: RelatednessModel
    settings: Dict[str, Any]

    def samples(self, split: str) -> List[Sample]:
        """Encode a split; batches move the arrays to where they are computed with."""
        return encode(self.pairs[split], self.vocab, mx.cpu())


def read_pairs(args: argparse.Namespace, splits: Sequence[str] = SPLITS) -> Dict[str, List[Pair]]:
    """Read or make the pairs of some splits, and say what was skipped."""
    if args.data is None:
        corpus = make_corpus()
    else:
        corpus = load_corpus(args.data, args.on_bad_sample, splits)
    for reason in corpus.skipped:
        print(f"skipped: {reason}", file=sys.stderr)
    if corpus.skipped:
        print(f"skipped {len(corpus.skipped)} pairs", file=sys.stderr)
    pairs = {split: corpus.splits[split][: args.limit] for split in splits}
    empty = [split for split, rows in pairs.items() if not rows]
    if empty:
        raise DataError(args.data / empty[0], 0, "no usable pairs")
    return pairs


def assemble(
    args: argparse.Namespace,
    checkpoint: Optional[Checkpoint] = None,
    splits: Sequence[str] = SPLITS,
) -> Assembly:
    """Read the data and build the model: new from the options, or as a checkpoint has it."""
    pairs = read_pairs(args, splits)
    if checkpoint is None:
        vocab = build_vocab(pair for split in pairs.values() for pair in split)
        settings = {name: getattr(args, name) for name in SETTINGS}
        vectors = None
        if args.embedding is not None:
            vectors = read_vectors(args.embedding, vocab, args.seed)
            settings["embedding_size"] = vectors.shape[1]
        if settings["freeze_embedding"] is None:
            settings["freeze_embedding"] = vectors is not None
    else:
        vocab, settings, vectors = checkpoint.vocab, checkpoint.state["settings"], None
    model = RelatednessModel(
        len(vocab), settings["embedding_size"], settings["hidden"], settings["similarity_hidden"]
    )
    seed_everything(settings["seed"], 0)
    model.initialize(mx.init.Xavier(), ctx=args.ctx)
    if settings["freeze_embedding"]:
        model.embedding.weight.grad_req = "null"
    if vectors is not None:
        model.embedding.weight.set_data(mx.nd.array(vectors))
    if checkpoint is not None:
        checkpoint.restore(model)
    return Assembly(pairs, vocab, model, settings)


def make_trainer(args: argparse.Namespace, model: RelatednessModel) -> gluon.Trainer:
    """Build the trainer that the options ask for."""
    try:
        optimizer = mx.optimizer.create(args.optimizer, learning_rate=args.lr, wd=args.weight_decay)
    except ValueError as error:
        raise UsageError(f"--optimizer: {error}") from None
    store = None if args.kvstore == "none" else args.kvstore
    return gluon.Trainer(model.collect_params(), optimizer, kvstore=store)


def train(args: argparse.Namespace, overwrite: bool = False) -> Training:
    """Train, from the start or from the last checkpoint in the output folder."""
    output = args.output or OUTPUT
    last = output / "last"
    if args.resume:
        checkpoint = read_checkpoint(last)
        _check_settings(args, checkpoint)
    elif last.exists() and not overwrite:
        raise UsageError(f"{last} exists: --resume goes on from it, or give another --output")
    else:
        checkpoint = None
    parts = assemble(args, checkpoint)
    runner = Runner(parts.model, args.mode, batching_options(args), args.ctx)
    trainer = make_trainer(args, parts.model)
    run = Training(runner, trainer, parts.vocab, output, parts.settings, checkpoint)
    try:
        run.run(parts.samples("train"), parts.samples("dev"), args.epochs)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {last} holds epoch {run.epoch}, --resume goes on", file=sys.stderr)
        raise
    return run


def _check_settings(args: argparse.Namespace, checkpoint: Checkpoint) -> None:
    then = checkpoint.state["settings"]
    for name in SETTINGS:
        now = getattr(args, name)
        given_by_file = name == "embedding_size" and args.embedding is not None
        if now != then[name] and not given_by_file and now is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {now} but the run to resume has {then[name]}")


def _scores(args: argparse.Namespace) -> Any:
    if args.checkpoint is None:
        raise UsageError("--checkpoint is needed: a file that train wrote, such as DIR/best")
    parts = assemble(args, read_checkpoint(args.checkpoint), (args.split,))
    runner = Runner(parts.model, args.mode, batching_options(args), args.ctx)
    samples = parts.samples(args.split)
    return samples, evaluate(runner, samples, args.batch_size)


def run_evaluate(args: argparse.Namespace) -> None:
    """Print Pearson, Spearman and MSE of a checkpoint on a split."""
    _, (metrics, _) = _scores(args)
    print(f"{args.split}: {metrics}")


def run_predict(args: argparse.Namespace) -> None:
    """Write "id<TAB>score" for every pair of a split, to standard output or the output folder."""
    samples, (_, scores) = _scores(args)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        target: Any = (args.output / "predictions.tsv").open("w", encoding="utf-8")
    else:
        target = nullcontext(sys.stdout)
    with target as file:
        for sample, score in zip(samples, scores):
            file.write(f"{sample.name}\t{score:.4f}\n")


def run_benchmark(args: argparse.Namespace) -> Dict[str, Any]:
    """Time the modes side by side; print the table, write JSON if asked to."""
    checkpoint = read_checkpoint(args.checkpoint) if args.checkpoint is not None else None
    contenders = []
    for mode in ("imperative", "hybridized", "dynamic"):
        parts = assemble(args, checkpoint)
        start = {
            name: parameter.data(args.ctx[0]).copy()
            for name, parameter in parts.model.collect_params().items()
        }
        runner = Runner(parts.model, mode, batching_options(args), args.ctx)
        trainer = make_trainer(args, parts.model)
        contenders.append(benchmark.Contender(runner, trainer, start))
    samples = parts.samples("train")[: args.pairs]
    result = benchmark.compare(contenders, samples, args.batch_size, args.rounds, args.warmup)
    print(f"{len(samples)} pairs in minibatches of {args.batch_size}, "
          f"median of {args.rounds} interleaved rounds")
    print(benchmark.table(result))
    if args.json is not None:
        settings = {name: str(value) for name, value in vars(args).items() if name != "run"}
        content = {"environment": benchmark.environment(), "settings": settings, **result}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return result


def run_demo(args: argparse.Namespace) -> None:
    """Train on the built-in corpus, show what one flush did, compare the speeds."""
    run = train(args, overwrite=True)
    print(f"\nThe best epoch has a held-out Pearson correlation of {run.best:.3f}.")
    print(f"Checkpoints, metrics and the learning curve are in {args.output}.")
    print(f"\nOne flush of {args.batch_size} pairs, inference:")
    runner = run.runner
    samples = encode(read_pairs(args)["dev"][: args.batch_size], run.vocab, args.ctx[0])
    with gdb.batching(**runner.options) as batch:
        for sample in samples:
            runner.model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)
    print(batch.report)
    print("\nThe same model and pairs, three ways:")
    args.batch_size = args.pairs
    run_benchmark(args)


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.required = True

    def add(name: str, run: Any, summary: str, **defaults: Any) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary)
        add_options(verb, run=run, **defaults)
        return verb

    add("train", train, "train a model")
    for name, run, summary in (
        ("evaluate", run_evaluate, "print r, rho and MSE of a checkpoint"),
        ("predict", run_predict, "write id<TAB>score for every pair"),
    ):
        verb = add(name, run, summary, batch_size=256)
        verb.add_argument("--split", choices=SPLITS, default="test")
    timed = (
        add("benchmark", run_benchmark, "time the modes side by side", batch_size=256),
        add("demo", run_demo, "train on the built-in corpus and compare speeds",
            output=Path("runs/demo"), epochs=6),
    )
    # The controller behind "auto" times some twenty flushes before it settles.
    for verb, pairs, rounds, warmup in zip(timed, (256, 64), (5, 3), (12.0, 4.0)):
        verb.add_argument("--pairs", type=at_least(int, 1), default=pairs, metavar="N",
                          help=f"pairs to time (default {pairs})")
        verb.add_argument("--rounds", type=at_least(int, 1), default=rounds, metavar="N")
        verb.add_argument("--warmup", type=at_least(float, 0), default=warmup,
                          metavar="SECONDS", help="untimed running of each mode before the "
                          f"first round (default {warmup:g})")
        verb.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program; errors that the user can mend are one line, without a trace."""
    args = make_parser().parse_args(argv)
    try:
        args.run(args)
    except (UsageError, DataError, CheckpointError, DivergedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (gdb.BudgetError, gdb.OptionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
