"""A service in another process, requests over HTTP, and what the service tells of itself."""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import uvloop

from cores import begin

from . import EXAMPLES

#: Longest time for a service to end, in seconds.
PATIENCE = 60


@contextlib.contextmanager
def service(name, checkpoint, *options):
    """Start a service of the examples on a free port; yield the port."""
    with started(name, checkpoint, *options) as (_, port):
        yield port


@contextlib.contextmanager
def started(name, checkpoint, *options):
    """Start a service; yield its process and the port, once it is healthy.

    It ends with this process, however that ends.
    """
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py"), "--port", "0"]
    command += ["--checkpoint", str(checkpoint), *options]
    settings = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": begin}
    with subprocess.Popen(command, **settings) as process:
        try:
            port = _port_of(process)
            # Otherwise a service that logs much would wait.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield process, port
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _port_of(process):
    """Return the port that a service says it listens at, once it is healthy."""
    log = ""
    while not (address := re.search(r"http://127\.0\.0\.1:(\d+)\D", log)):
        line = process.stderr.readline()
        log += line
        if not line:
            raise RuntimeError(f"the service did not start: {log}")
    port, end = int(address.group(1)), time.monotonic() + PATIENCE
    while True:
        # The first process names the port before others listen.
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).close()
            return port
        if time.monotonic() > end:
            raise RuntimeError(f"the service does not answer: {log}")
        time.sleep(0.05)


def request_of(path, body):
    """Wrap a body in an HTTP request."""
    head = b"POST %b HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


class Alarm:
    """Calls a function of an event loop at a time: Linux has a timer that the loop waits for.

    The loop's own timers are up to a millisecond late, and a thread that sleeps and then wakes the
    loop is 0.1 ms late.
    """

    #: Of timerfd_create(2): flags O_NONBLOCK and O_CLOEXEC; of timerfd_settime(2): not relative.
    FLAGS, ABSOLUTE = os.O_NONBLOCK | os.O_CLOEXEC, 1

    def __init__(self, loop, function):
        self._loop, self._function, self._system = loop, function, ctypes.CDLL(None)
        self._file = self._system.timerfd_create(time.CLOCK_MONOTONIC, self.FLAGS)
        loop.add_reader(self._file, self._ring)

    def set(self, when):
        """Ring next at a time of `time.monotonic`."""
        seconds, part = divmod(when, 1)
        times = (ctypes.c_long * 4)(0, 0, int(seconds), max(int(part * 1e9), 1))
        self._system.timerfd_settime(self._file, self.ABSOLUTE, times, None)

    def _ring(self):
        os.read(self._file, 8)
        self._function()

    def close(self):
        """Never ring again."""
        self._loop.remove_reader(self._file)
        os.close(self._file)


def quiet(coroutine):
    """Run clients, while the garbage collector does not scan what was there before: 50 ms a time.

    Their event loop is a fast one, because the service runs on the same processors.
    """
    gc.freeze()
    try:
        return uvloop.run(coroutine)
    finally:
        gc.unfreeze()


async def receive(reader):
    """Read an answer; return its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await (reader.readexactly(int(length.group(1))) if length else reader.read())
    return int(head[9:12]), body


async def send(port, request):
    """Send a request on a new connection; return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await receive(reader)
    finally:
        writer.close()


def read_metrics(port):
    """Read the service's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.split() for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def events_of(body):
    """Return the server-sent events of a body in chunks: pairs of name and content."""
    events = []
    for block in b"".join(_chunks(body)).decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((fields.get("event", "message"), json.loads(fields["data"])))
    return events


def _chunks(body):
    """Yield the chunks of HTTP's chunked encoding."""
    start = 0
    while True:
        middle = body.index(b"\r\n", start)
        size = int(body[start:middle], 16)
        if not size:
            return
        yield body[middle + 2 : middle + 2 + size]
        start = middle + size + 4
