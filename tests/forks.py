"""Programs of tests in other processes, most of which need not import MXNet again."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

from tests.common import PATIENCE, ROOT

#: Follows the imports. Only forks get beyond the loop; they end as programs of ``python -c`` do.
SERVER = """
import json
for request in map(json.loads, sys.stdin):
    if not os.fork():
        break
    print(os.wait()[1], flush=True)
else:
    sys.exit()
files = [os.open(os.devnull, os.O_RDONLY), os.open(request["output"], os.O_WRONLY)]
for target, source in enumerate([*files, files[1]]):
    os.dup2(source, target)
sys.argv[1:] = request["arguments"]
exec(compile(request["program"], "<string>", "exec"))
"""


class Forks:
    """Runs programs that begin with the same imports, one at a time, in forks of one server."""

    def __init__(self, imports, **settings):
        """Prepare a server, which the first program starts with these settings of its process."""
        command = [sys.executable, "-W", "ignore", "-c", imports + SERVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._start = lambda: subprocess.Popen(command, start_new_session=True, **pipes, **settings)
        self._server, self._lock = None, threading.Lock()

    def run(self, program, arguments, seconds):
        """Return the exit code of a program, negative for a signal, and what it has printed."""
        with self._lock, tempfile.TemporaryDirectory() as folder:
            if self._server is None:
                self._server = self._start()
                atexit.register(self._server.communicate)  # its input ends, so it ends
            output = Path(folder, "output")
            output.touch()
            request = {"program": program, "arguments": arguments, "output": str(output)}
            limit = threading.Timer(seconds, os.killpg, (self._server.pid, signal.SIGKILL))
            limit.start()
            print(json.dumps(request), file=self._server.stdin, flush=True)
            status = self._server.stdout.readline()
            limit.cancel()
            if not status:
                self._server = None
                raise subprocess.TimeoutExpired(program, seconds, output.read_text())
            ended = int(status)
            signalled = os.WIFSIGNALED(ended)
            code = -os.WTERMSIG(ended) if signalled else os.WEXITSTATUS(ended)
            return code, output.read_text()


#: The first lines of programs that run in another process.
PRELUDE = """import os, sys, mxnet as mx, numpy as np, gluon_dynbatch as gdb
from mxnet import autograd
from tests.cells import cell, dense, equal, ready
"""


def process_settings(**environment):
    """Return the folder and the environment of such programs."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    return {"cwd": ROOT, "env": variables}


FORKS = Forks(PRELUDE, **process_settings())


def output_of(program, *arguments, prelude=PRELUDE, **environment):
    """Run a program in another process, and return its output; a failure or a hang is an error.

    It begins after the usual imports, in a fork.  One that begins otherwise, or whose environment
    differs, runs in a new process.
    """
    program = textwrap.dedent(program)
    if prelude is PRELUDE and not environment:
        code, printed = FORKS.run(program, arguments, PATIENCE)
    else:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", prelude + program, *arguments],
            timeout=PATIENCE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **process_settings(**environment),
        )
        code, printed = process.returncode, process.stdout
    assert code == 0, printed[-3000:]
    return printed


def run_script(path, *arguments, seconds=PATIENCE):
    """Run a file as ``python path`` does, in a fork; return its exit code and what it prints."""
    program = f"import runpy\nsys.path[0], sys.argv[0] = {str(path.parent)!r}, {str(path)!r}\n"
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return FORKS.run(program, arguments, seconds)


def run_command(*arguments):
    """Run ``python -m gluon_dynbatch`` in a fork, and return what it prints."""
    program = "import runpy\nrunpy.run_module('gluon_dynbatch', {}, '__main__', alter_sys=True)"
    return output_of(program, *map(str, arguments))
