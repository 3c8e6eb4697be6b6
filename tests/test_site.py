"""What programs write for the site and the release is up to date, and the notebook runs."""

import json
import re

import numpy as np

import draw_measured
import gluon_dynbatch as gdb
import themes
from suite.tables import Measured
from tests.common import ROOT
from tests.test_docs import README, lines_of, load, pages

NOTEBOOK = ROOT / "docs" / "ten-minutes.ipynb"


def test_the_chart_of_speeds_is_what_its_script_draws():
    drawing = load(ROOT / "docs" / "draw_speed.py")
    header, rows = drawing.read(README)
    assert len(rows) > 4 and any(row.ours for row in rows), "the table has other systems"
    picture = (ROOT / "docs" / "speed.svg").read_text("utf-8")
    assert picture == drawing.to_svg(header, rows), "run python docs/draw_speed.py"


def test_the_chart_and_the_table_of_threads_are_what_their_script_makes():
    drawing = load(ROOT / "docs" / "draw_speed.py")
    figures = drawing.read_csv((ROOT / "docs" / "threads.csv").read_text("utf-8"))
    picture = (ROOT / "docs" / "threads.svg").read_text("utf-8")
    assert picture == drawing.to_svg(*drawing.over_threads(figures)), (
        "run python docs/draw_speed.py"
    )
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    _, table, _ = drawing.marked(page, "threads")
    assert table.strip() == drawing.to_table(figures), "run python docs/draw_speed.py"


def test_figures_over_threads_are_medians_of_a_benchmark():
    drawing = load(ROOT / "docs" / "draw_speed.py")
    rows = [
        {"kind": "training", "size": 256, "way": f"{way}@{setting}", "rate": rate}
        for way, factor in (("gdb-once", 2), ("gdb", 1), ("torch", 0.5))
        for setting, rates in (("1", (10, 30, 1000)), ("nothing set", (60, 50, 40)))
        for rate in (factor * each for each in rates)
    ]
    lines = [*drawing.to_csv({"workloads": {"sick": {"rows": rows}}})]
    assert lines[1] == ["training", 256, "gdb-once", "1", 60]
    figures = drawing.read_csv("\n".join(",".join(map(str, line)) for line in lines))
    assert "| 30 | 50 | 2.00 |" in drawing.to_table(figures)
    header, drawn = drawing.over_threads(figures)
    assert header[1:] == ["training"] and [row.speeds for row in drawn][:3] == [(), (60,), (100,)]


def test_the_picture_of_the_load_test_is_what_its_script_draws():
    """The page shows it once there are figures of a run."""
    drawing = load(ROOT / "docs" / "draw_serving.py")
    shown = "](serving.svg)" in (ROOT / "docs" / "serving.md").read_text("utf-8")
    assert shown == drawing.FIGURES.exists() == drawing.PICTURE.exists()
    if shown:
        figures = drawing.read_csv(drawing.FIGURES.read_text("utf-8"))
        assert set(figures) == set(drawing.WAYS)
        picture = drawing.PICTURE.read_text("utf-8")
        assert picture == drawing.to_svg(figures), "run python docs/draw_serving.py"


def test_figures_of_a_load_test_become_points_of_a_picture():
    drawing = load(ROOT / "docs" / "draw_serving.py")
    row = dict(words=2000.4, lost=0, p99=0.1, short99=0.02, first50=0.004, each50=2e-4)
    rows = [row, {**row, "words": 4000, "p99": 0.3}, {**row, "words": 9000, "lost": 1}]
    lines = [",".join(map(str, line)) for line in drawing.to_csv({"continuous": rows})]
    figures = drawing.read_csv("\n".join(lines))
    assert [point.words for point in figures["continuous"]] == [2000, 4000]
    assert figures["continuous"][1].seconds["p99"] == 0.3
    picture = drawing.to_svg(figures)
    assert picture.count("<circle") == 1 + 2 * len(drawing.PANELS)
    for scale in ("10 ms", "100 ms", "1 s", "0.1 ms", "2,000"):
        assert f">{scale}</text>" in picture


def test_pictures_of_measurements_are_what_their_script_draws(tmp_path):
    """In each panel, curves and bars; texts are drawn as outlines, with a comment each."""
    rows = draw_measured.read_csv(draw_measured.FIGURES.read_text("utf-8"))
    for name, picture in draw_measured.PICTURES.items():
        drawn = tmp_path / "drawn.svg"
        drawn.write_text(draw_measured.to_svg(rows[name]), "utf-8")
        texts = [re.findall("<!-- (.*?) -->", p.read_text("utf-8")) for p in (picture.path, drawn)]
        assert texts[0] == texts[1] and "training" in texts[0], name
        for panel in (0, 1):
            lines = lines_of(picture.path, panel), lines_of(drawn, panel)
            assert len(lines[0]) == len(lines[1]) > 1, name
            for one, other in zip(*lines):
                np.testing.assert_allclose(one, other, atol=0.002, err_msg=name)


def test_figures_of_pictures_are_taken_from_a_benchmark(tmp_path, monkeypatch):
    """Of a run of one size, the other picture keeps its figures."""
    before = draw_measured.read_csv(draw_measured.FIGURES.read_text("utf-8"))
    file, run = tmp_path / "measured.csv", tmp_path / "benchmark.json"
    draw_measured.write_csv(before, file)
    monkeypatch.setattr(draw_measured, "FIGURES", file)
    row = draw_measured.make_row(dict(kind="training", size=256, way="gdb", ms=1.5, recording=0.5))
    rows = [vars(row), {**vars(row), "way": "hand"}, {**vars(row), "size": 32}]
    fields = dict.fromkeys(Measured.__dataclass_fields__, {})
    workload = {**fields, "rows": rows, "counts": []}
    run.write_text(json.dumps({"workloads": {"sick": workload}}), "utf-8")
    draw_measured.update(run)
    after = draw_measured.read_csv(file.read_text("utf-8"))
    assert after["budget"] == before["budget"] and after["parts"] == [row]


def test_every_picture_is_compared_with_what_draws_it():
    """By a test of this file, or as a picture of a page; all suit light and dark pages."""
    of_pages = {
        page.parent / match["picture"]
        for page in pages.PAGES.values()
        for match in pages.BLOCK.finditer(page.read_text("utf-8"))
        if match["picture"]
    }
    names = "speed", "threads", "serving", "tree_batching"
    by_hand = {ROOT / "docs" / f"{name}.svg" for name in names}
    measured = {picture.path for picture in draw_measured.PICTURES.values()}
    committed = {*(ROOT / "docs").rglob("*.svg"), *(ROOT / "experiments").rglob("*.svg")}
    assert committed == {path.resolve() for path in of_pages | by_hand | measured}
    for path in committed:
        text = path.read_text("utf-8")
        has_paper = re.search("(?:fill=|fill: |fill:)\"?(?:white|#fff)", text)
        assert ("prefers-color-scheme: dark" in text) == bool(has_paper), path


def test_a_picture_has_each_colour_of_its_theme_twice():
    picture = themes.frame(9.6, 4, "a < b", [f'<path stroke="{themes.GRID}"/>'])
    assert 'viewBox="0 0 10 4"' in picture and "<title>a &lt; b</title>" in picture
    for light, dark in themes.DARK.items():
        assert f'[fill="{light}"]{{fill:{dark}}}' in picture
        assert f'[stroke="{light}"]{{stroke:{dark}}}' in picture


def test_the_notebook_is_written_from_its_page():
    writer = load(ROOT / "docs" / "notebooks.py")
    page = NOTEBOOK.with_suffix(".md").read_text("utf-8")
    assert NOTEBOOK.read_text("utf-8") == writer.notebook(page), "run python docs/notebooks.py"


def test_the_notebook_runs():
    """Each cell prints what the page shows; the value of its last expression can be displayed.

    Lines have other numbers, as each cell is a program of its own.
    """
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
        without_lines = (re.sub(r"[.]py:[0-9]+", ".py", each) for each in (text, printed))
        assert missing or pages.alike(*without_lines), code
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
