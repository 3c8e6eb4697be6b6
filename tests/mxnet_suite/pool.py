"""One process that runs tests, started again after a crash or a hang."""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Seconds until a module must have been imported.
IMPORT_SECONDS = 120.0
#: On this signal, a worker writes the stacks of its threads; at most so many seconds later.
SHOW_STACKS, STACKS_SECONDS = signal.SIGUSR1, 30.0
#: Characters of a crashed process's last output that are kept.
TAIL = 1500


class EndedError(Exception):
    """The process crashed or did not answer in time."""


class Worker:
    """Runs the tests of one module in one way, in a process of its own."""

    def __init__(self, checkout, module, way, seed, gigabytes=16):
        self._arguments = [str(checkout), module, way, str(seed), str(gigabytes)]
        self._process = None
        #: Names of the module's tests.
        self.tests = []

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="mxnet_suite_")
        self._log = Path(self._folder.name) / "worker.log"
        return self

    def __exit__(self, *_):
        self._stop()
        self._folder.cleanup()

    def start(self):
        """Start the process and learn the names of the tests."""
        seeds = dict.fromkeys(("MXNET_TEST_SEED", "MXNET_MODULE_SEED"), self._arguments[3])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.mxnet_suite.worker"]
                + self._arguments,
                cwd=self._folder.name,
                env={**os.environ, "PYTHONPATH": str(ROOT), **seeds},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # so that processes that a test starts end with it
            )
        try:
            self.tests = self._answer(IMPORT_SECONDS)
        except EndedError as error:
            what = f"the process that imports {self._arguments[1]} {error}"
            raise RuntimeError(f"{what}:\n{self._last_output()}") from None

    def run(self, test, seconds):
        """Run a test; return how it ended.  After this many seconds, it counts as hung."""
        started = time.monotonic()
        try:
            if self._process is None:
                self.start()
            with contextlib.suppress(BrokenPipeError):  # if it crashed, there is no answer
                self._process.stdin.write(f"{test}\n".encode())
                self._process.stdin.flush()
            result = self._answer(seconds)
        except EndedError as error:
            result = {"result": str(error), "message": self._last_output()}
            self._stop()
        return {**result, "seconds": round(time.monotonic() - started, 1)}

    def _answer(self, seconds):
        deadline = time.monotonic() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(deadline - time.monotonic()):
                    self._show_stacks()
                    raise EndedError("hangs")
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    raise EndedError(f"crashes ({_name(self._process.wait())})")
                line += read
        return json.loads(line)

    def _show_stacks(self):
        """Let the process write where its threads are, and wait until it has."""
        size, before = self._log.stat().st_size, -1
        begun, end = size, time.monotonic() + STACKS_SECONDS
        self._process.send_signal(SHOW_STACKS)
        while (size == begun or size > before) and time.monotonic() < end:
            time.sleep(0.2)
            size, before = self._log.stat().st_size, size

    def _last_output(self):
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return re.sub("Extension modules: .*", "", text).strip()[-TAIL:]

    def _stop(self):
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # of a line that it did not read
            self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


def _name(code):
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
