"""The options of the benchmark."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, List, Sequence

from command import Parser, at_least, listed
from relatedness.options import add_options

from .contenders import RAGGED

#: What is measured without options.
DEFAULTS = {
    "batch_sizes": [2**i for i in range(11)],
    "rounds": 5,
    "seconds": 0.4,
    "warmup": 60.0,
    "loop_pairs": 32,
    "fresh_size": 256,
    "fresh_minibatches": 60,  # "auto" has settled by then
    "recordings": 15,
    "workloads": list(RAGGED),
    "workload_size": 64,
    "workload_minibatches": 8,
    "freeze_embedding": True,
}
#: What --quick takes the place of: too short and too noisy to tell anybody.
QUICK = {
    "batch_sizes": [1, 16, 256],
    "rounds": 3,
    "seconds": 0.2,
    "warmup": 10.0,
    "loop_pairs": 8,
    "fresh_minibatches": 8,
    "recordings": 3,
    "workload_size": 16,
    "workload_minibatches": 2,
}


def own_threads() -> str:
    """Say how many OpenMP threads the environment of this process asks for."""
    return os.environ.get("OMP_NUM_THREADS") or "all"


def _workloads(text: str) -> List[str]:
    return [] if text == "none" else listed(str, RAGGED)(text)


def _batch_sizes(text: str) -> List[int]:
    return sorted(listed(at_least(int, 1))(text))


def _threads(text: str) -> List[str]:
    return [str(count) for count in listed(at_least(int, 1))(text)]


def parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Read the command line; what is not offered here is as the training program has it.

    ``sizes`` of the result has the sizes that are given for all models.
    """
    parser = Parser(description=description, allow_abbrev=False)
    _add_data(parser.add_argument_group("data and models"))
    batching = parser.add_argument_group("gluon_dynbatch")
    for option in ("--analysis-budget", "--granularity", "--policy"):
        batching.add_argument(option, help="default auto")
    _add_timing(parser.add_argument_group("timing"))
    files = parser.add_argument_group("files")
    for option, text in (
        ("--json", "write every figure there"),
        ("--picture", "draw PNG and SVG there, and the bars beside it"),
        ("--read", "measure nothing; show and draw what --json wrote earlier"),
    ):
        files.add_argument(option, type=Path, metavar="FILE", help=text)
    parser.add_argument("--fresh", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    program = Parser()
    add_options(program)
    args = program.parse_args([])
    own_sizes = {"embedding_size": args.embedding_size, "hidden": args.hidden}
    vars(args).update(DEFAULTS, **(QUICK if "--quick" in argv else {}), threads=[own_threads()])
    vars(args).update(dict.fromkeys(own_sizes))
    args = parser.parse_args(argv, args)
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    args.sizes = {name: size for name, size in given.items() if size is not None}
    for name, size in own_sizes.items():
        vars(args)[name] = size if getattr(args, name) is None else getattr(args, name)
    return args


def _add_data(group: Any) -> None:
    positive, add = at_least(int, 1), group.add_argument
    add("--data", type=Path, metavar="DIR", help="without it, the built-in corpus")
    add("--embedding", type=Path, metavar="FILE", help="word vectors, GloVe text")
    add(
        "--freeze-embedding",
        action="store_true",
        help="do not train the word vectors (default: a dense gradient of the whole table per "
        "sample would slow the loops over samples beyond measure)",
    )
    add("--no-freeze-embedding", action="store_false", dest="freeze_embedding")
    add("--wikiner", type=Path, metavar="DIR", help="sentences for the workload sequences")
    add("--sst", type=Path, metavar="DIR", help="trees for the workload sst")
    add("--embedding-size", type=positive, metavar="N", help="default 300, sequences 100")
    add("--hidden", type=positive, metavar="N", help="default 150, sequences 128")
    text = "draw minibatches from the first N training pairs or sentences (default: all)"
    add("--pairs", type=positive, dest="limit", metavar="N", help=text)
    add("--seed", type=at_least(int, 0))


def _add_timing(group: Any) -> None:
    add = group.add_argument
    text = "of OpenMP; a process for each, if it is not just that of this one (default)"
    add("--threads", type=_threads, metavar="N,N,...", help=text)
    text = "of pairs (default 1,2,4,...,1024)"
    add("--batch-sizes", type=_batch_sizes, metavar="N,N,...", help=text)
    text = f'{",".join(RAGGED)} (default), or "none"'
    add("--workloads", type=_workloads, metavar="NAMES", help=text)
    count, seconds = (at_least(int, 1), "N"), (at_least(float, 0), "S")
    for option, (kind, metavar), text in (
        ("--rounds", count, "default {}"),
        ("--seconds", seconds, "about how long each is timed in a round, at least one minibatch "
         "(default {})"),
        ("--warmup", seconds, "how long each may run untimed to settle (default {:g})"),
        ("--loop-pairs", count, "minibatches of the loops over samples are cut to N pairs, as "
         "their time per pair does not depend on it (default {})"),
        ("--fresh-size", count, "minibatches in the fresh processes that measure memory "
         "(default {})"),
        ("--fresh-minibatches", count, "how many these run, all of them new (default {})"),
        ("--recordings", count, "minibatches to time recording with (default {})"),
        ("--workload-size", count, "sentences in a minibatch of the workloads (default {})"),
        ("--workload-minibatches", count, "of a round; of the loops it is one (default {})"),
    ):  # fmt: skip
        default = DEFAULTS[option[2:].replace("-", "_")]
        add(option, type=kind, metavar=metavar, help=text.format(default))
    text = "some minutes: three batch sizes, short rounds, small workloads"
    add("--quick", action="store_true", help=text)
