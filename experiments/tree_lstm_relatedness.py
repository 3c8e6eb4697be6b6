"""Tree-LSTMs of Tai, Socher, Manning 2015 (arXiv:1503.00075): train, evaluate, predict, demo.

``--task`` selects the relatedness of two sentences (child-sum Tree-LSTM over dependencies) or the
sentiment of sentences (binary Tree-LSTM over phrases). Data come from a folder (see
`relatedness/corpora.py` and `workloads/trees.py`) or are built in.
"""

import os
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from statistics import median

import cores
import gluon_dynbatch as gdb
from command import POSITIVE, Parser, UsageError, add_options, run_program
from relatedness import options, scoring
from relatedness.checkpoint import read_checkpoint
from relatedness.corpora import SPLITS, read_requests
from relatedness.distributed import Group, rate_alone
from relatedness.training import Training, described, evaluate
from suite.contest import Local, contest
from suite.tables import KINDS, speeds
from workloads.text import read_lines

#: Minibatches with which one of several workers is timed alone.
COMPARED = 40
#: The modes that the demo compares.
MODES = ("imperative", "hybridized", "dynamic")


def read_inputs(args, overwrite=False):
    """Check the files of `train`; return the checkpoint to resume, or None, and the data."""
    if args.checkpoint is not None:
        raise UsageError("--checkpoint is not for train; --resume continues from DIR/last")
    output = args.output or options.OUTPUT
    last = output / "last"
    if last.exists() and not args.resume and not overwrite:
        raise UsageError(f"{last} exists: continue from it with --resume, or change --output")
    checkpoint = read_checkpoint(last) if args.resume else None
    items = options.TASKS[args.task].read(args, SPLITS)
    if checkpoint is not None:
        options.check_resumable(args, items, checkpoint)
    if args.embedding is not None and not args.embedding.is_file():
        raise UsageError(f"{args.embedding}: no such file")
    output.mkdir(parents=True, exist_ok=True)
    return checkpoint, items


def train(args, overwrite=False):
    """Train, from the start or from the last checkpoint in the output folder."""
    checkpoint, items = read_inputs(args, overwrite)
    output = args.output or options.OUTPUT
    # Wait for the other processes only now: all check the folder before one writes to it.
    group = Group(args.kvstore_timeout)
    parts = options.restored(checkpoint, args.ctx) if checkpoint else options.assemble(args, items)
    data = [parts.data(args, items[split]) for split in ("train", "dev")]
    alone = 0.0
    if group.size > 1 and group.rank == 0:  # meanwhile, the others wait for this worker
        batches = list(islice(data[0].minibatches(), COMPARED))
        alone = rate_alone(options.make_runner(args, parts), batches)
    runner = options.make_runner(args, parts, store=group.store)
    run = Training(runner, *data, parts.vocab, output, parts.settings, group, checkpoint)
    if run.writes:
        shared = f" over {group.size} processes" if group.size > 1 else ""
        print(
            f"seed {args.seed}: {len(items['train'])} {parts.task.unit} to train on, "
            f"{len(items['dev'])} held out, {len(parts.vocab)} words; {args.mode}, "
            f"minibatches of {args.batch_size}{shared}",
            flush=True,
        )
    if run.epoch >= args.epochs:
        print(f"epoch {run.epoch} of {args.epochs} is already complete", file=sys.stderr)
    try:
        run.run(args.epochs)
    except KeyboardInterrupt:
        saved = f"{output / 'last'} holds epoch {run.epoch}"
        print(f"\ninterrupted; {saved}; use --resume", file=sys.stderr)
        raise
    if alone and run.history:
        every = median(line["samples_per_second"] for line in run.history)
        print(cores.Rates(parts.task.unit, group.size, alone, every))
    return run


def _predict(args, split, workers=1):
    """Run a checkpoint's model on a split, or on --input; return metrics, items and answers.

    With several workers, there are no metrics.
    """
    if args.resume:
        raise UsageError("--resume is only for train")
    if args.checkpoint is None:
        raise UsageError("--checkpoint is required: a file that train wrote, such as DIR/best")
    parts = options.restored(read_checkpoint(args.checkpoint), args.ctx)
    if parts.task is not options.TASKS["relatedness"]:
        if not split:
            raise UsageError("--input is only for relatedness")
        if args.on_bad_sample == "skip":
            raise UsageError("--on-bad-sample is only for relatedness")
    if split:
        items = parts.task.read(args, (split,))[split]
    else:
        path, content = args.input, None
        if str(path) == "-":
            path, content = Path("<stdin>"), sys.stdin.buffer.read()
        lines = read_lines(path, content)
        if workers != 1:
            items, rates = scoring.items_of(args, path, lines)
            _warn(args, sum(item.unknown for item in items), sum(item.words for item in items))
            print(rates, file=sys.stderr)
            return None, items, [item.answer for item in items]
        items = read_requests(path, lines, args.limit, args.on_bad_sample == "skip")
    words = [word for item in items for word in item.words]
    _warn(args, sum(word not in parts.vocab for word in words), len(words))
    data = parts.data(args, items)
    metrics, answers = evaluate(options.make_runner(args, parts), data)
    return described(metrics, data), items, answers


def _warn(args, unknown, words):
    """Say how many words the model does not know."""
    if unknown:
        print(
            f"{unknown} of {words} words are not in the vocabulary of {args.checkpoint}; all use "
            "its vector for unknown words",
            file=sys.stderr,
        )


def run_evaluate(args):
    """Print the metrics of a checkpoint on a split."""
    print(f"{args.split}: {_predict(args, args.split)[0]}")


def run_predict(args):
    """Write "name<TAB>answer" for every item, to standard output or the output folder."""
    if args.input is not None and (args.split or args.data):
        raise UsageError("--input replaces --data and --split")
    if args.workers != 1 and args.input is None:
        raise UsageError("--workers is only for --input")
    split = "" if args.input is not None else args.split or "test"
    _, items, answers = _predict(args, split, args.workers)
    target = nullcontext(sys.stdout)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        target = (args.output / "predictions.tsv").open("w", encoding="utf-8")
    with target as file:
        for number, (item, answer) in enumerate(zip(items, answers), 1):
            file.write(f"{getattr(item, 'name', number)}\t{answer:.4f}\n")
        file.flush()


def run_demo(args):
    """Train on the built-in corpus, show the report of one flush, and compare speeds."""
    run = train(args, overwrite=True)
    print(f"\nThe best epoch has a held-out {run.train.task.best_by} of {run.best:.3f}.")
    print(f"Checkpoints, metrics and the learning curve are in {args.output}.")
    print(f"\nOne flush of {args.batch_size} pairs, inference:")
    runner = run.runner
    with gdb.batching(**runner.options) as batch:
        for sample in run.dev.samples[: args.batch_size]:
            runner.workload.score(sample)
    print(batch.report)
    print(
        "\nThe same model and pairs, three ways: sample by sample (imperative), the same with "
        "hybridized cells,\nand in a scope (dynamic):\n"
    )
    items, samples = {"": run.train.items}, run.train.samples
    contenders = []
    for mode in MODES:
        parts = options.assemble(args, items)
        contenders.append(Local(options.make_runner(args, parts, mode, samples), mode))
    size = min(args.pairs, len(samples))
    fresh = contenders[-1].workload.minibatches(size, args.seed)
    for kind in KINDS:
        rows = contest(contenders, fresh, kind, size, args.rounds, seconds=1.0)
        print(speeds(f"pairs per second, {kind}", rows).markdown())


#: Name, function, help, defaults, options that it does not have, and additional options.
VERBS = (
    ("train", train, "train a model", {}, (), ()),
    ("evaluate", run_evaluate, "print the metrics of a checkpoint", {"batch_size": 256},
     (*options.OF_TRAINING, "--output"),
     [("--split", SPLITS, "test", None, "split to evaluate on")]),
    ("predict", run_predict, "write name<TAB>answer", {"batch_size": 256}, options.OF_TRAINING,
     [("--split", SPLITS, None, None, "split to answer for (default test)"),
      ("--input", Path, None, "FILE", "pairs instead of a split, a line of JSON each (see "
       'README.md); "-": standard input'),
      ("--workers", cores.workers, 1, "N", "processes that share the lines of --input, each on a "
       'core of its own; "auto": as many as there are cores')]),
    ("demo", run_demo, "train on the built-in corpus and compare speeds",
     {"output": Path("runs/demo"), "epochs": 6, "lr_decay": 1.0, "weight_decay": 1e-4}, (),
     [("--pairs", POSITIVE, 64, "N", "pairs in a timed minibatch"),
      ("--rounds", POSITIVE, 3, "N", "rounds; each mode has one turn in each")]),
)  # fmt: skip


def make_parser(task="relatedness"):
    """Make the parser, with the defaults of a task."""
    parser = Parser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.required = True
    for name, run, summary, defaults, without, more in VERBS:
        verb = verbs.add_parser(name, help=summary, description=summary)
        defaults = {**options.TASKS[task].defaults, **defaults}
        for title, rows in options.OPTIONS.items():
            group = verb.add_argument_group(title)
            for row in rows:
                if row[0] in without:
                    defaults.setdefault(row[0][2:].replace("-", "_"), row[2])
                else:
                    add_options(group, row, **defaults)
        add_options(verb, *more, ("--resume", None, False, None, "continue from the last epoch"))
        verb.set_defaults(run=run, **defaults)
    return parser


def read_arguments(argv):
    """Parse the command line, with the defaults of its task."""
    args = make_parser().parse_args(argv)
    parser = make_parser(args.task)
    args = parser.parse_args(argv)
    try:
        options.check_effect(args, parser.parse_args([args.verb]))
    except UsageError as error:
        parser.error(str(error))
    if args.no_freeze_embedding:
        args.freeze_embedding = False
    return args


def main(argv=None):
    """Run the program."""
    args = read_arguments(sys.argv[1:] if argv is None else argv)
    status = run_program(lambda: args.run(args))
    if status and os.environ.get("DMLC_ROLE"):
        # A normal exit deadlocks: the key-value store and the other processes wait for each other.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
