"""Pictures of plans and reports agree with these, and name what is not installed."""

import re
import shutil
import sys
from collections import Counter
from xml.etree import ElementTree

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import gluon_dynbatch as gdb
from gluon_dynbatch.plan.transpose import transpose
from gluon_dynbatch.report.findings import Finding
from gluon_dynbatch.show.draw import BAR_FILL, bars
from tests.cells import cell, dense, heads_of, inputs, ready
from tests.test_plan import PLANS, plan_of


@pytest.fixture(autouse=True)
def dot(monkeypatch):
    """Pretend that Graphviz is installed: drawing without rendering does not run it."""
    monkeypatch.setattr(shutil, "which", lambda name: name)


def chain(lengths):
    """Run a cell as often as each length says, then an operator that never merges."""
    net = dense(4, prefix="cell_")

    def sample(x, length):
        for _ in range(length):
            x = net(x)
        return mx.nd.SoftmaxOutput(x, mx.nd.zeros(1))

    with autograd.record(), gdb.batching(None, "block", "depth") as batch:
        results = [*map(sample, inputs(len(lengths)), lengths)]
    del results
    return batch


def flow_by_reads(plan):
    """Count the elements that each launch reads of each other, or of all fills together."""
    readers = [launch.number for launch in plan.launches for _ in launch.operands]
    writers = [launch.number for launch in plan.launches for _ in launch.outputs]
    writers += ["fill"] * len(plan.fills)
    edges = Counter()
    for region, operand, length in zip(plan.reads.region, plan.reads.operand, plan.reads.length):
        edges[writers[region], readers[operand]] += int(length)
    return edges


@pytest.mark.parametrize("name", PLANS)
def test_edges_of_the_picture_agree_with_the_reads_of_the_plan(name):
    plan = plan_of(name)
    edges = Counter()
    for (writer, reader), rows in plan.picture(10_000).edges.items():
        if writer != ("whole", 0):
            writer = writer[0] if isinstance(writer, tuple) else writer
            edges[writer, reader] += sum(size * count for size, count in rows.items())
    wanted = flow_by_reads(plan)
    assert set(edges) == set(wanted)
    # A part of a row counts as a row.
    assert all(edges[edge] >= wanted[edge] for edge in wanted)
    for limit in (1, 3, 10_000):
        nodes = plan.picture(limit).nodes
        assert len({node.title for node in nodes.values()}) == len(nodes)
    backward = transpose(plan, heads_of(plan))
    reversed_edges = {
        (reader, writer)
        for writer, reader in backward.picture(10_000).edges
        if isinstance(writer, int) and isinstance(reader, int)
    }
    assert reversed_edges <= set(edges)


def test_a_drawn_plan_has_launches_and_the_rows_between_them():
    """Two of three samples take a second step."""
    plan = chain([1, 2, 2]).plan
    assert [launch.units.size for launch in plan.launches] == [3, 2, 1, 1, 1]
    edges = plan.picture(24).edges
    assert edges[0, 1] == {4: 2} and edges[1, 3] == edges[1, 4] == edges[0, 2] == {4: 1}
    source = plan.draw().source
    assert source.count("cell × ") == 2 and "cell × 3\nlaunch 0" in source
    assert " 2 rows of 4 " in source
    assert source.count("not merged") == 3 and "its gradient ignores the head" in source


def test_many_launches_of_one_segment_are_one_node():
    plan = chain([*range(1, 40)]).plan
    source = plan.draw().source
    assert source.count("cell × 780") == 1 and "39 launches, 0 to " in source
    assert bars([8, 1, 0]) == [16, 2, 1] and len(bars([*range(1, 1000)])) == 16
    merged = plan.picture(1).nodes
    assert [group.name for group in merged.values()] == ["cell", "other calls"]
    assert sum(sum(group.widths) for group in merged.values()) == plan.graph.dependencies.size


def test_only_connected_launches_share_a_node():
    """Two chains of one cell on arrays of other sizes, and one operator before and after them."""
    net = dense(4, prefix="cell_")

    def sample(x, length):
        x = mx.nd.cumsum(x, axis=0)
        for _ in range(length):
            x = net(x)
        return mx.nd.cumsum(x, axis=0)

    with autograd.record(), gdb.batching(None, "block", "depth") as batch:
        results = [sample(mx.nd.ones((1, 4)), 20) for _ in range(2)]
        results += [net(results[0])]
    del results
    # The first needs no gradient.
    for plan, ends in ((batch.plan, 2), (batch.backward_plan, 1)):
        nodes = plan.picture(12).nodes.values()
        numbers = sorted((node.name, len(node.widths)) for node in nodes)
        assert numbers == [("cell", 21)] + [("cumsum", 1)] * ends


def test_launches_that_do_not_fit_are_the_smallest():
    cells = [dense(4, prefix=f"cell{i}_") for i in range(6)]
    with gdb.batching(None, "block", "depth") as batch:
        results = [cells[i](x) for i in range(6) for x in inputs(2 + i)]
    nodes = [*batch.plan.picture(4).nodes.values()]
    assert [node.name for node in nodes] == ["cell2", "cell3", "cell4", "cell5", "other calls"]
    assert sum(sum(node.widths) for node in nodes) == len(results)


def test_pieces_of_several_cells_are_nodes_of_their_own():
    """At granularity "operator", equal pieces fold along each chain, not across layers."""
    layers = [dense(4, prefix=f"layer{i}_") for i in range(2)]
    step = cell(lambda F, x, h: F.tanh(x * h) + x)

    def sample(x, length):
        for layer in layers:
            h = x
            for _ in range(length):
                h = step(layer(x), h)
            x = h
        return x

    with gdb.batching(None, "operator", "depth") as batch:
        results = [sample(x, 9) for x in inputs(3)]
    picture = batch.plan.picture(12)
    assert len(results) == 3 and len(picture.nodes) <= 13
    assert all(node.title for node in picture.nodes.values())


def test_the_backward_pass_can_be_drawn():
    batch = chain([1, 2, 2])
    assert [launch.number for launch in batch.backward_plan.launches[-2:]] == [1, 0]
    source = batch.backward_plan.draw().source
    assert source.count("gradients of results\n1 row of 4") == 3
    with gdb.batching(None, "block", "depth") as batch:
        y = dense()(inputs(1)[0])
    assert batch.plan is not None and batch.backward_plan is None and y.shape


def test_graphviz_renders_a_plan(monkeypatch):
    monkeypatch.undo()
    if shutil.which("dot") is None:
        pytest.skip("no Graphviz on this machine")
    svg = chain([1, 2, 2]).plan.draw().pipe("svg").decode()
    assert len(re.findall('class="node"', svg)) == 5 + 4  # with what comes from outside
    titles = re.findall("<title>(.*?)</title>", svg)
    assert titles[0] == "plan" and {"launch 0", "launch 0&#45;&gt;launch 1"} < set(titles)


def test_bars_in_pictures_are_shapes_to_scale(monkeypatch, capfd):
    """Not characters, which fonts draw at different heights, or as black boxes."""
    monkeypatch.undo()
    if shutil.which("dot") is None:
        pytest.skip("no Graphviz on this machine")
    drawing = chain([*range(1, 15)]).plan.draw()
    svg = drawing.pipe("svg").decode()
    points = re.findall(rf'<polygon fill="{BAR_FILL}"[^>]* points="([^"]*)"', svg)
    corners = [[tuple(map(float, pair.split(","))) for pair in x.split()] for x in points]
    heights = [max(y for _, y in x) - min(y for _, y in x) for x in corners]
    assert heights == bars([*range(14, 0, -1)])
    assert len({max(y for _, y in x) for x in corners}) == 1, "they stand on one line"
    texts = "".join(re.findall(r">([^<]*)</text>", svg))
    assert "cell × 105" in texts and set(texts) - set(map(chr, range(256))) == set()
    # Viewers that do not know this colour would fill with black.
    assert 'fill="transparent"' not in svg
    assert drawing.pipe("png")[:4] == b"\x89PNG"
    assert capfd.readouterr().err == ""


def test_a_figure_has_times_and_widths_and_for_fibers_the_flushes():
    report = chain([1, 2, 2]).report
    left, right = report.plot().axes
    (flush,) = report.flushes
    wanted = [flush.recording_ms, flush.analysis_ms, flush.dispatch_ms, report.waiting_ms]
    assert [bar.get_width() for bar in left.patches] == wanted
    for time, label in zip(wanted, left.texts):
        assert float(label.get_text()) == pytest.approx(time, rel=0.1)
    assert [*right.patches[0].get_data().values] == [3, 2, 1, 1, 1]
    net = dense(4, prefix="cell_")
    with gdb.batching() as batch:
        batch.map(lambda x: net(x) if net(x).sum().asscalar() > 0 else x, inputs(6))
    waiting = [flush.waiting for flush in batch.report.flushes]
    right = batch.report.plot().axes[1]
    assert waiting[0] == 6 and [bar.get_height() for bar in right.patches] == waiting


def test_notebooks_show_plan_and_report():
    batch = chain([1, 2, 2])
    where = gdb.errors.Where("<stdin>", 1, "<listcomp>")
    batch.report.found.add([Finding("change", "+=", "", 2, where)])
    for shown in (batch.plan, batch.report):
        page = ElementTree.fromstring(shown._repr_html_())
        text = "".join(page.itertext())
        assert str(shown) in text and "SoftmaxOutput" in text and "in 5 launches" in text
    cells = [cell.text or "" for cell in page.findall("table/tr/td")]
    assert any(cell.startswith("2 x += at <stdin>:1 in <listcomp>\n") for cell in cells)


def widths_of(page):
    """Return the widths of all bars, in per cent of their columns."""
    return [float(width) for width in re.findall(r"width:([\d.]+)%", page)]


def test_bars_in_notebooks_are_to_scale(net):
    plan = chain([1, 2, 2]).plan
    assert widths_of(plan._repr_html_()) == [100, 66.7, 33.3, 33.3, 33.3]
    with gdb.batching(granularity="block", policy="depth") as batch:
        for count in (4, 1):
            _ = [net(x) for x in inputs(count)]
            batch.flush()
    page = batch.report._repr_html_()
    times = [*batch.report.stage_times.values()]
    wanted = [100 * ms / max(times) for ms in times] + [100, 25]
    assert widths_of(page) == pytest.approx(wanted, abs=0.06)
    assert "all 2 flushes" in page and "4 in 1 launch; 4.0 calls" in page


def test_notebooks_use_the_colours_of_the_page():
    """Text has none of its own, and bars are seen on white and on black."""
    batch = chain([1, 2])
    for page in (batch.plan._repr_html_(), batch.report._repr_html_(), gdb.Report()._repr_html_()):
        assert not re.search(r"(?<!back)(?:^|[^-])color:", page) and "<style" not in page
        for colour in re.findall(r"background:#(\w+)", page):
            light = sum(bytes.fromhex(colour)) / 3 / 255
            assert 0.3 < light < 0.7
        assert "..." not in page


def test_errors_name_missing_programs_and_packages(monkeypatch):
    batch = chain([1, 2])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(gdb.MissingError, match=r"program 'dot'(.|\n)*install Graphviz"):
        batch.plan.draw()
    for package, show in (("graphviz", batch.plan.draw), ("matplotlib.pyplot", batch.report.plot)):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(gdb.MissingError, match=f"pip install {package.split('.')[0]}$"):
            show()


def test_parts_of_a_call_are_named_by_its_own_layers_or_by_operators():
    """Names of parameters of other blocks do not begin with the name of the outer block."""

    class Step(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="step_")
            self.lookup = gluon.nn.Embedding(5, 4, prefix="embedding1_")
            self.mix = gluon.nn.Dense(4, in_units=4, prefix="step_mix_")

        def hybrid_forward(self, F, word, state):
            return F.tanh(self.mix(state)) + self.lookup(word)

    step = ready(Step())
    with gdb.batching(granularity="operator", policy="depth") as batch:
        for count in (1, 2, 3):
            state = mx.nd.ones((1, 4))
            for word in range(count):
                state = step(mx.nd.array([word]), state)
    text = str(batch.plan)
    assert "step: Embedding" in text and "step: mix" in text and "ing1" not in text
