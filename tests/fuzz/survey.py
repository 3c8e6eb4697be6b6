"""Compares calls with every value of every attribute, and with pairs of values, with the loop.

All values come first, one at a time, in an order that depends on the seed.
"""

import json
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.rules import attributes

#: Calls per process, as MXNet leaks memory and corrupts its heap; seconds per call.
ROUND, PATIENCE = 1000, 30
BLOCK, OPERATOR = {"granularity": "block"}, {"granularity": "operator"}
SCOPES = (BLOCK, OPERATOR, BLOCK, OPERATOR, OPERATOR, {**OPERATOR, "debug": True})


#: The front ends.
FRONTS = ("nd", "np")


def single_calls():
    """Return all calls: a case, attributes, and the front end."""
    return [
        (*call, front)
        for front in FRONTS
        for op in sorted({case.op for case in attributes.cases(front)})
        for call in attributes.changed(op, front)
    ]


def calls(seed, first, count):
    """Return some calls of a seed, by number: a case, attributes, the front end, a scope."""
    single = single_calls()
    random.Random(seed).shuffle(single)
    found = {}
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        if number < len(single):
            call = single[number]
        else:
            front = rng.choice(FRONTS)
            call = (*attributes.changed_twice(rng, front), front)
        found[number] = (*call, rng.choice(SCOPES))
    return found


def described(case, attrs, front, options):
    arrays = [(a.shape, a.kind) for a in case.inputs]
    return f"{front}: {case.op} {attrs} of {arrays}, training={case.training}, in {options}"


def worker(seed, first, path, seconds):
    """Compare calls from a number on until one differs; keep a file of the progress so far."""
    end = time.monotonic() + seconds
    progress = {"next": first, "calls": 0, "complaint": None}
    for number, (case, attrs, front, options) in calls(seed, first, ROUND).items():
        progress.update(next=number + 1, running=described(case, attrs, front, options))
        path.write_text(json.dumps(progress), encoding="utf-8")
        signal.alarm(PATIENCE)
        complaint = attributes.compare(case, attrs, front, **options)
        signal.alarm(0)
        progress.update(calls=progress["calls"] + 1, complaint=complaint)
        if complaint or time.monotonic() > end:
            break
        progress.update(running=None)
    path.write_text(json.dumps(progress), encoding="utf-8")


def alone(seed, number, scope):
    """Run a call by itself, in the loop or compared with it."""
    ((case, attrs, front, options),) = calls(seed, number, 1).values()
    if scope:
        complaint = attributes.compare(case, attrs, front, **options)
        assert not complaint, complaint
    for compiled in (False, True):
        attributes.run(case, attrs, None, compiled, front)


class Survey:
    """Results of all workers so far."""

    def __init__(self, seed, exit_code, report):
        self._seed, self._exit_code, self._report = seed, exit_code, report
        self._next = self.calls = self.failures = 0
        self.excused = Counter()
        #: The calls with which MXNet ends the process.
        self.fatal = []

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._run_worker(end - time.monotonic())

    def _script(self, call):
        return f"from tests.fuzz.survey import *\n{call}"

    def _run_worker(self, seconds):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "progress.json"
            call = f"worker({self._seed}, {self._next}, Path({str(path)!r}), {seconds})"
            code = self._exit_code(self._script(call), seconds + 10 * PATIENCE)
            if not path.exists():
                self._fail(self._script(call), f"the worker ended with {code}")
                return
            progress = json.loads(path.read_text(encoding="utf-8"))
        self._next, self.calls = progress["next"], self.calls + progress["calls"]
        if progress["complaint"] or code != 0:
            self._judge(self._next - 1, progress, code)

    def _judge(self, number, progress, code):
        """Report a call that differs, crashes or hangs by itself, unless the loop does so too."""
        in_scope, in_loop = (
            self._script(f"alone({self._seed}, {number}, {scope})") for scope in (True, False)
        )
        if self._exit_code(in_scope) == 0:
            # An error of oneDNN or of the heap makes later calls fail.
            self.excused["only after other calls"] += 1
        elif self._exit_code(in_loop) != 0:
            self.excused["the loop itself crashes or hangs"] += 1
            self.fatal.append(progress["running"])
        else:
            reason = progress["complaint"] or f"exit code {code}"
            self._fail(in_scope, f"{progress['running']}: {reason}")

    def _fail(self, script, message):
        self.failures += 1
        self._report(self._seed, script, message)

    def __str__(self):
        return (
            f"{self.calls} calls ({len(single_calls())} change one attribute), "
            f"{self.failures} failures; excused: {dict(self.excused)}"
        )
