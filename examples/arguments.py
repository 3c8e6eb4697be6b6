"""Command lines of the examples: a mistake gives one line.  The programs need only the values."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from command import Parser, between, budget  # noqa: E402

#: Enough for every example, and small enough for memory.
COUNT = between(int, 1, 10_000)
#: What each count is.
MEANINGS = {
    "epochs": "passes over the training data",
    "layers": "layers of the model",
    "units": "units of each layer",
    "pairs": "sentence pairs in a minibatch",
    "rounds": "minibatches for each measurement",
    "multiple": "pad each pair to a multiple of so many words",
    "requests": "requests to rank",
    "sentences": "sentences to train on, and as many to test",
    "words": "words to train on, and as many to draw",
}


def read(doc, argv=None, analysis_budget="auto", **counts):
    """Read ``--analysis-budget`` and some counts, each with its default."""
    parser = Parser(description=doc.splitlines()[0])
    parser.add_argument("--analysis-budget", type=budget, default=analysis_budget, metavar="MS",
                        help='limit on the analysis of a scope: milliseconds, '
                             '"none" or "auto" (default %(default)s)')  # fmt: skip
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=COUNT, default=default, metavar="N",
                            help=f"{MEANINGS[name]} (default %(default)s)")  # fmt: skip
    return parser.parse_args(argv)
