"""The study of the trade-off: fits that recover what they were made from, tables, tiny runs."""

import json
import random

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
import tradeoff as program
from study import contest, cost, curve, launches, results, running, simulate
from study.axes import BudgetAxis, spread_apart
from workloads import sequences

TINY = ["--workloads", "embedded", "--limit", "40", "--embedding-size", "4", "--hidden", "3",
        "--rounds", "1"]  # fmt: skip


def run(*arguments):
    return program.main([str(argument) for argument in arguments])


# Cost model


def curve_run(granularity, units, launches, visits, calls, model, size=8, **changes):
    """Make up a run that takes exactly what a model says."""
    point = curve.Point(granularity, curve.NEW, "search", visits, visits, calls, units, launches,
                        3 * units, 0, 0, 0, 0, results.Spread(1, 1, 1, 1))  # fmt: skip
    took = {
        phase: sum(model[term] * n for term, n in cost.counts(point, phase).items())
        for phase in cost.MODELLED
    }
    execution = took.pop("execution")
    values = dict(
        workload="w", kind="inference", batch_size=size, role=curve.NEW, granularity=granularity,
        policy="search", budget=visits, visits=visits, calls=calls, units=units, launches=launches,
        gathered=3 * units, dispatch=0.4 * execution, running=0.6 * execution,
        total=sum(took.values()) + execution, **took,
    )  # fmt: skip
    return curve.CurveRun(**{**values, **changes})


MODEL = {
    ("recording", "flush", ""): 0.5, ("recording", "call", ""): 0.01,
    ("analysis", "flush", ""): 1.0, ("analysis", "visit", ""): 2e-4,
    ("analysis", "launch", ""): 0.05,
    ("analysis", "node", "block"): 2e-3, ("analysis", "node", "operator"): 1e-3,
    ("execution", "flush", ""): 2.0, ("execution", "row gathered", ""): 0.0,
    ("execution", "launch", "block"): 0.2, ("execution", "launch", "operator"): 0.1,
    ("execution", "node", "block"): 0.03, ("execution", "node", "operator"): 0.01,
}  # fmt: skip


def made_up_runs():
    draw = random.Random(1)
    return [
        curve_run(granularity, units, draw.randrange(5, units), draw.randrange(1, 99999),
                  draw.randrange(50, 5000), MODEL, size)
        for granularity in ("block", "operator")
        for size in (8, 16, 32, 64)
        for units in (100, 700, 3000)
    ]  # fmt: skip


def test_the_fit_recovers_the_coefficients_that_made_the_runs():
    runs = made_up_runs()
    points = [p for _, _, found in curve.cases_of(runs) for p in found]
    model = cost.fit(points)
    gathered = model.pop(("execution", "row gathered", ""))
    for granularity in ("block", "operator"):  # three rows a node: only the sum can be known
        model["execution", "node", granularity] += 3 * gathered
    wanted = {term: ms for term, ms in MODEL.items() if term[1] != "row gathered"}
    assert model == pytest.approx(wanted, rel=1e-6)


def test_batch_sizes_that_were_not_fitted_are_predicted():
    fitted, predictions = cost.judge(made_up_runs())
    assert {p.batch_size for p in predictions} == {16, 64}
    assert [p.predicted for p in predictions] == pytest.approx([p.measured for p in predictions])
    assert {(f.workload, f.kind) for f in fitted} == {("w", "inference")}
    for regret in cost.regrets(predictions):
        assert regret.chosen == regret.best
        assert (regret.ratio, regret.mean_error) == pytest.approx((1, 0))


def test_coefficients_are_never_negative():
    runs = [r._replace(recording=100.0 / r.calls, total=200.0) for r in made_up_runs()]
    points = [p for _, _, found in curve.cases_of(runs) for p in found]
    assert min(cost.fit(points).values()) >= 0


def test_one_batch_size_is_fitted_but_predicts_nothing():
    _, predictions = cost.judge([r for r in made_up_runs() if r.batch_size == 8])
    assert predictions == []


def test_launch_lines_recover_their_coefficients():
    runs = [
        launches.LaunchRun("w", "block", "cell #0", rows, 0.08 + 0.002 * rows)
        for rows in (1, 1, 1, 2, 4, 9, 30, 100, 200, 300, 400, 500)
    ]
    (line,) = launches.lines(runs)
    assert (line.fixed, line.per_row) == pytest.approx((80, 2))
    assert line.launches == 12
    assert launches.lines(runs[:4]) == []


# Tables and files


def test_rows_survive_json(tmp_path):
    rows = {"runs": made_up_runs(), "launches": []}
    results.write_results(tmp_path / "x.json", {"seed": 1, "output": tmp_path}, rows, titles={})
    content = results.read_results(tmp_path / "x.json", program.ROWS["curve"])
    assert content["results"] == rows
    assert content["environment"]["mxnet"] == mx.__version__
    assert "OMP_NUM_THREADS" in content["environment"]


@pytest.mark.parametrize("text", ["", "[1]", '{"results": {"runs": [{"no": 1}]}}'])
def test_a_file_with_something_else_is_named(tmp_path, text):
    path = tmp_path / "curve.json"
    path.write_text(text)
    with pytest.raises(results.ResultsError, match="curve.json: not written by this program"):
        results.read_results(path, program.ROWS["curve"])


def test_a_table_can_be_read_back_from_its_markdown():
    table = results.Table(
        "Title",
        (results.Column("name"), results.Column("ms", ",.1f"), results.Column("n", "d")),
        [("a|b", 1234.56, 3), ("c", None, 4)],
    )
    title, _, heading, rule, *rows = table.markdown().splitlines()
    assert title == "### Title"
    cells = [
        [cell.strip().replace("\\|", "|") for cell in row[1:-1].replace("\\|", "\0").split("|")]
        for row in (heading, *rows)
    ]
    cells = [[cell.replace("\0", "|") for cell in row] for row in cells]
    assert cells == table.cells() == [["name", "ms", "n"], ["a|b", "1,234.6", "3"], ["c", "–", "4"]]
    assert [part.strip() for part in rule[1:-1].split("|")] == ["----", "------:", "--:"]


def test_spread():
    assert results.Spread.of(iter([5, 1, 2, 3, 4])) == (3, 2, 4, 5)


@pytest.mark.parametrize(
    "budget", [gdb.Budget(), gdb.Budget(2.5), gdb.Budget(visits=0), gdb.Budget(1, 200)]
)
def test_budgets_are_read_as_the_report_writes_them(budget):
    assert gdb.Budget(**running.parse_budget(str(budget))) == budget


def test_budgets_rise_from_a_fraction_of_the_nodes_to_the_longest_analysis():
    budgets = curve.budgets_for(320, 100_000, 6)
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1], len(budgets)) == (40, 100_000, 6)


# Points and verdicts


def test_all_runs_of_auto_are_one_point_at_its_usual_choice():
    runs = [r for r in made_up_runs() if r.batch_size == 8][:3]
    auto = [
        runs[0]._replace(role=curve.AUTO, granularity=g, policy="depth", budget=v, visits=v)
        for g, v in (("block", 7), ("operator", 20), ("operator", 30))
    ]
    points = curve.points_of(runs + auto)
    (point,) = (p for p in points if p.role == curve.AUTO)
    assert (point.granularity, point.policy, point.budget) == ("operator", "depth", 25)
    assert point.total.count == 3


def contest_run(label, number, total, stage=contest.FINAL, size=1):
    return contest.ContestRun("w", "inference", size, stage, number, label, total, 0, 0, 0, 0, 5,
                              f"setting of {label}", True)  # fmt: skip


def settled_after(tried, tried_ms=0.0, size=1, settled=True):
    return contest.Settled("w", "inference", size, tried + 4, settled, tried, tried_ms)


def final_of(size=1):
    """Make up a final whose ratios are 1.2 to the best, 0.6 to the best by depth, 1.2 to plain."""
    times = {contest.AUTO: (1.2, 2.4, 3.6), "a by search": (1.0, 2.0, 3.0),
             "b by depth": (2, 4, 6), contest.PLAIN: (1.0, 2.0)}  # fmt: skip
    return [contest_run(k, i, t, size=size) for k, ts in times.items() for i, t in enumerate(ts)]


def test_auto_is_judged_against_the_best_setting_of_the_final_round_by_round():
    runs = final_of() + [contest_run("c by depth", i, 9, contest.HEAT) for i in range(3)]
    (verdict,) = contest.verdicts(runs, [settled_after(2, 3.0)])
    assert (verdict.best, verdict.auto_ms, verdict.best_ms) == ("a by search", 2.4, 2.0)
    ratios = (verdict.ratio, verdict.depth_ratio, verdict.plain_ratio)
    assert [ratio.median for ratio in ratios] == pytest.approx([1.2, 0.6, 1.2])
    assert verdict.plain_ratio.count == 2  # the rounds that the plain loop took part in
    assert verdict.lost == pytest.approx(1.0)  # against the plain loop, 1.5 ms on average
    assert verdict.missed == ["best", "plain", "lost"]


def test_every_bar_can_be_missed_alone():
    (met,) = contest.verdicts(
        [run._replace(total=1.0) for run in final_of(8)]
        + [contest_run("a by search", 1, 1.0, contest.HEAT, 8)],
        [settled_after(0, size=8)],
    )
    assert (met.missed, met.lost) == ([], None)
    over = results.Spread(1.12, 1, 2, 3)
    changes = {
        "best": {"ratio": over},
        "depth": {"depth_ratio": over},
        "plain": {"plain_ratio": over},
        "tried": {"tried": 31},
        "lost": {"lost": 0.21},
    }
    for name, change in changes.items():
        assert met._replace(**change).missed == [name]
    assert met._replace(settled=False).missed == ["tried"]
    assert met._replace(workload="reads", plain_ratio=over).missed == []


@pytest.mark.parametrize("second, most", [(1.4, 30), (1.6, 12)])
def test_fewer_scopes_may_be_tried_if_one_kind_of_setting_is_clearly_best(second, most):
    heat = [contest_run("operator by depth", 1, 1.0, contest.HEAT),
            contest_run("operator by agenda", 1, 1.1, contest.HEAT),
            contest_run("block by depth", 1, second, contest.HEAT)]  # fmt: skip
    runs = [r for r in final_of() if r.label != contest.PLAIN]
    runs += [contest_run(contest.PLAIN, i, 5.0) for i in range(3)] + heat
    (verdict,) = contest.verdicts(runs, [settled_after(1, 1.0)])
    assert verdict.most_tried == most


def test_hopeless_settings_are_dropped_and_the_others_ranked():
    a, b, c = (running.Contender(name, {}) for name in "abc")
    runs = [contest_run(k, i, t) for k, t in (("a", 3), ("b", 2), ("c", 9)) for i in range(2)]
    assert contest.best_of([a, b, c], runs, 2.0) == [b, a]
    assert contest.best_of([a, b, c], runs) == [b, a, c]


def test_the_best_setting_by_depth_reaches_the_final_even_if_it_was_dropped():
    grid = contest.fixed_settings(64)
    runs = [contest_run(c.label, 1, 9 if contest.BY_DEPTH in c.label else i, contest.HEAT, 64)
            for i, c in enumerate(grid)]  # fmt: skip
    left = [c for c in grid if contest.BY_DEPTH not in c.label]
    labels = [c.label for c in contest.finalists_of(left, runs)]
    assert len(labels) == contest.FINALISTS + 1
    assert contest.BY_DEPTH in labels[-1]


def test_the_grid_holds_every_granularity_and_policy():
    labels = [contender.label for contender in contest.fixed_settings(contest.SMALL)]
    assert len(set(labels)) == len(labels)
    for granularity in running.GRANULARITIES:
        for policy in running.POLICIES:
            assert f"{granularity} by {policy} (no limit)" in labels
    assert "one by one (budget 0)" in labels


# Running


def test_contenders_do_not_find_each_others_plans():
    workload = sequences.tagging(limit=4, embedding_size=2, hidden_size=2)
    first, second = (running.setting("block", "depth", None) for _ in range(2))
    cached = [c.run(workload, workload.samples, "inference").cached
              for c in (first, second, first)]  # fmt: skip
    assert cached == [0, 0, 1]
    first.forget()
    assert first.run(workload, workload.samples, "inference").cached == 0


def test_timings_have_parts_that_add_up():
    workload = sequences.tagging(limit=4, embedding_size=2, hidden_size=2)
    timing = running.setting("operator", "search", None).run(workload, workload.samples, "training")
    assert timing.total == pytest.approx(sum(getattr(timing, phase) for phase in running.PHASES))
    assert timing.launches < timing.units
    assert timing.setting == "operator by search (unlimited)"
    plain = running.plain_loop().run(workload, workload.samples, "training")
    assert (plain.running, plain.calls, plain.setting) == (plain.total, 0, "")


@pytest.mark.parametrize(
    "choice, trying",
    [("auto: trying block by depth", True), ("auto: settled on depth", False), ("", False)],
)
def test_a_timing_tells_whether_auto_was_trying(choice, trying):
    report = gdb.report.Report()
    report.choice = choice
    assert running.Timing.of(1.0, report).trying is trying


def test_the_simulation_counts_what_the_library_launches():
    workload = sequences.tagging(limit=8, embedding_size=2, hidden_size=2)
    steps = []
    settings = [("block", policy) for policy in running.POLICIES]
    rows = simulate.simulate(workload, [2, 4], settings, 2, 1, steps.append)
    assert len(rows) == len(steps) == 6
    for row in rows:
        assert row.lower_bound <= row.launches < row.nodes
    depth, agenda, search = (row.launches for row in rows[3:])
    assert depth >= agenda >= search


# The program


def made(directory):
    return sorted(path.name for path in directory.iterdir())


def both(*names):
    return [f"{name}.{kind}" for name in names for kind in ("png", "svg")]


def test_simulate_runs_and_its_results_can_be_drawn_again(tmp_path, capsys):
    assert run("simulate", *TINY, "--batch-sizes", 2, "--minibatches", 1, "--output", tmp_path) == 0
    first = capsys.readouterr().out
    files = sorted(["simulate.json", "simulate.md", *both("simulate-embedded")])
    assert made(tmp_path) == files
    for name in set(files) - {"simulate.json"}:
        (tmp_path / name).unlink()
    assert run("draw", "--output", tmp_path) == 0
    assert made(tmp_path) == files
    assert capsys.readouterr().out == first
    assert first.count("\n|") == 2 + len(running.GRANULARITIES) * len(running.POLICIES)


def test_curve_runs(tmp_path, capsys):
    assert run("curve", *TINY, "--batch-sizes", "2,4", "--points", 2, "--kinds", "inference",
               "--granularities", "block", "--output", tmp_path) == 0  # fmt: skip
    pictures = both(*(f"{name}-embedded-{size}" for name in ("curve", "shares") for size in (2, 4)),
                    "cost-embedded", "launches-embedded")  # fmt: skip
    assert made(tmp_path) == sorted(["curve.json", "curve.md", *pictures])
    assert json.loads((tmp_path / "curve.json").read_text())["settings"]["batch_sizes"] == [2, 4]
    assert "Where the minimum is" in capsys.readouterr().out


def test_auto_runs(tmp_path, capsys):
    assert run("auto", *TINY, "--batch-sizes", 8, "--kinds", "inference", "--output", tmp_path) == 0
    assert made(tmp_path) == sorted(["auto.json", "auto.md", *both("auto")])
    (settled,) = json.loads((tmp_path / "auto.json").read_text())["results"]["settled"]
    assert settled["scopes"] > 4
    assert "auto / plain" in (tmp_path / "auto.md").read_text()


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("simulate", "--workloads", "sick"), "needs --data DIR"),
        (("simulate", *TINY, "--batch-sizes", "64"), "a minibatch of 64 is asked for"),
        (("auto", "--workloads", "sequences", "--wikiner", "nowhere"), "nowhere/train.txt"),
        (("draw",), "no results here"),
    ],
)
def test_what_the_user_can_mend_is_one_line(tmp_path, capsys, arguments, reason):
    assert run(*arguments, "--output", tmp_path) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [("simulate", "--batch-sizes", "0"), ("auto", "--kinds", "walking"), ("curve", "--points", "1"),
     ("curve", "--granularities", "sample"), ()],
)  # fmt: skip
def test_wrong_options_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2


# Pictures


def test_labels_are_moved_apart_around_their_middle():
    assert spread_apart([0.1, 0.1, 0.5], 0.1) == pytest.approx([0.05, 0.15, 0.5])
    heights = spread_apart(sorted(np.random.rand(20)), 0.04)
    assert np.diff(heights).min() > 0.04 - 1e-9


def test_budgets_have_places_in_order():
    scale = BudgetAxis([0, 10, 1000, None])
    places = [scale.place(b) for b in (0, 10, 100, 1000, None)]
    assert places == sorted(places)
    assert places[1:4] == pytest.approx([1, 2, 3])
