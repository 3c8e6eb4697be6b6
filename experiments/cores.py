"""The processor's cores that this process may use: how many, which, and one for each worker."""

import ctypes
import math
import os
import signal
import sys
from typing import NamedTuple

from command import between
from gluon_dynbatch.run.team import quota

#: Linux kills a process that has called prctl(2) with this option when its parent ends.
PR_SET_PDEATHSIG = 1


def usable():
    """Count the cores that this process may use: by its affinity, and by the quota of its group."""
    return max(1, math.ceil(min(len(allowed()), quota())))


def allowed():
    """List the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def count_of(workers):
    """Return the number of workers of an option, which is a number or `AUTO`."""
    return usable() if workers == AUTO else workers


#: Environment of a worker that has one core.
ALONE = {"OMP_NUM_THREADS": "1"}


def imports():
    """Return what a child process needs in its environment to import what this one would."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def begin(number=None):
    """Prepare a child process between fork and exec: it ends when its parent ends.

    With the number of a worker, it runs on one core only, where the system can bind it. With more
    workers than cores, some share a core.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if number is not None and hasattr(os, "sched_setaffinity"):
        listed = allowed()
        os.sched_setaffinity(0, {listed[number % len(listed)]})


class Rates(NamedTuple):
    """Units per second of one worker alone and of all of them; 0 if it was not measured."""

    unit: str
    workers: int
    one: float
    all: float

    def __str__(self):
        if not (self.one and self.all):
            return f"{self.workers} workers; there is too little to measure their efficiency"
        rates = f"{self.all:,.0f} {self.unit}/s with {self.workers} workers, {self.one:,.0f} alone"
        return f"{rates}; efficiency {self.all / self.one / self.workers:.0%}"


def ended(name, process, code):
    """Say how a process has ended, by its exit code."""
    killed = code < 0 and f"was killed by {signal.Signals(-code).name}"
    return f"{name} (process {process}) {killed or f'exited with {code}'}"


#: As many workers as this process may use cores.
AUTO = "auto"
#: A machine has no room for more.
PROCESSES = between(int, 1, 1000)


def workers(text):
    """Parse a number of workers, or `AUTO`."""
    return text if text == AUTO else PROCESSES(text)


workers.__name__ = "int"
