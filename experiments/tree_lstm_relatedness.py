"""Child-sum Tree-LSTM on sentence relatedness: train, evaluate, predict, demo.

The task and the model are those of Tai, Socher, Manning 2015 (arXiv:1503.00075). Pairs come from a
folder (Stanford's treelstm layout, CoNLL-U, or the text of SICK with parses beside it; see
`relatedness/corpora.py`), or from a small built-in corpus.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ContextManager, List, Optional, Sequence, TextIO, Tuple

import numpy as np

import gluon_dynbatch as gdb
from command import POSITIVE, Parser, UsageError, run_program
from relatedness.assembly import (
    assemble,
    check_resumable,
    make_loader,
    make_runner,
    open_store,
    read_input,
    read_pairs,
)
from relatedness.checkpoint import CheckpointError, read_checkpoint
from relatedness.corpora import SPLITS, DataError
from relatedness.data import encode, unknown_words
from relatedness.metrics import Metrics
from relatedness.options import OUTPUT, add_options, batching_options
from relatedness.training import DivergedError, Training, evaluate
from relatedness.trees import Pair
from suite.contest import KINDS, Local, contest
from suite.tables import speeds

#: What the demo compares.
MODES = ("imperative", "hybridized", "dynamic")


def train(args: argparse.Namespace, overwrite: bool = False) -> Training:
    """Train, from the start or from the last checkpoint in the output folder."""
    if args.checkpoint is not None:
        raise UsageError("--checkpoint is not for train, which goes on from DIR/last by --resume")
    output = args.output or OUTPUT
    last = output / "last"
    if last.exists() and not args.resume and not overwrite:
        raise UsageError(f"{last} exists: --resume goes on from it, or give another --output")
    checkpoint = read_checkpoint(last) if args.resume else None
    pairs = read_pairs(args)
    if checkpoint is not None:
        check_resumable(args, pairs, checkpoint)
    batching_options(args)  # a wrong one is an error before others wait for this process
    # Only now wait for the other processes: each has looked at the folder before one writes to it.
    store = open_store(args.kvstore)
    rank, workers = (0, 1) if store is None else (store.rank, store.num_workers)
    if rank:
        output = output / f"worker-{rank}"
    parts = assemble(args, pairs, checkpoint)
    part = pairs["train"][rank::workers][: len(pairs["train"]) // workers]
    run = Training(
        make_runner(args, parts, store=store),
        make_loader(args, part, parts.vocab, shuffle=True),
        make_loader(args, pairs["dev"], parts.vocab),
        output,
        parts.settings,
        checkpoint,
    )
    print(
        f"seed {args.seed}: {len(part)} pairs to train on, {len(pairs['dev'])} held out, "
        f"{len(parts.vocab)} words; {args.mode}, minibatches of {args.batch_size}",
        flush=True,
    )
    if run.epoch >= args.epochs:
        print(f"epoch {run.epoch} of {args.epochs} is done already", file=sys.stderr)
    try:
        run.run(args.epochs)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {last} holds epoch {run.epoch}, --resume goes on", file=sys.stderr)
        raise
    return run


def _judge(args: argparse.Namespace, pairs: List[Pair]) -> Tuple[Metrics, np.ndarray]:
    """Have a checkpoint's model score some pairs; say how many words it does not know."""
    if args.resume:
        raise UsageError("--resume is for train")
    if args.checkpoint is None:
        raise UsageError("--checkpoint is needed: a file that train wrote, such as DIR/best")
    parts = assemble(args, {"": pairs}, read_checkpoint(args.checkpoint))
    unknown, words = unknown_words(pairs, parts.vocab)
    if unknown:
        print(
            f"{unknown} of {words} words are not in the vocabulary of {args.checkpoint}; they "
            "share its vector for unknown words",
            file=sys.stderr,
        )
    return evaluate(make_runner(args, parts), make_loader(args, pairs, parts.vocab))


def run_evaluate(args: argparse.Namespace) -> None:
    """Print Pearson, Spearman and MSE of a checkpoint on a split."""
    metrics, _ = _judge(args, read_pairs(args, (args.split,))[args.split])
    print(f"{args.split}: {metrics}")


def run_predict(args: argparse.Namespace) -> None:
    """Write "id<TAB>score" for every pair, to standard output or the output folder."""
    if args.input is None:
        split = args.split or "test"
        pairs = read_pairs(args, (split,))[split]
    elif args.split or args.data:
        raise UsageError("--input takes the place of --data and --split")
    else:
        pairs = read_input(args)
    _, scores = _judge(args, pairs)
    target: ContextManager[TextIO] = nullcontext(sys.stdout)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        target = (args.output / "predictions.tsv").open("w", encoding="utf-8")
    with target as file:
        for pair, score in zip(pairs, scores):
            file.write(f"{pair.name}\t{score:.4f}\n")
        file.flush()


def run_demo(args: argparse.Namespace) -> None:
    """Train on the built-in corpus, show what one flush did, compare the speeds."""
    run = train(args, overwrite=True)
    print(f"\nThe best epoch has a held-out Pearson correlation of {run.best:.3f}.")
    print(f"Checkpoints, metrics and the learning curve are in {args.output}.")
    print(f"\nOne flush of {args.batch_size} pairs, inference:")
    runner = run.runner
    samples = encode(run.dev.pairs[: args.batch_size], run.dev.vocab, args.ctx[0])
    with gdb.batching(**runner.options) as batch:
        for sample in samples:
            runner.workload.score(sample)
    print(batch.report)
    print("\nThe same model and pairs, three ways:\n")
    size = min(args.pairs, len(run.train.pairs))
    samples = encode(run.train.pairs, run.train.vocab, args.ctx[0])
    contenders = [
        Local(make_runner(args, assemble(args, {"": run.train.pairs}), mode, samples), mode)
        for mode in MODES
    ]
    fresh = contenders[-1].workload.minibatches(size, args.seed)
    for kind in KINDS:
        outcome = contest(contenders, fresh, kind, size, args.rounds)
        print(speeds(f"pairs per second, {kind}", [outcome]).markdown())


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = Parser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.required = True

    def add(name: str, run: Any, summary: str, **defaults: Any) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary)
        add_options(verb, run=run, **defaults)
        verb.add_argument("--resume", action="store_true", help="go on from the last epoch")
        return verb

    add("train", train, "train a model")
    verb = add("evaluate", run_evaluate, "print r, rho and MSE of a checkpoint", batch_size=256)
    verb.add_argument("--split", choices=SPLITS, default="test")
    verb = add("predict", run_predict, "write id<TAB>score for every pair", batch_size=256)
    verb.add_argument("--split", choices=SPLITS, help="default test")
    verb.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help='CoNLL-U with sentences two by two, "-" for standard input, in place of '
        "a split; a comment # pair_id = NAME names a pair",
    )
    verb = add("demo", run_demo, "train on the built-in corpus and compare speeds",
               output=Path("runs/demo"), epochs=6, lr_decay=1.0, weight_decay=1e-4)  # fmt: skip
    for option, kind, default, text in (
        ("--pairs", POSITIVE, 64, "in a minibatch that is timed"),
        ("--rounds", POSITIVE, 3, "of all three ways"),
    ):
        text = f"{text} (default {default})"
        verb.add_argument(option, type=kind, default=default, metavar="N", help=text)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program."""
    args = make_parser().parse_args(argv)
    return run_program(lambda: _run(args), DataError, CheckpointError, DivergedError)


def _run(args: argparse.Namespace) -> None:
    try:
        args.run(args)
    except multiprocessing.TimeoutError:
        reason = "a worker process sends no minibatches; try a smaller --num-workers"
        raise UsageError(reason) from None


if __name__ == "__main__":
    sys.exit(main())
