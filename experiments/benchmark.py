"""Time any workloads, run in any ways, side by side; write figures, tables and pictures.

Workloads are in `workloads/registry.py`, ways in `suite/ways.py`, the rules in `suite/contest.py`.
Without folders of data, samples are generated or those of the built-in corpus.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tqdm import tqdm

from command import POSITIVE, Parser, UsageError, at_least, listed, run_program
from relatedness.corpora import DataError
from suite import alone, contest, pictures, tables, ways
from suite.contest import KINDS, DiffersError
from suite.outcome import Outcome
from suite.remote import PYTHON
from suite.results import ResultsError, environment, read_json, write_json
from suite.tables import Measured
from workloads.base import WorkloadError
from workloads.registry import FOLDERS, WORKLOADS

#: Ways that are run if no others are asked for, and those whose memory is compared, for
#: minibatches of so many samples at most.
DEFAULT = ("imperative", "hybridized", "hand", "gdb")
ALONE, MOST_ALONE = ("hand", "gdb"), 256
_SECONDS = at_least(float, 0)
#: Option, type, default, default with --quick (too short and too noisy to tell anybody), help.
OPTIONS = (
    ("--rounds", POSITIVE, 5, 2, "of all ways"),
    ("--seconds", _SECONDS, 0.4, 0.1, "about how long a turn is, at least one minibatch"),
    ("--loop-samples", POSITIVE, 16, 4, "minibatches of the loops over samples are cut to so many, "
     "as their time per sample does not depend on it"),
    ("--points", at_least(int, 2), 9, 4, "budgets of a curve between none and no limit"),
    ("--seed", at_least(int, 0), 1, 1, "of everything that is drawn"),
)  # fmt: skip


def measure(args: argparse.Namespace, argv: Sequence[str], content: Dict[str, Any]) -> None:
    """Measure workload by workload; write the figures as they come."""
    cases = [(name, _batch_sizes(args, name)) for name in args.workloads]
    for name in args.workloads:  # what cannot be made is an error before anything is measured
        ways.make(name, argparse.Namespace(**{**vars(args), "limit": 1}), **args.sizes)
    rounds = sum(len(sizes) for _, sizes in cases) * len(args.kinds)
    with tqdm(total=rounds, unit="contest", disable=not sys.stderr.isatty()) as bar:
        for name, sizes in cases:
            with ExitStack() as stack:
                cast = ways.Cast(name, args, stack)
                made = cast.workload
                entry = WORKLOADS[name]
                found = Measured(made.title, made.counted, entry.source, entry.reading, made.lines,
                                 [], cast.left_out, cast.versions, {})  # fmt: skip
                for size in sizes:
                    for kind in args.kinds:
                        bar.set_postfix_str(f"{name}, {kind}, {size}")
                        found.outcomes.append(_contest(cast, args, kind, size))
                        bar.update()
                if args.alone_minibatches and all(way in cast.made for way in ALONE):
                    for kind, way in product(args.kinds, ALONE):
                        figures = alone.measure_in_process(argv, name, way, kind)
                        found.alone.setdefault(kind, {})[way] = figures
            content["workloads"][name] = found.as_json()
            print(*found.texts(), sep="\n", flush=True)
            write_json(args.output / "benchmark.json", content)


def _contest(cast: ways.Cast, args: argparse.Namespace, kind: str, size: int) -> Outcome:
    contenders = cast.gather(args.ways, size)
    if not contenders:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in cast.left_out.items())
        raise UsageError(f"no way is left of {cast.workload.name}: {reasons}")
    fresh = cast.workload.minibatches(size, args.seed)
    return contest.contest(contenders, fresh, kind, size, args.rounds, args.seconds, args.seed)


def _batch_sizes(args: argparse.Namespace, name: str) -> List[int]:
    own = WORKLOADS[name].sizes
    return args.batch_sizes or ([own[len(own) // 2]] if args.quick else own)


def measure_alone(args: argparse.Namespace) -> None:
    """Measure what --alone names; nothing else runs in this process."""
    way, kind, file = args.alone
    (name,) = args.workloads
    with ExitStack() as stack:
        contender = ways.Cast(name, args, stack).make(way)
        sizes = _batch_sizes(args, name)
        size = max((size for size in sizes if size <= MOST_ALONE), default=sizes[0])
        figures = alone.measure(contender, kind, size, args.alone_minibatches, args.seed)
    write_json(Path(file), figures)


def read(path: Path) -> Dict[str, Measured]:
    """Read what an earlier run wrote.

    Raises
    ------
    ResultsError
        If the file holds something else.
    """
    content = read_json(path)
    try:
        found = content["workloads"].items()
        return {name: Measured.from_json(each) for name, each in found}
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path}: not written by this program ({error!r})") from None


def show(output: Path, found: Dict[str, Measured]) -> None:
    """Print tables of all workloads, write all tables, draw all pictures."""
    last = [table.markdown() for table in (tables.settings(found), tables.bars(found)) if table]
    texts = [text for each in found.values() for text in each.texts()]
    (output / "benchmark.md").write_text("\n".join([*texts, *last]), encoding="utf-8")
    print(*last, sep="\n")
    drawn = [path.name for path in pictures.draw(found, output)]
    print("pictures:", ", ".join(drawn) or "none")


def make_parser(quick: bool = False) -> argparse.ArgumentParser:
    """Build the command line."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    for option, kind, default, text in (
        ("--workloads", listed(str, tuple(WORKLOADS)), list(WORKLOADS),
         f"{','.join(WORKLOADS)} (default: all)"),
        ("--ways", ways.read_ways, list(DEFAULT), f"{','.join(DEFAULT)} (default); "
         "gdb:GRANULARITY:POLICY[:LIMIT]; settings, curve, peers"),
        ("--kinds", listed(str, KINDS), list(KINDS), "inference,training (default)"),
        ("--batch-sizes", listed(POSITIVE), None, "samples (default: those of each workload)"),
    ):  # fmt: skip
        add(option, type=kind, default=default, metavar="X,X,...", help=text)
    for option, text in FOLDERS.items():
        add(f"--{option}", type=Path, metavar="DIR", help=text)
    for option, kind, default, shorter, text in OPTIONS:
        text = f"{text} (default {default})"
        add(option, type=kind, default=shorter if quick else default, metavar="N", help=text)
    for option, text in (
        ("--limit", "first N samples of every workload"),
        ("--embedding-size", "of the inputs (default: each model's own)"),
        ("--hidden", "of the states (default: each model's own)"),
        ("--alone-minibatches", "tell memory and first minibatch of processes that run gdb or hand "
         "and nothing else, for N minibatches"),
    ):  # fmt: skip
        add(option, type=POSITIVE, metavar="N", help=text)
    add("--quick", action="store_true", help="some minutes: one batch size, short rounds")
    text = "where JSON, tables and pictures go (default %(default)s)"
    add("--output", type=Path, default=Path("runs/benchmark"), metavar="DIR", help=text)
    add("--read", action="store_true", help="measure nothing; show and draw what is in --output")
    text = "runs the other systems (default: what make peers builds)"
    add("--peers-python", type=Path, default=PYTHON, metavar="FILE", help=text)
    add("--alone", nargs=3, help=argparse.SUPPRESS)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``sizes`` of the result has those that are given for all models."""
    args = make_parser("--quick" in argv).parse_args(argv)
    given = {"embedding_size": args.embedding_size, "hidden_size": args.hidden}
    args.sizes = {name: size for name, size in given.items() if size is not None}
    return args


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Do what the options say."""
    if args.alone is not None:
        return measure_alone(args)
    if not args.read:
        settings = {name: value for name, value in vars(args).items() if name != "alone"}
        content = {"environment": environment(), "settings": settings, "workloads": {}}
        measure(args, argv, content)
    args.output.mkdir(parents=True, exist_ok=True)
    return show(args.output, read(args.output / "benchmark.json"))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parse(argv)
    return run_program(lambda: run(args, argv), DataError, WorkloadError, DiffersError,
                       alone.AloneError, ResultsError)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
