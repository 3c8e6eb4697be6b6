"""What the HTTP services of the examples share: an ASGI application, errors, metrics, processes."""

import argparse
import asyncio
import contextlib
import functools
import gc
import importlib
import inspect
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import prometheus_client as prometheus
import uvicorn
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from uvicorn.supervisors import multiprocess

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from command import (  # noqa: E402
    POSITIVE,
    SECONDS,
    Parser,
    UsageError,
    add_options,
    between,
    run_program,
)
from cores import begin, usable  # noqa: E402
from relatedness.checkpoint import read_checkpoint  # noqa: E402

LOGGER = logging.getLogger(__name__)
JSON, EVENTS = b"application/json", b"text/event-stream"
METRICS = prometheus.CONTENT_TYPE_LATEST.encode()
ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
DECODE = json.JSONDecoder().decode
#: Bytes after the limit that are received before a body is refused.
DISCARDED = 2**28
#: Seconds that the request of ``/health`` may take.
HEALTHY_S = 5
#: Seconds of a request in which nobody looks whether its client is still there.
QUICK_S = 0.05


def host(text):
    """Check an address; an empty one would be any."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no address")
    return text


#: Options of all services: name, type, default, name of the value, help.
OPTIONS = (
    ("--checkpoint", Path, None, "FILE", "model to serve (default: train one)"),
    ("--host", host, "127.0.0.1", None, "address to listen at"),
    ("--port", between(int, 0, 65535), 8000, "N", "0: an unused one"),
    ("--workers", between(int, 1, 1000), 1, "N", "processes that share the port"),
    ("--in-process", None, False, None, "receive requests in the process of the model"),
    ("--max-queue", POSITIVE, 1024, "N", "limit of waiting requests, per process"),
    ("--max-bytes", POSITIVE, 65536, "N", "limit of a request's body"),
    ("--shutdown-timeout-s", SECONDS, 30, "S", "longest time for requests that are under way"),
)


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


class while_connected:  # noqa: N801 - used as a function
    """Cancel what the current task does here if the client disconnects: `Refused` is raised.

    For the first `QUICK_S` seconds, nobody looks: most requests are answered in this time, and to
    look takes as long as to read a request.
    """

    def __init__(self, receive):
        self._receive, self._disconnected = receive, None

    def __enter__(self):
        self._task = asyncio.current_task()
        self._looking = self._task.get_loop().call_later(QUICK_S, self._look)

    def _look(self):
        # `receive` returns when the client disconnects or has received the answer.
        self._disconnected = self._task.get_loop().create_task(self._receive())
        self._disconnected.add_done_callback(self._cancel)

    def _cancel(self, _):
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind, error, trace):
        self._looking.cancel()
        self._task = None
        disconnected = self._disconnected is not None and self._disconnected.done()
        if kind is not None and issubclass(kind, asyncio.CancelledError) and disconnected:
            raise Refused(499, "the client has disconnected") from None


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
        self.figures = Figures()
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
                status = await answer_in_parts(receive, send, content_type, content)
        except Exception as error:
            status, text, *more = refusal(error)
            await answer(send, status, JSON, ENCODE({"error": text}), *more)
        self.figures.answered(status, time.perf_counter() - began)

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


async def answer_in_parts(receive, send, content_type, parts):
    """Send an answer part by part, and return its status.

    Before the first part, an error is raised. Later it becomes the last part.
    """
    started, status, last = False, 200, ""
    try:
        with while_connected(receive):
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

    def answered(self, status, seconds):
        """Count an answer."""
        self.count_of(status).inc()
        self.seconds.observe(seconds)

    @property
    def is_shared(self):
        """Whether other processes share the port."""
        return self.own is not self.shown

    def update(self, stats, cpu=0):
        """Copy a batcher's statistics; `cpu` is the processor time of another process."""
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


# Processes

#: The variable in which worker processes find the class of the service and its arguments.
PASSED = "GLUON_DYNBATCH_SERVICE"
#: Seconds without an answer after which a worker process is replaced.
HUNG_S = 120
UVICORN = {"access_log": False, "proxy_headers": False, "lifespan": "on", "ws": "none"}


def check_address(host, port):
    """Raise an error unless the service can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen at --host {host} --port {port}: {reason}") from None


def read_model(path, task):
    """Read a checkpoint of a model for a task; refuse another one."""
    checkpoint = read_checkpoint(path)
    with checkpoint.validation():
        other = checkpoint.state["settings"]["task"]
    if other != task:
        raise UsageError(f"{path}: a model of {other}, and this service is for {task}")
    return checkpoint


def parse(kind, argv):
    """Parse the arguments of a class of services."""
    parser = Parser(description=inspect.getdoc(kind).splitlines()[0])
    add_options(parser, *OPTIONS, *kind.options)
    return parser.parse_args(argv)


def run_service(kind, argv=None):
    """Run a class of services; its docstring is the program's.

    Beside what `Service` has, it has ``options``, rows as those of `OPTIONS`; ``load(args)``,
    which returns the parts of the model; and ``__init__(args, parts)``. If a process of its own is
    to have the model, it also has ``batcher_of(args, parts)``; ``save(path, *parts)``, which writes
    a checkpoint; and an argument ``is_apart`` of ``__init__``, to make no batcher.
    """
    argv = sys.argv[1:] if argv is None else argv
    args = parse(kind, argv)
    return run_program(lambda: serve(kind, args, argv))


def serve(kind, args, argv):
    """Serve until interrupted."""
    check_address(args.host, args.port)
    settings = {**UVICORN, "host": args.host, "port": args.port, "workers": args.workers}
    settings["timeout_graceful_shutdown"] = math.ceil(args.shutdown_timeout_s)
    if args.workers == 1 and kind.apart and not args.in_process:
        return serve_apart(kind, args, argv, settings)
    if args.workers == 1:
        return uvicorn.run(kind(args, kind.load(args)), **settings)
    if args.checkpoint is not None:
        kind.load(args)  # a mistake is refused here, not again and again by each worker
    os.environ[PASSED] = passed(kind, argv)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable() // args.workers)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SHARED] = folder
        config = uvicorn.Config("http_service:worker", factory=True, **settings)
        target, sockets = uvicorn.Server(config).run, [config.bind_socket()]
        Supervisor(config, target=target, sockets=sockets).run()


def passed(kind, argv):
    """Return what another process needs to make a service."""
    # The module of the class may be ``__main__`` here.
    return json.dumps([Path(kind.load.__code__.co_filename).stem, kind.__name__, list(argv)])


def serve_apart(kind, args, argv, settings):
    """Serve until interrupted, with the model in a process of its own.

    Python runs one thread of a process at a time: the two would wait for each other.
    """
    parts = kind.load(args)  # a mistake is refused here
    with tempfile.TemporaryDirectory() as folder:
        path, argv = Path(folder) / "batcher", list(argv)
        if args.checkpoint is None:
            kind.save(Path(folder) / "model", *parts)
            argv += ["--checkpoint", str(Path(folder) / "model")]
        service = kind(args, parts, is_apart=True)
        del parts
        environment = {**os.environ, PASSED: passed(kind, argv)}
        command = [sys.executable, *interpreter_options(), __file__, str(path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "preexec_fn": begin_model}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            if not process.stdout.readline():
                sys.exit(process.wait() or 1)
            service.model, ending = (process, path), threading.Event()
            threading.Thread(target=end_with, args=(process, ending), daemon=True).start()
            # Uvicorn raises a signal again once it has ended; it knows how to end at this one.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                uvicorn.run(service, **settings)
            finally:
                ending.set()
                process.stdin.close()
    if process.returncode:
        sys.exit(1)


def begin_model():
    """Prepare the process of a model between fork and exec: this one tells it when to end."""
    begin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both


def interpreter_options():
    """Return the options of this interpreter that others should have, too."""
    return [option for text in sys.warnoptions for option in ("-W", text)]


def end_with(process, ending):
    """End this process as on SIGTERM if the one of the model ends before."""
    process.wait()
    if not ending.is_set():
        LOGGER.error("the process of the model has ended")
        os.kill(os.getpid(), signal.SIGTERM)


def run_model(path):
    """Run the batcher of a service until the parent closes the pipe to this process."""
    module, name, argv = json.loads(os.environ[PASSED])
    kind = getattr(importlib.import_module(module), name)
    args = parse(kind, argv)
    with kind.batcher_of(args, kind.load(args)) as batcher:
        quieten_collector()
        batcher.listen(path)
        print("ready", flush=True)
        sys.stdin.read()
        batcher.close(args.shutdown_timeout_s)


class Supervisor(multiprocess.Multiprocess):
    """Uvicorn's, with more patience: a process answers only once it has imported this program."""

    def keep_subprocess_alive(self):
        """Replace processes that have ended, or have not answered in `HUNG_S` seconds."""
        for number, process in enumerate(self.processes):
            # A signal, such as that to end, does not wait for a process.
            if any(self.signal_queue or process.is_alive(timeout=1) for _ in range(HUNG_S)):
                continue
            process.kill()
            process.join()
            self.processes[number] = multiprocess.Process(self.config, self.target, self.sockets)
            self.processes[number].start()


def worker():
    """Make the service of a worker process, which ends when the first process is killed."""
    begin()
    module, name, argv = json.loads(os.environ[PASSED])
    kind = getattr(importlib.import_module(module), name)
    args = parse(kind, argv)
    return kind(args, kind.load(args))


if __name__ == "__main__":
    run_model(Path(sys.argv[1]))
