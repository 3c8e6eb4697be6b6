"""The Python of README and of the site's pages runs, and prints what they say."""

import importlib.util
import re
from pathlib import Path

import pytest

import gluon_dynbatch as gdb

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


def test_every_error_has_an_example():
    classes = {
        name
        for name in gdb.__all__
        if isinstance(getattr(gdb, name), type)
        and issubclass(getattr(gdb, name), gdb.DynBatchError)
    }
    text = pages.PAGES["docs/errors.md"].read_text("utf-8")
    assert set(re.findall(r"^```text\n(\w+):", text, re.M)) == classes - {"DynBatchError"}


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    documented = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.M))
    documented = {name.split(".")[-1] for name in documented}
    assert set(gdb.__all__) - {"testing"} <= documented
