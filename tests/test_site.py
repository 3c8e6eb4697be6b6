"""What programs write for the site and the release is up to date, and the notebook runs."""

import json
import re

import gluon_dynbatch as gdb
from tests.common import ROOT
from tests.test_docs import README, load, pages

NOTEBOOK = ROOT / "docs" / "ten-minutes.ipynb"


def test_the_chart_of_speeds_is_what_its_script_draws():
    drawing = load(ROOT / "docs" / "draw_speed.py")
    header, rows = drawing.read(README)
    assert len(rows) > 4 and any(row.ours for row in rows), "the table has other systems"
    picture = (ROOT / "docs" / "speed.svg").read_text("utf-8")
    assert picture == drawing.to_svg(header, rows), "run python docs/draw_speed.py"


def test_the_notebook_is_written_from_its_page():
    writer = load(ROOT / "docs" / "notebooks.py")
    page = NOTEBOOK.with_suffix(".md").read_text("utf-8")
    assert NOTEBOOK.read_text("utf-8") == writer.notebook(page), "run python docs/notebooks.py"


def test_the_notebook_runs():
    """Each cell prints what the page shows; the value of its last expression can be displayed."""
    page = NOTEBOOK.with_suffix(".md").read_text("utf-8")
    shown = [match["shown"] or "" for match in pages.BLOCK.finditer(page) if match["code"]]
    cells = [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    names = {}
    for code, text in zip(cells, shown):
        printed = pages.run(code, names)
        missing = printed.startswith("MissingError")  # no program of Graphviz is installed
        assert missing or pages.alike(text, printed), code
    assert len(cells) == len(shown) > 8


def test_the_readme_is_short():
    assert README.count("\n") <= 160


def test_one_version_is_named_everywhere():
    version = re.escape(gdb.__version__)
    assert re.search(rf"^## {version} ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)


def test_the_workflow_runs_what_ci_runs():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert re.findall(r"^ +- run: (.*)$", workflow, re.M)[-1] == "bash .ci/run"
