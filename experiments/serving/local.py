"""The same load on the batcher itself: without HTTP, what is left of the times is the batcher's."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gluon_dynbatch as gdb
import service_processes
from cores import begin
from http_service import numbering
from serve_decoder import DecoderService
from service_processes import PASSED, parse, passed

from .client import PATIENCE, quiet
from .decoder import Answer, arrivals, figures, in_time


@contextlib.contextmanager
def batcher(argv):
    """Start a process with a model; yield the path where its batcher listens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batcher"
        command = [sys.executable, "-W", "ignore", service_processes.__file__, str(path)]
        environment = {**os.environ, PASSED: passed(DecoderService, argv)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "preexec_fn": begin}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            try:
                if not process.stdout.readline():
                    raise RuntimeError("the process of the model did not start")
                yield path
            finally:
                process.stdin.close()
                process.wait(PATIENCE)


async def run(path, requests, sentences, numbers_of):
    """Ask the batcher when requests are due, and check the answers; return them in this order."""
    remote = await gdb.RemoteBatcher.connect(path)

    async def ask(request, begin):
        asked, answer = sentences[request.sentence % len(sentences)]
        first, words = None, []
        stream = remote.stream((numbers_of(asked.split()), request.words))
        async for word in stream:
            first = first or time.monotonic()
            words += [word, *stream.available()]
        assert words == answer[: request.words], (request, words)
        return Answer(request, first - begin, time.monotonic() - begin, 200, b"")

    answers = await in_time(requests, ask)
    remote.close()
    return answers


def measure(checkpoint, sentences, rate, seconds, seed=0):
    """Put a load on the batcher of a checkpoint; return the figures."""
    argv = ["--checkpoint", str(checkpoint)]
    numbers_of = numbering(DecoderService.load(parse(DecoderService, argv))[1])
    with batcher(argv) as path:
        for each in (seed + 1, seed):  # the first one fills caches
            requests = arrivals(rate, seconds, each)
            answers = quiet(run(path, requests, sentences, numbers_of))
    return figures(seconds, requests, answers, sum(not answer.right for answer in answers))
