"""The options of the benchmark."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import List, Sequence

from command import POSITIVE, Parser, at_least, listed
from peers.registry import PEERS, PYTHON
from peers.registry import SIZES as PEERS_SIZES
from relatedness.options import add_options

from .contenders import RAGGED

#: Options that the training program has, too.
SHARED = ("--data", "--on-bad-sample", "--embedding", "--embedding-size", "--hidden", "--seed",
          "--analysis-budget", "--granularity", "--policy")  # fmt: skip
_SECONDS = at_least(float, 0)
#: Option, type, default, default with --quick (too short and too noisy to tell anybody), help.
OPTIONS = (
    ("--rounds", POSITIVE, 5, 3, "of all ways"),
    ("--seconds", _SECONDS, 0.4, 0.2, "about how long a turn is, at least one minibatch"),
    ("--warmup", _SECONDS, 60.0, 10.0, "seconds that each may run untimed to settle"),
    ("--loop-pairs", POSITIVE, 32, 8, "minibatches of the loops over samples are cut to so many, "
     "as their time per sample does not depend on it"),
    ("--fresh-size", POSITIVE, 256, 256, "minibatches in fresh processes, which tell memory"),
    ("--fresh-minibatches", POSITIVE, 60, 8, "how many these run, all of them new"),
    ("--recordings", POSITIVE, 15, 3, "minibatches to time recording with"),
    ("--workload-size", POSITIVE, 64, 16, "sentences in a minibatch of the workloads"),
    ("--workload-minibatches", POSITIVE, 8, 2, "of a turn; of the loops it is one"),
)  # fmt: skip
SIZES, QUICK_SIZES = [2**i for i in range(11)], [1, 16, 256]
#: Sizes of the model of sentence pairs; other workloads have their own.
OWN_SIZES = {"embedding_size": 300, "hidden": 150}


def own_threads() -> str:
    """Say how many OpenMP threads the environment of this process asks for."""
    return os.environ.get("OMP_NUM_THREADS") or "all"


def _workloads(text: str) -> List[str]:
    return [] if text == "none" else listed(str, RAGGED)(text)


def _batch_sizes(text: str) -> List[int]:
    return sorted(listed(POSITIVE)(text))


def _threads(text: str) -> List[str]:
    return list(map(str, listed(POSITIVE)(text)))


def parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Read the command line; what is not offered here is as the training program has it.

    ``sizes`` of the result has the sizes that are given for all models.
    """
    parser = Parser(description=description, allow_abbrev=False)
    add_options(parser, SHARED, freeze_embedding=True, **dict.fromkeys(OWN_SIZES))
    add = parser.add_argument
    add("--wikiner", type=Path, metavar="DIR", help="sentences for the workload sequences")
    add("--sst", type=Path, metavar="DIR", help="trees for the workload sst")
    text = "draw minibatches from the first N training pairs or sentences (default: all)"
    add("--pairs", type=POSITIVE, dest="limit", metavar="N", help=text)
    quick = "--quick" in argv
    for option, kind, default, shorter, text in OPTIONS:
        text = f"{text} (default {default})"
        add(option, type=kind, default=shorter if quick else default, metavar="N", help=text)
    for option, kind, default, text in (
        ("--threads", _threads, [own_threads()], "of OpenMP; a process for each, if it is not just "
         "that of this one (default)"),
        ("--batch-sizes", _batch_sizes, None,
         "of pairs (default 1,2,4,...,1024; with --peers 32,256)"),
        ("--workloads", _workloads, list(RAGGED), f'{",".join(RAGGED)} (default), or "none"'),
    ):  # fmt: skip
        add(option, type=kind, default=default, metavar="X,X,...", help=text)
    add("--quick", action="store_true", help="some minutes: few sizes, short rounds")
    for option, text in (
        ("--json", "write every figure there"),
        ("--picture", "draw PNG and SVG there, and the bars beside it"),
        ("--read", "measure nothing; show and draw what --json wrote earlier"),
        ("--collect", argparse.SUPPRESS),
    ):
        add(option, type=Path, metavar="FILE", help=text)
    add("--fresh", nargs=2, help=argparse.SUPPRESS)
    text = f"time nothing but ours and other systems, in turns: {','.join(PEERS)} (default: all)"
    add("--peers", type=listed(str, tuple(PEERS)), nargs="?", const=list(PEERS), metavar="X,X,...",
        help=text)  # fmt: skip
    text = "runs the peers (default: what make peers builds)"
    add("--peers-python", type=Path, default=PYTHON, metavar="FILE", help=text)
    args = parser.parse_args(argv)
    if args.batch_sizes is None:
        args.batch_sizes = QUICK_SIZES if quick else SIZES if args.peers is None else PEERS_SIZES
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    args.sizes = {name: size for name, size in given.items() if size is not None}
    for name, size in OWN_SIZES.items():
        vars(args)[name] = getattr(args, name) or size
    return args
