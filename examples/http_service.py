"""What the HTTP services of the examples share: an ASGI application, its errors and its metrics."""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import time
from pathlib import Path

import numpy as np
import prometheus_client as prometheus
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

import gluon_dynbatch as gdb

LOGGER = logging.getLogger(__name__)
JSON, EVENTS = b"application/json", b"text/event-stream"
METRICS = prometheus.CONTENT_TYPE_LATEST.encode()
ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
DECODE = json.JSONDecoder().decode
#: Bytes after the limit that are received before a body is refused.
DISCARDED = 2**28
#: Seconds that the request of ``/health`` may take.
HEALTHY_S = 5
#: Seconds of a request in which nobody looks whether its client is still there; at most twice.
QUICK_S = 0.05


class Refused(Exception):
    """A request that is answered by an error: status, text and additional headers."""


def refusal(error):
    """Return the arguments of `Refused` for any exception of a request."""
    if isinstance(error, Refused):
        return error.args
    if isinstance(error, gdb.QueueFullError):
        return 503, "too many requests are waiting", (b"retry-after", b"1")
    if isinstance(error, gdb.ClosedError):
        return 503, "the service is shutting down"
    if isinstance(error, gdb.RequestTimeoutError):
        return 504, "the answer takes too long"
    LOGGER.error("a request failed", exc_info=error)
    return 500, "the model failed"


class Connected:
    """Cancels what the current task does here if the client disconnects: `Refused` is raised.

    For the first `QUICK_S` seconds, nobody looks: most requests are answered in this time, and to
    look takes as long as to read a request.  `watch` looks at all others.
    """

    def __init__(self, watch, receive):
        self._watch, self._receive, self._disconnected = watch, receive, None

    def __enter__(self):
        self._task = self._watch.begin(self)

    def look(self):
        """Notice from now on if the client disconnects."""
        # `receive` returns when the client disconnects or has received the answer.
        self._disconnected = self._task.get_loop().create_task(self._receive())
        self._disconnected.add_done_callback(self._cancel)

    def _cancel(self, _):
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind, error, trace):
        self._watch.end(self)
        self._task = None
        disconnected = self._disconnected is not None and self._disconnected.done()
        if kind is not None and issubclass(kind, asyncio.CancelledError) and disconnected:
            raise Refused(499, "the client has disconnected") from None


class Watch:
    """Looks at the clients of slow requests, with one timer for all of an event loop."""

    def __init__(self):
        #: Requests that began before the timer was last set, and since; the latter wait for longer.
        self._older, self._newer = {}, {}
        self._loop = self._timer = None

    def begin(self, request):
        """Add a request of the current task, and return the task."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._older, self._newer, self._loop, self._timer = {}, {}, loop, None
        self._newer[request] = True
        if self._timer is None:
            self._timer = loop.call_later(QUICK_S, self._look)
        return asyncio.current_task(loop)

    def end(self, request):
        """Remove a request."""
        if self._newer.pop(request, None) is None:
            self._older.pop(request, None)

    def _look(self):
        for request in self._older:
            request.look()
        self._older, self._newer = self._newer, {}
        self._timer = self._loop.call_later(QUICK_S, self._look) if self._older else None


class Service:
    """An ASGI application over a `gluon_dynbatch.RequestBatcher`; a subclass adds its routes.

    A handler takes ASGI's `receive` and returns the type and the content of its answer: a text, or
    an asynchronous generator of texts, which are sent as they come.
    """

    #: Whether a process of its own has the model, unless asked otherwise.
    apart = False

    def __init__(self, batcher, probe, max_bytes):
        #: `probe` is the sample that ``/health`` runs.
        self.batcher, self.probe, self.max_bytes = batcher, probe, max_bytes
        #: The process of the model and the path where its batcher listens, if it has its own.
        self.model = None
        self.figures, self.watch = Figures(), Watch()
        #: By path, the method and the handler.
        self.routes = {"/health": ("GET", self.health), "/metrics": ("GET", self.metrics)}

    async def __call__(self, scope, receive, send):
        """Answer a request, or prepare for requests and for the end."""
        if scope["type"] == "lifespan":
            return await self.live(receive, send)
        began, status = time.perf_counter(), 200
        try:
            method, handler = self.routes.get(scope["path"], (None, None))
            if handler is None:
                raise Refused(404, "no such address")
            if scope["method"] != method:
                raise Refused(405, f"the method is {method}", (b"allow", method.encode()))
            content_type, content = await handler(receive)
            if isinstance(content, str):
                await answer(send, status, content_type, content)
            else:
                connected = self.while_connected(receive)
                status = await answer_in_parts(connected, send, content_type, content)
        except Exception as error:
            status, text, *more = refusal(error)
            await answer(send, status, JSON, ENCODE({"error": text}), *more)
        self.figures.answered(status, time.perf_counter() - began)

    def while_connected(self, receive):
        """Return what cancels the task that enters it if the client disconnects."""
        return Connected(self.watch, receive)

    async def live(self, receive, send):
        """Run until the server ends, which it does when all requests are answered."""
        await receive()
        quieten_collector()
        if self.model is not None:
            self.batcher = await gdb.RemoteBatcher.connect(self.model[1])
        copying = asyncio.ensure_future(self.keep_current())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        copying.cancel()
        # The requests that are left have no clients.
        if self.model is None:
            await asyncio.get_running_loop().run_in_executor(None, self.batcher.close)
        else:
            self.batcher.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def keep_current(self):
        """Copy statistics again and again, for answers of other processes."""
        while self.figures.is_shared:
            self.figures.update(await self.stats())
            await asyncio.sleep(1)

    async def stats(self):
        """Return the statistics of the batcher."""
        stats = self.batcher.stats()
        return stats if self.model is None else await stats

    async def health(self, receive):
        """Answer whether the model answers, in time."""
        try:
            await asyncio.wait_for(self.batcher(self.probe), HEALTHY_S)
        except asyncio.TimeoutError:
            raise Refused(503, f"the model has not answered in {HEALTHY_S} seconds") from None
        except Exception as error:
            raise Refused(503, refusal(error)[1]) from None
        return JSON, ENCODE({"status": "ok"})

    async def metrics(self, receive):
        """Answer with figures for Prometheus."""
        cpu = 0 if self.model is None else processor_time(self.model[0].pid)
        return METRICS, self.figures.text(await self.stats(), cpu)

    async def body(self, receive):
        """Return the JSON of the body; refuse a long one.

        The rest of a long one is received but not kept: a client that still sends does not read the
        answer, and Uvicorn closes the connection after an early one.
        """
        body, size, more = b"", 0, True
        while more and size <= self.max_bytes + DISCARDED:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(499, "the body is not complete")
            size += len(message.get("body", b""))
            body = body + message.get("body", b"") if size <= self.max_bytes else b""
            more = message.get("more_body", False)
        if size > self.max_bytes:
            raise Refused(413, f"the body has more than {self.max_bytes} bytes")
        try:
            return DECODE(body.decode())
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None


def quieten_collector():
    """Let the garbage collector not scan what is loaded, before requests are answered."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


async def answer(send, status, content_type, content, *headers):
    """Send an answer as a whole."""
    body = content.encode()
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_in_parts(connected, send, content_type, parts):
    """Send an answer part by part, and return its status.

    Before the first part, an error is raised. Later it becomes the last part.
    """
    started, status, last = False, 200, ""
    try:
        with connected:
            async for part in parts:
                if not started:
                    started = True
                    headers = [(b"content-type", content_type), (b"cache-control", b"no-store")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                body = {"type": "http.response.body", "body": part.encode(), "more_body": True}
                await send(body)
    except Exception as error:
        if not started:
            raise
        status, text, *_ = refusal(error)
        last = event({"error": text}, "error")
    finally:
        await parts.aclose()
    await send({"type": "http.response.body", "body": last.encode()})
    return status


class Numbers(dict):
    """The numbers of words; `unknown` is that of all others."""

    def __init__(self, known, unknown):
        super().__init__(known)
        self.unknown = unknown

    def __missing__(self, word):
        return self.unknown


def numbering(vocab):
    """Return a function of words that returns the array of their numbers, faster than `vocab`."""
    number_of = Numbers(vocab.token_to_idx, vocab[vocab.unknown_token]).__getitem__
    return lambda words: np.fromiter(map(number_of, words), np.int32, len(words))


def event(content, name=None):
    """Format a server-sent event."""
    return (f"event: {name}\n" if name else "") + f"data: {ENCODE(content)}\n\n"


# Figures for Prometheus

#: prometheus_client's: the folder in which processes share their figures.
SHARED = "PROMETHEUS_MULTIPROC_DIR"
#: Fields of `BatcherStats`.
ENDS = ("completed", "failed", "cancelled", "timed_out", "rejected")
NOW = ("queued", "running", "blocked")
#: Of times in seconds: 1 ms to 33 s.
BUCKETS = [2**n / 1e3 for n in range(16)]
#: Answers that are noted before they are counted.
MOST_UNCOUNTED = 256


class Figures:
    """What ``/metrics`` tells: of this process, or of all that share a port."""

    def __init__(self):
        self.own = self.shown = prometheus.CollectorRegistry()
        if SHARED in os.environ:
            self.shown = prometheus.CollectorRegistry()
            MultiProcessCollector(self.shown)
        count = functools.partial(prometheus.Counter, registry=self.own)
        times = functools.partial(prometheus.Histogram, registry=self.own, buckets=BUCKETS)
        statuses = count("answers", "Requests by the status of the answer.", ["status"])
        self.count_of = functools.lru_cache(maxsize=None)(statuses.labels)
        self.seconds = times("request_seconds", "From a request to the end of its answer.")
        self.ends = count("requests", "What became of what the batcher was asked.", ["end"])
        self.now = {
            name: prometheus.Gauge(
                f"requests_{name}", f"Requests that are {name} now.",
                registry=self.own, multiprocess_mode="livesum",
            )
            for name in NOW
        }  # fmt: skip
        self.sizes = count("minibatches", "Minibatches by their number of requests.", ["size"])
        self.busy = count("minibatch_seconds", "Run time of minibatches.")
        self.cpu = count("process_cpu_seconds", "Processor time.")
        self.last, self.last_cpu = None, 0.0
        #: Statuses and times of answers that are not yet counted.
        self.uncounted = []

    def answered(self, status, seconds):
        """Note an answer; many are counted together."""
        self.uncounted.append((status, seconds))
        if len(self.uncounted) == MOST_UNCOUNTED:
            self.count()

    def count(self):
        """Count the answers that have been noted."""
        for status, seconds in self.uncounted:
            self.count_of(status).inc()
            self.seconds.observe(seconds)
        self.uncounted.clear()

    @property
    def is_shared(self):
        """Whether other processes share the port."""
        return self.own is not self.shown

    def update(self, stats, cpu=0):
        """Copy a batcher's statistics; `cpu` is the processor time of another process."""
        self.count()
        last, self.last = self.last, stats
        for end in ENDS:
            now = getattr(stats, end)
            self.ends.labels(end).inc(now - (getattr(last, end) if last else 0))
        for size, number in stats.batch_sizes.items():
            self.sizes.labels(size).inc(number - (last.batch_sizes.get(size, 0) if last else 0))
        self.busy.inc(stats.run_s - (last.run_s if last else 0))
        for name, gauge in self.now.items():
            gauge.set(getattr(stats, name))
        cpu += time.process_time()
        self.cpu.inc(cpu - self.last_cpu)
        self.last_cpu = cpu

    def text(self, stats, cpu=0):
        """Return the figures in the format of Prometheus."""
        self.update(stats, cpu)
        if self.is_shared:
            for path in Path(os.environ[SHARED]).glob("gauge_live*.db"):
                process = int(path.stem.rpartition("_")[2])
                if not is_alive(process):
                    mark_process_dead(process)
        return prometheus.generate_latest(self.shown).decode()


def processor_time(process):
    """Return the seconds of processor time of a process; 0 where the system does not tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0


def is_alive(process):
    """Return whether a process exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
