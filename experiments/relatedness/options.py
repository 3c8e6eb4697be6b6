"""The options that all verbs of the program share, and their checks."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn

import mxnet as mx

import gluon_dynbatch as gdb

from .data import LAYOUTS
from .running import MODES

KVSTORES = ("none", "local", "device", "dist_sync")
OUTPUT = Path("runs/relatedness")


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake by one line; the usage of all options would bury it."""

    def error(self, message: str) -> NoReturn:  # noqa: D102
        self.exit(2, f"error: {message} (for all options: {self.prog} --help)\n")


def at_least(kind: Callable[[str], Any], least: float, exclusive: bool = False) -> Any:
    """Make an argparse type for numbers not below `least` (or only above it)."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        if not (value > least if exclusive else value >= least):
            sign = "greater than" if exclusive else "at least"
            raise argparse.ArgumentTypeError(f"{text} is not {sign} {least}")
        return value

    parse.__name__ = kind.__name__
    return parse


POSITIVE = at_least(int, 1)


def contexts(text: str) -> List[mx.Context]:
    """Read contexts such as "cpu", "gpu(0)" or "gpu(0),gpu(1)"."""
    found = []
    for name in text.split(","):
        match = re.fullmatch(r"\s*(cpu|gpu)(?:\((\d+)\))?\s*", name)
        if match is None:
            raise argparse.ArgumentTypeError(f'{name!r} is no context; say "cpu" or "gpu(0)"')
        kind, number = match.group(1), int(match.group(2) or 0)
        if kind == "gpu" and number >= mx.context.num_gpus():
            raise argparse.ArgumentTypeError(f"MXNet finds no {name.strip()} here")
        context = mx.Context(kind, number)
        if context in found:
            raise argparse.ArgumentTypeError(f"{context} is named twice")
        found.append(context)
    return found


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add the shared options; `defaults` replaces those that differ for a verb."""
    _add_data_options(parser.add_argument_group("data"))
    _add_model_options(parser.add_argument_group("model"))
    training = parser.add_argument_group("training")
    _add_training_options(training)
    _add_optimizer_options(training)
    _add_batching_options(parser.add_argument_group("batching"))
    _add_file_options(parser.add_argument_group("files"))
    parser.set_defaults(**defaults)


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="pairs in a layout listed below; without it, the built-in corpus",
    )
    group.add_argument(
        "--layout",
        choices=("auto", *LAYOUTS),
        default="auto",
        help="scores of the split itself, or of the text of SICK (sick-...), and "
        "parses as .toks/.parents or .conllu; by default told from the files",
    )
    group.add_argument(
        "--on-bad-sample",
        choices=("error", "skip"),
        default="error",
        help="stop at a pair that cannot be used, or leave it out and say so",
    )
    group.add_argument("--limit", type=POSITIVE, metavar="N", help="first N pairs of every split")
    group.add_argument("--embedding", type=Path, metavar="FILE", help="word vectors, GloVe text")
    group.add_argument(
        "--freeze-embedding",
        action="store_true",
        default=None,
        help="do not train the word vectors (default if --embedding is given)",
    )
    group.add_argument(
        "--no-freeze-embedding",
        action="store_false",
        dest="freeze_embedding",
        help="train the word vectors",
    )


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--embedding-size",
        type=POSITIVE,
        default=300,
        metavar="N",
        help="without --embedding (default 300)",
    )
    group.add_argument("--hidden", type=POSITIVE, default=150, metavar="N", help="default 150")
    group.add_argument(
        "--similarity-hidden",
        type=POSITIVE,
        default=50,
        metavar="N",
        help="hidden layer of the relatedness head (default 50)",
    )


def _add_training_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch-size", type=POSITIVE, default=25, metavar="N")
    group.add_argument(
        "--num-workers",
        type=at_least(int, 0),
        default=0,
        metavar="N",
        help="processes that encode minibatches ahead (default 0: none)",
    )
    group.add_argument(
        "--epochs",
        type=POSITIVE,
        default=12,
        metavar="N",
        help="the best on the held-out pairs is kept (default 12)",
    )
    group.add_argument("--seed", type=at_least(int, 0), default=1)
    group.add_argument(
        "--ctx",
        type=contexts,
        default=[mx.cpu()],
        metavar="CTX",
        help='"cpu" (default), "gpu(0)", or several with commas between',
    )
    group.add_argument(
        "--kvstore",
        choices=KVSTORES,
        default="device",
        help="how gradients are summed over contexts (default device), or, "
        "with dist_sync and a launcher, over processes",
    )


def _add_optimizer_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--optimizer",
        default="adagrad",
        metavar="NAME",
        help="any of MXNet's optimizers (default adagrad)",
    )
    group.add_argument(
        "--lr",
        type=at_least(float, 0, exclusive=True),
        default=0.05,
        help="learning rate of the first epoch (default 0.05)",
    )
    group.add_argument(
        "--lr-decay",
        type=at_least(float, 0, exclusive=True),
        default=0.8,
        help="each epoch has this times the rate of the one before (default 0.8)",
    )
    # MXNet's AdaGrad takes it from the weights themselves, not through the gradient's history: for
    # the strength of an L2 term of 1e-4 in the gradient, as in the paper, it has to be larger.
    group.add_argument(
        "--weight-decay",
        type=at_least(float, 0),
        default=0.03,
        help="of the weights, times the learning rate (default 0.03)",
    )


def _add_batching_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--mode", choices=MODES, default="dynamic")
    group.add_argument(
        "--analysis-budget",
        default="auto",
        metavar="MS",
        help='milliseconds per flush, "none" for no limit, or "auto"',
    )
    group.add_argument(
        "--granularity", default="auto", help='"graph", "block", "operator" or "auto"'
    )
    group.add_argument("--policy", default="auto", help='"depth", "agenda", "search" or "auto"')


def _add_file_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"where train writes (default {OUTPUT}), and predict if given",
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="a checkpoint that train wrote, such as DIR/best; it brings the "
        "options of the model, the vocabulary and its vectors",
    )
    group.add_argument("--resume", action="store_true", help="go on from the output's last epoch")


def batching_options(args: argparse.Namespace) -> Dict[str, Any]:
    """Options of `gluon_dynbatch.batching` as given on the command line; checked there."""
    options = {
        "analysis_budget": args.analysis_budget,
        "granularity": args.granularity,
        "policy": args.policy,
    }
    gdb.batching(**options)
    return options
