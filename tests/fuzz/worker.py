"""Runs one seed's programs in a process of its own: ``python -m tests.fuzz.worker``.

A crash or a deadlock of MXNet ends this process only, and what it has learnt goes with it.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from gluon_dynbatch import rules
from gluon_dynbatch.scope import RUNTIME
from tests.cells import check_invariants
from tests.common import by_mxnets_operators

from .harness import ExcusedError, compare
from .operators import generated
from .programs import Program, programs

#: Files of a worker's folder: the program that runs now, what is told at the end, and which
#: operators earlier workers have recorded.
CURRENT, SUMMARY, SEEN = "current.py", "summary.json", "seen.json"
#: Programs of one round.  Hypothesis varies what it has drawn; a new round begins afresh.
ROUND = 20
#: Programs after which the summary is written again.
SAVED = 10


#: How a program ends that hangs.
HANGS = None


def ending(script: str, patience: float = 60) -> Optional[int]:
    """Run a script in a process of its own and return its exit code; `HANGS` if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(path)]
        try:
            return subprocess.run(command, timeout=patience, capture_output=True).returncode
        except subprocess.TimeoutExpired:
            return HANGS


class Session:
    """What a run of many programs found.

    Parameters
    ----------
    folder : Path
        Where the program that runs now is written, in case that it ends the process.
    until : float
        Time after which nothing but a first program is begun, in seconds since the epoch.
    """

    def __init__(self, folder: Path, until: float):
        self._folder = folder
        self._until = until
        self._seen: Set[int] = set()
        self.excused: Dict[str, int] = Counter()
        #: Text and message of the last program that failed, which is the smallest.
        self.failure: Optional[Tuple[str, str]] = None

    def check(self, program: Program) -> None:
        if time.time() > self._until and self.failure is None and self._seen:
            return
        self._seen.add(hash(program.body))
        if len(self._seen) % SAVED == 1:
            self.save()
        current = self._folder / CURRENT
        current.write_text(program.script, encoding="utf-8")
        try:
            case = program.case()
            for batch in compare(case, *[case.setting.options] * 2):
                check_invariants(batch)
            with by_mxnets_operators():
                compare(case, case.setting.options)
        except ExcusedError as excuse:
            self.excused[str(excuse).split(":")[0]] += 1
        except Exception as error:
            self.failure = program.script, f"{type(error).__name__}: {error}"
            raise
        finally:
            # What ends the process from here on is a line that is tried for another program.
            current.unlink()

    def run(self, seed: int, count: int, shrinks: bool = True) -> None:
        """Draw and check programs until one fails, which is shrunk if that is wanted.

        Operators that no program has recorded so far are called more often.
        """
        before = self._folder / SEEN
        seen = set(json.loads(before.read_text(encoding="utf-8"))) if before.exists() else set()
        wanted = tuple(sorted(set(generated()) - seen - _recorded()))

        @hypothesis.seed(seed)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
        )
        @given(programs(wanted))
        def check(program: Program) -> None:
            self.check(program)

        try:
            check()
        except Exception:
            if self.failure is None:
                raise

    def save(self) -> None:
        """Write what is known, in case that the next program ends the process."""
        (self._folder / SUMMARY).write_text(json.dumps(self.summary()), encoding="utf-8")

    def summary(self) -> Dict[str, Any]:
        return {
            "programs": len(self._seen),
            "excused": self.excused,
            "operators": sorted(_recorded() & set(rules.TABLE)),
            "failure": self.failure,
        }


def _recorded() -> Set[str]:
    """Return the operators of everything that this process has recorded."""
    return {op.op for entry in RUNTIME.library.entries.values() for op in entry.program.ops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("until", type=float)
    parser.add_argument("folder", type=Path)
    given_ = parser.parse_args()
    logging.getLogger("hypothesis").setLevel(logging.ERROR)
    session = Session(given_.folder, given_.until)
    for number in range(given_.rounds):
        if session.failure is None:
            session.run(given_.seed * given_.rounds + number, ROUND)
    session.save()


if __name__ == "__main__":
    main()
