"""A short run of the fuzzer, and that it finds and prints what is wrong."""

import json
import subprocess
from contextlib import suppress

from gluon_dynbatch import rules
from tests.common import output_of

from . import operators
from .__main__ import Findings, ending


def wrong_rule(right, op, attrs):
    """Return rules like the `right` ones, but with other attributes of one operator."""

    def wrong(site, stacked, inputs, append):
        def wrongly(name, refs, given):
            return append(name, refs, {**given, **attrs} if name == op else given)

        return right(site, stacked, inputs, wrongly)

    return wrong


#: In a process of its own, as MXNet itself crashes on some programs, or hangs.
WRONG = """
from pathlib import Path
from gluon_dynbatch import rules
from tests.fuzz.__main__ import worker
from tests.fuzz.test_fuzz import wrong_rule
rules.merge = wrong_rule(rules.merge, "Activation", {"act_type": "relu"})
worker(int(sys.argv[2]), Path(sys.argv[1]), 15, shrinks=False)
"""


def test_a_wrong_rule_is_found_and_printed_as_a_program(tmp_path):
    """The printed program runs by itself; without the fault, which is not in it, it passes."""
    failure, path = None, tmp_path / "told.json"
    for seed in range(9):
        if failure is None:
            # MXNet may crash, or hang.
            with suppress(AssertionError, subprocess.TimeoutExpired):
                output_of(WRONG, str(path), str(seed))
            failure = json.loads(path.read_text(encoding="utf-8"))["failure"]
    assert failure is not None, "a wrong rule was not found"
    script, message = failure
    assert "Activation" in script and message
    assert ending(script) == 0


def test_operators_are_those_of_the_table():
    made, left = set(operators.generated()), operators.not_generated()
    assert made | set(left) == set(rules.TABLE) and not made & set(left)
    assert set(operators.LEFT_OUT) <= set(rules.TABLE)
    assert len(made) > 0.95 * len(rules.TABLE), left


def test_random_whole_programs(tmp_path):
    """As ``make fuzz`` does, in other processes: MXNet itself crashes on some programs."""
    findings = Findings(tmp_path)
    for seed in range(6, 10):
        if findings.programs <= 5:
            findings.run_worker(seed)
    assert findings.failures == 0, str(findings)
    assert findings.programs > 5
