"""The one way of timing: who runs what and when, and what comes of it; never how long it takes."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from timing import contest, results
from timing.axes import BudgetAxis, spread_apart
from timing.contest import Contender, Outcome, Row
from workloads import sequences
from workloads.runner import Runner


class Fake(Contender):
    """A contender that writes down what it is asked to run, at a speed of its own."""

    def __init__(self, label, log, speed=1.0, settles_after=0):
        workload = SimpleNamespace(name="fake")
        trainer = SimpleNamespace(_params=[])
        options = {} if settles_after else {"granularity": "block", "policy": "depth"}
        runner = SimpleNamespace(workload=workload, trainer=trainer, mode="dynamic",
                                 contexts=[None], options=options)  # fmt: skip
        super().__init__(runner, label)
        self.log, self.speed, self.left = log, speed, settles_after

    def time(self, kind, work, size, warm=()):
        self.left -= 1
        self.log.append((self.label, [tuple(sorted(batch)) for batch in work], list(warm)))
        row = self.row(work, size, sum(map(len, work)) / self.speed)
        return row._replace(trying=self.left >= 0)


def minibatches(size):
    numbers = count()
    return iter(lambda: [next(numbers) for _ in range(size)], None)


def run(contenders, size=4, rounds=3, **options):
    return contest.contest(contenders, minibatches(size), "training", size, rounds, **options)


def test_rounds_are_interleaved_over_the_same_new_minibatches():
    log = []
    run([Fake("a", log), Fake("b", log)], rounds=8)
    turns = log[2:]  # each has run once
    pairs = list(zip(turns[0::2], turns[1::2]))
    assert {(one[0], other[0]) for one, other in pairs} == {("a", "b"), ("b", "a")}
    assert all(one[1:] == other[1:] for one, other in pairs), "both have the same minibatches"
    assert all(len(warm) == 1 for _, _, warm in turns), "a turn begins with a minibatch untimed"
    assert len({str(one[1]) for one, _ in pairs}) == 8, "every round has new minibatches"


def test_medians_and_ratios_are_those_of_the_rounds():
    outcome = run([Fake("a", [], 10), Fake("b", [], 30)])
    assert [row.rate for row in outcome.by_label["a"]] == [10] * 3
    assert outcome.median("b") == pytest.approx(30)
    assert outcome.median("b", "ms") == pytest.approx(4e3 / 30)
    assert outcome.ratio("a", "b") == pytest.approx((3, 3, 3))
    assert outcome.median("a", "analysis") is None and outcome.spread("c") is None
    cells = contest.speed_table("title", [outcome]).cells()
    assert cells == [["mode", "training/s", "quartiles", "ratio"],
                     ["a", "10", "10–10", "1.0"], ["b", "30", "30–30", "3.0"]]  # fmt: skip
    assert Outcome.from_json(outcome.as_json()) == outcome


def test_slow_contenders_run_fewer_minibatches():
    log = []
    outcome = run([Fake("slow", log, 2), Fake("fast", log, 20)], rounds=1, seconds=2)
    assert {row.label: (row.minibatches, row.samples) for row in outcome.rows} == {
        "slow": (1, 4), "fast": (10, 40),
    }  # fmt: skip
    few, many = (work for _, work, _ in sorted(log[-2:], key=lambda turn: len(turn[1])))
    assert few == many[:1]


@pytest.mark.parametrize("size, quiet", [(64, 6), (4, 24)])
def test_warming_up_lasts_until_the_setting_is_chosen(size, quiet):
    outcome = run([Fake("auto", [], settles_after=9), Fake("fixed", [])], size, 1, warmup=100)
    auto, fixed = (outcome.settling[label] for label in ("auto", "fixed"))
    assert (auto.scopes, auto.tried, auto.settled) == (9 + quiet, 9, True)
    assert (fixed.scopes, fixed.tried, fixed.settled) == (2, 0, True)


def test_a_setting_that_is_not_chosen_in_time_is_told():
    settling = run([Fake("auto", [], settles_after=99)], rounds=1).settling["auto"]
    assert (settling.scopes, settling.settled) == (1, False)


def tagger(limit=4):
    return sequences.tagging(limit=limit, embedding_size=2, hidden_size=2)


FIXED = {"granularity": "operator", "policy": "search", "analysis_budget": None}


def test_timings_have_parts_that_add_up():
    workload = tagger()
    dynamic = Contender(Runner(workload, options=FIXED))
    row = dynamic.time("training", [workload.samples], 4)
    assert row.ms == pytest.approx(row.recording + row.analysis + row.dispatch + row.running)
    assert row.launches < row.nodes and row.setting == "operator by search (unlimited)"
    plain = Contender(Runner(workload, "hybridized")).time("training", [workload.samples], 4)
    assert (plain.running, plain.nodes, plain.setting) == (plain.ms, None, "")
    assert row.rate * row.ms == pytest.approx(1e3 * sum(len(s.words) for s in workload.samples))


def test_contenders_find_no_plans_unless_they_repeat():
    workload = tagger()
    first, second = (Contender(Runner(workload, options=FIXED)) for _ in range(2))
    again = Contender(first.runner, "again", repeats=True)
    cached = [one.time("inference", [workload.samples], 4).cached for one in (first, second, again)]
    assert cached == [0, 0, 1]
    portion = again.portion([[i] for i in range(9)], 6)
    assert portion == [[0], [1], [2], [3], [0], [1]]


def test_turns_start_from_the_first_parameters():
    workload = tagger()
    contender = Contender(Runner(workload, "hybridized"))
    bias = workload.model.score.bias
    contender.time("training", [workload.samples], 4)
    assert np.abs(bias.data().asnumpy()).max() > 0
    contender.time("inference", [workload.samples], 4)
    assert np.abs(bias.data().asnumpy()).max() == 0


def test_loops_over_samples_run_cut_minibatches():
    workload = tagger()
    loop = Contender(Runner(workload, "hybridized"), most=2)
    assert loop.portion([[1, 2, 3], [4]], 2) == [[1, 2], [4]]
    outcome = contest.contest(
        [loop, Contender(Runner(workload, options=FIXED))], workload.minibatches(4, 1), "inference",
        4, 1, count=3,
    )  # fmt: skip
    assert [(row.label, row.minibatches, row.samples) for row in outcome.rows] == [
        ("hybridized", 1, 2), ("dynamic", 3, 12),
    ]  # fmt: skip


def test_mixed_minibatches_have_the_samples_of_the_round():
    mixing = Contender(Runner(tagger(), "hybridized"), mixes=True)
    work = [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    mixed = mixing.portion(work, 3)
    assert list(map(len, mixed)) == [4, 2, 3]
    assert mixed != work and sorted(sum(mixed, [])) == list(range(9))
    assert mixing.portion(work, 1) == mixed[:1]


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"rows": [{"no": 1}]}', '{"rows": 3, "settling": {}, "x": 1}']
)
def test_a_file_with_something_else_is_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(results.ResultsError, match="x.json: not written by this program"):
        results.read_json(path, Outcome.from_json)


def test_a_table_can_be_read_back_from_its_markdown():
    table = results.Table(
        "Title",
        (results.Column("name"), results.Column("ms", ",.1f"), results.Column("n", "d")),
        [("a|b", 1234.56, 3), ("c", None, 4)],
    )
    title, _, heading, rule, *rows = table.markdown().splitlines()
    assert title == "### Title"
    cells = [
        [cell.strip().replace("\0", "|") for cell in row[1:-1].replace("\\|", "\0").split("|")]
        for row in (heading, *rows)
    ]
    assert cells == table.cells() == [["name", "ms", "n"], ["a|b", "1,234.6", "3"], ["c", "–", "4"]]
    assert [part.strip() for part in rule[1:-1].split("|")] == ["----", "------:", "--:"]


def test_spread():
    spread = results.Spread.of(iter([5, 1, 2, 3, 4]))
    assert spread == (3, 2, 4) and spread.quartiles(".1f") == "2.0–4.0"


def test_rows_without_a_library_know_only_their_time():
    assert Row("a", 0, 1, 4, 2.0, 3.0).running == 3.0


def test_labels_are_moved_apart_around_their_middle():
    assert spread_apart([0.1, 0.1, 0.5], 0.1) == pytest.approx([0.05, 0.15, 0.5])
    heights = spread_apart(sorted(np.random.rand(20)), 0.04)
    assert np.diff(heights).min() > 0.04 - 1e-9


def test_budgets_have_places_in_order():
    scale = BudgetAxis([0, 10, 1000, None])
    places = [scale.place(b) for b in (0, 10, 100, 1000, None)]
    assert places == sorted(places)
    assert places[1:4] == pytest.approx([1, 2, 3])
