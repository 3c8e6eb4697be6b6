"""What the documentation says of operators is what the rules do."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import mxnet as mx
import pytest

from gluon_dynbatch import rules

from .all_cases import EVERY

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operators.md"


def test_the_page_of_operators_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == rules.reference(), "run python -m gluon_dynbatch.rules > docs/operators.md"


def test_the_table_of_the_readme_is_current() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- rules -->\n(.*?)<!-- /rules -->", text, re.DOTALL)
    assert shown == [rules.summary()], "copy the first table of docs/operators.md"


def test_families_have_every_rule_once() -> None:
    named = Counter(op for family in rules.MERGED for op in family.operators)
    assert named == Counter(rules.TABLE.keys())


def test_stars_mark_what_only_stacks() -> None:
    merged = rules.reference().split("## Merged")[1].split("## One array")[0]
    starred = set(re.findall(r"`([^`]+)`\\\*", merged))
    assert starred == {rules.spelling(op) for op, rule in rules.TABLE.items() if not rule.rows}
    assert {"RNN", "gather_nd"} <= starred and "dot" not in starred


@pytest.mark.parametrize(
    "family", [f for f in rules.MERGED if "always" not in f.condition], ids=lambda f: f.name
)
def test_conditions_are_needed(family: rules.Family) -> None:
    """Some call of a family under a condition is refused in one layout at least."""
    of_family = [c for c in EVERY if c.op in family.operators]
    assert any(
        pattern not in layout.split()
        for c in of_family
        for pattern in c.patterns()
        for layout in (c.rows, c.stack)
    )


def test_spellings_exist() -> None:
    """Every name without an underscore is a function of ``mx.nd``, under its own namespace."""
    for op in sorted({*rules.TABLE, *rules.REFUSED}):
        name = rules.spelling(op)
        if name.startswith("_"):
            continue
        found = mx.nd
        for part in name.split("."):
            assert hasattr(found, part), f"{op} is not mx.nd.{name}"
            found = getattr(found, part)
