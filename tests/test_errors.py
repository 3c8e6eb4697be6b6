import inspect
import pickle
from pathlib import Path

import pytest

from gluon_dynbatch import errors
from gluon_dynbatch.errors import DynBatchError, OptionError, Where

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DynBatchError) and cls is not DynBatchError
]


def test_there_are_as_many_as_documented():
    assert len(CLASSES) == 19


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_is_ours_and_a_builtin(cls):
    mixin, builtin = cls.__bases__
    assert mixin is DynBatchError and builtin.__module__ == "builtins" and cls.__doc__
    again = pickle.loads(pickle.dumps(cls("text")))
    assert type(again) is cls and str(again) == "text"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_page_has_cause_way_out_and_example(cls):
    page = PAGE.read_text(encoding="utf-8")
    name, builtin = cls.__name__, cls.__bases__[1].__name__
    assert f"| [`{name}`](#{name.lower()}) | `{builtin}` |" in page
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    for part in ("Cause: ", "Way out: ", "```python\n", f"```text\n{name}: "):
        assert part in section


def test_message_has_one_line_per_fact():
    where = Where("model.py", 12, "forward")
    assert str(DynBatchError("shapes differ.", where, "cell0", "reshape")).splitlines() == [
        "shapes differ.",
        "  at: model.py:12 in forward",
        "  block: cell0",
        "  what to do: reshape",
    ]
    assert str(DynBatchError("shapes differ.")) == "shapes differ."
    assert str(DynBatchError("no.", block="cell0")) == "no.\n  block: cell0"


def test_unknown_option_lists_the_valid_ones():
    error = OptionError.unknown("granularity", "node", ("graph", "block"))
    assert str(error).splitlines() == [
        "unknown granularity 'node'",
        "  what to do: choose one of 'graph', 'block'",
    ]
