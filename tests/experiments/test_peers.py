"""Ours in turns with peers: files, requests and tables, with a peer that is made up."""

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import benchmark as program
from peers import child, driver, registry, task
from peers.ours import Ours
from speed import options

TINY = [
    *("--embedding-size", "5", "--hidden", "4", "--pairs", "12", "--rounds", "2", "--seconds", "0"),
    *("--warmup", "0", "--batch-sizes", "3", "--workloads", "none", "--workload-size", "4"),
    *("--granularity", "block", "--policy", "depth", "--peers-python", sys.executable),
]
#: Answers as ours would, told beforehand, and notes down what it is asked for.
FAKE = """
import json, os
from peers.child import Peer

class Fake(Peer):
    version, flags = "1.0", "--fast"
    log = []
    def __init__(self, task):
        super().__init__(task)
        print("a greeting on standard output")
        os.write(1, b"another, from native code")
        self.told = json.load(open(os.environ["FAKE_ANSWERS"]))[task.workload]
        self.file = os.environ["FAKE_ANSWERS"] + ".asked"
    def check(self, work):
        return self.told
    def step(self, batch):
        self.log.append(["step", [self.samples.index(s) for s in batch]])
    def predict(self, batch):
        self.log.append(["predict", [self.samples.index(s) for s in batch]])
    def reset(self):
        self.log.append(["reset", []])
    def time(self, **request):
        answer = super().time(**request)
        with open(self.file, "a") as file:
            file.write(json.dumps([request, self.log]) + "\\n")
        self.log.clear()
        return answer

class Broken(Peer):
    def __init__(self, task):
        raise ImportError("No module named 'something'")

class Stubborn(Fake):
    def check(self, work):
        return {**self.told, "losses": [2 * loss for loss in self.told["losses"]]}
"""
WORKLOADS = ("pairs", "sequences", "sst")


@pytest.fixture()
def fakes(tmp_path, monkeypatch):
    """Put made-up peers into the registry; return where they write what they were asked for."""
    (tmp_path / "fakes.py").write_text(FAKE)
    answers = tmp_path / "answers"
    monkeypatch.setenv("FAKE_ANSWERS", str(answers))
    made = {
        kind.lower(): registry.Entry(kind, dict.fromkeys(WORKLOADS, f"fakes:{kind}"))
        for kind in ("Fake", "Broken", "Stubborn")
    }
    monkeypatch.setattr(driver, "PEERS", made)
    monkeypatch.setattr(options, "PEERS", made)
    start = driver.Remote.__init__

    def start_from_here(self, *given):
        monkeypatch.chdir(tmp_path)  # where `python -m` looks first
        start(self, *given)

    monkeypatch.setattr(driver.Remote, "__init__", start_from_here)
    return answers


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_task_is_the_workload_in_plain_data(tmp_path, workload):
    args = options.parse(TINY, "")
    made = driver.runner_of(workload, args).workload
    task.write(task.plain(made, TINY), tmp_path)
    read = task.read(tmp_path)
    assert (read.workload, read.argv, len(read.samples)) == (workload, TINY, 12)
    assert (read.learning_rate, read.weight_decay) == (0.05, 0.03 if workload == "pairs" else 0)
    parameters = made.model.collect_params().values()
    assert len(read.parameters) == len(parameters)
    assert sum(v.size for v in read.parameters.values()) == sum(p.data().size for p in parameters)
    for sample, plain in zip(made.samples, read.samples):
        if workload == "pairs":
            assert [
                sample.tokens_a.asnumpy().tolist(),
                sample.tokens_b.asnumpy().tolist(),
            ] == plain["words"]
            assert [list(sample.tree_a.heads), list(sample.tree_b.heads)] == plain["heads"]
            np.testing.assert_allclose(sample.target.asnumpy()[0], plain["target"])
        elif workload == "sequences":
            assert plain == {
                "words": list(sample.words.asnumpy()),
                "tags": list(sample.tags.asnumpy()),
            }
        else:
            assert shape_of(plain) == sample.shape
            assert plain["labels"] == list(sample.labels.asnumpy())


def shape_of(sample):
    """Nest the phrases of a plain sample."""
    words = iter(range(len(sample["words"])))
    made = []
    for left, right in zip(sample["left"], sample["right"]):
        made.append(next(words) if left < 0 else (made[left], made[right]))
    return made[-1]


def test_all_run_the_same_minibatches_and_who_differs_is_left_out(tmp_path, fakes, capsys):
    ours = Ours(task.plain(driver.runner_of("pairs", options.parse(TINY, "")).workload, TINY))
    answer = ours.check(np.arange(12).reshape(child.STEPS, -1).tolist())
    fakes.write_text(json.dumps({"pairs": answer}))
    output = tmp_path / "peers.json"
    assert program.main([*TINY, "--peers", "--json", str(output)]) == 0
    printed = capsys.readouterr().out
    (group,) = json.loads(output.read_text())["peers"]["workloads"].values()
    assert list(group["peers"]) == [registry.OURS, "Fake"]
    assert group["peers"]["Fake"]["difference"] < 1e-6
    assert group["absent"]["Broken"] == "ImportError: No module named 'something'"
    assert group["absent"]["Stubborn"].startswith("its losses are ")
    assert [outcome["kind"] for outcome in group["outcomes"]] == ["inference", "training"]
    for outcome in group["outcomes"]:
        labels = [row["label"] for row in outcome["rows"]]
        assert labels == [registry.OURS] * 2 + ["Fake"] * 2
        assert len({(row["minibatches"], row["samples"]) for row in outcome["rows"]}) == 1
        own = outcome["rows"][0]
        assert own["launches"] > 0 and own["setting"].startswith("block by depth")
    for request, log in map(json.loads, Path(f"{fakes}.asked").read_text().splitlines()):
        what = "predict" if request["kind"] == "inference" else "step"
        warm = [[what, request["warm"]]] if request["warm"] else []
        assert log == [*warm, ["reset", []], *([what, batch] for batch in request["work"])]
    assert "| Fake " in printed and "| 1.0 " in printed and "- Fake: --fast" in printed
    assert "- Broken is left out: ImportError: No module" in printed
    assert program.main(["--read", str(output)]) == 0
    assert capsys.readouterr().out == printed


def test_a_peer_that_ends_at_work_is_an_error_of_one_line(tmp_path, fakes):
    fakes.write_text(json.dumps({"pairs": {}}))
    args = options.parse(TINY, "")
    samples, draw = driver.publish("pairs", args, TINY, tmp_path)
    batch = next(draw(3))
    assert all(one is samples[one.number] for one in batch)
    remote = driver.Remote(driver.PEERS["fake"], "pairs", tmp_path, Path(sys.executable))
    try:
        row = remote.time("inference", [batch, batch], 3)
        assert (row.label, row.minibatches, row.samples) == ("Fake", 2, 6)
        with pytest.raises(driver.PeerError, match="^IndexError: "):
            remote.ask(do="time", kind="training", size=1, warm=[], work=[[99]])
        with pytest.raises(driver.PeerError, match="^IndexError: "):
            remote.ask(do="check", work=[])
    finally:
        remote.close()


def test_words_are_what_is_counted_in_sentences(tmp_path):
    samples, draw = driver.publish("sequences", options.parse(TINY, ""), TINY, tmp_path)
    words = [sample["words"] for sample in task.read(tmp_path).samples]
    assert [each.words for each in samples] == words
    assert sorted(one.number for batch in islice(draw(4), 3) for one in batch) == list(range(12))


def test_a_missing_environment_is_told(tmp_path):
    with pytest.raises(driver.PeerError, match="nowhere/python does not run .*make peers"):
        driver.Remote(registry.PEERS["dgl"], "pairs", tmp_path, Path("nowhere/python"))


def test_mistakes_are_answered(capsys):
    with pytest.raises(SystemExit):
        options.parse(["--peers", "tensorflow"], "")
    assert (
        "'tensorflow' is none of dynet, dynet-lstm, torch, torchfold, dgl"
        in capsys.readouterr().err
    )
    assert options.parse(["--peers"], "").peers == list(registry.PEERS)
    assert options.parse(["--peers", "dgl,torch"], "").batch_sizes == registry.SIZES
    assert program.main(["--peers", "--picture", "x"]) == 2


@pytest.mark.parametrize("wrong", [2 * (1 + 2 * driver.TOLERANCE), float("nan")])
def test_losses_are_compared_as_far_as_a_peer_can_follow(wrong):
    expected = {"losses": [1.0, 2.0], "values": None}
    found = {"losses": [1.0, wrong], "values": None}
    assert driver.difference(found, expected, {"same_steps": 1}) == 0
    with pytest.raises(driver.PeerError, match="instead of"):
        driver.difference(found, expected, {"same_steps": 2})
