"""README, pages, docstrings and examples run, and print what the text shows."""

import doctest
import html
import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import gluon_dynbatch as gdb
from gluon_dynbatch import errors
from gluon_dynbatch.errors import DynBatchError, OptionError, Where
from tests import cells
from tests.cells import equal, gradients
from tests.common import ROOT


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = load(ROOT / "docs" / "snippets.py")


@pytest.mark.parametrize("name", sorted(pages.PAGES))
def test_a_page_shows_what_its_code_prints_and_draws(name, tmp_path):
    """Its outputs and pictures are what its code prints and draws."""
    for snippet in pages.snippets(name):
        shown, printed = snippet.shown or "", snippet.printed
        assert pages.alike(shown, printed), f"run python docs/snippets.py {name}"
        advice = "run python docs/snippets.py --draw"
        if hasattr(snippet.picture, "source"):
            texts = texts_of(snippet.path.read_text("utf-8"))
            assert texts == labels_of(snippet.picture.source), advice
        elif snippet.picture is not None:
            pages.write(snippet.picture, tmp_path / "drawn.svg")
            shown, drawn = lines_of(snippet.path), lines_of(tmp_path / "drawn.svg")
            assert len(shown) == len(drawn) > 0, advice
            for one, other in zip(shown, drawn):
                np.testing.assert_allclose(one, other, atol=0.03, err_msg=advice)


def texts_of(svg):
    """Return the texts in a picture, sorted."""
    return sorted(html.unescape(text).strip() for text in re.findall(r">([^<]*)</text>", svg))


def lines_of(path, number=-1):
    """Return the lines and areas of one of a figure's axes, as shares of their width and height.

    The first of two axes of a report have times, which differ from run to run.
    """
    axes = ElementTree.parse(path).findall(".//{*}g[@id]")
    axes = [group for group in axes if group.get("id").startswith("axes_")][number]
    (frame, *_) = axes.iter("{http://www.w3.org/2000/svg}path")
    low, high = (f(points_of(frame), axis=0) for f in (np.min, np.max))
    drawn = [element for element in axes.iter() if element.get("clip-path")]
    return [(points_of(x) - low) / (high - low) for x in drawn if x.get("d") and not is_tick(x)]


def is_tick(element):
    return np.ptp(points_of(element), axis=0).min() == 0


def points_of(path):
    """Return the points of a path of an SVG picture."""
    return np.array(re.findall(r"-?[\d.]+", path.get("d")), float).reshape(-1, 2)


def labels_of(source):
    """Return the lines of all labels in the language of Graphviz, sorted."""
    labels = re.findall(r'label="?((?<=")[^"]*|[^\s\]]+)', source)
    return sorted(line.strip() for label in labels for line in re.split(r"\n|\\n", label))


def test_outputs_may_differ_only_in_times_and_rounding():
    assert pages.alike("took 3.1 ms, loss 0.51", "took 17 ms, loss 0.52")
    assert not pages.alike("loss 0.51", "loss 0.61")
    assert not pages.alike("5 launches", "6 launches")
    assert not pages.alike("", "ValueError: no")


def test_every_page_is_in_the_site():
    """Each page is in a table of contents.  Sphinx checks it too, but not in `make test`."""
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


def test_each_error_has_the_base_of_another_and_a_section_with_an_example():
    page = pages.PAGES["docs/errors.md"].read_text("utf-8")
    for cls in ERRORS:
        mixin, *others = cls.__bases__
        assert mixin is DynBatchError
        assert {other.__module__ for other in others} <= {"builtins", "mxnet.base"}
        copy = pickle.loads(pickle.dumps(cls("text")))
        assert type(copy) is cls and str(copy) == "text"
        name = cls.__name__
        bases = ", ".join(f"`{other.__name__}`" for other in others)
        assert f"| [`{name}`](#{name.lower()}) | {bases} |" in page
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for part in ("Cause: ", "Way out: ", "```python\n", f"```text\n{name}: "):
            assert part in section, (part, name)
    assert set(re.findall(r"^```text\n(\w+):", page, re.M)) == {cls.__name__ for cls in ERRORS}


def test_messages_have_one_line_per_fact():
    where = Where("model.py", 12, "forward")
    text = "no.\n  at: model.py:12 in forward\n  block: cell0\n  what to do: reshape"
    assert str(DynBatchError("no.", where, "cell0", "reshape")) == text
    assert str(DynBatchError("no.", block="cell0")) == "no.\n  block: cell0"
    text = "unknown granularity 'node'\n  what to do: choose one of 'graph', 'block'"
    assert str(OptionError.unknown("granularity", "node", ("graph", "block"))) == text


README = (ROOT / "README.md").read_text(encoding="utf-8")
ARGUMENTS = {
    "bert_pairs": ["--layers", "1", "--units", "8", "--pairs", "6", "--rounds", "1"],
    "convert_existing": ["--requests", "20"],
    "estimator": ["--epochs", "1"],
    "greedy_parser": ["--epochs", "1", "--sentences", "24"],
    "inspect_batching": [],
    "module_network": ["--epochs", "2"],
    "ragged_lstm": ["--epochs", "2"],
    "sampler": ["--epochs", "1", "--words", "24"],
    "numpy_inference": ["--epochs", "1"],
    "numpy_sentiment": ["--epochs", "1"],
    "stock_rnn": ["--epochs", "1"],
    "tree_lstm": ["--epochs", "12"],
    "vocabulary": ["--epochs", "1"],
}


def headings(text):
    """Return the anchors of the headings, as GitHub spells them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_example_is_run():
    """`test_services.py` and `test_ray.py` run services; others are parts of examples."""
    parts = {"arguments", "http_service", "numpy_training", "service_processes"}
    stems = {path.stem for path in (ROOT / "examples").glob("*.py")} - parts
    assert stems == {*ARGUMENTS, "serve", "serve_decoder", "serve_ray"}
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert stems == set(re.findall(r"^\| \[`(\w+)\.py`\]", page, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_an_example_runs_and_equals_the_loop(name, capsys):
    """Training halves the loss, so the comparison with the loop is not one of noise."""
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text("utf-8").splitlines()) < 150, "an example is short"
    load(path).main([*ARGUMENTS[name], "--analysis-budget", "auto"])
    printed = capsys.readouterr().out
    assert "equal those of the loop" in printed
    if name == "tree_lstm":
        losses = [float(x) for x in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses) == 12 and losses[-1] < 0.5 * losses[0]


class Leaves(gluon.Block):
    """Replaces the README's `TreeLSTM`: a block that is written for one sample."""

    def __init__(self):
        super().__init__()
        self.cell = gluon.nn.Dense(3, in_units=6, activation="tanh")
        self.out = gluon.nn.Dense(2, in_units=3)

    def forward(self, vectors, tree):
        def join(left, right):
            return self.cell(mx.nd.concat(left, right, dim=1))

        return self.out(cells.tree(lambda i: vectors[i : i + 1], join, tree))


def test_both_sides_of_the_readmes_first_diff_give_the_same_gradients():
    (diff,) = re.findall(r"^```diff\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    trees = [((0, 1), 2), (0, 1), ((0, 1), (2, (1, 0)))]
    vectors = [np.random.uniform(-1, 1, (3, 3)) for _ in range(6)]
    samples = [
        ((mx.nd.array(x), trees[i % 3]), mx.nd.array([i % 2])) for i, x in enumerate(vectors)
    ]

    def gradients_of(code):
        collected = []

        def collect(size):
            collected.extend(gradients(names["net"]).values())

        names = {
            "autograd": mx.autograd,
            "TreeLSTM": Leaves,
            "loader": [samples[:3], samples[3:]],
            "loss_fn": gluon.loss.SoftmaxCrossEntropyLoss(),
            "trainer": SimpleNamespace(step=collect),
        }
        mx.random.seed(1)
        exec(compile(code, "README.md", "exec"), names)
        return collected

    removed, added = (
        "".join(line[1:] + "\n" for line in diff.splitlines() if line[:1] in ("", " ", sign))
        for sign in "-+"
    )
    expected = gradients_of(removed)
    assert len(expected) == 2 * 4 and all((gradient != 0).any() for gradient in expected)
    equal(gradients_of(added), expected, 1e-4)


def test_examples_in_docstrings_run():
    attempted = 0
    for _, name, _ in pkgutil.walk_packages(gdb.__path__, f"{gdb.__name__}."):
        names = {"mx": mx, "np": np, "gdb": gdb}
        result = doctest.testmod(importlib.import_module(name), extraglobs=names)
        assert result.failed == 0, name
        attempted += result.attempted
    assert attempted > 20


def prose_of_all_pages():
    """Yield each page, with its text without code."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        yield page, re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def test_items_with_numbers_are_in_one_list():
    """An indented item would begin a list of its own, inside the item before it."""
    for page, prose in prose_of_all_pages():
        assert not re.search(r"^ +(?!1\. )\d\. ", prose, flags=re.MULTILINE), page


def test_links_have_targets():
    for page, prose in prose_of_all_pages():
        for path, anchor in re.findall(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)", prose):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {path}"
            if anchor:
                assert anchor in headings(target.read_text(encoding="utf-8")), (page, anchor)


def test_the_picture_is_what_its_script_draws():
    drawing = load(ROOT / "docs" / "draw_tree_batching.py")
    picture = (ROOT / "docs" / "tree_batching.svg").read_text(encoding="utf-8")
    assert drawing.to_svg(drawing.lay_out()) == picture
