"""The Python of README and of the site's pages runs, and prints what they say."""

import importlib.util
import inspect
import pickle
import re
from pathlib import Path

import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch import errors
from gluon_dynbatch.errors import DynBatchError, OptionError, Where

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("snippets", ROOT / "docs" / "snippets.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


@pytest.mark.parametrize("name", sorted(pages.PAGES))
def test_page(name):
    for snippet in pages.snippets(name):
        shown, printed = snippet.shown or "", snippet.printed
        assert pages.alike(shown, printed), f"run python docs/snippets.py {name}"


def test_texts_that_differ_are_told_apart():
    assert pages.alike("took 3.1 ms, loss 0.51", "took 17 ms, loss 0.52")
    assert not pages.alike("loss 0.51", "loss 0.61")
    assert not pages.alike("5 launches", "6 launches")
    assert not pages.alike("", "ValueError: no")


def test_every_page_is_in_the_site():
    """As Sphinx, but in `make test`: each page is in one table of contents."""
    docs = ROOT / "docs"
    listed, contents = set(), re.compile(r"^```{toctree}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for page in (docs / "index.md", docs / "design" / "index.md"):
        for content in contents.findall(page.read_text("utf-8")):
            for name in content.split():
                listed.update(page.parent.glob(f"{name}.md"))
    assert listed | {docs / "index.md"} == set(docs.rglob("*.md"))


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    documented = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.M))
    documented = {name.split(".")[-1] for name in documented}
    assert set(gdb.__all__) - {"testing"} <= documented


ERRORS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DynBatchError) and cls is not DynBatchError
]


def test_each_error_is_ours_and_a_builtin_and_the_page_has_cause_way_out_and_example():
    page = pages.PAGES["docs/errors.md"].read_text("utf-8")
    for cls in ERRORS:
        mixin, builtin = cls.__bases__
        assert mixin is DynBatchError and builtin.__module__ == "builtins"
        again = pickle.loads(pickle.dumps(cls("text")))
        assert type(again) is cls and str(again) == "text"
        name = cls.__name__
        assert f"| [`{name}`](#{name.lower()}) | `{builtin.__name__}` |" in page
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for part in ("Cause: ", "Way out: ", "```python\n", f"```text\n{name}: "):
            assert part in section, (part, name)
    assert set(re.findall(r"^```text\n(\w+):", page, re.M)) == {cls.__name__ for cls in ERRORS}


def test_messages_have_one_line_per_fact():
    where = Where("model.py", 12, "forward")
    assert str(DynBatchError("shapes differ.", where, "cell0", "reshape")).splitlines() == [
        "shapes differ.",
        "  at: model.py:12 in forward",
        "  block: cell0",
        "  what to do: reshape",
    ]
    assert str(DynBatchError("no.", block="cell0")) == "no.\n  block: cell0"
    error = OptionError.unknown("granularity", "node", ("graph", "block"))
    told = "unknown granularity 'node'\n  what to do: choose one of 'graph', 'block'"
    assert str(error) == told
