"""``make fuzz``: compares random programs with the loop for a given time.

A tenth of the time, threads train and call one model (`threads.py`); four tenths, operators are
called with all values of their attributes (`survey.py`).
Prints every failing program as a script, shrunk unless it crashes its process.  Programs run in
separate processes, as MXNet itself may crash or deadlock.
"""

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
from tests.depth import examples
from tests.forks import run_script

from .harness import ExcusedError
from .programs import CALL, LOOPS, programs
from .survey import FRONTS, Survey

sys.path.insert(0, str(ROOT / "experiments"))
import command  # noqa: E402

#: Programs per process: few, as Hypothesis varies earlier ones; seconds until it counts as hung.
ROUND, PATIENCE = 20, 600.0
#: How often the loop is run to see whether it crashes or hangs, which it may do only sometimes.
LOOP_RUNS = 3


def worker(seed, path, count=ROUND, shrinks=True, front="nd"):
    """Draw and check programs until one fails, and keep a file of the progress so far."""
    progress = {"programs": 0, "excused": Counter(), "running": None, "failure": None}

    def save(**changes):
        progress.update(changes)
        path.write_text(json.dumps(progress), encoding="utf-8")

    @hypothesis.seed(seed)
    @settings(
        examples(count),
        derandomize=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
    )
    @given(programs(front=front))
    def check(program):
        save(programs=progress["programs"] + 1, running=program.script)
        try:
            for batch in program.compare():
                check_invariants(batch)
            with by_mxnets_operators():
                program.compare()
        except ExcusedError as excuse:
            progress["excused"][str(excuse).split(":")[0]] += 1
        except Exception as error:
            progress["failure"] = program.script, f"{type(error).__name__}: {error}"
            raise
        finally:
            # Only a line that is tried for the next program can crash the process now.
            save(running=None)

    logging.getLogger("hypothesis").setLevel(logging.ERROR)
    try:
        check()
    except Exception:
        if progress["failure"] is None:
            raise


def exit_code(script, patience=300):
    """Run a script in a separate process and return its exit code; None if it hangs.

    The script is a file, as `map` reads the source of programs.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        try:
            return run_script(path, seconds=patience)[0]
        except subprocess.TimeoutExpired:
            return None


class Findings:
    """Results of all workers so far; failing programs are written into a folder."""

    def __init__(self, folder):
        self._folder = folder
        self.programs = self.failures = 0
        self.excused = Counter()

    def run_worker(self, seed, count=ROUND, front="nd"):
        """Run one worker and wait for it; it may crash or hang."""
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "progress.json"
            call = f"worker({seed}, Path({str(path)!r}), {count}, front={front!r})"
            code = exit_code(f"from tests.fuzz.__main__ import *\n{call}", PATIENCE)
            if not path.exists():
                self.report(seed, call, f"the worker ended with {code}")
                return
            progress = json.loads(path.read_text(encoding="utf-8"))
        self.programs += progress["programs"]
        self.excused.update(progress["excused"])
        if progress["failure"]:
            self.report(seed, *progress["failure"])
        elif code != 0 and progress["running"]:
            self._judge_crash(seed, progress["running"], code)
        elif code != 0:
            self.excused["MXNet crashes while a line is tried"] += 1

    def _judge_crash(self, seed, script, code):
        """Report a program that crashed or hung, unless the loop does so too."""
        if exit_code(script) == 0:
            self.report(seed, script, f"exit code {code}, but only after other programs")
        elif any(exit_code(script.replace(CALL, LOOPS)) != 0 for _ in range(LOOP_RUNS)):
            self.excused["the loop itself crashes or hangs"] += 1
        else:
            self.report(seed, script, f"exit code {code}")

    def report(self, seed, script, message):
        self.failures += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"seed_{seed}_{self.failures}.py"
        path.write_text(f"# {message.splitlines()[0]}\n{script}", encoding="utf-8")
        rule = "-" * 100
        print(f"{rule}\n{script}\n{rule}\nseed {seed}: {message}\nin {path}\n{rule}", flush=True)

    def __str__(self):
        return (
            f"{self.programs} programs, {self.failures} failures; "
            f"{sum(self.excused.values())} excused: {dict(self.excused)}"
        )


def main():
    parser = command.Parser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=command.ABOVE_ZERO, default=10)
    parser.add_argument("--seed", type=command.SEED, default=None, help="of the first process")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"), help="of failed programs")
    options = parser.parse_args()
    if options.folder.is_file():
        parser.error(f"{options.folder}: not a folder")
    start = time.time()
    seed = int(start) % 1_000_000_000 if options.seed is None else options.seed
    findings = Findings(options.folder)
    print(f"first seed  {seed}", flush=True)
    threads = f"from tests.fuzz.threads import main\nmain({6 * options.minutes})"
    code = exit_code(threads, 6 * options.minutes + PATIENCE)
    if code != 0:
        findings.report(seed, threads, f"threads that share a model ended with {code}")
    survey = Survey(seed, exit_code, findings.report)
    survey.run(24 * options.minutes)
    print(survey, flush=True)
    while time.time() < start + 60 * options.minutes:
        findings.run_worker(seed, front=FRONTS[seed % 2])
        seed += 1
        print(f"{(time.time() - start) / 60:.0f} minutes, {findings}", flush=True)
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
