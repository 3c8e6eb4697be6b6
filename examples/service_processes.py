"""How a service of the examples runs: in one process, with its model in another one, or in several.

A service is a class, see `run_service`.
"""

import argparse
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
from pathlib import Path

import uvicorn
from uvicorn.supervisors import multiprocess

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
from http_service import SHARED, quieten_collector  # noqa: E402
from relatedness.checkpoint import read_checkpoint  # noqa: E402

LOGGER = logging.getLogger(__name__)
#: The variable in which worker processes find the class of the service and its arguments.
PASSED = "GLUON_DYNBATCH_SERVICE"
#: Seconds without an answer after which a worker process is replaced.
HUNG_S = 120
UVICORN = {"access_log": False, "proxy_headers": False, "lifespan": "on", "ws": "none"}


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
        config = uvicorn.Config("service_processes:worker", factory=True, **settings)
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
