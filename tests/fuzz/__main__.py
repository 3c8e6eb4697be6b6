"""``make fuzz``: random programs against the loop for a chosen time.

Prints every failing program as a script, shrunk unless it ends its process.  Programs run in
processes of their own, as a crash or a deadlock of MXNet may end one.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import hypothesis
from hypothesis import Phase, given, settings

from tests.cells import check_invariants
from tests.common import ROOT, by_mxnets_operators
from tests.strategies import examples

from .harness import ExcusedError
from .programs import CALL, LOOPS, programs

#: Programs of one process, as Hypothesis varies what it has drawn; seconds after which it hangs.
ROUND, PATIENCE = 20, 600.0
#: How often the loop is run to see whether it crashes or hangs, which it may do now and then.
LOOP_RUNS = 3


def worker(seed, path, count=ROUND, shrinks=True):
    """Draw and check programs until one fails, and tell in a file what is known so far."""
    told = {"programs": 0, "excused": Counter(), "running": None, "failure": None}

    def tell(**more):
        told.update(more)
        path.write_text(json.dumps(told), encoding="utf-8")

    @hypothesis.seed(seed)
    @settings(
        examples(count),
        derandomize=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
    )
    @given(programs())
    def check(program):
        tell(programs=told["programs"] + 1, running=program.script)
        try:
            for batch in program.compare():
                check_invariants(batch)
            with by_mxnets_operators():
                program.compare()
        except ExcusedError as excuse:
            told["excused"][str(excuse).split(":")[0]] += 1
        except Exception as error:
            told["failure"] = program.script, f"{type(error).__name__}: {error}"
            raise
        finally:
            # What ends the process from here on is a line that is tried for another program.
            tell(running=None)

    logging.getLogger("hypothesis").setLevel(logging.ERROR)
    try:
        check()
    except Exception:
        if told["failure"] is None:
            raise


def ending(script, patience=60):
    """Run a script in a process of its own and return its exit code; None if it hangs."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    try:
        return subprocess.run(command, timeout=patience, capture_output=True, cwd=ROOT).returncode
    except subprocess.TimeoutExpired:
        return None


class Findings:
    """What workers have found so far; failing programs are written into a folder."""

    def __init__(self, folder):
        self._folder = folder
        self.programs = self.failures = 0
        self.excused = Counter()

    def run_worker(self, seed, count=ROUND):
        """Run one worker and wait for it; it may crash or hang."""
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "told.json"
            call = f"worker({seed}, Path({str(path)!r}), {count})"
            code = ending(f"from tests.fuzz.__main__ import *\n{call}", PATIENCE)
            if not path.exists():
                self.report(seed, call, f"the worker ended with {code}")
                return
            told = json.loads(path.read_text(encoding="utf-8"))
        self.programs += told["programs"]
        self.excused.update(told["excused"])
        if told["failure"]:
            self.report(seed, *told["failure"])
        elif code != 0 and told["running"]:
            self._judge(seed, told["running"], code)
        elif code != 0:
            self.excused["MXNet crashes on a line that is tried"] += 1

    def _judge(self, seed, script, code):
        """Report a program that ended its process or hung, unless the loop does so too."""
        if ending(script) == 0:
            self.report(seed, script, f"{code} in a process that ran others before it")
        elif any(ending(script.replace(CALL, LOOPS)) != 0 for _ in range(LOOP_RUNS)):
            self.excused["the loop itself crashes or hangs"] += 1
        else:
            self.report(seed, script, f"ends its process with {code}")

    def report(self, seed, script, message):
        self.failures += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"seed_{seed}.py"
        path.write_text(f"# {message.splitlines()[0]}\n{script}", encoding="utf-8")
        rule = "-" * 100
        print(f"{rule}\n{script}\n{rule}\nseed {seed}: {message}\nin {path}\n{rule}", flush=True)

    def __str__(self):
        return (
            f"{self.programs} programs, {self.failures} failures; "
            f"{sum(self.excused.values())} prove nothing: {dict(self.excused)}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first programs")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"), help="of what failed")
    options = parser.parse_args()
    began = time.time()
    seed = int(began) % 1_000_000_000 if options.seed is None else options.seed
    findings = Findings(options.folder)
    print(f"first seed  {seed}", flush=True)
    while time.time() < began + 60 * options.minutes:
        findings.run_worker(seed)
        seed += 1
        print(f"{(time.time() - began) / 60:.0f} minutes, {findings}", flush=True)
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
