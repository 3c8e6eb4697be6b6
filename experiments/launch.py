"""Train on several processes: start a scheduler, servers and workers of MXNet's key-value store.

``python experiments/launch.py --workers auto -- train --data sick --embedding glove.txt``

The options after ``--`` are for `tree_lstm_relatedness.py`.
All processes run on this machine; ``--hosts a,b`` only prints the command for each host.
If a process fails, the others are stopped, and an error names it.
"""

import argparse
import contextlib
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from functools import partial
from itertools import count

import cores
import tree_lstm_relatedness as program
from command import Parser, UsageError, add_options, between, listed, run_program

#: Seconds that the other processes have to end after the first one has ended.
PARTING = 60.0


def roles(workers, servers, address, port, options):
    """List name, environment and command of each process of a training, the scheduler first."""
    common = {
        "DMLC_PS_ROOT_URI": address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }
    serve = [sys.executable, "-c", "import mxnet"]  # with DMLC_ROLE set, the import serves
    work = [sys.executable, program.__file__, *options]
    processes = [("scheduler", 1, serve), ("server", servers, serve), ("worker", workers, work)]
    return [
        (f"{role} {i + 1}" if count > 1 else role, {"DMLC_ROLE": role, **common}, command)
        for role, count, command in processes
        for i in range(count)
    ]


def free_port():
    """Find an unused port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def host(text):
    """Check the name or address of a machine."""
    if not re.fullmatch(r"[\w.:-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a host")
    return text


def print_commands(planned, hosts):
    """Print the command for each host: the scheduler on the first, the others round-robin."""
    for i, (name, environment, command) in enumerate(planned):
        host = hosts[max(i - 1, 0) % len(hosts)]
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in environment.items())
        print(f"{host} ({name}): {settings} {shlex.join(command)}")
    print("All hosts need the data at the same path, and --output in a folder that they share.")


def watch(processes):
    """Wait for the end of all processes; return what went wrong, or "" if nothing did."""
    running, limit = processes, math.inf
    while running:
        for name, process in running.items():
            code = process.poll()
            if code:
                return cores.ended(name, process.pid, code)
        running = {name: each for name, each in running.items() if each.returncode is None}
        if len(running) < len(processes):  # the first has ended; the others follow
            limit = min(limit, time.monotonic() + PARTING)
        if time.monotonic() > limit:
            return f"{', '.join(running)} did not end with the others"
        time.sleep(0.05)
    return ""


def run(planned, bound=False):
    """Start all processes and wait for their end; leave none running.

    With `bound`, each worker has one thread and, where the system can bind it, one core.
    """
    processes, problem = {}, "interrupted"
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        numbers = count()
        for name, environment, command in planned:
            number = next(numbers) if bound and name.startswith("worker") else None
            if bound:
                environment = {**cores.ALONE, **environment}
            # In new sessions, so that Ctrl-C reaches only the launcher, which ends them all.
            process = subprocess.Popen(
                command,
                env={"DMLC_NODE_HOST": "127.0.0.1", **os.environ, **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(cores.begin, number),
            )
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
            print(f"{name}: process {process.pid}", flush=True)
        problem = watch(processes)
    if problem:
        raise UsageError(
            f"{problem}; all other processes were stopped; train --resume continues from the last "
            "checkpoint, if there is one"
        )


def main(argv=None):
    """Run the program."""
    parser = Parser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        ("--workers", cores.workers, 2, "N", 'processes that train; "auto": as many as there are '
         "cores here, each with one thread and a core of its own"),
        ("--servers", cores.PROCESSES, 1, "N", "servers of the key-value store"),
        ("--port", between(int, 0, 65535), None, "N",
         "port of the scheduler (default: an unused one)"),
        ("--hosts", listed(host), None, "X,X,...",
         "start nothing; print the command for each host, to run in the same folder"),
    )  # fmt: skip
    parser.add_argument("options", nargs="+", metavar="-- OPTIONS", help="options of the program")
    args = parser.parse_args(argv)
    if args.options[0] != "train":
        parser.error("the options after -- must begin with train")
    training = program.read_arguments(args.options)
    address = args.hosts[0] if args.hosts else "127.0.0.1"
    planned = roles(
        cores.count_of(args.workers), args.servers, address, args.port or free_port(), args.options
    )
    if args.hosts:
        print_commands(planned, args.hosts)
        return 0

    def check_and_run():
        program.read_inputs(training)  # fails once, before any process starts
        run(planned, args.workers == cores.AUTO)

    return run_program(check_and_run)


if __name__ == "__main__":
    sys.exit(main())
