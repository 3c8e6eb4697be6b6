"""Score a large file of pairs with several processes; each parses and scores parts of the lines.

A worker, see `main`, receives options, answers when its model is loaded, and then answers each part
of the file with a `Scored` or an error for each line.
"""

import gc
import os
import signal
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import NamedTuple

import cores
from command import UsageError
from workloads.text import DataError

from . import corpora, options
from .checkpoint import read_checkpoint

#: Seconds, and share of its part of the file, for which one worker runs alone, to compare with all.
ALONE_SECONDS, ALONE_SHARE = 0.5, 0.25
#: What the interpreter of a worker runs; not as the main module, so that both know its classes.
START = f"import sys; from {__name__} import main; main(sys.argv[1])"


class Scored(NamedTuple):
    """What `predict` writes of a pair, and counts of its words."""

    name: str
    answer: float
    words: int
    unknown: int


class Part(NamedTuple):
    """Some lines of a file."""

    number: int
    first: int  # number of its first line, from 0
    lines: list


@contextmanager
def interrupts_wait():
    """Let Ctrl-C wait until the end of the body, so that none is forgotten that has just begun."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt


class Worker:
    """A process that scores one part at a time, on a core of its own."""

    def __init__(self, number, args, stack):
        self.name = f"worker {number + 1}"
        self.pipe, theirs = Pipe()
        stack.enter_context(self.pipe)
        with theirs, interrupts_wait():
            # In a new session, so that Ctrl-C reaches only the parent, which ends all workers.
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", START, str(theirs.fileno())],
                env={**os.environ, **cores.ALONE, **cores.imports()},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=partial(cores.begin, number),
            )  # fmt: skip
            stack.enter_context(self.process)
            stack.callback(self.process.kill)
        self.send(Namespace(**{name: each for name, each in vars(args).items() if name != "run"}))

    def send(self, request):
        """Send a request."""
        try:
            self.pipe.send(request)
        except OSError:
            self._fail()

    def receive(self):
        """Return the answer to a request."""
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self._fail()
        if isinstance(answer, str):
            raise UsageError(f"{self.name}: {answer}")
        return answer

    def _fail(self):
        raise UsageError(cores.ended(self.name, self.process.pid, self.process.wait()))


def score(args, path, lines):
    """Score all lines with ``args.workers`` processes; return a result for each line, and rates."""
    count, size = cores.count_of(args.workers), args.batch_size
    starts = range(0, len(lines), size)
    parts = [Part(i, first, lines[first : first + size]) for i, first in enumerate(starts)]
    results = [None] * len(parts)
    with ExitStack() as stack:
        team = [Worker(number, args, stack) for number in range(count)]
        for worker in team:
            worker.receive()
        _run(team, [[path, part] for part in parts[:1] * count], [None])  # untimed: they warm up
        quota = 1 + int(ALONE_SHARE * len(parts) / count)
        left = [[path, part] for part in parts]
        one, left = _run(team[:1], left, results, quota, ALONE_SECONDS)
        every, _ = _run(team, left, results)
    return [each for result in results for each in result], cores.Rates("pairs", count, one, every)


def _run(team, tasks, results, quota=None, seconds=None):
    """Score parts with a team; return the lines per second, and the parts that are left.

    At most `quota` parts are scored, and none is begun after some seconds.
    """
    began, queue = monotonic(), iter(tasks[:quota])
    busy, begun, lines = {}, 0, 0

    def feed(worker):
        nonlocal begun
        late = seconds is not None and monotonic() - began > seconds
        task = None if late else next(queue, None)
        if task is not None:
            begun += 1
            busy[worker.pipe] = worker
            worker.send(task)

    for worker in team:
        feed(worker)
    while busy:
        for pipe in wait(list(busy)):
            worker = busy.pop(pipe)
            number, answers = worker.receive()
            feed(worker)
            results[number] = answers
            lines += len(answers)
    return lines / max(monotonic() - began, 1e-9) if lines else 0.0, tasks[begun:]


def items_of(args, path, lines):
    """Parse and score a file; return what `corpora.read_requests` keeps of it, and the rates."""
    results, rates = score(args, path, lines)

    def read(number):
        if isinstance(results[number], DataError):
            raise results[number]
        return results[number]

    skip = args.on_bad_sample == "skip"
    return corpora.collect(read, len(lines), path, args.limit, skip), rates


class Scorer:
    """Scores parts in a worker."""

    def __init__(self, args):
        self._args = args
        self._parts = options.restored(read_checkpoint(args.checkpoint), args.ctx)
        self._runner = options.make_runner(args, self._parts)
        gc.collect()
        gc.freeze()

    def score(self, path, part):
        """Return the number of a part, and a `Scored` or an error for each of its lines."""
        answers, pairs = [], []
        read = corpora.request_reader(path, part.lines, part.first)
        for number in range(len(part.lines)):
            try:
                pair = read(number)
                pairs.append(pair)
                answers.append(None)
            except DataError as error:
                answers.append(error)
        if pairs:
            samples = self._parts.data(self._args, pairs).samples
            outputs = self._runner.predict(samples).asnumpy()
            scored = map(self._scored, pairs, self._parts.task.answers(outputs))
            answers = [next(scored) if each is None else each for each in answers]
        return part.number, answers

    def _scored(self, pair, answer):
        unknown = sum(word not in self._parts.vocab for word in pair.words)
        return Scored(pair.name, float(answer), len(pair.words), unknown)


def main(descriptor):
    """Answer requests until the pipe is closed; any error is the last answer, as text."""
    with Connection(int(descriptor)) as pipe:
        try:
            scorer = Scorer(pipe.recv())
            pipe.send(None)
            while True:
                pipe.send(scorer.score(*pipe.recv()))
        except EOFError:
            pass
        except UsageError as error:
            pipe.send(str(error))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
