"""The program `benchmark.py` and its one way of measuring; never how long anything takes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import benchmark as program
from relatedness import benchmark
from relatedness.benchmark import KINDS, Contender, Timing, compare
from relatedness.data import load_corpus
from speed import bars, contenders, fresh, options, recording

TINY = ["--embedding-size", "5", "--hidden", "4", "--pairs", "12", "--rounds", "2",
        "--seconds", "0", "--warmup", "0", "--loop-pairs", "2", "--fresh-size", "3",
        "--fresh-minibatches", "2", "--recordings", "1", "--workload-size", "3",
        "--workload-minibatches", "1"]  # fmt: skip
LABELS = ["imperative", "hybridized", "fold", "manual", "dynamic", "dynamic, plan cached",
          "bare products"]  # fmt: skip
CALLS = {"operators": 1, "cached_graphs": 2, "backward_passes": 3}
FIGURES = {"first_seconds": 0.5, "start_mb": 100.0, "peak_mb": 200.0, "minibatches": 3,
           "settled": True, "calls": CALLS}  # fmt: skip


class Fake:
    """A contender that writes down what it is asked to run, at a speed of its own."""

    def __init__(self, label, log, speed=1.0, settles_after=0):
        self.label, self.log, self.speed = label, log, speed
        self.left = settles_after

    @property
    def settled(self):
        return self.left <= 0

    def portion(self, work, count):
        return work[:count]

    def time(self, kind, work):
        self.left -= 1
        self.log.append((self.label, kind, [sorted(batch) for batch in work]))
        return Timing(sum(map(len, work)), sum(map(len, work)) / self.speed)


def parsed(*arguments):
    return options.parse(arguments, "a test")


def tiny_args(*more):
    return parsed(*TINY, *more)


@pytest.fixture(scope="module")
def entrants():
    """Contenders, the samples they share, and pairs."""
    pairs = {"train": load_corpus().splits["train"][:12]}
    return (*contenders.make_contenders(tiny_args(), pairs), pairs)


def test_rounds_are_interleaved_over_the_same_new_minibatches():
    log = []
    compare([Fake("a", log), Fake("b", log)], range(8), 4, rounds=3, warmup=0)
    turns = log[4:]  # each of both has run once for each kind
    untimed, timed = turns[0::2], turns[1::2]
    for entries in (untimed, timed):
        assert [entry[:2] for entry in entries] == 3 * [
            ("a", "inference"), ("b", "inference"), ("a", "training"), ("b", "training"),
        ]  # fmt: skip
        drawn = [entry[2] for entry in entries]
        assert drawn[0::2] == drawn[1::2], "both have the same minibatches"
    assert all(len(work) == 1 for _, _, work in untimed), "a turn begins with a minibatch untimed"
    drawn = [work for _, _, work in timed]
    assert all([len(set(batch)) for batch in work] == [4, 4] for work in drawn)
    assert len({str(work) for work in drawn}) > 3, "every round has new minibatches"


def test_medians_and_ratios_are_those_of_the_rounds():
    log = []
    result = compare([Fake("a", log, 10), Fake("b", log, 30)], range(4), 4, rounds=3, warmup=0)
    for kind in KINDS:
        assert result["samples_per_second"][kind] == {"a": [10] * 3, "b": [pytest.approx(30)] * 3}
        assert result["ratio"][kind] == {"a": 1, "b": pytest.approx(3)}
        assert result["median"][kind]["b"] == pytest.approx(30)
        assert result["samples_per_round"][kind] == {"a": 4, "b": 4}
        assert result["analysis_share"][kind]["a"] is None
    lines = benchmark.table(result).splitlines()
    assert [line.split()[0] for line in lines] == ["mode", "a", "b"]
    assert "3.0x" in lines[2]


def test_slow_contenders_run_fewer_minibatches():
    log = []
    slow, fast = Fake("slow", log, 2), Fake("fast", log, 20)
    result = compare([slow, fast], range(40), 4, 1, warmup=0, seconds=2)
    assert result["minibatches_per_round"]["training"] == {"slow": 1, "fast": 10}
    assert result["samples_per_round"]["inference"] == {"slow": 4, "fast": 40}
    (_, _, few), (_, _, many) = log[5:8:2]  # each begins with a minibatch untimed
    assert few == many[:1]


def test_warming_up_lasts_until_the_setting_is_chosen():
    log = []
    compare([Fake("auto", log, settles_after=9)], range(4), 4, 1, warmup=100)
    kinds = [kind for _, kind, _ in log]
    assert kinds[: 8 + benchmark.AFTER_SETTLING] == ["inference"] * (8 + benchmark.AFTER_SETTLING)
    assert kinds.count("training") == benchmark.AFTER_SETTLING + 2


def test_a_setting_that_is_not_chosen_in_time_is_told():
    result = compare([Fake("auto", [], settles_after=99)], range(4), 4, 1, warmup=0)
    assert result["settled"] == {kind: {"auto": False} for kind in KINDS}


def test_all_contenders_start_from_equal_parameters(entrants):
    modes = [one for one in entrants[0] if isinstance(one, Contender)]
    first = [array.asnumpy() for array in modes[0].start.values()]
    for one in modes[1:]:
        for expected, array in zip(first, one.start.values()):
            np.testing.assert_array_equal(array.asnumpy(), expected)
    assert modes[0].runner.model.embedding.weight.grad_req == "null", "frozen by default"


def test_contenders_are_timed_from_their_first_parameters(entrants):
    manual = next(one for one in entrants[0] if one.label == "manual")
    before = manual.runner.model.similarity.score_bias
    manual.time("training", [entrants[1][:4]])
    assert np.abs(before.data().asnumpy()).max() > 0
    scores = [manual.runner.predict(entrants[1])]
    manual.time("inference", [entrants[1][:4]])
    scores.append(manual.runner.predict(entrants[1]))
    assert np.abs(before.data().asnumpy()).max() == 0
    assert not np.array_equal(*scores)


def test_loops_over_samples_run_cut_minibatches(entrants):
    by_label = {one.label: one for one in entrants[0]}
    work = [entrants[1][:6], entrants[1][6:]]
    assert list(by_label) == LABELS
    assert [len(batch) for batch in by_label["imperative"].portion(work, 2)] == [2, 2]
    assert [len(batch) for batch in by_label["dynamic"].portion(work, 2)] == [6, 6]


def test_cached_plans_are_cached_and_others_are_not(entrants, monkeypatch):
    """Whether a plan was known shows in the reports of what is timed."""
    seen = []
    run = Contender.run

    def kept(self, kind, work):
        reports = run(self, kind, work)
        seen.append([flush.cached for report in reports for flush in report.flushes])
        return reports

    monkeypatch.setattr(Contender, "run", kept)
    dynamic, cached = (one for one in entrants[0] if one.label.startswith("dynamic"))
    # One setting, as "auto" may change it; a plan is made for each minibatch and setting.
    options = {"granularity": "block", "policy": "depth"}
    dynamic.runner.options.update(options)
    work = [entrants[1][:5], entrants[1][5:10]]
    timing = dynamic.time("inference", dynamic.portion(work, 2))
    assert seen == [[False, False]]
    assert timing.analysis > 0 and timing.launches > 1
    cached.time("inference", cached.portion(work, 2))
    assert seen[-1] == [True, True]


def test_the_program_writes_every_figure_and_draws_them(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        program, "measure_in_process", lambda path, argv, *what: asked.append(what) or FIGURES
    )
    output = tmp_path / "deep" / "b.json"
    argv = [*TINY, "--batch-sizes", "4,1", "--json", str(output), "--picture",
            str(tmp_path / "picture")]  # fmt: skip
    assert program.main(argv) == 0
    assert asked == [(kind, mode)[::-1] for kind in KINDS for mode in ("manual", "dynamic")]
    printed = capsys.readouterr().out
    assert "Speed by batch size, training" in printed and "peak RSS" in printed
    assert "us per cell call" in printed and "dynamic against" in printed
    content = json.loads(output.read_text())
    (threads, run), *others = content["runs"].items()
    assert threads == options.own_threads() and not others
    assert list(run["batch_sizes"]) == ["1", "4"]
    for result in run["batch_sizes"].values():
        for kind in KINDS:
            assert list(result["samples_per_second"][kind]) == LABELS
            assert all(len(rates) == 2 for rates in result["samples_per_second"][kind].values())
    assert {"imperative", "dynamic", "padded, fused LSTM"} < set(
        run["workloads"]["sequences"]["median"]["training"]
    )
    assert set(run["workloads"]["sst"]["median"]["training"]) == {
        "imperative", "hybridized", "dynamic",
    }  # fmt: skip
    assert run["environment"]["mxnet"] == "1.9.1"
    assert set(run["environment"]) >= {
        "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MXNET_ENGINE_TYPE", "processor",
    }  # fmt: skip
    assert content["settings"]["freeze_embedding"] is True
    assert "interleaved" in content["rules"]
    for name in ("picture", "picture-bars"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "gluon_dynbatch" in (tmp_path / "picture.svg").read_text()
    assert "speed / manual" in (tmp_path / "picture-bars.svg").read_text()

    assert program.main(["--read", str(output), "--picture", str(tmp_path / "repeated.png")]) == 0
    assert printed.endswith(capsys.readouterr().out.replace("repeated", "picture").lstrip("\n"))
    assert (tmp_path / "repeated.png").read_bytes() == (tmp_path / "picture.png").read_bytes()


def test_other_numbers_of_threads_are_measured_in_processes_of_their_own(tmp_path, capsys):
    output = tmp_path / "b.json"
    argv = [*TINY, "--batch-sizes", "1", "--rounds", "1", "--workloads", "none", "--fresh-modes",
            "manual", "--threads", "3", "--json", str(output)]  # fmt: skip
    assert program.main(argv) == 0
    assert "reached, 3 threads" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert list(content["runs"]) == ["3"]
    assert content["runs"]["3"]["environment"]["OMP_NUM_THREADS"] == "3"
    assert "collect" not in content["settings"]


def test_a_process_with_other_threads_that_fails_is_an_error(capfd):
    assert program.main([*TINY, "--threads", "3", "--data", "nowhere"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert "nowhere" in said[0]
    assert said[1:] == ["error: the process with 3 threads ended with 2"]


def test_recording_is_timed_without_the_walk(monkeypatch):
    pairs = {"train": load_corpus().splits["train"][:12]}
    clock = iter([0.0, 9.0, 0.0, 9.0, 0.0, 5e-3, 0.0, 2e-3])  # of a first minibatch, and another
    monkeypatch.setattr(recording.time, "thread_time", lambda: next(clock))
    cost = recording.measure(tiny_args("--fresh-size", "12"), pairs)
    cells = sum(len(tree.heads) for pair in pairs["train"] for tree in (pair.tree_a, pair.tree_b))
    assert cost["calls"] == cells
    assert cost["us_per_call"] == pytest.approx(3e3 / cells)
    assert cost["own_us_per_call"] == pytest.approx(2e3 / cells)


def test_a_fresh_process_tells_time_memory_and_calls():
    argv = [*TINY, "--granularity", "block", "--policy", "depth"]
    figures = fresh.measure_in_process(Path(program.__file__), argv, "dynamic", "training")
    assert set(figures) == set(FIGURES)
    assert figures["first_seconds"] > 0 and figures["minibatches"] >= 1
    assert figures["calls"]["cached_graphs"] > 1 and figures["calls"]["backward_passes"] >= 1
    if Path("/proc/self/status").exists():
        assert figures["peak_mb"] >= figures["start_mb"] > 10


def test_a_fresh_process_that_fails_is_an_error():
    with pytest.raises(fresh.FreshError, match="manual, training ended with 2: error: .*nowhere"):
        fresh.measure_in_process(
            Path(program.__file__), ["--data", "nowhere"], "manual", "training"
        )


def made_up_run():
    """Figures of a run in which every bar has its own."""
    rates = dict.fromkeys(LABELS, 10.0)
    rates.update({"imperative": 1.0, "dynamic": 40.0, "bare products": 100.0})
    single = {**rates, "dynamic": 8.0, "hybridized": 10.0}
    share = {"inference": {"dynamic": 0.10, "dynamic, plan cached": 0.03}}
    memory = {"manual": {"peak_mb": 100.0}, "dynamic": {"peak_mb": 130.0, "first_seconds": 0.5}}
    by_size = {
        "1": {"median": dict.fromkeys(KINDS, single)},
        "256": {"median": dict.fromkeys(KINDS, rates), "analysis_share": share},
        "1024": {"median": dict.fromkeys(KINDS, {**rates, "dynamic": 20.0})},
    }
    tagged = {"imperative": 1.0, "dynamic": 12.0, "padded, fused LSTM": 16.0}
    return {
        "batch_sizes": by_size,
        "fresh": {"inference": memory},
        "recording": {"us_per_call": 2.6},
        "workloads": {"sequences": {"median": {"training": tagged}}},
    }


def test_bars_hold_every_figure():
    held = bars.hold(made_up_run())
    found = {(bar.what, bar.kind): (bar.figure, bar.met) for bar in held}
    assert len(found) == len(held) == 26
    rise = "time per pair / of any smaller size, 1 to 1024"
    expected = {
        ("speed / imperative", "training"): (40, True),
        ("speed / hybridized", "inference"): (4, False),
        ("time / bare products", "training"): (2.5, True),
        ("peak memory of the process / manual", "inference"): (1.3, False),
        ("peak memory of the process / manual", "training"): (None, None),
        ("analysis / time", "inference"): (0.10, True),
        ("analysis / time, plan cached", "inference"): (0.03, False),
        ("recording, us per cell call", "both"): (2.6, False),
        ("time / hybridized, single pairs", "training"): (1.25, False),
        ("time / hybridized, at its worst size", "training"): (1.25, False),
        (rise, "inference"): (2, False),  # of 1,024 pairs, against 256
        ("first minibatch of a process, s", "inference"): (0.5, True),
        ("first minibatch of a process, s", "training"): (None, None),
        ("sequences: speed / imperative", "training"): (12, True),
        ("sequences: speed / padded, fused LSTM", "training"): (0.75, False),
        ("sst: speed / imperative", "training"): (None, None),
    }
    for key, (figure, met) in expected.items():
        assert found[key] == (pytest.approx(figure), met), key


def test_bars_without_figures_are_not_measured():
    empty = {"batch_sizes": {}, "fresh": {}, "recording": {}, "workloads": {}}
    held = bars.hold(empty)
    assert {bar.figure for bar in held} == {bar.met for bar in held} == {None}
    assert [bar.bound for bar in held] == [bar.bound for bar in bars.hold(made_up_run())]
    assert {row[-1] for row in bars.table({"1": held}).rows} == {"not measured"}


def test_bars_of_several_threads_stand_side_by_side():
    held = bars.hold(made_up_run())
    other = [bar._replace(figure=None) for bar in held]
    cells = bars.table({"1": held, "2": other}).cells()
    assert cells[0][2:] == ["bar", "reached, 1 thread", "met?", "reached, 2 threads"]
    by_name = {tuple(row[:2]): row[2:] for row in cells[1:]}
    assert by_name["speed / imperative", "training"] == [">= 40", "40.00", "yes", "–"]
    assert by_name["analysis / time, plan cached", "inference"] == ["< 0.03", "0.03", "NO", "–"]
    assert by_name["sst: speed / imperative", "training"] == [">= 25", "–", "not measured", "–"]
    assert bars.from_json(json.loads(json.dumps(bars.to_json(held)))) == held
    short, known = bars.missed(held)
    assert (short, known) == ([bar.met for bar in held].count(False), 23)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--batch-sizes", "13"], "minibatches of 13 are asked for, and there are 12 pairs"),
        (["--data", "nowhere"], "nowhere"),
        (["--embedding", "nowhere"], "nowhere"),
        (["--wikiner", "nowhere"], "nowhere/train.txt"),
        (["--sst", "nowhere"], "nowhere/train.txt"),
        (["--policy", "fastest"], "fastest"),
        (["--read", "nowhere"], "nowhere: No such file"),
        (["--read", program.__file__], "not a file that --json wrote"),
    ],
)
def test_mistakes_are_answered_by_one_line(monkeypatch, capsys, arguments, reason):
    """All of them before anything is measured."""
    monkeypatch.setattr(program, "measure_in_process", None)
    assert program.main([*TINY, "--batch-sizes", "1", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and reason in message and message.count("\n") == 1


@pytest.mark.parametrize("text", ["0", "1,,2", "many", "-4", ""])
@pytest.mark.parametrize("option", ["--batch-sizes", "--threads"])
def test_sizes_that_are_none_are_refused(capsys, option, text):
    with pytest.raises(SystemExit) as caught:
        parsed(option, text)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: argument {option}: ")


def test_workloads_that_are_none_are_refused(capsys):
    with pytest.raises(SystemExit):
        parsed("--workloads", "sst,trees")
    assert "'trees' is none of sequences, sst" in capsys.readouterr().err
    assert parsed("--workloads", "none").workloads == []


def test_quick_yields_to_what_is_given():
    args = parsed("--quick", "--rounds", "9")
    assert (args.rounds, args.batch_sizes, args.fresh_modes) == (
        9, [1, 16, 256], ["manual", "dynamic"],
    )  # fmt: skip
    assert math.log2(parsed().batch_sizes[-1]) == 10


def test_sizes_of_all_models_are_only_those_that_are_given():
    assert (parsed().sizes, parsed().hidden, parsed().embedding_size) == ({}, 150, 300)
    args = parsed("--hidden", "7")
    assert (args.sizes, args.hidden) == ({"hidden_size": 7}, 7)
