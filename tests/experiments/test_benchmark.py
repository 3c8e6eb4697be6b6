"""The program `benchmark.py`: contenders, bars, processes, options; never how long it takes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import benchmark as program
from relatedness.data import load_corpus
from speed import bars, contenders, fresh, options, recording
from timing.contest import KINDS, Outcome, Products, Row, contest
from workloads.runner import PADDED

TINY = ["--embedding-size", "5", "--hidden", "4", "--pairs", "12", "--rounds", "2",
        "--seconds", "0", "--warmup", "0", "--loop-pairs", "2", "--fresh-size", "3",
        "--fresh-minibatches", "2", "--recordings", "1", "--workload-size", "4",
        "--workload-minibatches", "2"]  # fmt: skip
LABELS = ["imperative", "hybridized", "fold", "manual", "dynamic", "dynamic, plan cached",
          "bare products"]  # fmt: skip
FIGURES = {"first_seconds": 0.5, "start_mb": 100.0, "peak_mb": 200.0, "minibatches": 3}


def parsed(*arguments):
    return options.parse(arguments, "a test")


def tiny_args(*more):
    return parsed(*TINY, *more)


@pytest.fixture(scope="module")
def pairs():
    return {"train": load_corpus().splits["train"][:12]}


def test_all_contenders_run_the_same_pairs_from_equal_parameters(pairs):
    made = contenders.make_contenders(tiny_args(), pairs)
    assert [one.label for one in made] == LABELS
    modes = [one for one in made if not isinstance(one, Products)]
    first = [value.asnumpy() for _, value in modes[0]._start]
    for one in modes[1:]:
        for expected, (_, value) in zip(first, one._start):
            np.testing.assert_array_equal(value.asnumpy(), expected)
    assert modes[0].runner.workload.model.embedding.weight.grad_req == "null", "frozen by default"
    fresh = made[-1].runner.workload.minibatches(6, 1)
    for kind in KINDS:
        outcome = contest(made, fresh, kind, 6, 1, count=2)
        samples = {row.label: (row.minibatches, row.samples) for row in outcome.rows}
        assert list(samples) == LABELS
        assert samples["imperative"] == samples["hybridized"] == (1, 2)
        assert {samples[label] for label in LABELS[2:]} == {(2, 12)}
        cached = {row.label: row.cached for row in outcome.rows}
        assert cached["dynamic"] == 0 and cached["imperative"] is None


@pytest.mark.parametrize("name", contenders.RAGGED)
def test_all_ways_train_alike(name):
    """Losses of three steps, the second on what the first has learned; the model is its own."""
    args = tiny_args("--granularity", "block", "--policy", "depth")
    ways, _ = contenders.make_ragged(name, args)
    labels = ["imperative", "hybridized", "dynamic", PADDED]
    assert [way.label for way in ways] == labels[: 3 + (name == "sequences")]
    assert [way.mixes for way in ways] == [name == "sequences"] * 3 + [False] * (len(ways) - 3)
    losses = []
    for way in ways:
        samples = way.runner.workload.samples
        batches = [[samples[i] for i in numbers] for numbers in ([0, 1, 2], [3, 4], [2, 0, 1])]
        losses.append([way.runner.step(batch).losses.asnumpy() for batch in batches])
    assert np.abs(losses[0][0] - losses[0][2][[1, 2, 0]]).max() > 1e-3, "something is learned"
    for own in losses[1:]:
        for found, wanted in zip(own, losses[0]):
            np.testing.assert_allclose(found, wanted, rtol=1e-3)
    imperative, hybridized, dynamic = (way.runner for way in ways[:3])
    assert imperative.report is hybridized.report is None
    assert dynamic.report.launches < dynamic.report.nodes / 2 and not dynamic.report.at_once
    scores = [runner.workload.model.score for runner in (imperative, hybridized, dynamic)]
    assert [score._active for score in scores] == [False, True, True]


def test_words_are_counted_without_padding():
    ways, drawn = contenders.make_ragged("sequences", tiny_args())
    samples = ways[-1].runner.workload.samples
    padded = ways[-1].time("training", [samples[:2]], 2)
    words = sum(len(sample.words) for sample in samples[:2])
    assert padded.rate * padded.ms == pytest.approx(1e3 * words)
    assert len(next(drawn)) <= 4


def test_the_program_writes_every_figure_and_draws_them(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        program, "measure_in_process",
        lambda path, argv, *what, **how: asked.append(argv[-3:]) or FIGURES,
    )  # fmt: skip
    output = tmp_path / "deep" / "b.json"
    argv = [*TINY, "--batch-sizes", "4,1", "--json", str(output), "--picture",
            str(tmp_path / "picture")]  # fmt: skip
    assert program.main(argv) == 0
    modes = ("manual", "dynamic")
    assert asked == [["--fresh", mode, kind] for kind in KINDS for mode in modes]
    printed = capsys.readouterr().out
    assert "Speed by batch size, training" in printed and "peak RSS" in printed
    assert "us per cell call" in printed and "dynamic against" in printed
    content = json.loads(output.read_text())
    ((threads, run),) = content["runs"].items()
    assert threads == options.own_threads()
    cases = [(each["batch_size"], each["kind"]) for each in run["pairs"]]
    assert cases == [(size, kind) for size in (1, 4) for kind in KINDS]
    for each in run["pairs"]:
        assert [row["label"] for row in each["rows"]] == [name for name in LABELS for _ in "12"]
    assert [each["workload"] for each in run["workloads"]] == ["sequences", "sst"]
    assert set(run["environment"]) >= {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "processor"}
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
    argv = [*TINY, "--batch-sizes", "1", "--rounds", "1", "--workloads", "none", "--threads", "3",
            "--json", str(output)]  # fmt: skip
    assert program.main(argv) == 0
    assert "reached, 3 threads" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert list(content["runs"]) == ["3"]
    assert content["runs"]["3"]["environment"]["OMP_NUM_THREADS"] == "3"
    assert "collect" not in content["settings"]
    # Of fresh processes, these are figures that nobody made up.
    figures = content["runs"]["3"]["fresh"]["training"]["dynamic"]
    assert set(figures) == set(FIGURES) and figures["first_seconds"] > 0
    if Path("/proc/self/status").exists():
        assert figures["peak_mb"] >= figures["start_mb"] > 10


def test_a_process_with_other_threads_that_fails_is_an_error(capfd):
    assert program.main([*TINY, "--threads", "3", "--data", "nowhere"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert "nowhere" in said[0]
    assert said[1:] == ["error: the process with 3 threads ended with 2"]


def test_recording_is_timed_without_the_walk(monkeypatch, pairs):
    clock = iter([0.0, 9.0, 0.0, 9.0, 0.0, 5e-3, 0.0, 2e-3])  # of a first minibatch, and another
    monkeypatch.setattr(recording.time, "thread_time", lambda: next(clock))
    cost = recording.measure(tiny_args("--fresh-size", "12"), pairs)
    cells = sum(len(tree.heads) for pair in pairs["train"] for tree in (pair.tree_a, pair.tree_b))
    assert cost["calls"] == cells
    assert cost["us_per_call"] == pytest.approx(3e3 / cells)
    assert cost["own_us_per_call"] == pytest.approx(2e3 / cells)


def test_a_fresh_process_that_fails_is_an_error():
    argv = ["--data", "nowhere", "--fresh", "manual", "training"]
    with pytest.raises(fresh.FreshError, match="the process of it ended with 2: error: .*nowhere"):
        fresh.measure_in_process(program.__file__, argv, "of it", quiet=True)


def outcome(kind, size, rates, workload="pairs", **analysis):
    rows = [Row(label, 0, 1, size, rate, 100.0, analysis=analysis.get(label.split(",")[-1]))
            for label, rate in rates.items()]  # fmt: skip
    return Outcome(workload, kind, size, rows, {})


def made_up_run():
    """Figures of a run in which every bar has its own."""
    rates = dict.fromkeys(LABELS, 10.0)
    rates.update({"imperative": 1.0, "dynamic": 40.0, "bare products": 100.0})
    single = {**rates, "dynamic": 8.0, "hybridized": 10.0}
    analysis = {"dynamic": 10.0, " plan cached": 3.0}
    pairs = [
        outcome(kind, size, own, **analysis)
        for size, own in ((1, single), (256, rates), (1024, {**rates, "dynamic": 20.0}))
        for kind in KINDS
    ]
    memory = {"manual": {"peak_mb": 100.0}, "dynamic": {"peak_mb": 130.0, "first_seconds": 0.5}}
    tagged = outcome("training", 64, {"imperative": 1.0, "dynamic": 12.0, PADDED: 16.0},
                     "sequences")  # fmt: skip
    return bars.Run({}, pairs, [tagged], {"inference": memory}, {"us_per_call": 2.6})


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
    held = bars.hold(bars.Run({}, [], [], {}, {}))
    assert {bar.figure for bar in held} == {bar.met for bar in held} == {None}
    assert [bar.bound for bar in held] == [bar.bound for bar in bars.hold(made_up_run())]
    assert {row[-1] for row in bars.table({"1": held}).rows} == {"not measured"}


def test_bars_of_several_threads_stand_side_by_side():
    run = made_up_run()
    held = bars.hold(run)
    other = [bar._replace(figure=None) for bar in held]
    cells = bars.table({"1": held, "2": other}).cells()
    assert cells[0][2:] == ["bar", "reached, 1 thread", "met?", "reached, 2 threads"]
    by_name = {tuple(row[:2]): row[2:] for row in cells[1:]}
    assert by_name["speed / imperative", "training"] == [">= 40", "40.00", "yes", "–"]
    assert by_name["analysis / time, plan cached", "inference"] == ["< 0.03", "0.03", "NO", "–"]
    assert by_name["sst: speed / imperative", "training"] == [">= 25", "–", "not measured", "–"]
    assert bars.Run.from_json(json.loads(json.dumps(run.as_json()))) == run


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
        (["--read", program.__file__], "not written by this program"),
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
    assert (args.rounds, args.batch_sizes) == (9, [1, 16, 256])
    assert math.log2(parsed().batch_sizes[-1]) == 10


def test_sizes_of_all_models_are_only_those_that_are_given():
    assert (parsed().sizes, parsed().hidden, parsed().embedding_size) == ({}, 150, 300)
    args = parsed("--hidden", "7")
    assert (args.sizes, args.hidden) == ({"hidden_size": 7}, 7)
