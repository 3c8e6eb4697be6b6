"""The study of the trade-off: verdicts on made-up figures, tiny runs of the program."""

import json

import pytest

import tradeoff as program
from study import auto, curve, simulate
from study.settings import AUTO, GRANULARITIES, PLAIN, POLICIES
from timing.contest import Outcome, Row, Settling
from timing.results import Spread
from workloads import sequences

TINY = ["--workloads", "embedded", "--limit", "40", "--embedding-size", "4", "--hidden", "3",
        "--rounds", "1"]  # fmt: skip


def run(*arguments):
    return program.main([str(argument) for argument in arguments])


def outcome(times, tried=0, tried_ms=0.0, settled=True, workload="w"):
    """Make up a contest from the milliseconds of each contender, round by round."""
    rows = [Row(label, i, 1, 1, 1e3 / ms, ms, setting=f"setting of {label}")
            for label, own in times.items() for i, ms in enumerate(own)]  # fmt: skip
    settling = {AUTO: Settling(tried + 4, settled, tried, tried_ms)}
    return Outcome(workload, "inference", 1, rows, settling)


HEATS = {"a by search": [1.0], "b by depth": [9.0], "c by agenda": [1.1]}
#: Ratios of "auto" are 1.2 to the best, 0.6 to the best by depth, 1.2 to the plain loop.
FINAL = {"a by search": [1, 2, 3], "b by depth": [2, 4, 6], AUTO: [1.2, 2.4, 3.6],
         PLAIN: [1.0, 2.0, 3.0]}  # fmt: skip


def test_auto_is_judged_against_the_best_setting_of_the_final_round_by_round():
    verdict = auto.Verdict(auto.Case(outcome(HEATS), outcome(FINAL, 2, 4.0)))
    assert (verdict.best, verdict.chosen) == ("a by search", f"setting of {AUTO}")
    ratios = (verdict.ratio, verdict.depth_ratio, verdict.plain_ratio)
    assert [ratio.median for ratio in ratios] == pytest.approx([1.2, 0.6, 1.2])
    assert verdict.lost == pytest.approx(1.0)  # 4 ms against 2 on average
    assert verdict.missed == ["best", "plain", "lost"]


def test_every_bar_can_be_missed_alone():
    even = {label: [1.0] * 3 for label in FINAL}
    case = auto.Case(outcome(HEATS), outcome(even))
    met = auto.Verdict(case)
    assert (met.missed, met.lost) == ([], None)
    over = Spread(1.12, 1, 2)
    tried = met.settling._replace(tried=31)
    for name, attribute, value in (
        ("best", "ratio", over),
        ("depth", "depth_ratio", over),
        ("plain", "plain_ratio", over),
        ("tried", "settling", tried),
        ("tried", "settling", met.settling._replace(settled=False)),
        ("lost", "lost", 0.21),
    ):
        one = auto.Verdict(case)
        setattr(one, attribute, value)
        assert one.missed == [name]
    reads = auto.Verdict(auto.Case(outcome(HEATS), outcome(even, workload="reads")))
    reads.plain_ratio = over
    assert reads.missed == []


@pytest.mark.parametrize("second, most", [(1.4, 30), (1.6, 12)])
def test_fewer_scopes_may_be_tried_if_one_kind_of_setting_is_clearly_best(second, most):
    heats = {"operator by depth": [1.0], "operator by agenda": [1.1], "block by depth": [second]}
    final = {**FINAL, PLAIN: [5.0] * 3}
    assert auto.Verdict(auto.Case(outcome(heats), outcome(final))).most_tried == most


def test_the_best_settings_and_the_best_one_by_depth_reach_the_final():
    workload = sequences.tagging(limit=4, embedding_size=2, hidden_size=2)
    grid = auto.fixed_settings(workload)
    labels = [one.label for one in grid]
    assert len(set(labels)) == len(labels) and "one by one (budget 0)" in labels
    for granularity in GRANULARITIES:
        for policy in POLICIES:
            assert f"{granularity} by {policy} (no limit)" in labels
    times = {label: [9 if auto.BY_DEPTH in label else 1 + i] for i, label in enumerate(labels)}
    chosen = [one.label for one in auto.finalists_of(grid, outcome(times))]
    assert chosen[:-1] == [label for label in labels if auto.BY_DEPTH not in label][:2]
    assert auto.BY_DEPTH in chosen[-1]


def test_budgets_rise_from_a_fraction_of_the_nodes_to_a_multiple():
    budgets = curve.budgets_for(320, 1000, 6)
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1], len(budgets)) == (40, 64_000, 6)


def test_points_of_a_curve_are_found_by_granularity():
    times = {"block, 0": [9.0], "block, 70": [2.0], "block, no limit": [3.0],
             "block, plan cached": [1.0], AUTO: [1.5]}  # fmt: skip
    found = curve.curves(outcome(times))
    assert [point.budget for point in found.pop("block")] == [0, 70, None] and not found
    assert curve.best(outcome(times)).label == "block, 70"


def test_the_simulation_counts_what_the_library_launches():
    workload = sequences.tagging(limit=8, embedding_size=2, hidden_size=2)
    steps = []
    rows = simulate.simulate(workload, [2, 4], 2, 1, steps.append)
    assert len(rows) == len(steps) == 18
    for row in rows:
        assert row.lower_bound <= row.launches <= row.nodes
    for granularity in GRANULARITIES:
        launches = [row.launches for row in rows[9:] if row.granularity == granularity]
        assert launches == sorted(launches, reverse=True)  # depth, agenda, search


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
    assert first.count("\n|") == 2 + len(GRANULARITIES) * len(POLICIES)


def test_curve_runs(tmp_path, capsys):
    assert run("curve", *TINY, "--batch-sizes", "2,4", "--points", 2, "--kinds", "inference",
               "--granularities", "block", "--output", tmp_path) == 0  # fmt: skip
    pictures = both(*(f"{name}-embedded-{size}" for name in ("curve", "shares") for size in (2, 4)))
    assert made(tmp_path) == sorted(["curve.json", "curve.md", *pictures])
    content = json.loads((tmp_path / "curve.json").read_text())
    assert content["settings"]["batch_sizes"] == [2, 4]
    assert content["environment"]["mxnet"] == "1.9.1"
    assert "minimum" in capsys.readouterr().out


def test_auto_runs(tmp_path):
    assert run("auto", *TINY, "--batch-sizes", 8, "--kinds", "inference", "--output", tmp_path) == 0
    assert made(tmp_path) == sorted(["auto.json", "auto.md", *both("auto")])
    ((_, final),) = json.loads((tmp_path / "auto.json").read_text())["results"]
    assert final["settling"][AUTO]["scopes"] > 4
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
     ("curve", "--granularities", "sample"), ("auto", "--workloads", "trees"), ()],
)  # fmt: skip
def test_wrong_options_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
