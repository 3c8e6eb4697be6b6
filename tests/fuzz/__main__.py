"""``make fuzz``: random programs against the loop for a chosen time.

Prints every failing program as a script that runs by itself, shrunk unless it ends its process,
and what was covered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Set

from .operators import LIMITED, generated, not_generated
from .programs import CALL, LOOPS
from .worker import CURRENT, SEEN, SUMMARY, ending

from gluon_dynbatch import rules  # isort: skip

#: Rounds of one worker process, and seconds after which one of its programs counts as hanging.
ROUNDS, STALLED = 10, 300.0
ERRORS, CRASHED = "errors.txt", "Segmentation fault"
#: How often the loop is run to see whether it crashes or hangs, which it may do now and then.
LOOP_RUNS = 3


class Findings:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.programs = 0
        self.failures = 0
        self.excused: Dict[str, int] = Counter()
        self.operators: Set[str] = set()

    def add(self, summary: Dict[str, Any], seed: int) -> None:
        self.programs += summary["programs"]
        self.excused.update(summary["excused"])
        self.operators.update(summary["operators"])
        if summary["failure"] is not None:
            self.report(seed, *summary["failure"])

    def dead(self, seed: int, told: str) -> None:
        """Report a worker that ended before it could tell anything, which is a fault here."""
        self.failures += 1
        print(f"the worker of seed {seed} failed:\n{told}", flush=True)

    def crash(self, seed: int, script: str, stalled: bool, told: str) -> None:
        """Report a program that crashed or stalled its process, unless the loop does so too."""
        what = "hangs" if stalled else "crashes"
        code = ending(script)
        if code == 0 and stalled:
            # The machine may have been busy with other things.
            self.excused["stalled once, but not by itself"] += 1
        elif code == 0:
            self.report(seed, script, f"a process that ran others before it {what}: {told}")
        elif any(ending(script.replace(CALL, LOOPS)) != 0 for _ in range(LOOP_RUNS)):
            self.excused[f"the loop itself {what}"] += 1
        else:
            self.report(seed, script, f"{what}: {told}")

    def report(self, seed: int, script: str, message: str) -> None:
        self.failures += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"seed_{seed}.py"
        path.write_text(f"# {message.splitlines()[0]}\n{script}", encoding="utf-8")
        rule = "-" * 100
        print(f"{rule}\n{script}\n{rule}\nseed {seed}: {message}\nin {path}\n{rule}", flush=True)

    def __str__(self) -> str:
        lines = [
            f"programs    {self.programs}, of which "
            f"{sum(self.excused.values())} prove nothing: {dict(self.excused)}",
            f"operators   {len(self.operators)} of the {len(rules.TABLE)} with a rule recorded",
            f"not tried   {', '.join(sorted(set(generated()) - self.operators)) or 'none'}",
        ]
        lines += [f"            {op} never: {why}" for op, why in not_generated().items()]
        lines += [f"            {op} {how}" for op, how in LIMITED.items()]
        return "\n".join([*lines, f"failures    {self.failures}"])


def run_worker(seed: int, until: float, findings: Findings, rounds: int = ROUNDS) -> None:
    """Run one worker and wait for it; it may crash or hang."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = json.dumps(sorted(findings.operators))
        (folder / SEEN).write_text(seen, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker"]
        command += [str(seed), str(rounds), str(until), name]
        # To a file, as nobody reads a pipe before the end.
        with open(folder / ERRORS, "w", encoding="utf-8") as errors:
            worker = subprocess.Popen(command, stderr=errors)
            stalled = not _waited(worker, folder)
            if stalled:
                worker.kill()
            worker.wait()
        told = (folder / ERRORS).read_text(encoding="utf-8")[-2000:]
        if not (folder / SUMMARY).exists():
            findings.dead(seed, told)
            return
        findings.add(json.loads((folder / SUMMARY).read_text(encoding="utf-8")), seed)
        if (folder / CURRENT).exists():
            script = (folder / CURRENT).read_text(encoding="utf-8")
            findings.crash(seed, script, stalled and CRASHED not in told, told)
        elif stalled or worker.returncode:
            findings.excused["MXNet crashes on a line that is tried"] += 1


def _waited(worker: Any, folder: Path) -> bool:
    """Wait for the end of a worker; False if it makes no progress."""
    began = time.time()
    while worker.poll() is None:
        idle = time.time() - max(began, folder.stat().st_mtime)
        told = (folder / ERRORS).read_text(encoding="utf-8")
        # Having said that it crashes, MXNet may wait for itself for ever.
        if idle > STALLED or idle > 5 and CRASHED in told:
            return False
        time.sleep(0.2)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first programs")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"), help="of what failed")
    options = parser.parse_args()
    began = time.time()
    seed = int(began) % 1_000_000_000 if options.seed is None else options.seed
    until = began + 60 * options.minutes
    findings = Findings(options.folder)
    print(f"first seed  {seed}", flush=True)
    while time.time() < until:
        run_worker(seed, until, findings)
        seed += 1
        print(
            f"{(time.time() - began) / 60:.0f} minutes, {findings.programs} programs, "
            f"{len(findings.operators)} operators, {findings.failures} failures",
            flush=True,
        )
    print(findings)
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
