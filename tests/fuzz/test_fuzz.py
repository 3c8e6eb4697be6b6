"""A short run of the fuzzer; it finds a wrong rule and prints the program."""

import json
import subprocess
from contextlib import suppress

import pytest

from gluon_dynbatch import rules
from tests.forks import output_of
from tests.rules import numpy_calls

from . import operators
from .__main__ import Findings, exit_code
from .fronts import FRONTS

#: Runs in a separate process, as MXNet itself crashes or hangs on some programs.
WRONG = """
from pathlib import Path
import pytest
from tests import inside
from tests.fuzz.__main__ import worker
inside.with_wrong_rule(pytest.MonkeyPatch(), "Activation", {"act_type": "relu"})
worker(int(sys.argv[2]), Path(sys.argv[1]), 15, shrinks=False)
"""


def test_a_wrong_rule_is_found_and_printed_as_a_program(tmp_path):
    """The printed program runs by itself, and passes, as it does not contain the wrong rule."""
    failure, path = None, tmp_path / "progress.json"
    for seed in range(9):
        if failure is None:
            # MXNet may crash or hang.
            with suppress(AssertionError, subprocess.TimeoutExpired):
                output_of(WRONG, str(path), str(seed))
            failure = json.loads(path.read_text(encoding="utf-8"))["failure"]
    assert failure is not None, "the wrong rule was not found"
    script, message = failure
    assert "Activation" in script and message
    assert exit_code(script) == 0


def test_programs_of_numpy_call_its_operators():
    """Those that cases call, and those of `mx.nd` that it has by another name."""
    generated = set(operators.generated("np"))
    assert generated >= {op for op in operators.numpy_names() if op in operators.generated()}
    assert generated >= {case.op for case in numpy_calls.calls()}


def test_programs_call_nearly_all_operators_of_the_rule_table():
    generated, missing = set(operators.generated()), operators.not_generated()
    assert generated | set(missing) == set(rules.TABLE) and not generated & set(missing)
    assert set(operators.LEFT_OUT) <= set(rules.TABLE)
    assert len(generated) > 0.95 * len(rules.TABLE), missing


@pytest.mark.parametrize("front", FRONTS)
def test_random_programs_equal_the_loop(tmp_path, front):
    """In separate processes, as ``make fuzz`` does: MXNet itself crashes on some programs."""
    findings = Findings(tmp_path)
    for seed in range(6, 13):
        if findings.programs < 5:
            findings.run_worker(seed, 5, front)
    assert findings.failures == 0, str(findings)
    assert findings.programs >= 5
