"""Speed of the relatedness model run in every way, from the plain loop to bare matrix products.

What is run: pair by pair, imperative and hybridized; batched by depth with concatenation and split;
batched by hand; by gluon_dynbatch; and, as a bound, the model's matrix products alone. How it is
timed is told in `relatedness/benchmark.py`. Without --data, pairs are those of the built-in corpus.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tqdm import tqdm

from command import run_program
from relatedness import benchmark
from relatedness.assembly import UsageError, read_pairs
from relatedness.data import LAYOUTS, DataError
from relatedness.options import Parser, add_options, at_least, batching_options
from speed import bars, pictures
from speed.contenders import MODES, Pairs, make_contenders
from speed.fresh import FreshError, measure_in_process, report_own_figures
from study.axes import save
from study.results import Column, Table

SIZES = [2**i for i in range(11)]
#: What --quick takes the place of: under a minute or two, too noisy to tell anybody.
QUICK = {"batch_sizes": [1, 16, 256], "rounds": 3, "seconds": 0.2, "fresh_seconds": 2.0,
         "fresh_modes": ("manual", "dynamic")}  # fmt: skip


def measure(args: argparse.Namespace, argv: Sequence[str]) -> Dict[str, Any]:
    """Measure everything; give it as it goes to the JSON file, which is kept up to date."""
    batching_options(args)  # a wrong one is an error before anything is measured
    pairs = read_pairs(args, ("train",))
    if max(args.batch_sizes) > len(pairs["train"]):
        raise UsageError(
            f"--batch-sizes: minibatches of {max(args.batch_sizes)} are asked for, "
            f"and there are {len(pairs['train'])} pairs"
        )
    content: Dict[str, Any] = {
        "environment": benchmark.environment(),
        "settings": {name: v for name, v in vars(args).items() if name not in ("fresh", "read")},
        "rules": benchmark.__doc__,
        "fresh": {kind: {} for kind in benchmark.KINDS},
        "batch_sizes": {},
        "bars": None,
    }
    _measure_fresh(args, argv, content)
    contenders, samples = make_contenders(args, pairs)
    for size in args.batch_sizes:
        result = benchmark.compare(
            contenders, samples, size, args.rounds, args.warmup, args.seconds, args.seed
        )
        content["batch_sizes"][str(size)] = result
        print(f"\nminibatches of {size}, pairs per second, {args.rounds} rounds\n"
              f"{benchmark.table(result)}", flush=True)  # fmt: skip
        for kind, modes in result["settled"].items():
            unsettled = [name for name, settled in modes.items() if not settled]
            if unsettled:
                print(f"{kind}: {', '.join(unsettled)} had not settled after --warmup", flush=True)
        _write(args.json, content)
    return content


def _measure_fresh(args: argparse.Namespace, argv: Sequence[str], content: Dict[str, Any]) -> None:
    runs = [(kind, mode) for kind in benchmark.KINDS for mode in args.fresh_modes]
    for kind, mode in tqdm(runs, desc="fresh processes", leave=False,
                           disable=not sys.stderr.isatty()):  # fmt: skip
        figures = measure_in_process(Path(__file__), argv, mode, kind)
        content["fresh"][kind][mode] = figures


def _write(path: Optional[Path], content: Dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, default=str)  # paths and contexts by their names
        path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> Dict[str, Any]:
    """Read what an earlier run wrote.

    Raises
    ------
    UsageError
        If the file holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["batch_sizes"] and content["fresh"] and content["environment"]:
            return content
        reason = "holds no figures"
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise UsageError(f"{path}: not a file that --json wrote ({reason})")


def show(content: Dict[str, Any]) -> None:
    """Print what belongs to the whole run: medians by batch size, fresh processes, bars."""
    by_size = content["batch_sizes"]
    labels = list(next(iter(by_size.values()))["median"][benchmark.KINDS[0]])
    largest, last = list(by_size.items())[-1]
    for kind in benchmark.KINDS:
        columns = (
            Column(f"pairs/s, {kind}"), *(Column(size, ",.0f") for size in by_size),
            Column(f"analysis, of {largest}", ".0%"), Column(f"launches, of {largest}", ".0f"),
        )  # fmt: skip
        rows = [
            (name, *(result["median"][kind][name] for result in by_size.values()),
             last["analysis_share"][kind][name], last["launches"][kind][name])
            for name in labels
        ]  # fmt: skip
        print(Table(f"Speed by batch size, {kind}", columns, rows).markdown())
    print(_fresh_table(content).markdown())
    if content["bars"] is None:
        print(f"No bars: they are for minibatches of {bars.SIZE}.")
    else:
        held = [bars.Bar(**{k: v for k, v in bar.items() if k != "met"}) for bar in content["bars"]]
        print(bars.table(held).markdown())


def _fresh_table(content: Dict[str, Any]) -> Table:
    columns = (
        Column("mode"), Column("kind"), Column("first minibatch, s", ".2f"),
        Column("peak RSS, MB", ",.0f"), Column("RSS before, MB", ",.0f"),
        Column("minibatches until then", "d"), Column("calls into MXNet per minibatch", ",d"),
    )  # fmt: skip
    rows = [
        (mode, kind, row["first_seconds"], row["peak_mb"], row["start_mb"], row["minibatches"],
         sum(row["calls"].values()))
        for kind, modes in content["fresh"].items()
        for mode, row in modes.items()
    ]  # fmt: skip
    size = content["settings"]["fresh_size"]
    return Table(f"Fresh processes, minibatches of {size}", columns, rows)


def draw(content: Dict[str, Any], path: Path) -> List[Path]:
    """Draw speed against batch size, as PNG and SVG."""
    machine, settings = content["environment"], content["settings"]
    data = f"pairs of {Path(settings['data']).name}" if settings["data"] else "built-in corpus"
    subtitle = (
        f"{data}; median and quartiles of {settings['rounds']} interleaved rounds, plans made anew "
        f"unless cached; {machine['processor']}, {machine['cores']} cores, "
        f"OMP_NUM_THREADS={machine['OMP_NUM_THREADS']}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return save(pictures.speed(content["batch_sizes"], subtitle), path)


def batch_sizes(text: str) -> List[int]:
    """Read sizes with commas between, in increasing order."""
    sizes = sorted({int(part) for part in text.split(",")})
    if sizes[0] < 1:
        raise argparse.ArgumentTypeError(f"a minibatch cannot have {sizes[0]} pairs")
    return sizes


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what is not offered here is as the training program has it."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    positive, seconds = at_least(int, 1), at_least(float, 0)
    data = parser.add_argument_group("data and model")
    data.add_argument("--data", type=Path, metavar="DIR", help="without it, the built-in corpus")
    data.add_argument("--layout", choices=("auto", *LAYOUTS))
    data.add_argument("--embedding", type=Path, metavar="FILE", help="word vectors, GloVe text")
    data.add_argument(
        "--freeze-embedding",
        action="store_true",
        help="do not train the word vectors (default: a dense gradient of the whole "
        "table per sample would slow the loops over samples beyond measure)",
    )
    data.add_argument("--no-freeze-embedding", action="store_false", dest="freeze_embedding")
    data.add_argument("--embedding-size", type=positive, metavar="N", help="default 300")
    data.add_argument("--hidden", type=positive, metavar="N", help="default 150")
    data.add_argument(
        "--pairs",
        type=positive,
        dest="limit",
        metavar="N",
        help="draw minibatches from the first N training pairs (default: all)",
    )
    data.add_argument("--seed", type=at_least(int, 0))
    batching = parser.add_argument_group("gluon_dynbatch")
    for option in ("--analysis-budget", "--granularity", "--policy"):
        batching.add_argument(option, help="default auto")
    timing = parser.add_argument_group("timing")
    timing.add_argument(
        "--batch-sizes", type=batch_sizes, metavar="N,N,...", help="default 1,2,4,...,1024"
    )
    timing.add_argument("--rounds", type=positive, metavar="N", help="default 5")
    timing.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help="about how long each is timed in a round, at least one minibatch (default 0.4)",
    )
    timing.add_argument(
        "--warmup",
        type=seconds,
        metavar="S",
        help="how long each may run untimed to settle (default 60)",
    )
    timing.add_argument(
        "--loop-pairs",
        type=positive,
        metavar="N",
        help="minibatches of the loops over samples are cut to N pairs, as their "
        "time per pair does not depend on it (default 32)",
    )
    timing.add_argument(
        "--fresh-size",
        type=positive,
        metavar="N",
        help="minibatches in the fresh processes that measure memory (default 256)",
    )
    timing.add_argument(
        "--fresh-seconds",
        type=seconds,
        metavar="S",
        help="how long each of these runs at least (default 6)",
    )
    timing.add_argument(
        "--quick",
        action="store_true",
        help="two minutes: three batch sizes, short rounds, memory of two modes",
    )
    files = parser.add_argument_group("files")
    files.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    files.add_argument("--picture", type=Path, metavar="FILE", help="draw PNG and SVG there")
    files.add_argument(
        "--read",
        type=Path,
        metavar="FILE",
        help="measure nothing; show and draw what --json wrote earlier",
    )
    parser.add_argument("--fresh", nargs=2, help=argparse.SUPPRESS)
    program = Parser()
    add_options(program)
    args = program.parse_args([])
    defaults = {"batch_sizes": SIZES, "rounds": 5, "seconds": 0.4, "warmup": 60.0,
                "loop_pairs": 32, "fresh_size": 256, "fresh_seconds": 6.0, "fresh_modes": MODES,
                "freeze_embedding": True}  # fmt: skip
    vars(args).update(defaults, **(QUICK if "--quick" in argv else {}))
    return parser.parse_args(argv, args)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Do what the options say."""
    if args.fresh is not None:
        pairs: Pairs = read_pairs(args, ("train",))
        return report_own_figures(args, pairs, *args.fresh)
    if args.read is not None:
        content = read(args.read)
    else:
        content = measure(args, argv)
        if str(bars.SIZE) in content["batch_sizes"]:
            fresh = content["fresh"] if args.fresh_size == bars.SIZE else {}
            held = bars.hold(content["batch_sizes"][str(bars.SIZE)]["median"], fresh)
            content["bars"] = [{**bar._asdict(), "met": bar.met} for bar in held]
        _write(args.json, content)
    print()
    show(content)
    if args.picture is not None:
        print("pictures:", *draw(content, args.picture))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parse(argv)
    return run_program(lambda: run(args, argv), UsageError, DataError, FreshError)


if __name__ == "__main__":
    sys.exit(main())
