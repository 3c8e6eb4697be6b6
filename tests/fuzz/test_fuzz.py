"""A short run of the fuzzer, and that it finds, shrinks and prints what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List

from gluon_dynbatch import rules

from . import operators
from .shrink import HANGS, ending, shrink
from .worker import SUMMARY

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def break_rules(op: str, **attrs: str) -> None:
    """Make what the rules answer for an operator wrong, for the rest of this process."""
    for layout in ("rows", "stack"):
        right = getattr(rules, layout)

        def wrong(site: Any, right: Any = right) -> Any:
            answer = right(site)
            if isinstance(answer, rules.Refusal):
                return answer
            steps = tuple(
                step._replace(attrs={**step.attrs, **attrs}) if step.op == op else step
                for step in answer.steps
            )
            return answer._replace(steps=steps)

        setattr(rules, layout, wrong)


#: In a process of its own, as MXNet itself crashes on some programs, or hangs.
WRONG = """
import sys, time
from pathlib import Path
from tests.fuzz.test_fuzz import break_rules
from tests.fuzz.worker import Session
break_rules("slice_axis", begin="0", end="1")
session = Session(Path(sys.argv[1]), time.time() + 1e6)
session.run(int(sys.argv[2]), 25)
session.save()
"""


def test_a_wrong_rule_is_found_and_printed_as_a_program(tmp_path: Path) -> None:
    """The printed program runs by itself; without the fault, which is not in it, it passes."""
    summary: Dict[str, Any] = {"failure": None}
    for seed in range(20):
        if summary["failure"] is None:
            command = [sys.executable, "-W", "ignore", "-c", WRONG, str(tmp_path), str(seed)]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, timeout=100, capture_output=True)
            summary = json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))
    assert summary["failure"] is not None, "a wrong rule was not found"
    script, message = summary["failure"]
    assert "slice_axis" in script and message
    assert ending(script, 60) == 0


def test_operators_are_those_of_the_table() -> None:
    made, left = set(operators.generated()), operators.not_generated()
    assert made | set(left) == set(rules.TABLE) and not made & set(left)
    assert set(operators.LEFT_OUT) <= set(rules.TABLE)
    assert len(made) > 0.95 * len(rules.TABLE), left


def test_how_scripts_end() -> None:
    assert ending("print(1)") == 0
    assert ending("raise SystemExit(3)") == 3
    assert ending("import os; os.abort()") not in (0, 1, HANGS)
    assert ending("import time; time.sleep(60)", 1) is HANGS


def test_shrinking_leaves_what_fails() -> None:
    asked: List[int] = []

    def same(lines: List[str]) -> bool:
        asked.append(len(lines))
        return "3" in lines and "17" in lines

    assert shrink([str(k) for k in range(40)], same) == ["3", "17"]
    assert len(asked) < 120
    assert shrink(["a", "b"], lambda lines: False) == ["a", "b"]


def test_random_whole_programs(tmp_path: Path) -> None:
    """As ``make fuzz`` does, in other processes: MXNet itself crashes on some programs."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--minutes", "0.2"]
    command += ["--seed", "5", "--folder", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:1].strip())
    assert told["first"] == "seed  5" and told["failures"] == "0"
    assert int(told["programs"].split(",")[0]) > 0  # how many there are depends on the machine
    assert f"of the {len(rules.TABLE)} with a rule" in told["operators"]
