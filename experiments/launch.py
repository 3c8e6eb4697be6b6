"""Train on several processes: start a scheduler, servers and workers of MXNet's key-value store.

``python experiments/launch.py --workers 2 --servers 1 -- train --data sick --embedding glove.txt``

What stands after ``--`` is for `tree_lstm_relatedness.py`.
All processes run on this machine; ``--hosts a,b`` starts none and prints what to start on which.
A process that ends before its time ends the others, and is named.
"""

import contextlib
import ctypes
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from command import POSITIVE, Parser, UsageError, add_options, listed, run_program

PROGRAM = Path(__file__).with_name("tree_lstm_relatedness.py")
#: Seconds that processes have to end after the first one has.
PARTING = 60.0
#: Linux ends a process with the one that started it if that is asked for; see prctl(2).
PR_SET_PDEATHSIG = 1


def roles(workers, servers, address, port, options):
    """List name, environment and command of all processes of a training, the scheduler first."""
    common = {
        "DMLC_PS_ROOT_URI": address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }
    serve = [sys.executable, "-c", "import mxnet"]  # which does it all, told so by DMLC_ROLE
    work = [sys.executable, str(PROGRAM), *options]
    names = [("scheduler", 1, serve), ("server", servers, serve), ("worker", workers, work)]
    return [
        (f"{kind} {i + 1}" if count > 1 else kind, {"DMLC_ROLE": kind, **common}, command)
        for kind, count, command in names
        for i in range(count)
    ]


def free_port():
    """Find a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def print_commands(planned, hosts):
    """Say what to start on which host: the scheduler on the first, the others by turns."""
    for i, (name, environment, command) in enumerate(planned):
        host = hosts[max(i - 1, 0) % len(hosts)]
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in environment.items())
        print(f"{host} ({name}): {settings} {shlex.join(command)}")
    print("Data and --output must be found at the same paths by all, --output in a shared folder.")


def _die_with_parent():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def watch(processes):
    """Wait for the end of all, by name; return what went wrong, or "" if nothing did."""
    running, limit = processes, math.inf
    while running:
        for name, process in running.items():
            code = process.poll()
            if code:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"said {code}"
                return f"{name} (process {process.pid}) {how}"
        running = {name: each for name, each in running.items() if each.returncode is None}
        if len(running) < len(processes):  # they end together
            limit = min(limit, time.monotonic() + PARTING)
        if time.monotonic() > limit:
            return f"{', '.join(running)} did not end with the others"
        time.sleep(0.05)
    return ""


def run(planned):
    """Start all processes, and see them to their end, whatever happens."""
    processes, wrong = {}, "interrupted"
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        for name, environment, command in planned:
            # Ctrl-C is for the launcher, which ends them all.
            process = subprocess.Popen(
                command,
                env={"DMLC_NODE_HOST": "127.0.0.1", **os.environ, **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
            print(f"{name}: process {process.pid}", flush=True)
        wrong = watch(processes)
    if wrong:
        raise UsageError(
            f"{wrong}; all others were ended, and train --resume goes on from the last "
            "checkpoint, if there is one"
        )


def main(argv=None):
    """Run the program."""
    parser = Parser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        ("--workers", POSITIVE, 2, "N", "that train"),
        ("--servers", POSITIVE, 1, "N", "of the key-value store"),
        ("--port", POSITIVE, None, "N", "of the scheduler (default: free)"),
        ("--hosts", listed(str), None, "X,X,...",
         "print what to start on these, in the same folder with the same data; start nothing"),
    )  # fmt: skip
    parser.add_argument("options", nargs="+", metavar="-- OPTIONS", help="of the training program")
    args = parser.parse_args(argv)
    if args.options[0] != "train":
        parser.error("what stands after -- begins with train")
    address = args.hosts[0] if args.hosts else "127.0.0.1"
    planned = roles(args.workers, args.servers, address, args.port or free_port(), args.options)
    if args.hosts:
        print_commands(planned, args.hosts)
        return 0
    return run_program(lambda: run(planned))


if __name__ == "__main__":
    sys.exit(main())
