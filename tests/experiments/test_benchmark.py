"""Ways, contests, tables and the program `benchmark.py`; no test asserts timings."""

import json
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import benchmark as program
from suite import bars, contest, pictures, tables, ways
from suite.contest import Contender, Local
from suite.runner import Runner
from suite.tables import Measured, Row, Rows
from workloads import sequences
from workloads.base import Sample

TINY = ["--embedding-size", "5", "--hidden", "4", "--limit", "12", "--rounds", "2", "--seconds",
        "0", "--loop-samples", "2"]  # fmt: skip
FIXED = {"granularity": "operator", "policy": "search", "analysis_budget": None}


def tagger(limit=4):
    return sequences.tagging(limit=limit, embedding_size=2, hidden_size=2)


class Fake(Contender):
    """A contender that logs its turns and has a fixed speed in samples per second."""

    def __init__(self, label, log, speed=1.0, **results):
        super().__init__(SimpleNamespace(name="fake", samples=range(9)), label)
        self.log, self.speed, self.results = log, speed, {"values": [1.0], **results}

    def check(self, work):
        return self.results

    def time(self, kind, work, size, warm=()):
        self.log.append((self.label, [tuple(sorted(batch)) for batch in work], list(warm)))
        return self.row(kind, work, size, sum(map(len, work)) / self.speed)


def run(contenders, size=4, rounds=3, **options):
    numbers = count()
    fresh = iter(lambda: [Sample((next(numbers),), None) for _ in range(size)], None)
    return contest.contest(contenders, fresh, "training", size, rounds, **options)


def test_all_contenders_of_a_round_run_the_same_new_minibatches_in_random_order():
    log = []
    run([Fake("a", log), Fake("b", log)], rounds=8)
    turns = log[len(log) - 16 :]
    pairs = list(zip(turns[0::2], turns[1::2]))
    assert {(first[0], second[0]) for first, second in pairs} == {("a", "b"), ("b", "a")}
    assert all(first[1:] == second[1:] for first, second in pairs), "the same minibatches"
    assert all(len(warm) == 1 for _, _, warm in turns), "a turn begins with an untimed minibatch"
    assert len({str(first[1]) for first, _ in pairs}) == 8, "every round has new minibatches"


def test_slow_contenders_run_fewer_minibatches():
    log = []
    rows = run([Fake("slow", log, 2), Fake("fast", log, 20)], rounds=1, seconds=2)
    assert {row.way: (row.minibatches, row.samples) for row in rows} == {
        "slow": (1, 4), "fast": (10, 40),
    }  # fmt: skip
    few, many = (work for _, work, _ in sorted(log[-2:], key=lambda turn: len(turn[1])))
    assert few == many[:1]


def test_without_time_left_each_contender_runs_one_round_of_one_minibatch():
    log = []
    rows = run([Fake("a", log), Fake("b", log)], rounds=3, seconds=2, share=0)
    assert [(row.way, row.round, row.minibatches) for row in rows] == [("a", 0, 1), ("b", 0, 1)]
    assert len(log) == 4, "each warmed up with one minibatch"


WRONG = [("losses differ", {"losses": [1, 2 * (1 + 2 * contest.TOLERANCE)]}),
         ("losses differ", {"losses": [1, float("nan")]}),
         ("values differ", {"losses": [1, 2], "values": [2.0]}),
         ("values have shape (2,)", {"losses": [1, 2], "values": [1.0, 1.0]})]  # fmt: skip


@pytest.mark.parametrize("reason, results", WRONG)
def test_a_contender_that_differs_from_the_loop_is_left_out(reason, results):
    """The second loss may differ if only one step is compared."""
    loop, other = Fake("loop", [], losses=[1, 2]), Fake("other", [], **results)
    agreeing, left_out = contest.agree([loop, other], loop, 4)
    assert agreeing == [loop] and list(left_out) == ["other"] and reason in left_out["other"]
    other.same_steps = 1
    assert contest.agree([other], loop, 4)[0] == [other] * ("losses" in reason)


def test_phases_add_up_to_the_time_of_a_minibatch():
    workload = tagger()
    one_by_one = [[sample] for sample in sorted(workload.samples, key=lambda each: each.size)]
    row = Local(Runner(workload, options=FIXED), "gdb").time("training", one_by_one, 1)
    assert row.bound == pytest.approx(row.launches), "averages of all minibatches, not the last"
    row = Local(Runner(workload, options=FIXED), "gdb").time("training", [workload.samples], 4)
    assert row.ms == pytest.approx(row.recording + row.analysis + row.dispatch + row.running)
    assert row.bound <= row.launches < row.nodes and row.arena_mb > 0
    assert row.setting == "operator by search (unlimited)"
    plain = Local(Runner(workload, "hybridized"), "loop").time("training", [workload.samples], 4)
    assert (plain.running, plain.nodes, plain.setting) == (plain.ms, None, "")
    assert row.rate * row.ms == pytest.approx(1e3 * sum(s.size for s in workload.samples))


def test_only_contenders_that_repeat_have_cached_plans():
    workload = tagger()
    first, second = (Local(Runner(workload, options=FIXED), "gdb") for _ in range(2))
    repeating = Local(first.runner, "repeating", repeats=True)
    turns = [c.time("inference", [workload.samples], 4) for c in (first, second, repeating)]
    assert [turn.cached for turn in turns] == [0, 0, 1]
    assert repeating.portion([[i] for i in range(9)], 6) == [[0], [1], [2], [3], [0], [1]]


def test_turns_start_from_the_first_parameters_with_minibatches_cut_for_loops():
    workload = tagger()
    contender = Local(Runner(workload, "hybridized"), "loop", max_samples=2)
    assert contender.portion([[1, 2, 3], [4]], 2) == [[1, 2], [4]]
    bias = workload.model.score.bias
    contender.time("training", [workload.samples], 4)
    assert np.abs(bias.data().asnumpy()).max() > 0
    contender.time("inference", [workload.samples], 4)
    assert np.abs(bias.data().asnumpy()).max() == 0


def test_names_of_ways_are_parsed_as_options():
    assert ways.options_of("gdb:block:depth") == {
        "granularity": "block", "policy": "depth", "analysis_budget": None,
    }  # fmt: skip
    budgets = [ways.options_of(f"gdb:graph:search:{limit}")["analysis_budget"]
               for limit in ("2.5ms", "70", "cached")]  # fmt: skip
    assert ways.options_of("gdb") == {} == ways.options_of("gdb-np")
    assert ways.options_of("gdb:block:depth-np-buckets")["granularity"] == "block"
    assert ways.read_ways("hand-np,gdb-np-buckets") == ["hand-np", "gdb-np-buckets"]
    assert budgets[0] == 2.5 and budgets[1].visits == 70 and budgets[2] is None


@pytest.mark.parametrize(
    "name, names",
    [("sick", ["hybridized-np", "gdb:block:depth-np", "gdb-np", "gdb-once-np"]),
     ("tagger", ["gdb-np", "hand-np"]), ("transformer", ["gdb-np", "hand-np"])],
)  # fmt: skip
def test_ways_of_both_interfaces_agree_with_the_loop(name, names):
    """They have the same first parameters and samples."""
    with ExitStack() as stack:
        roster = ways.Roster(name, program.parse(TINY), stack)
        contenders = roster.gather(["gdb", *names], 4)
        assert [each.label for each in contenders] == ["gdb", *names] and not roster.left_out
        minibatches = iter(lambda: roster.workload.samples[:6], None)
        rows = contest.contest(contenders, minibatches, "training", 6, 1)
        assert [row.way for row in rows] == ["gdb", *names]
        (line,) = [row for row in tables.interfaces(rows).rows if row[2] == "gdb"]
        assert line[3] > 0 and line[4] > 0 and 0 <= line[5] - line[6] <= (name == "sick")


def test_only_models_of_both_interfaces_have_ways_of_numpy():
    with ExitStack() as stack:
        roster = ways.Roster("reads", program.parse(TINY), stack)
        assert roster.make("gdb-np") is None


@pytest.mark.parametrize("name", ["sick", "tagger"])
def test_all_ways_of_a_workload_agree_with_the_loop(name):
    args = program.parse(TINY)
    with ExitStack() as stack:
        roster = ways.Roster(name, args, stack)
        names = ["hybridized", "hand", "gdb:block:depth", "gdb", "gdb-words", "gdb-states"]
        contenders = roster.gather(names, 4)
        assert [each.label for each in contenders] == names and not roster.left_out
        samples = roster.workload.samples
        rows = contest.contest(contenders, iter(lambda: samples[:6], None), "training", 6, 1)
        assert {row.way: row.samples for row in rows} == {
            "hybridized": 2, **dict.fromkeys(names[1:], 6),
        }  # fmt: skip
        more = roster.gather([*names, "gdb:operator:depth"], 4)
        assert more[:6] == contenders and not roster.left_out, "from the first parameters again"


def rows_of(times, kind="inference", size=1, **more):
    """Make the rows of a contest from the milliseconds of each way, round by round."""
    return Rows(Row(kind, size, way, 1, size, 1e3 / ms, ms, i, setting=f"setting of {way}", **more)
                for way, rounds in times.items() for i, ms in enumerate(rounds))  # fmt: skip


def measured(rows, alone=(), counts=()):
    return Measured("W", "words", "from", "so", 2, {}, {}, rows, list(alone), counts=Rows(counts))


def test_figures_of_bars():
    times = {"gdb": [10.0], "hybridized": [300.0], "gdb:block:depth": [9.0], "gdb-words": [11.0]}
    rows = rows_of(times, size=256, recording=2.0, analysis=1.0, dispatch=3.0, launches=6.0)
    memory = [{"kind": "inference", "way": "gdb", "first_seconds": 0.5, "peak_mb": 130.0},
              {"kind": "inference", "way": "hand", "peak_mb": 100.0}]  # fmt: skip
    sick = measured(rows, alone=memory, counts=rows)
    figures = [("speed", "hybridized"), ("cells", "hybridized"), ("analysis", "gdb"),
               ("launches", "any setting"), ("memory", "hand"), ("first", "gdb"),
               ("time", "gdb-words")]  # fmt: skip
    values = [bars.Bar("sick", "inference", *figure, 1, 256).value(sick) for figure in figures]
    assert values == pytest.approx([30, 300 / 7, 0.1, 1, 1.3, 0.5, 1.1])
    lines = {row[3]: row[4:] for row in bars.bars({"sick": sick}).rows if row[1] == "inference"}
    assert lines["memory / hand"] == ("<= 1.25", 1.3, "NO")


@pytest.mark.parametrize("part, whole", [(0, 0), (0.0, 1.0), (1.0, 0.0), (None, 1.0), (1.0, None)])
def test_a_figure_that_was_not_measured_meets_no_bar(part, whole):
    """Neither 0/0 nor a part of nothing is a figure."""
    assert bars.share(part, whole) is None
    rows = rows_of({"gdb": [10.0]}, size=256, recording=2.0, analysis=0.0, dispatch=3.0)
    memory = [{"kind": "inference", "way": "gdb", "first_seconds": 0.5, "peak_mb": part or 0.0},
              {"kind": "inference", "way": "hand", "peak_mb": whole or 0.0}]  # fmt: skip
    unknown = bars.bars({"sick": measured(rows, alone=memory)}).rows
    named = {row[3]: row[5:] for row in unknown if row[1] == "inference"}
    for name in ("memory / hand", "analysis / gdb"):
        assert named[name] == (None, "not measured")


def test_launches_that_were_not_counted_meet_no_bar():
    timed = measured(rows_of({"gdb": [10.0]}, size=64))
    assert bars.Bar("modules", "training", "launches", "any setting", 1).value(timed) is None


def test_bars_need_the_parts_that_measure_them():
    def needed(*part):
        return [bar.figure for bar in bars.BARS if bar.needs(program.Part(*part))]

    assert needed("sick", "speed", "inference", 1) == ["speed"]
    assert not needed("sick", "speed", "inference", 8)
    assert needed("modules", "speed", "inference", 64) == ["speed", "cells"]
    assert needed("modules", "launches", "training", 64) == ["launches"]
    assert needed("sick", "process", "training", 256, "hand") == ["memory", "first"]


def test_auto_and_the_best_setting_are_compared_in_rounds_that_did_not_choose_it():
    """Rounds 0 and 2 choose a:search, which is slower in rounds 1 and 3."""
    times = {"gdb:a:search": [1, 4, 1, 4], "gdb:b:depth": [2, 2, 2, 2], "gdb": [2, 3, 2, 3],
             "hybridized": [4, 6, 4, 6]}  # fmt: skip
    (row,) = tables.settings({"w": measured(rows_of(times))}).rows
    assert row[:5] == ("w", "inference", 1, "setting of gdb", "gdb:a:search")
    assert row[5:8] == pytest.approx((0.75, 1.5, 0.5))
    assert tables.settings({"w": measured(rows_of({"gdb": [1.0]}))}) is None


def test_the_program_writes_figures_tables_and_pictures(tmp_path, capsys, monkeypatch):
    """Pictures as PNG only: `test_cores.py` has both formats."""
    monkeypatch.setattr(pictures, "SUFFIXES", {".png": {}})
    argv = [*TINY, "--workloads", "sick,reads", "--ways", "hybridized,hand,gdb,curve",
            "--batch-sizes", "2,4", "--kinds", "inference", "--alone-minibatches", "2",
            "--points", "2", "--counts", "--output", str(tmp_path)]  # fmt: skip
    assert program.main(argv) == 0
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "benchmark.json").read_text())
    assert content["environment"]["mxnet"] == "1.9.1" and content["settings"]["seed"] == 1
    for name in ("sick", "reads"):
        workload = content["workloads"][name]
        assert workload["left_out"] == {} and workload["lines"] >= 2
        assert {row["size"] for row in workload["rows"]} == {2, 4}
        assert len(workload["alone"]) == (2 if name == "sick" else 1)
        assert [row["way"] for row in workload["counts"]] == list(ways.COUNTED)
    for figures in content["workloads"]["sick"]["alone"]:
        assert figures["first_seconds"] > 0 and figures["size"] == 4
        if Path("/proc/self/status").exists():
            assert figures["peak_mb"] >= figures["start_mb"] > 10
    written = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".svg"}
    names = ("speed-sick", "speed-reads", "parts-sick-4", "curve-reads-4")
    assert {tmp_path / f"{name}.png" for name in names} < set(written)
    assert "child-sum Tree-LSTM, built-in corpus" in printed
    # From the file, they would be drawn again, which takes longer than all else.
    listed, drawn = printed.split("pictures: ")[1].strip().split(", "), []
    paths = [tmp_path / name for name in listed]
    assert {path.suffix for path in paths} == {".png"}
    monkeypatch.setattr(pictures, "draw", lambda measured, folder: drawn.extend(measured) or paths)
    assert program.main(["--read", "--output", str(tmp_path)]) == 0
    assert printed.endswith(capsys.readouterr().out) and drawn == ["sick", "reads"]
    assert all(path.read_bytes() == content for path, content in written.items())
    (tmp_path / "benchmark.json").write_text("[1]")
    assert program.main(["--read", "--output", str(tmp_path)]) == 2
    assert "benchmark.json: not written by this program" in capsys.readouterr().err
