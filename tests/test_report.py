"""What the report says, as text and as JSON."""

import email.message
import importlib.metadata
import json
import re
import time

import mxnet as mx
import pytest
from mxnet.base import _LIB

import gluon_dynbatch as gdb
from gluon_dynbatch.errors import Where
from gluon_dynbatch.record.intercept import WAITS
from gluon_dynbatch.report import advice
from gluon_dynbatch.report.advice import COLUMNS, KINDS, MOST, wrapped
from gluon_dynbatch.report.findings import Finding
from gluon_dynbatch.report.summary import FlushReport
from tests import inside
from tests.cells import cell, dense, inputs
from tests.common import FIXED, named_lines
from tests.forks import output_of


@pytest.fixture
def clock(monkeypatch):
    """Return a function that lets time pass; each wait of MXNet takes five seconds as well."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    for name in WAITS:
        original = getattr(_LIB, name)
        monkeypatch.setattr(_LIB, name, lambda *args, real=original: advance(5) or real(*args))
    return advance


@pytest.mark.parametrize("name", ["asnumpy", "wait_to_read"])
def test_the_time_of_recording_excludes_earlier_work_and_waiting(net, clock, name):
    """Waiting has a figure of its own, in the flush that computes the values."""
    x = inputs(1)[0]
    with gdb.batching(**FIXED) as batch:
        clock(100)
        getattr(x, name)()  # before any flush
        first = net(x)
        clock(1)
        getattr(x, name)()  # `x` is not pending
        clock(1)
        getattr(first, name)()
        clock(100)
        second = net(x)
        clock(3)
        getattr(first, name)()
        getattr(first, name)()
        mx.nd.relu(second)
        clock(4)
        batch.flush()
        getattr(second, name)()
        clock(100)
    getattr(second, name)()  # after the scope
    times = [(flush.recording_ms, flush.waiting_ms) for flush in batch.report.flushes]
    # `asnumpy` waits once per flush, `wait_to_read` each time.
    waited = 5000 if name == "asnumpy" else 15000
    assert times == [(2000, waited), (7000, 5000)]
    assert batch.report.waiting_ms == waited + 15000
    assert "recording 9000.0 ms" in str(batch.report)
    assert f"waiting for values {waited + 5000}.0 ms" in str(batch.report)


def test_values_read_by_line_and_count(net):
    with gdb.batching(granularity="block", policy="depth") as batch:
        for x in inputs(5):
            y = net(x)
            if y.sum().asscalar() > 100:  # five times
                raise AssertionError
        y = net(x)
        y.asnumpy()  # once
        y.asnumpy()
        batch.flush()  # nothing is pending
        # A read within a library counts for the line of the user.
        mx.metric.MSE().update([mx.nd.ones((1, 3))], [net(x)])  # by a metric
        net(x)
    y.asnumpy()
    batch.flush()  # the scope has ended
    forced = batch.report.forced.items()
    read = {named_lines(str(where))[0].split("# ")[-1]: times for where, times in forced}
    assert read == {"five times": 5, "once": 1, "by a metric": 1}
    assert len(batch.report.flushes) == 5 + 1 + 1 + 1
    (first, *_) = batch.report.forced
    assert first.filename == __file__ and first.function == "test_values_read_by_line_and_count"
    text = str(batch.report)
    assert f"value read  5 x asscalar() at {first}" in text
    assert text.index("value read  5 x") < text.index("value read  1 x")


def test_lines_of_a_program_without_a_file():
    """With ``python -c``, it looks like a function that MXNet generates, but has no caller."""
    imports = "import mxnet as mx, gluon_dynbatch as gdb"
    printed = output_of("""
        from gluon_dynbatch.record.state import STATE
        for _ in range(3):
            with gdb.batching() as batch:
                (mx.nd.zeros((1, 2)) + 1).asnumpy()
        print(*batch.report.forced, len(STATE.decisions))
    """, prelude=imports)  # fmt: skip
    assert printed == "<string>:5 in <module> 1\n"


EXAMPLE = FlushReport(
    nodes=4, units=4, widths=(3, 1), granularity="block", policy="agenda", budget="2 ms",
    cached=True, rows_gathered=5, arena_bytes=2_500_000, recording_ms=1.0,
    analysis_ms=2.0, dispatch_ms=5.0,
)  # fmt: skip


def joined(F, rows):
    return F.concat(*rows, dim=0)


def summed(F, rows):
    return F.add_n(*rows)


@pytest.mark.parametrize("how, granularity, wanted", [
    (joined, "block", 'granularity="operator", or make one array'),
    (joined, "operator", "own launch; make one array"),
    (joined, "graph", None),
    (summed, "block", 'granularity="operator", or make one array'),
    (summed, "operator", None),
    (None, "block", None),
    (None, "operator", None),
])  # fmt: skip
def test_lists_of_several_lengths(how, granularity, wanted):
    """A concatenation in the cell needs a launch per length, one before the cell does not."""
    join = how or (lambda F, rows: rows)
    net = cell(lambda F, rows: F.tanh(join(F, rows)).sum(axis=0, keepdims=True))
    lists = [inputs(6)[:length] for length in (3, 5, 2, 5, 1)]
    with gdb.batching(granularity=granularity, policy="depth") as batch:
        for rows in lists:
            net(rows if how else mx.nd.concat(*rows, dim=0))  # the line
    assert batch.report.alone == []
    if wanted is None:
        assert batch.report.split == []
        return
    assert batch.report.launches >= 4
    (split,) = batch.report.split
    assert (split.name, split.calls) == ("the_cell", 5)
    assert wanted in f"{split.reason}; {split.advice}"
    assert named_lines(str(split.where))[0].endswith("# the line")
    text = " ".join(str(batch.report).split())
    assert f"split {' '.join(split.lines())} -> {split.advice}" in text
    assert split.advice in batch.report._repr_html_().replace("&quot;", '"')


GROW = {
    "numbers": lambda net, states: [*states, net(states)],
    "sizes": lambda net, states: [mx.nd.cumsum(mx.nd.concat(*states, *states, dim=0), axis=0)],
}


@pytest.mark.parametrize("granularity", ["block", "operator"])
@pytest.mark.parametrize("grow", GROW.values(), ids=GROW)
def test_calls_that_no_change_would_join_are_not_split(grow, granularity):
    """Each step has another number or size, and waits for the steps before it.

    If one sample is a step ahead, a step has two numbers or sizes, and could do with one launch.
    """
    net = cell(lambda F, rows: F.tanh(F.concat(*rows, dim=0)).sum(axis=0, keepdims=True))
    first = cell(lambda F, x: F.tanh(x))
    for ahead in (0, 1):
        with gdb.batching(granularity=granularity, policy="depth", strict=not ahead) as batch:
            for sample, row in enumerate(inputs(4)):
                states = [first(row)] * (1 + ahead * (sample == 0))
                for _ in range(4):
                    states = grow(net, states)
        assert len(batch.report.split) == ahead, batch.report


@pytest.mark.parametrize("policy", ["depth", "search"])
def test_only_lines_with_several_numbers_of_arrays_are_split(policy):
    """A line that always joins two arrays is not at fault, whatever other lines join."""
    net = cell(lambda F, x: F.tanh(x))
    for _ in range(2):  # the second plan is cached
        with gdb.batching(granularity="operator", policy=policy) as batch:
            for length in (2, 3, 3, 4, 5):
                x = net(inputs(1)[0])
                mx.nd.concat(x, x, dim=1)
                mx.nd.concat(*[net(row) for row in inputs(length)], dim=1)  # the line
        (split,) = batch.report.split
        assert (split.name, split.calls) == ("Concat", 5)
        assert named_lines(str(split.where))[0].endswith("# the line")


def test_lines_that_differ_only_from_each_other_are_all_split():
    net = cell(lambda F, x: F.tanh(x))
    with gdb.batching(granularity="operator", policy="depth") as batch:
        for _ in range(3):
            x = net(inputs(1)[0])
            mx.nd.concat(x, x, dim=1)
            mx.nd.concat(x, x, x, dim=1)
    assert [split.calls for split in batch.report.split] == [3, 3]
    assert len({split.where for split in batch.report.split}) == 2


def test_a_report_in_the_open_scope_says_that_it_is_open(net):
    with gdb.batching(**FIXED) as batch:
        net(inputs(1)[0])
        text = str(batch.report)
        assert "when it ends" in text and "hybridize" not in text
        assert "the scope is still open" in str(batch.plan)
    assert "when it ends" not in str(batch.report)
    with gdb.batching(**FIXED) as batch:
        pass
    assert "none was recorded" in str(batch.report)
    assert "open" not in str(batch.plan)


def test_operators_on_ordinary_arrays(net):
    """They run at once; the report says so if they are most of a program."""
    arrays = inputs(3)
    for times in (1, 6):
        with gdb.batching(**FIXED) as batch:
            xs = [x for x in arrays for _ in range(times) if mx.nd.relu(x) is not None]
            _ = [net(x) for x in xs[:4]]
        report = batch.report
        assert report.ordinary == {"relu": len(xs)} and (report.unrecorded is not None) == (
            times > 1
        )
    (found,) = report.findings
    assert found.where.filename == __file__
    assert f"at once     {len(xs)} x relu at {found.where}" in str(report)


def test_reports_of_several_scopes_add_up():
    reports = [gdb.Report() for _ in range(2)]
    for report in reports:
        report.flushes.append(EXAMPLE)
        report.traced.known, report.traced.new, report.traced.new_ms = 1, 2, 3.0
        report.found.add([Finding("unkept", "net", "why", 4, Where("a.py", 1, "f"))])
    total = gdb.Report.together(reports)
    assert (len(total.flushes), total.traced.known, total.traced.new) == (2, 2, 4)
    assert total.traced.new_ms == 6 and [found.calls for found in total.traced.refused] == [8]


def crossed(first, second):
    """Call two cells in turn, in another order for each sample: three launches, not two."""
    x, y = inputs(2)
    return [second(first(x)), first(second(y))]


BEST = {
    "depth": ({"policy": "depth"}, 'policy="search"'),
    "search": ({"policy": "search"}, None),
    "budget": ({"policy": "search", "analysis_budget": 0}, "a larger analysis_budget"),
}


@pytest.mark.parametrize("name", BEST)
def test_the_report_says_how_few_launches_are_possible(name):
    options, advice = BEST[name]
    cells = dense(4, 4), dense(4, 4)
    with gdb.batching(granularity="block", **options) as batch:
        results = crossed(*cells)
    report, text = batch.report, str(batch.report)
    assert len(results) == 2 and report.launches >= 3
    assert batch.plan.fewest_launches == report.fewest_launches() == 2
    (found,) = report.findings
    assert (found.kind, found.calls, found.where.filename) == ("at best", report.nodes, __file__)
    needed = f"{report.launches} launches ran them: at this granularity, no policy needs fewer"
    assert found.reason == f"{needed} than 2" and found.reason in text
    assert found.advice == (f"{advice} may find a plan with fewer" if advice else "")
    assert f"at best     4 calls at {found.where}" in text
    with gdb.batching(granularity="block", **options) as batch:
        results = [cells[0](x) for x in inputs(2)]
    assert batch.plan.fewest_launches == 1 and len(results) == 2
    assert ("at best" in str(batch.report)) == (name == "budget"), "there are no others to save"


def test_how_few_launches_is_not_said_if_nobody_knows(monkeypatch):
    cells = dense(4, 4), dense(4, 4)
    with gdb.batching(**FIXED) as batch:
        results = crossed(*cells)
        batch.flush()
        results += crossed(*cells)
    assert len(results) == 4 and batch.report.fewest_launches() is None, "two flushes"
    with gdb.batching(**FIXED) as batch:
        results = crossed(*cells)
    inside.limit(monkeypatch, "units of a plan with a bound", 4)
    assert batch.report.fewest_launches() is None and "at best" not in str(batch.report)
    monkeypatch.undo()
    report = batch.report
    assert report.fewest_launches() == 2
    del batch
    assert report.fewest_launches() is None, "a report does not keep plans"


SUMMARY = [
    "calls       4 in 2 launches; 2.0 calls a launch on average, 3 at most",
    "setting     granularity block, policy agenda, budget 2 ms; cached plan",
    "memory      2.5 MB of arenas, 5 rows gathered",
    "time        recording 1.0 ms, analysis 2.0 ms, dispatch 5.0 ms",
]


def test_print():
    report = gdb.Report()
    assert report.analysis_share == 0
    assert re.match(r"calls +0 calls\n +none was recorded(.|\n)*hybridize\(\)", str(report))
    alone = Finding("alone", "lone", "because", 3, Where("a.py", 9, "g"))
    often = EXAMPLE._replace(
        findings=(Finding("alone", "rnn", "why", 2, Where("a.py", 1, "f"), "stop it"),)
    )
    report.flushes = [often] * 2 + [EXAMPLE._replace(findings=(alone,))]
    assert [(call.name, call.calls) for call in report.alone] == [("rnn", 4), ("lone", 3)]
    assert report.analysis_share == pytest.approx(0.25)
    del report.flushes[1:]
    report.found.add([Finding("change", "+=", "", 7, Where("a.py", 3, "f"))])
    report.choice = "later scopes"
    _, reason, advice, _ = KINDS["change"]
    assert str(report).splitlines() == [
        *SUMMARY,
        "ran alone   2 x rnn at a.py:1 in f",
        "            why",
        "            -> stop it",
        *wrapped("changed", ["7 x += at a.py:3 in f", reason, f"-> {advice}"]).splitlines(),
        "auto        later scopes",
    ]
    assert str(often).splitlines() == [*SUMMARY, *str(report).splitlines()[4:7]]
    line = EXAMPLE.line
    assert line.startswith(
        "calls 4 in 2 launches; 2.0 calls a launch on average, 3 at most; setting"
    )
    assert line.endswith("; time recording 1.0 ms, analysis 2.0 ms, dispatch 5.0 ms")


def test_several_flushes_have_one_summary():
    """Units are counted only where calls are cut into several; no line is longer than a screen."""
    report = gdb.Report()
    report.flushes = [
        EXAMPLE._replace(units=8, widths=(6, 2), cached=i > 2, waiting=2 * i, queue_ms=1.5)
        for i in range(20)
    ]
    assert str(report).splitlines() == [
        "calls       80, cut into 160 units, in 40 launches; 4.0 units a launch on average, "
        "6 at most",
        "flushes     20; 20.0 samples of map waited for each",
        "            print(batch.report.flushes[0]) shows the first",
        "setting     granularity block, policy agenda, budget 2 ms; 17 of 20 plans cached",
        "memory      50.0 MB of arenas, 2.5 MB in the largest flush, 100 rows gathered",
        "time        recording 20.0 ms, analysis 40.0 ms, dispatch 100.0 ms",
        "            waiting for earlier flushes 30.0 ms",
    ]
    assert "1; 4 samples of map waited for it" in str(report.flushes[2])


def test_findings_that_are_many_or_alike():
    """Of each kind, the most frequent are shown, and advice that is the same is given once."""
    report = gdb.Report()
    for line in range(1, MOST + 4):
        where = Where("a.py", line, "f")
        report.found.add([Finding("value", "asscalar()", "", line, where)])
        report.found.add([Finding("alone", f"long{line}", "because of this " * 20, 1, where)])
    text = str(report)
    rows = [row.split()[2] for row in text.splitlines() if row.startswith("value read")]
    assert rows == [*map(str, range(MOST + 3, 3, -1)), "and"]
    assert " ".join(text.split()).count(KINDS["value"].advice) == 1
    assert text.count("and 3 more: see batch.report.findings") == 2
    assert max(map(len, text.splitlines())) <= COLUMNS and len(report.findings) == 2 * (MOST + 3)


def test_advice_links_to_the_site_if_there_is_one(monkeypatch):
    finding = Finding("alone", "sort", "it cannot", 1, Where("a.py", 1, "f"))
    urls = ["Source, https://s.org", "Documentation, https://d.org/en/"]
    for known, wanted in (
        (urls, "https://d.org/en/operators.html"),
        (None, "the page 'Operators'"),
    ):
        data = email.message.Message()
        for url in known or ():
            data["Project-URL"] = url
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name, data=data: data)
        assert wanted in advice.completed(finding).advice
        report = gdb.Report()
        report.found.add([finding])
        link = 'href="https://d.org/en/guides/not-merged.html#an-operator-has-no-rule"'
        assert (link in report._repr_html_()) == (known is not None)


def test_scopes_of_one_sample_get_advice(net):
    """As no two calls share a launch; others, and a lone call, do not."""
    for samples, calls, wanted in ((1, 3, True), (2, 3, False), (1, 1, False)):
        with gdb.batching(granularity="block", policy="depth") as batch:
            for y in inputs(samples):
                for _ in range(calls):
                    y = mx.nd.concat(net(y), y[:, :1], dim=1) if calls > 1 else net(y)
        kinds = [found.kind for found in batch.report.findings]
        assert kinds == ["one by one"] * wanted
        assert ("no call shared a launch" in str(batch.report)) == wanted
        assert repr(batch) == f"<Batch: {batch.report.line}>"


@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"analysis_budget": 0}], ids=str)
def test_all_advice_of_a_report_is_that_of_its_findings(net, samples, options):
    """Also where calls run at once, of which the second and third scope have some."""
    for _ in range(3):
        with gdb.batching(**options) as batch:
            results = [mx.nd.relu(net(mx.nd.relu(x))).asnumpy() for x in inputs(samples)]
        shown = re.findall(r"-> (.+)", " ".join(str(batch.report).split()).replace("-> ", "\n-> "))
        advised = [advice.completed(found).advice for found in batch.report.findings]
        assert len(results) == samples and len(shown) == len({*filter(None, advised)})
        assert all(text.startswith(tuple(filter(None, advised))) for text in shown)
        assert {found.where.filename for found in batch.report.findings} <= {__file__}


def test_json_round_trip(net):
    with gdb.batching() as batch:
        net(inputs(1)[0]).asnumpy()
        mx.nd.shape_array(net(inputs(1)[0]))
    data, empty = json.loads(batch.report.to_json()), json.loads(gdb.Report().to_json())
    assert set(data) == set(empty) and not any(empty["traced"].values())
    assert data["waiting_ms"] == batch.report.waiting_ms > 0
    assert [found["kind"] for found in data["findings"]] == ["value", "alone"]
    assert len(data["flushes"]) == len(batch.report.flushes) == 2
    for fields, flush in zip(data["flushes"], batch.report.flushes):
        for name in ("launches", "mean_width", "largest_width"):
            assert fields.pop(name) == getattr(flush, name)
        fields["widths"] = tuple(fields["widths"])
        listed = fields.pop("findings")
        assert FlushReport(**fields) == flush._replace(findings=())
        assert [tuple(item.values()) for item in listed] == [
            (*found[:4], str(found.where), found.advice) for found in flush.findings
        ]
    assert data["flushes"][1]["nodes"] == 2
